"""Which plan a search found on a chip for a product: tables shipped as data (`tables/<chip>.json`), which
benchmarks/tune_products.py writes.

    {"schema": 1, "chip": "NVIDIA H200", "made": {...}, "costs": {"launch_us": ...},
     "entries": [{"dtype": "bfloat16", "precision": "ieee", "sizes": [M, N, K, batches], "epilogue": true,
                  "strategy": "split", "tile": [16, 16, 128, 2, 4], "splits": 64, "finish": [32, 64, 4],
                  "chained": false, "reserved_bytes": 0, "time_us": 2.9}]}

If the cost model's choice took at most 5 % longer than the fastest plan, the entry has the strategy "model", the fastest time
and no plan. The model then chooses for these sizes and for sizes near them.

A missing table and a table of another schema count as empty. Entries hold numbers alone, which are checked when they are
read.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from tilefold.planner.device import Device
from tilefold.planner.products.costs import Costs, share_of
from tilefold.planner.products.plan import Asked, Candidate, Finish, Sizes, Tile
from tilefold.planner.products.tiles import even_splits, finish_of, spreading_bytes
from tilefold.runtime.caching import kept_outside_modes

SCHEMA = 1
FOLDER = Path(__file__).parent / "tables"
# Bytes of shared memory that a program may ask for on any chip: a limit of the hardware.
MOST_RESERVED = 227 * 1024
_HALVES = {"float16", "bfloat16"}
MODEL = "model"  # the strategy of an entry for which the cost model chooses
# Not measured:
NEAR = 1.0  # how far an entry's sizes may be at most: the sum of |log2| of the ratios of M, N, K and batches


@dataclass(frozen=True)
class Entry:
    """The fastest plan of one product in a search; its strategy is "model" if the cost model's plan is as good."""

    dtype: str
    precision: str
    sizes: tuple[int, int, int, int]
    epilogue: bool
    plan: Candidate


@dataclass(frozen=True)
class Table:
    """The measurements of one chip. `sms` is the number of its SMs: chips of one name may have fewer."""

    costs: Costs
    entries: tuple[Entry, ...]
    sms: int | None = None


NOTHING = Table(Costs(), ())


def costs_of(device: Device) -> Costs:
    """The cost model's numbers: those fitted on this chip, or the defaults."""
    return table_of(device.name).costs


def tuned_plan(sizes: Sizes, asked: Asked, device: Device, model: Candidate) -> Candidate | None:
    """The plan of the entry for these sizes, or of the nearest entry, fitted to the sizes and the chip. None if no entry is
    near, or if the cost model chooses for the nearest.

    The nearest entry's strategy must be the one that the cost model chooses (`model`): if they differ, a boundary lies
    between the two sizes. An SM must not have more programs than in the measurement. Entries of float16 and bfloat16 serve
    both dtypes, with a dtype's own first: bytes and rates of tensor cores are equal. All entries were timed with vector
    loads.
    """
    if asked.row or any(sizes.loose):
        return None
    wanted, own = (sizes.rows, sizes.columns, sizes.depth, sizes.batches), _name(asked.dtype)
    table = table_of(device.name)
    usable = [e for e in table.entries if _serves(e, asked, model)]

    def apart(entry: Entry) -> tuple[float, bool, bool]:
        return _distance(entry.sizes, wanted), not _same_race(entry, asked), entry.dtype != own

    nearest = min(usable, key=apart, default=None)
    if nearest is None or nearest.plan.strategy == MODEL or _distance(nearest.sizes, wanted) > NEAR:
        return None
    if nearest.sizes == wanted and table.sms in (None, device.sms):
        return replace(nearest.plan, reason="measured")
    if nearest.plan.strategy != model.strategy:
        return None
    fitted = _fitted(nearest, sizes, model, device)
    return None if _is_crowded(fitted, sizes, nearest, device) else fitted


def _is_crowded(fitted: Candidate, sizes: Sizes, entry: Entry, device: Device) -> bool:
    """Whether an SM has more programs than in the entry's measurement, which then says nothing."""
    if fitted.tile is None or entry.plan.tile is None:
        return False
    measured = Sizes(*entry.sizes, sizes.itemsize)
    before = share_of(entry.plan.tile, entry.plan.splits, measured, device)
    return share_of(fitted.tile, fitted.splits, sizes, device) > before


def _serves(entry: Entry, asked: Asked, model: Candidate) -> bool:
    """Whether an entry is of products with these demands.

    Products whose epilogue cuBLAS applies have entries of their own. Of the other entries our own plan serves such a product
    only if the cost model does not prefer cuBLAS.
    """
    name = _name(asked.dtype)
    alike = (entry.dtype == name or {entry.dtype, name} == _HALVES) and entry.precision == asked.precision
    if entry.plan.strategy == "cublas":
        return alike and asked.cublas and _same_race(entry, asked)
    return alike and (_same_race(entry, asked) or model.strategy != "cublas")


