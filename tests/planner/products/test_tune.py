"""The scripts that tune products: the search, the fit and the table, with a stand-in for the GPU's clock."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from plans import product_calls
from tilefold.planner.device import H200, Device
from tilefold.planner.products import tuned
from tilefold.planner.products.choose import candidates, cheapest
from tilefold.planner.products.costs import Costs, plan_us
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.plan import Asked, Candidate, Finish, Sizes, Tile

sys.path[:0] = [str(Path(__file__).parents[3] / "benchmarks")]
import fit_products  # noqa: E402  # lives in benchmarks/
import sample_products  # noqa: E402
import tune_products  # noqa: E402

SIZES, ASKED = Sizes(32, 32, 16384, 1, 2), Asked(torch.bfloat16)
TRUE = Costs(launch_us=1.1, dependent_us=0.5, load_us=0.3, core_gb_per_s=130.0, mma_tflops=0.8, cublas_us=7.5)
BEST = Candidate(
    "split", Tile(32, 16, 128, 4, 5), 64, Finish(16, 32, 2), chained=True, reserved_bytes=114 * 1024
)

ONE_STEP = replace(
    BEST, tile=Tile(32, 16, 128, 4, 1)
)  # a neighbour that no planner would take: nothing loads ahead


def far(plan: Candidate) -> float:
    """A made-up time: how many decisions lie between a plan and the best one."""
    if plan.tile is None or plan.finish is None:
        return 50.0
    sides = zip(
        [*asdict(plan.tile).values(), plan.splits, *asdict(plan.finish).values()],
        [*asdict(BEST.tile).values(), BEST.splits, *asdict(BEST.finish).values()],  # type: ignore[call-overload]
        strict=True,
    )
    return 1.0 + sum(abs(a - b) / max(a, b, 1) for a, b in sides) + (plan.chained != BEST.chained)


def test_the_search_finds_what_the_cost_model_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that looks at fewer plans than we do, and so times few."""
    monkeypatch.setattr(tune_products, "BREADTH", 32)
    monkeypatch.setattr(tune_products, "BEAM", 3)
    search, timed = tune_products.Search(SIZES, ASKED, H200), list[Candidate]()
    while search.waiting:
        timed += search.waiting
        search.tell([tune_products.Final(far(plan), far(plan)) for plan in search.waiting])
    assert search.found[0] == BEST
    assert {"whole", "split", "cublas"} == {plan.strategy for plan in timed}
    assert len(timed) == len(set(timed)) < 400


