"""Search for the fastest plan of products on this GPU, and write them as the table that the planner consults.

    PYTHONPATH=src python benchmarks/tune_products.py --suite decompose-k --dtype bf16 --budget 450

Of all shapes first the plans that the cost model likes best and the table's own are timed, then the neighbours of the
fastest, again and again until none is faster or the time is used. Each is timed in a CUDA graph and cold, by do_bench. No
plan is timed whose answer was not compared with float64. The table gets a plan where it wins by more than 5 % over what the
cost model takes, elsewhere an entry that says so. Entries of shapes that are not searched stay in the table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tilefold.api.dispatch import compiled
from tilefold.api.requests import Product
from tilefold.backends.triton.call import Call, compile_for, options_of, source_of
from tilefold.backends.triton.lower import calls_of
from tilefold.bench.cases import DTYPES
from tilefold.bench.product_cases import ProductCase
from tilefold.bench.suites import load_suite
from tilefold.planner.device import Device, device_of
from tilefold.planner.products import tuned
from tilefold.planner.products.choose import PARTIAL_BYTES, candidates, cheapest
from tilefold.planner.products.costs import PROGRAM_BYTES
from tilefold.planner.products.epilogue import Epilogue, make_epilogue
from tilefold.planner.products.operands import (
    Contraction,
    canonical_product,
    loads_of_elements,
    narrow_vectors,
)
from tilefold.planner.products.plan import Asked, Candidate, Finish, Sizes
from tilefold.planner.products.steps import product_plan
from tilefold.planner.products.tiles import even_splits, finish_of, spreading_bytes

BREADTH = 48  # plans of the cost model that are timed
BEAM = 4  # plans whose neighbours are timed
BOUNDARY_ROWS = (64, 256, 1024, 4096)
BOUNDARY_SIDES = ((256, 4096), (1024, 1024), (4096, 4096))
FOR_SEARCH = 0.7  # of the budget; the rest is for the finalists
FINALISTS = 8  # fastest plans of the search that are timed again
MOST_STAGES = 10
AGAIN = 3  # times that the finalists are timed, in turns
COLD_MS = 15  # of do_bench's samples, each time
QUICK_COLD_MS = 3  # the same in the search
WINS = 1.05  # times the time of a search's plan, that the cost model's choice takes at least where the table has the plan


@dataclass(frozen=True)
class Shape:
    """One product to tune, with ReLU or plain: then cuBLAS needs no launch after it, and is what may be faster."""

    dtype: str
    rows: int
    columns: int
    depth: int
    relu: bool = True

    @property
    def sizes(self) -> Sizes:
        """As the planner sees it."""
        return Sizes(self.rows, self.columns, self.depth, 1, DTYPES[self.dtype].itemsize)


# ------------------------------------------------------------------------------------------------------ the search


@dataclass(frozen=True)
class Final:
    """A plan's times by both clocks."""

    graph_us: float
    cold_us: float

    @property
    def both_us(self) -> float:
        """What plans are chosen by: in a graph, where L2 and launches are warm, and cold, which counts twice.

        A product is rarely called twice in turn, and a whole model's weights do not stay in the L2.
        """
        return float((self.graph_us * self.cold_us**2) ** (1 / 3))


NEVER = Final(math.inf, math.inf)  # the times of a plan that cannot run, or that there was no time for