def _same_race(entry: Entry, asked: Asked) -> bool:
    """Whether an entry was measured beside the same cuBLAS: one that applies the epilogue of such products, or one that does
    not."""
    return entry.epilogue != asked.finished


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return sum(abs(math.log2(max(x, 1) / max(y, 1))) for x, y in zip(a, b, strict=True))


def _fitted(entry: Entry, sizes: Sizes, model: Candidate, device: Device) -> Candidate:
    """The entry's tile and number of splits for other sizes, with the model's time: the time was not measured.

    A first launch of more programs than SMs begins early only if it did in the measurement.
    """
    plan = replace(entry.plan, time_us=model.time_us, reason=f"as measured at {_text(entry.sizes)}, about")
    if plan.tile is None:
        return plan
    splits = even_splits(sizes.depth, plan.tile, plan.splits)
    reserved = spreading_bytes(plan.tile, splits, sizes, device) if plan.chained else 0
    plan = replace(plan, splits=splits, chained=reserved > 0, reserved_bytes=reserved)
    return plan if plan.strategy == "whole" else replace(plan, finish=plan.finish or finish_of(sizes, splits))


def _text(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes[:3]))


@kept_outside_modes(64)
def table_of(chip: str) -> Table:
    """The table of a chip by its name, read once; `NOTHING` where there is none."""
    path = FOLDER / f"{table_name(chip)}.json"
    return read_table(path.read_text(encoding="utf-8"), chip) if path.is_file() else NOTHING


def table_name(chip: str) -> str:
    """A chip's name as a file's: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", chip.lower()).strip("-")


def read_table(text: str, chip: str) -> Table:
    """A table from its JSON; `NOTHING` for another schema or chip. Then the cost model alone chooses.

    Tables are part of the package. An assertion finds a damaged one, which is a fault of the package.
    """
    document = json.loads(text)
    if document["schema"] != SCHEMA or document["chip"] != chip:
        return NOTHING
    known = {f.name for f in fields(Costs)}
    costs = {name: float(value) for name, value in document["costs"].items() if name in known}
    return Table(Costs(**costs), tuple(map(entry_of, document["entries"])), document["made"].get("cores"))


def entry_of(record: dict[str, Any]) -> Entry:
    """An entry from what the JSON holds."""
    rows, columns, depth, batches = _numbers(record["sizes"], 4)
    product = (
        str(record["dtype"]),
        str(record["precision"]),
        (rows, columns, depth, batches),
        bool(record["epilogue"]),
    )
    if record["strategy"] == MODEL:
        return Entry(*product, Candidate(MODEL, time_us=float(record["time_us"])))
    tile = Tile(*_numbers(record["tile"], 5)) if record["tile"] else None
    finish = Finish(*_numbers(record["finish"], 3)) if record["finish"] else None
    assert record["strategy"] in ("cublas", "whole", "split"), record
    assert (tile is None) == (record["strategy"] == "cublas"), record
    splits = _numbers([record["splits"]], 1)[0]
    reserved_bytes, packed = int(record["reserved_bytes"]), record.get("packed", (False, False))
    assert 0 <= reserved_bytes <= MOST_RESERVED, record
    plan = Candidate(
        record["strategy"],
        tile,
        splits,
        finish,
        chained=bool(record["chained"]),
        reserved_bytes=reserved_bytes,
        packed=(bool(packed[0]), bool(packed[1])),
        time_us=float(record["time_us"]),
    )
    return Entry(*product, plan)


def _numbers(values: Any, length: int) -> tuple[int, ...]:
    assert len(values) == length, values
    assert all(type(v) is int and v > 0 for v in values), values
    return tuple(values)


def record_of(entry: Entry) -> dict[str, Any]:
    """An entry as the JSON holds it."""
    tile, finish = entry.plan.tile, entry.plan.finish
    product = {
        "dtype": entry.dtype,
        "precision": entry.precision,
        "sizes": list(entry.sizes),
        "epilogue": entry.epilogue,
        "strategy": entry.plan.strategy,
    }
    if entry.plan.strategy == MODEL:
        return product | {"time_us": round(entry.plan.time_us, 3)}
    return (
        product
        | {
            "tile": None
            if tile is None
            else [tile.block_m, tile.block_n, tile.block_k, tile.num_warps, tile.num_stages],
            "splits": entry.plan.splits,
            "finish": None if finish is None else [finish.block, finish.lanes, finish.num_warps],
            "chained": entry.plan.chained,
            "reserved_bytes": entry.plan.reserved_bytes,
            "time_us": round(entry.plan.time_us, 3),
        }
        | ({"packed": list(entry.plan.packed)} if any(entry.plan.packed) else {})
    )


def write_document(path: Path, document: dict[str, Any]) -> None:
    """A table's JSON with an entry a line. The text is read once as a check."""
    head = json.dumps({k: v for k, v in document.items() if k != "entries"}, indent=1)[:-2]
    lines = ",\n  ".join(map(json.dumps, document["entries"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "entries": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    read_table(path.read_text(encoding="utf-8"), document["chip"])