def test_no_neighbour_is_impossible() -> None:
    for plan in [
        n
        for m in tune_products.neighbours(BEST, SIZES, H200)
        for n in tune_products.neighbours(m, SIZES, H200)
    ]:
        assert plan.tile is not None
        assert (plan.splits == 1) == (plan.strategy == "whole") == (plan.finish is None)
        steps = -(-SIZES.depth // plan.tile.block_k)
        assert (plan.splits - 1) * -(-steps // plan.splits) < steps
        for number in (*asdict(plan.tile).values(), *asdict(plan.finish or Finish(1, 1, 1)).values()):
            assert number & (number - 1) == 0 or number in (plan.tile.num_stages,)


def test_no_neighbour_is_beyond_the_chip() -> None:
    """Launches begin early on sm_90 and later, and this chip gives a program 99 KiB of shared memory."""
    small, plain = Device("small", 84, 86, 600.0, 100 * 1024), replace(BEST, chained=False, reserved_bytes=0)
    found = list(tune_products.neighbours(plain, SIZES, small))
    assert found
    assert not any(plan.chained or plan.reserved_bytes for plan in found)
    full = replace(plain, tile=Tile(64, 128, 64, 4, 5))  # four steps of 24 KiB on their way
    assert Tile(64, 128, 64, 4, 6) in [plan.tile for plan in tune_products.neighbours(full, SIZES, H200)]
    assert Tile(64, 128, 64, 4, 6) not in [plan.tile for plan in tune_products.neighbours(full, SIZES, small)]


class MadeUp(tune_products.Stand):
    """A shape whose times are made up."""

    def __init__(self, shape: tune_products.Shape) -> None:
        self.shape, self.search = shape, tune_products.Search(shape.sizes, ASKED, H200)

    def calls(self, plans: Iterable[Candidate]) -> list[object]:
        return list(plans)

    def time(self, plan: Candidate, cold_ms: float, **pace: int) -> tune_products.Final:
        """Deeper pipelines are better where memory is cold."""
        return tune_products.Final(far(plan), 12.0 - (plan.tile.num_stages if plan.tile else 0))


class Compiling:
    """How many plans were asked for in each round."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def compile(self, wanted: Iterable[object]) -> None:
        self.rounds.append(len(list(wanted)))


def test_shapes_are_searched_round_by_round_and_in_time() -> None:
    shapes = [tune_products.Shape("bf16", 32, 32, depth) for depth in (16384, 8192)]
    stands, compiling = [MadeUp(shape) for shape in shapes], Compiling()
    tune_products.search_all(stands, compiling, 0.0)
    assert compiling.rounds == [2]  # no time: the cost model's choices alone
    compiling.rounds.clear()
    tune_products.search_all(stands, compiling, time.time() + 60)
    assert far(stands[0].search.found[0]) <= 1.5
    assert len(compiling.rounds) > 2
    finalists = sum(len(stand.search.finalists()) for stand in stands)
    assert sum(compiling.rounds) == sum(len(stand.search.known) for stand in stands) + finalists


def test_a_plan_is_chosen_warm_and_cold() -> None:
    stand = MadeUp(tune_products.Shape("bf16", 32, 32, 16384))
    stand.device, stand.wrong = H200, []
    tune_products.search_all([stand], Compiling(), time.time() + 60)
    entry, log = tune_products.result(stand)
    plans = stand.search.finalists()
    both = {plan: stand.time(plan, 1.0).both_us for plan in plans}
    assert replace(entry.plan, time_us=0.0) == min(plans, key=both.__getitem__)
    assert entry.plan.tile is not None
    assert BEST.tile is not None
    assert entry.plan.tile.num_stages > BEST.tile.num_stages
    assert entry.plan.time_us == far(entry.plan)
    assert log["graph_over_best"] == far(stand.search.model) / min(map(far, plans))
    assert len(log["finals"]) == len(plans)


def test_no_plan_is_slower_than_cublas_by_either_clock() -> None:
    """Twice as fast in a graph does not make up for it, since a call may be cold."""
    plans = [replace(BEST, splits=n) for n in (8, 16, 32)]
    warm, cold, slow = (tune_products.Final(*us) for us in ((3.0, 9.1), (5.0, 8.0), (6.5, 7.0)))
    times = dict(zip(plans, (warm, cold, slow), strict=True))
    assert tune_products.chosen(times) == plans[0]
    cublas = Candidate("cublas")
    times[cublas] = tune_products.Final(6.0, 9.0)
    assert tune_products.chosen(times) == plans[1]
    times[cublas] = tune_products.Final(2.0, 7.5)
    assert tune_products.chosen(times) == cublas


def test_the_table_has_a_plan_where_it_wins_by_more_than_five_percent() -> None:
    """By what plans are chosen by: the time in a graph, and the cold one twice."""
    best, model = (replace(BEST, splits=n) for n in (8, 16))
    fast, near, slow = (tune_products.Final(*us) for us in ((2.0, 7.0), (2.2, 7.1), (2.0, 7.6)))
    assert tune_products.kept(best, model, {best: fast, model: near}).strategy == tuned.MODEL
    assert tune_products.kept(best, model, {best: fast, model: slow}) == best
    assert tune_products.kept(best, best, {best: fast}).strategy == tuned.MODEL


def test_the_model_is_what_the_planner_takes() -> None:
    """Which takes cuBLAS where it is expected to be faster by a margin."""
    for sizes in (SIZES, Sizes(1024, 256, 4096, 1, 2), Sizes(2048, 2048, 2048, 1, 2)):
        found = candidates(sizes, ASKED, H200, Costs())
        taken = tune_products.Search(sizes, ASKED, replace(H200, name="Other")).model
        assert taken == cheapest(found).decisions


def test_kernels_that_differ_in_numbers_alone_are_compiled_once() -> None:
    problems = [canonical_product(torch.empty(32, k), torch.empty(k, 32), []) for k in (16384, 8192)]
    ending = make_epilogue("relu", None, (), torch.float32, None)
    calls = [c for p in problems for c in product_calls(BEST, p, ending)]
    asked: list[object] = []

    class Pool:
        def map(
            self, function: object, calls: Iterable[object], *rest: object, **options: object
        ) -> list[object]:
            asked.extend(calls)
            return []

    compiler = tune_products.Compiler(Pool(), 90)  # type: ignore[arg-type]
    for _ in range(2):
        compiler.compile(calls)
    assert len(calls) == 4
    assert len(asked) == 2


def test_shapes_are_the_suites() -> None:
    assert len(tune_products.shapes_of("decompose-k", ["bf16"])) == 28
    assert len(tune_products.shapes_of("decompose-k", ["fp16", "fp32"])) == 56
    assert len(tune_products.shapes_of("boundary", ["bf16"])) == 12
    assert [s.rows for s in tune_products.shapes_of("router", ["bf16"])] == [1, 16, 64, 256, 768]


def entry(rows: int, time_us: float) -> tuned.Entry:
    return tuned.Entry("bfloat16", "ieee", (rows, 32, 16384, 1), True, replace(BEST, time_us=time_us))


def test_a_table_grows(tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    tune_products.write_table(path, "chip", [entry(16, 2.0), entry(32, 3.0)], {"torch": "9"})
    tune_products.write_table(path, "chip", [entry(32, 2.5), entry(64, 4.0)], {"torch": "9"})
    table = tuned.read_table(path.read_text(), "chip")
    assert sorted((e.sizes[0], e.plan.time_us) for e in table.entries) == [(16, 2.0), (32, 2.5), (64, 4.0)]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="needs a CUDA device, got none"):
        tune_products.main([])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Times as a chip of `TRUE` costs would give them."""
    shapes = []
    for side in (16, 64):
        for depth in (8192, 32768):
            sizes = Sizes(side, side, depth, 1, 2)
            plans = [
                replace(p, time_us=plan_us(p, sizes, ASKED, H200, TRUE))
                for p in (*candidates(sizes, ASKED, H200), ONE_STEP)
            ]
            entries = [tuned.Entry("bfloat16", "ieee", (side, side, depth, 1), True, p) for p in plans]
            shapes.append({"plans": [tuned.record_of(e) for e in entries]})
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"device": asdict(H200), "shapes": shapes}))
    return path