class Search:
    """The search for one shape's fastest plan, a round at a time: all plans of a round are compiled, then timed.

    `waiting` are the plans of the next round, none when the fastest plans' neighbours are all known. `model` is what the cost
    model takes, no table asked.
    """

    def __init__(self, sizes: Sizes, asked: Asked, device: Device) -> None:
        self.sizes, self.device = sizes, device
        self.known: dict[Candidate, Final] = {}
        first = sorted(candidates(sizes, asked, device, tuned.costs_of(device)), key=lambda p: p.time_us)
        taken = cheapest(first)
        self.model = taken.decisions
        shipped = tuned.tuned_plan(sizes, asked, device, taken)
        whole, cublas = ([p for p in first if p.strategy == name] for name in ("whole", "cublas"))
        start = [shipped] if shipped else []
        begin = (*start, *first[:BREADTH], *whole[:4], *cublas)
        self.waiting = list(dict.fromkeys(plan.decisions for plan in begin))

    def tell(self, times: Sequence[Final]) -> None:
        """The times of the plans that waited, `NEVER` for one that cannot run."""
        self.known |= dict(zip(self.waiting, times, strict=True))
        around = [
            n
            for plan in self.found[:BEAM]
            for n in neighbours(plan, self.sizes, self.device)
            if n not in self.known
        ]
        self.waiting = list(dict.fromkeys(around))

    def finalists(self) -> list[Candidate]:
        """The fastest plans, those that are the fastest cold, cuBLAS, and what the cost model takes."""
        cold = sorted(self.known, key=lambda plan: self.known[plan].cold_us)[: FINALISTS // 2]
        cublas = [plan for plan in self.known if plan.strategy == "cublas"]
        return list(dict.fromkeys([*self.found[:FINALISTS], *cold, *cublas, self.model]))

    @property
    def found(self) -> list[Candidate]:
        """Timed plans, the fastest first."""
        return sorted(self.known, key=lambda plan: self.known[plan].both_us)


def neighbours(plan: Candidate, sizes: Sizes, device: Device) -> Iterator[Candidate]:
    """Plans that differ from one in a single decision."""
    tile, finish = plan.tile, plan.finish
    if tile is None:
        return
    for name, factors in (("block_m", 2), ("block_n", 2), ("block_k", 2), ("num_warps", 2)):
        for value in (getattr(tile, name) * factors, getattr(tile, name) // factors):
            yield from _valid(replace(plan, tile=replace(tile, **{name: value})), sizes, device)
    for stages in (tile.num_stages - 1, tile.num_stages + 1, min(2 * tile.num_stages, MOST_STAGES)):
        yield from _valid(replace(plan, tile=replace(tile, num_stages=stages)), sizes, device)
    for splits in {plan.splits * 2, plan.splits * 3 // 2, plan.splits * 3 // 4, plan.splits // 2}:
        for other in (None, finish):  # what suits so many splits, and what was good for others
            yield from _valid(replace(plan, splits=splits, finish=other), sizes, device)
    if device.overlaps:
        yield chained_or_not(replace(plan, chained=not plan.chained), sizes, device)
    if finish is not None and plan.strategy == "split":
        yield from (replace(plan, finish=other) for other in _finishes(finish))


def chained_or_not(plan: Candidate, sizes: Sizes, device: Device) -> Candidate:
    """The plan with an SM to each program of a launch that begins early, where SMs suffice."""
    assert plan.tile is not None
    reserved = spreading_bytes(plan.tile, plan.splits, sizes, device) if plan.chained else 0
    return replace(plan, reserved_bytes=reserved)


def _finishes(finish: Finish) -> Iterator[Finish]:
    for name in ("block", "lanes", "num_warps"):
        for value in (getattr(finish, name) * 2, getattr(finish, name) // 2):
            other = replace(finish, **{name: value})
            if (
                other.block >= 8
                and other.lanes >= 1
                and 1 <= other.num_warps <= 16
                and other.block * other.lanes <= 16384
            ):
                yield other


def _valid(plan: Candidate, sizes: Sizes, device: Device) -> Iterator[Candidate]:
    """The plan with splits that are even and a second launch that suits them, if an SM can hold it."""
    tile = plan.tile
    assert tile is not None
    shared = tile.step_bytes(sizes.itemsize) * (tile.num_stages - 1)
    fits = (
        shared <= device.shared_bytes - PROGRAM_BYTES
        and 1 <= tile.num_stages <= MOST_STAGES
        and 1 <= tile.num_warps <= 8
    )
    if (
        not fits
        or min(tile.block_m, tile.block_n) < 16
        or tile.block_k < 32
        or max(tile.block_m, tile.block_n) > 256
    ):
        return
    splits = even_splits(sizes.depth, tile, max(1, plan.splits))
    if splits * sizes.outputs * 4 > PARTIAL_BYTES:
        return
    strategy = "split" if splits > 1 else "whole"
    finish = plan.finish if plan.finish and splits == plan.splits else finish_of(sizes, splits)
    made = replace(plan, strategy=strategy, splits=splits, finish=finish if splits > 1 else None)
    yield chained_or_not(made, sizes, device)


# ----------------------------------------------------------------------------------------------------- on the GPU


class Stand:
    """Operands of one shape on the GPU, their answer, and the plans that are timed on them."""

    def __init__(self, shape: Shape, device: Device) -> None:
        dtype = DTYPES[shape.dtype]
        self.a = torch.randn(shape.rows, shape.depth, device="cuda").to(dtype)
        self.b = torch.randn(shape.depth, shape.columns, device="cuda").to(dtype)
        self.want = self.a.double() @ self.b.double()
        self.want = torch.relu(self.want) if shape.relu else self.want
        spread = self.a.double().abs() @ self.b.double().abs()
        unit = torch.finfo(dtype).eps
        self.bound = 2 * shape.depth * 2.0**-23 * spread + unit * self.want.abs() + 1e-6
        self.ending: Epilogue = make_epilogue("relu" if shape.relu else None, None, (), dtype, None)
        self.problem: Contraction = canonical_product(self.a, self.b, [])
        self.device, self.shape = device, shape
        self.sizes = replace(
            shape.sizes, loose=loads_of_elements(self.problem), narrow=narrow_vectors(self.problem)
        )
        self.asked = Asked(dtype, finished=not shape.relu)
        self.search = Search(self.sizes, self.asked, device)
        self.wrong: list[str] = []

    def ready(self, plan: Candidate) -> Any:
        """A plan compiled, as a call without arguments."""
        size = (self.shape.rows, self.shape.columns)
        request = Product(self.ending, "ieee", "run_to_run", size)
        planned = self.problem, product_plan(self.full(plan), self.problem, self.ending)
        call = compiled(request, [self.a, self.b], planned).call
        return lambda: call(self.a, self.b)[0]

    def full(self, plan: Candidate) -> Candidate:
        """The plan as the planner would hand it on."""
        return replace(plan, overlap=plan.strategy == "split" and self.device.overlaps)

    def calls(self, plans: Iterable[Candidate]) -> list[Call]:
        """The kernels of plans."""
        full = map(self.full, plans)
        plans = (product_plan(candidate, self.problem, self.ending) for candidate in full)
        return [c for plan in plans for c in calls_of(plan, self.problem, self.ending)]

    def time_waiting(self, until: float) -> None:
        """Time the plans that wait, a quick look at each; those for which no time is left are passed over."""
        waiting = self.search.waiting
        self.search.tell(
            [
                self.time(p, QUICK_COLD_MS, most=20, replays=3) if time.time() < until else NEVER
                for p in waiting
            ]
        )

    def time(self, plan: Candidate, cold_ms: float, **pace: int) -> Final:
        """Microseconds in a CUDA graph, and by do_bench, the L2 cold; `NEVER` for a plan that cannot run here."""
        from triton.testing import do_bench

        from tilefold.bench.timing import graph_us

        call = self._checked(plan)
        if call is None:
            return NEVER
        cold_us = 1e3 * float(do_bench(call, warmup=2, rep=cold_ms, return_mode="median"))
        return Final(graph_us(call, 5.0, **pace), cold_us)

    def _checked(self, plan: Candidate) -> Any:
        """A plan as a call whose answer is right; None where it cannot run.

        Raises:
            SystemExit: its answer is wrong.
        """
        try:
            call = self.ready(plan)
            got = call()
            torch.cuda.synchronize()
        except Exception as error:  # registers or shared memory beyond the chip's: no plan for it
            self.wrong.append(f"{plan}: {type(error).__name__}: {str(error)[:80]}")
            return None
        if not bool(((got.double() - self.want).abs() <= self.bound).all()):
            raise SystemExit(f"WRONG ANSWER at {self.shape}: {plan}")
        return call

    def finals(self, plans: Sequence[Candidate]) -> dict[Candidate, Final]:
        """Both clocks of each plan, medians of several turns: a plan that is fast at times only is not fast."""
        turns = [[self.time(plan, COLD_MS) for plan in plans] for _ in range(AGAIN)]
        return {
            plan: Final(
                statistics.median(t.graph_us for t in times), statistics.median(t.cold_us for t in times)
            )
            for plan, times in zip(plans, zip(*turns, strict=True), strict=True)
        }


def _compiled(call: Call, architecture: int) -> None:
    """In a worker: the kernel lands in Triton's cache on disk."""
    try:
        compile_for(call, architecture)
    except Exception:  # the process that times it meets the same error, and says so
        return


class Compiler:
    """Kernels compiled in worker processes, each once: shapes that differ in nothing but numbers share them."""

    def __init__(self, pool: ProcessPoolExecutor, architecture: int) -> None:
        self.pool, self.architecture = pool, architecture
        self.done: set[tuple[Any, ...]] = set()

    def compile(self, wanted: Iterable[Call]) -> None:
        """Return when all are in Triton's cache on disk."""
        new = {}
        for call in wanted:
            key = (call.source, source_of(call).hash(), *sorted(options_of(call).items()))
            if key not in self.done:
                new[key] = call
        list(self.pool.map(_compiled, new.values(), [self.architecture] * len(new), chunksize=1))
        self.done |= new.keys()


def search_all(stands: Sequence[Stand], compiler: Compiler, until: float) -> None:
    """Rounds over all shapes: what one round of them needs is compiled at once, so that all SMs have something to do."""
    while time.time() < until and any(stand.search.waiting for stand in stands):
        compiler.compile(call for stand in stands for call in stand.calls(stand.search.waiting))
        for stand in stands:
            stand.time_waiting(until)
        torch.cuda.empty_cache()  # each graph had memory of its own
    compiler.compile(call for stand in stands for call in stand.calls(stand.search.finalists()))


def result(stand: Stand) -> tuple[tuned.Entry, dict[str, Any]]:
    """The entry of one shape, and all that was timed on the way."""
    shape, known = stand.shape, stand.search.known
    times = stand.finals(stand.search.finalists())
    best = chosen(times)
    model = times[stand.search.model]
    entry = tuned.Entry(
        str(DTYPES[shape.dtype]).removeprefix("torch."),
        "ieee",
        (shape.rows, shape.columns, shape.depth, 1),
        shape.relu,
        replace(kept(best, stand.search.model, times), time_us=times[best].graph_us),
    )
    log = {
        "shape": asdict(shape),
        "plans": [
            tuned.record_of(replace(entry, plan=replace(p, time_us=known[p].graph_us)))
            | {"cold_us": round(known[p].cold_us, 3)}
            for p in stand.search.found
            if known[p] != NEVER
        ],
        "finals": [
            tuned.record_of(replace(entry, plan=replace(p, time_us=final.graph_us))) | asdict(final)
            for p, final in times.items()
        ],
        # Of the cost model's choice, over the least time of any plan.
        "graph_over_best": model.graph_us / min(final.graph_us for final in times.values()),
        "cold_over_best": model.cold_us / min(final.cold_us for final in times.values()),
        "refused": stand.wrong,
    }
    return entry, log


def chosen(times: dict[Candidate, Final]) -> Candidate:
    """The fastest plan of those that are no slower than cuBLAS by either clock; cuBLAS itself is one."""
    limits = [final for plan, final in times.items() if plan.strategy == "cublas"]
    fair = [
        plan
        for plan, final in times.items()
        if all(final.graph_us <= most.graph_us and final.cold_us <= most.cold_us for most in limits)
    ]
    return min(fair, key=lambda plan: times[plan].both_us)


def kept(best: Candidate, model: Candidate, times: dict[Candidate, Final]) -> Candidate:
    """What the table says of a shape: the fastest plan where it wins by more than 5 %, else that the cost model chooses."""
    return best if times[model].both_us > WINS * times[best].both_us else Candidate(tuned.MODEL)


def shapes_of(suite: str, dtypes: Sequence[str]) -> list[Shape]:
    """The headline shapes of a suite, each once, those with ReLU for all; or shapes about where cuBLAS begins to win."""
    if suite == "boundary":
        return [Shape(dtype, m, n, k) for dtype in dtypes for m in BOUNDARY_ROWS for n, k in BOUNDARY_SIDES]
    cases: Iterable[Any] = load_suite(suite).cases("full")
    found = [
        Shape(case.dtype, *case.shape)
        for case in cases
        if isinstance(case, ProductCase) and case.dtype in dtypes and case.shape[2] > 256
    ]
    return list(dict.fromkeys(found))


def write_table(path: Path, chip: str, entries: Sequence[tuned.Entry], made: dict[str, Any]) -> None:
    """The table with these entries put into what it holds already."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"costs": {}, "entries": []}

    def key(record: dict[str, Any]) -> str:
        return json.dumps([record[name] for name in ("dtype", "precision", "sizes", "epilogue")])

    records = {key(r): r for r in [*old["entries"], *map(tuned.record_of, entries)]}
    entries_now = [records[k] for k in sorted(records)]
    document = {
        "schema": tuned.SCHEMA,
        "chip": chip,
        "made": made,
        "costs": old["costs"],
        "entries": entries_now,
    }
    tuned.write_document(path, document)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, write the table and a log of all times, say what was found."""
    options = _options(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("tune_products: needs a CUDA device, got none; run it where there is one")
    start, device = time.time(), device_of(0)
    shapes = [replace(s, relu=not options.plain) for s in shapes_of(options.suite, options.dtype.split(","))]
    path = options.table or tuned.FOLDER / f"{tuned.table_name(device.name)}.json"
    made = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "triton": __import__("triton").__version__,
        "cores": device.sms,
    }
    entries, logs = [], []
    context = multiprocessing.get_context("spawn")
    stands = [Stand(shape, device) for shape in shapes]
    with ProcessPoolExecutor(options.jobs, context) as pool:
        search_all(stands, Compiler(pool, device.capability), start + FOR_SEARCH * options.budget)
    for stand in stands:
        entry, log = result(stand)
        entries.append(entry)
        logs.append(log)
        print(
            f"{stand.shape}: {entry.plan.time_us:.2f} us of {len(stand.search.known)} plans, cost model "
            f"{log['graph_over_best']:.3f}, cold {log['cold_over_best']:.3f}, {entry.plan}",
            flush=True,
        )
        write_table(path, device.name, entries, made)
        options.log.write_text(json.dumps({"device": asdict(device), "shapes": logs}), encoding="utf-8")
    near, cold = (sum(log[f"{clock}_over_best"] <= 1.05 for log in logs) for clock in ("graph", "cold"))
    print(
        f"the cost model's choice is within 5 % of the best in {near} of {len(logs)}, cold in {cold}; table {path}, "
        f"times {options.log}"
    )
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--suite", default="decompose-k", choices=("decompose-k", "router", "boundary"))
    parser.add_argument("--dtype", default="bf16", help="of bf16, fp16, fp32, separated by commas")
    parser.add_argument("--plain", action="store_true", help="products without ReLU")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds in all")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument(
        "--table", type=Path, help="the table to write; by default the package's own of this chip"
    )
    parser.add_argument(
        "--log", type=Path, default=Path("tune-products.json"), help="all times, for fit_products.py"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
