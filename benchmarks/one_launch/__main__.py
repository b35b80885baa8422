"""Skinny products in one launch beside the library's two: which form wins where.

    PYTHONPATH=src python benchmarks/one_launch --out one-launch.json

relu(a @ b) in bfloat16, [M, K] @ [K, N], each by
    ours, torch          tilefold.matmul as it plans; cuBLAS and a ReLU after it
    ours, not early      the same plan, its first launch begun when the call before has ended
    counted              Triton, one launch: partial products, a counter, the last program of a tile sums them
    added                Triton, one launch: float32 atomics, a counter, the last program finishes (no fixed order)
    cluster              CUDA C++, one launch: a cluster of CTAs shares K and meets in distributed shared memory

Every configuration is compared with float64 before it is timed, and the fastest of each form in a CUDA graph goes on to the
bench's gate and clocks. Needs a GPU of sm_90, and cuda-bindings (which torch's CUDA builds bring).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cluster
import torch
import triton_forms

from tilefold.api.dispatch import compiled
from tilefold.api.requests import Product
from tilefold.bench import gate, timing
from tilefold.bench.cases import Choice, Suite, Variant
from tilefold.bench.kernels import one_launch
from tilefold.bench.measure import measure_case
from tilefold.bench.product_cases import ProductCase, product_case
from tilefold.bench.product_variants import CUBLAS, OURS
from tilefold.bench.results import CaseResult
from tilefold.bench.run import Options, new_bench
from tilefold.planner.device import device_of
from tilefold.planner.products.choose import choose_product
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.steps import product_plan

Tensor = torch.Tensor
Tried = tuple[str, Callable[[], tuple[Callable[[], Tensor], Tensor | None]]]
SHAPES = ((16, 8192), (16, 32768), (32, 16384), (48, 24576), (64, 8192), (64, 32768))

searched: dict[
    str, dict[str, dict[str, float | str]]
] = {}  # by case and form: microseconds, or what was wrong


def fastest(case: ProductCase, form: str, x: Tensor, tried: Iterable[Tried]) -> list[Choice]:
    """The configuration with the least time in a CUDA graph among those whose answer is right."""
    want, found = case.reference(x), searched.setdefault(case.name, {}).setdefault(form, {})
    calls = {}
    for label, make in tried:
        try:
            call, counters = make()
            for _ in range(3):
                wrong = gate.fault(case, x, call(), want)
                if wrong is None and counters is not None and bool(counters.any()):
                    wrong = "a counter is left dirty"
                if wrong:
                    break
            found[label] = wrong or timing.graph_us(call, 5.0, most=20, replays=3)
        except Exception as error:  # more registers or shared memory than there are, no room for the cluster
            found[label] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        if not wrong:
            calls[label] = call
    torch.cuda.empty_cache()  # each graph had memory of its own
    if not calls:
        return []
    best = min(calls, key=lambda label: found[label])
    return [Choice(best, lambda x: calls[best]())]


def build_counter_form(name: str) -> Callable[[Any, Tensor], Sequence[Choice]]:
    """The variant of one of Triton's kernels."""

    def build(case: Any, x: Tensor) -> Sequence[Choice]:
        (a, b), kernel = case.pair(x), getattr(one_launch, name)
        tried = [
            (str(config), lambda config=config: triton_forms.launcher(kernel, config, a, b))
            for config in triton_forms.configurations(*case.shape, device_of(0).sms)
        ]
        return fastest(case, name, x, tried)

    return build


def build_cluster(case: Any, x: Tensor) -> Sequence[Choice]:
    """The variant of the CUDA kernel."""
    a, b = case.pair(x)
    tried = [
        (f"{config} x {clusters}", lambda config=config, n=clusters: cluster.launcher(config, n, a, b))
        for config, clusters in cluster.configurations(*case.shape, device_of(0).sms)
    ]
    return fastest(case, "cluster", x, tried)


def build_waiting(case: Any, x: Tensor) -> Sequence[Choice]:
    """The library's plan, begun when the call before has ended."""
    a, b = case.pair(x)
    ending = make_epilogue("relu", None, (), a.dtype, None)
    problem = canonical_product(a, b, [])
    plan = choose_product(problem, device_of(0))
    if plan.strategy != "split":
        return []
    waiting = replace(plan, chained=False, reserved_bytes=0)
    request = Product(ending, "ieee", "run_to_run", case.shape[:2])
    made = compiled(request, [a, b], (problem, product_plan(waiting, problem, ending))).call
    return [Choice("not early", lambda x: made(a, b)[0])]


VARIANTS = (
    OURS,
    Variant("ours, not early", build_waiting, gpu_only=True, graphs=True),
    CUBLAS,
    *(Variant(name, build_counter_form(name), gpu_only=True, graphs=True) for name in ("counted", "added")),
    Variant("cluster", build_cluster, gpu_only=True, graphs=True),
)


def compile_all(cases: Sequence[ProductCase], jobs: int) -> None:
    """Every configuration, in worker processes."""
    sms = device_of(0).sms
    kernels = {
        (name, config): case.shape
        for case in cases
        for name in ("counted", "added")
        for config in triton_forms.configurations(*case.shape, sms)
    }
    clusters = list({config for case in cases for config, _ in cluster.configurations(*case.shape, sms)})
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        names, configs = zip(*kernels, strict=True)
        troubles = pool.map(triton_forms.compile_one, names, configs, kernels.values())
        cluster.compiled |= zip(clusters, pool.map(cluster.compile_cubin, clusters), strict=True)
        said = [trouble for trouble in troubles if trouble]
    print(
        f"compiled {len(kernels)} kernels of Triton and {len(clusters)} of CUDA",
        *said,
        sep="\n  ",
        flush=True,
    )


def show(result: CaseResult) -> None:
    """A case's table."""
    print(f"\n{result.name}", flush=True)
    for row in result.measurements:
        if row.time_us is None:
            print(f"  {row.variant:14} {row.status}: {row.note}")
        else:
            graph = "-" if row.graph_us is None else f"{row.graph_us:.2f}"
            print(
                f"  {row.variant:14} graph {graph:>6} us, do_bench {row.time_us.median_us:6.2f} us  {row.plan}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, check, time, write."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("one-launch.json"))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--shapes", type=int, nargs="*", help="places in the list of shapes, all by default")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("one_launch: needs a CUDA device, got none; run it where there is one")
    start = time.time()
    chosen = SHAPES if options.shapes is None else [SHAPES[i] for i in options.shapes]
    cases = [product_case(side, side, depth, "bf16", True, "one launch") for side, depth in chosen]
    compile_all(cases, options.jobs)
    print(f"  in {time.time() - start:.0f} s", flush=True)
    pace = timing.Pace(10.0, 50.0)
    bench = new_bench(Suite("one-launch", "", lambda size: tuple(cases), VARIANTS), Options(pace=pace))
    results = []
    for case in cases:
        results.append(measure_case(bench, case, VARIANTS))
        show(results[-1])
        found = {"chip": torch.cuda.get_device_name(), "torch": torch.__version__, "searched": searched}
        found["cases"] = [asdict(result) for result in results]
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(f"\n{time.time() - start:.0f} s in all; {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
