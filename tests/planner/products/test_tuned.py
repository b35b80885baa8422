"""Tuned tables: what a search found is taken for the same sizes, and for sizes near them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tilefold.planner.device import H200, Device
from tilefold.planner.products import tuned
from tilefold.planner.products.choose import _chosen, choose_product
from tilefold.planner.products.costs import Costs
from tilefold.planner.products.operands import Contraction, canonical_product
from tilefold.planner.products.plan import Candidate, Finish, Tile
from tilefold.planner.products.tuned import (
    MODEL,
    NOTHING,
    Entry,
    read_table,
    record_of,
    table_name,
    table_of,
)

CHIP = Device("Chip of Tests", 132, 90, 4000.0)
SPLIT = Candidate("split", Tile(16, 32, 64, 2, 3), 48, Finish(16, 64, 2), chained=True, time_us=1.5)
WHOLE = Candidate("whole", Tile(16, 64, 64, 4, 3), chained=True, reserved_bytes=114 * 1024, time_us=2.0)
CUBLAS = Candidate("cublas", finish=Finish(32, 1, 1), time_us=9.0)
ENTRIES = [
    Entry("bfloat16", "ieee", (16, 16, 8192, 1), True, SPLIT),
    Entry("bfloat16", "ieee", (1024, 1024, 1024, 1), True, CUBLAS),
    Entry("bfloat16", "ieee", (64, 2048, 256, 1), True, WHOLE),
]


def document(**changes: object) -> str:
    made = {"schema": 1, "chip": CHIP.name, "made": {}, "costs": {"launch_us": 1.25}, "entries": []}
    return json.dumps(made | {"entries": [record_of(e) for e in ENTRIES]} | changes)


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{table_name(CHIP.name)}.json").write_text(document())
    monkeypatch.setattr(tuned, "FOLDER", tmp_path)
    for cache in (table_of, _chosen):
        cache.cache_clear()


def problem(rows: int, depth: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> Contraction:
    a, b = (torch.empty(s, dtype=dtype, device="meta") for s in ((rows, depth), (depth, columns)))
    return canonical_product(a, b, [])


def test_what_was_measured_is_taken() -> None:
    plan = choose_product(problem(16, 8192, 16), CHIP)
    assert (plan.tile, plan.splits, plan.finish) == (SPLIT.tile, SPLIT.splits, SPLIT.finish)
    assert plan.overlap
    assert "measured 1.5 us" in plan.reason
    assert choose_product(problem(1024, 1024, 1024), CHIP).finish == Finish(32, 1, 1)


def test_sizes_nearby_are_served_alike() -> None:
    plan = choose_product(problem(16, 8192 + 640, 16), CHIP)
    assert plan.tile == SPLIT.tile
    assert "as measured at 16 x 16 x 8192" in plan.reason
    assert (plan.splits - 1) * 64 * 3 < 8192 + 640 <= plan.splits * 64 * 3
    for other in (problem(16, 32768, 16), problem(16, 8192, 16, torch.float32)):
        assert choose_product(other, CHIP).tile != SPLIT.tile


def test_a_launch_that_begins_early_keeps_a_core_to_its_share_or_waits() -> None:
    """More programs than that spread by themselves only where it was measured."""
    near = choose_product(problem(16, 8192 + 640, 16), CHIP)
    assert near.chained
    assert near.reserved_bytes == CHIP.shared_bytes // 2
    fewer = replace(CHIP, sms=24)  # by name the same chip, so the same table
    some = choose_product(problem(16, 8192 + 640, 16), fewer)
    assert (some.tile, some.chained, some.reserved_bytes) == (SPLIT.tile, True, CHIP.shared_bytes // 3)
    few = replace(CHIP, sms=8)
    crowded = choose_product(problem(16, 8192 + 640, 16), few)
    assert (crowded.tile, crowded.chained, crowded.reserved_bytes) == (SPLIT.tile, False, 0)


def test_a_chip_of_the_name_with_fewer_cores_gets_a_plan_of_its_own(tmp_path: Path) -> None:
    """A sixteenth of a chip: half its shared memory reserved for each of 48 programs would run them in turns."""
    (tmp_path / f"{table_name(CHIP.name)}.json").write_text(document(made={"cores": CHIP.sms}))
    table_of.cache_clear()
    few = replace(CHIP, sms=8)
    assert "measured 1.5 us" in choose_product(problem(16, 8192, 16), CHIP).reason
    plan = choose_product(problem(16, 8192, 16), few)
    assert (plan.tile, plan.chained, plan.reserved_bytes) == (SPLIT.tile, False, 0)


def test_halves_serve_each_other_after_their_own(tmp_path: Path) -> None:
    """So do products with and without an epilogue."""
    fp16, plain, both = (problem(16, 8192, 16, torch.float16), replace(SPLIT, splits=64), [])
    assert "measured 1.5 us" in choose_product(fp16, CHIP).reason
    for dtype, epilogue, splits in (("bfloat16", False, 64), ("float16", True, 32), ("bfloat16", True, 48)):
        entry = Entry(dtype, "ieee", (16, 16, 8192, 1), epilogue, replace(plain, splits=splits))
        both.append(record_of(entry))
    (tmp_path / f"{table_name(CHIP.name)}.json").write_text(document(entries=both))
    for cache in (table_of, _chosen):
        cache.cache_clear()
    asked = {
        (p, f): choose_product(p, CHIP, finished=f)
        for p in (fp16, problem(16, 8192, 16))
        for f in (True, False)
    }
    assert [plan.splits for plan in asked.values()] == [64, 32, 64, 48]


def test_a_whole_product_nearby_has_programs_of_its_own_number() -> None:
    """96 of the tile that was measured with 128."""
    plan = choose_product(problem(48, 256, 2048), CHIP)
    assert (plan.strategy, plan.tile, plan.finish) == ("whole", WHOLE.tile, None)
    assert (plan.chained, plan.reserved_bytes) == (True, CHIP.shared_bytes // 2)


def test_an_entry_serves_no_product_that_gives_an_sm_more_programs() -> None:
    """192 of the tile that was measured with 128 on 132 SMs."""
    assert "as measured" in choose_product(problem(48, 256, 2048), CHIP).reason
    assert "as measured" not in choose_product(problem(96, 256, 2048), CHIP).reason


def test_an_entry_serves_no_product_whose_elements_are_loaded_one_by_one() -> None:
    assert "as measured" in choose_product(problem(16, 8192 + 2, 16), CHIP).reason
    assert "as measured" not in choose_product(problem(16, 8192 + 1, 16), CHIP).reason


def test_who_does_not_look() -> None:
    """Another chip, a guarantee that knows no chip, rows that are folded."""
    for options in ({"guarantee": "batch_invariant"}, {"row": True}):
        assert choose_product(problem(16, 8192, 16), CHIP, **options).tile != SPLIT.tile  # type: ignore[arg-type]
    assert choose_product(problem(16, 8192, 16), Device("Other", 132, 90)).tile != SPLIT.tile


def test_what_cublas_finishes_itself_was_timed_apart() -> None:
    """Our plan serves where the cost model prefers it to a cuBLAS of one launch, too."""
    assert choose_product(problem(16, 8192, 16), CHIP, finished=True).tile == SPLIT.tile
    assert choose_product(problem(1024, 1024, 1024), CHIP, finished=True).finish != Finish(32, 1, 1)
    assert choose_product(problem(1024, 1024, 1024), CHIP, cublas=False).finish != Finish(32, 1, 1)


def test_an_entry_may_leave_the_choice_to_the_model(tmp_path: Path) -> None:
    """For its sizes, and for sizes to which it is the nearest: no plan of a farther one is taken there."""
    left = Entry("bfloat16", "ieee", (16, 16, 8192 + 640, 1), True, Candidate(MODEL, time_us=1.5))
    near = problem(16, 8192 + 768, 16)
    assert "as measured" in choose_product(near, CHIP).reason
    (tmp_path / f"{table_name(CHIP.name)}.json").write_text(
        document(entries=[record_of(e) for e in (*ENTRIES, left)])
    )
    for cache in (table_of, _chosen):
        cache.cache_clear()
    for one in (near, problem(16, 8192 + 640, 16)):
        assert "about" in choose_product(one, CHIP).reason
        assert choose_product(one, CHIP).tile == choose_product(one, replace(CHIP, name="Other")).tile
    assert "measured 1.5 us" in choose_product(problem(16, 8192, 16), CHIP).reason


def test_an_entry_is_read_as_it_was_written() -> None:
    left = Entry("bfloat16", "ieee", (48, 48, 8192, 1), True, Candidate(MODEL, time_us=2.5))
    table = read_table(document(entries=[record_of(e) for e in (*ENTRIES, left)]), CHIP.name)
    assert table.entries == (*ENTRIES, left)
    assert table.costs == Costs(launch_us=1.25)


def test_times_are_written_in_whole_nanoseconds() -> None:
    """So that a search that is run again changes no line by less."""
    left = Entry("bfloat16", "ieee", (48, 48, 8192, 1), True, Candidate(MODEL, time_us=2.5001234))
    own = replace(ENTRIES[0], plan=replace(ENTRIES[0].plan, time_us=1.98765))
    assert [record_of(e)["time_us"] for e in (left, own)] == [2.5, 1.988]


@pytest.mark.parametrize("changes", [{"schema": 2}, {"chip": "another"}], ids=str)
def test_a_table_of_something_else_is_none(changes: dict[str, object]) -> None:
    assert read_table(document(**changes), CHIP.name) is NOTHING


@pytest.mark.parametrize(
    "changes",
    [
        {"tile": [16, 16, 32, 1]},
        {"splits": 0},
        {"strategy": "other"},
        {"tile": None},
        {"reserved_bytes": -1},
        {"reserved_bytes": 1 << 20},
    ],
    ids=str,
)
def test_a_damaged_table_is_found(changes: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        read_table(document(entries=[record_of(ENTRIES[0]) | changes]), CHIP.name)


def test_shipped_tables_can_be_read() -> None:
    folder = Path(tuned.__file__).parent / "tables"
    for path in folder.glob("*.json"):
        chip = json.loads(path.read_text())["chip"]
        assert path.stem == table_name(chip)
        assert read_table(path.read_text(), chip).entries
    assert table_name(H200.name) == "nvidia-h200"