def test_the_fit_explains_the_times(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = fit_products.read_logs([log])
    table = tmp_path / "table.json"
    tune_products.write_table(table, "chip", [entry(16, 2.0)], {})
    assert fit_products.main([str(log), "--table", str(table)]) == 0
    assert "choice within 5 % in 4 of 4" in capsys.readouterr().out.split("fitted: ")[1]
    read = tuned.read_table(table.read_text(), "chip")
    fitted = read.costs
    assert fit_products.badness(fitted, shapes) < 0.6 * fit_products.badness(Costs(), shapes)
    assert fit_products.error(fitted, shapes) < 0.4 * fit_products.error(Costs(), shapes)
    assert max(fit_products.regret(fitted, shapes)) < 1.05
    assert all(value == round(value, 4) for value in asdict(fitted).values())
    assert len(read.entries) == 1


class Drawn(MadeUp):
    """A product of a sample: odd K, so that a's elements are loaded one by one."""

    def __init__(self, shape: tune_products.Shape) -> None:
        self.shape, self.device = shape, H200
        self.sizes, self.asked = (
            replace(shape.sizes, loose=(True, False), narrow=(True, False)),
            Asked(torch.bfloat16, finished=True),
        )


def test_a_sample_holds_what_the_model_likes_and_what_it_does_not() -> None:
    stand = Drawn(tune_products.Shape("bf16", 100, 64, 4097, relu=False))
    plans = sample_products.plans_of(stand, random.Random(1))
    assert {plan.strategy for plan in plans} == {"split", "whole", "cublas"}
    assert all(
        any(plan.packed) for plan in plans if plan.strategy == "whole"
    )  # else one would take far longer
    assert len({(p.tile.block_m, p.tile.block_n) for p in plans if p.tile}) > 3
    assert len(plans) == len(set(plans)) < 30


def test_samples_are_drawn_from_their_seed_alone() -> None:
    first, again = (sample_products.shapes_of(5, n) for n in (4, 8))
    assert again[:4] == first
    assert sample_products.shapes_of(6, 4) != first


def test_a_sample_is_fitted_by_its_cold_times(tmp_path: Path) -> None:
    """Plans of a model with other numbers: what the fit finds explains them better than the defaults."""
    stand, path = Drawn(tune_products.Shape("bf16", 100, 64, 4097, relu=False)), tmp_path / "sample.jsonl"
    true = Costs(element_us=0.01, latency_us=2.0, cublas_us=20.0)
    stand.time = lambda plan, *_, **__: tune_products.Final(  # type: ignore[method-assign]
        1.0, plan_us(plan, stand.sizes, stand.asked, H200, true)
    )
    line = sample_products.line_of(stand, sample_products.plans_of(stand, random.Random(1)))
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    (timed,) = fit_products.read_logs([path])
    assert timed.sizes == stand.sizes
    assert timed.asked == stand.asked
    assert fit_products.error(true, [timed]) < 1e-6 < fit_products.error(Costs(), [timed])


def test_a_suites_results_are_fitted_by_their_cold_times(tmp_path: Path) -> None:
    """Of two products what ours and cuBLAS took; other numbers than those named stay."""

    def measured(variant: str, time_us: float, note: str) -> dict[str, object]:
        return {"variant": variant, "time_us": {"median_us": time_us}, "plan": note}

    ours = "pack:ab,1x1024+1x1024,w4 + tiles:m64,n128,k64,w4,p4,s4 + finish:x128,l4,w2 overlap"
    cases = [
        {
            "shape": [119, 2107, 10071], "dtype": "fp16", "operation": "matmul",
            "measurements": [measured("ours", 65.4, ours), measured("torch", 55.6, "eager")],
        },
        {
            "shape": [8, 16, 64], "dtype": "bf16", "operation": "matmul+relu",
            "measurements": [
                measured("ours", 5.5, "tiles:m16,n16,k64,w2,p4,s1 chained"),
                {"variant": "torch", "time_us": None, "plan": None},
            ],
        },
    ]  # fmt: skip
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"suite": "products", "cases": cases}))
    packed, cublas, small = fit_products.read_logs([path])
    assert packed.sizes.loose == (True, True)
    assert packed.plans[0].packed == (True, True)
    assert (packed.plans[0].splits, packed.plans[0].strategy, cublas.cublas[0].time_us) == (4, "split", 55.6)
    assert (small.plans[0].chained, small.asked.finished, small.sizes.loose) == (True, False, (False, False))
    fitted = fit_products.fit([packed, cublas, small], ["launch_us", "cublas_us"])
    moved = {name for name, value in asdict(fitted).items() if value != asdict(Costs())[name]}
    assert moved <= {"launch_us", "cublas_us"}
    assert fit_products.error(fitted, [small]) < fit_products.error(Costs(), [small])
