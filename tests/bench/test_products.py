"""The suites of products: their cases, and every variant's answers, on a CPU or in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.made import case_result, measurement, suite_result
from tilefold.bench import gate, summary, traps
from tilefold.bench import product_variants as ways
from tilefold.bench.cases import DTYPES, Variant
from tilefold.bench.inductor_choices import winners
from tilefold.bench.product_cases import ProductCase, product_case
from tilefold.bench.suites import decompose_k, products, router

ROOT = Path(__file__).parents[2]

compiles = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)


def faults(variant: Variant, case: ProductCase) -> list[str | None]:
    """What the gate says of each of a variant's choices."""
    probes = gate.probes_of(case, "cpu")
    x = probes[0].x.clone()
    found = []
    for choice in variant.build(case, x):
        choice.call(x)
        if variant.check:
            variant.check(choice.call, x)
        found.append(gate.check(case, choice.call, x, probes))
    return found


def test_the_grid_is_the_sources() -> None:
    cases = decompose_k.cases()
    assert len([case for case in cases if case.headline]) == 4 * 28
    shapes = {case.shape for case in cases if case.headline}
    assert shapes == {(n, n, k) for n in (16, 32, 48, 64) for k in range(8192, 32769, 4096)}
    assert {case.shape[2] for case in cases if not case.headline} == {256}
    assert [case.shape[0] for case in router.cases() if case.operation == "matmul"] == [1, 16, 64, 256, 768]


def test_what_a_product_costs() -> None:
    case = product_case(16, 32, 1024, "bf16", False, "x")
    assert case.compulsory_bytes == 2 * (16 * 1024 + 1024 * 32 + 16 * 32)
    assert case.operations == 2 * 16 * 32 * 1024
    a, b = case.pair(case.draw("cpu"))
    assert (a.shape, b.shape) == ((16, 1024), (1024, 32))


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("variant", [ways.OURS, ways.CUBLAS, ways.BMM], ids=lambda v: v.name)
def test_eager_ways_are_right(variant: Variant, dtype: str, relu: bool) -> None:
    found = faults(variant, product_case(16, 16, 256, dtype, relu, "x"))
    assert found
    assert not any(found)


@compiles
@pytest.mark.parametrize(
    "variant",
    [ways.COMPILED, ways.CUSTOM_OP, ways.CUSTOM_OP_OURS, ways.BMM_COMPILED, ways.RANGES],
    ids=lambda v: v.name,
)
def test_compiled_ways_are_right_and_say_what_was_chosen(variant: Variant) -> None:
    case = product_case(5, 16, 64, "fp32", True, "x")
    assert faults(variant, case) == [None]
    (choice,) = variant.build(case, case.draw("cpu"))
    assert choice.label


def test_a_lost_split_and_a_product_of_tf32_are_found() -> None:
    for dtype in ("bf16", "fp32"):
        case = product_case(16, 16, 8192, dtype, False, "x")
        probes = gate.probes_of(case, "cpu")

        def lost(x: torch.Tensor, case: ProductCase = case) -> torch.Tensor:
            a, b = case.pair(x)
            return a[:, : 8192 - 32] @ b[: 8192 - 32]

        assert "times the bound" in str(gate.check(case, lost, probes[0].x.clone(), probes))

    def rounded(x: torch.Tensor) -> torch.Tensor:
        a, b = case.pair((x.view(torch.int32) & -8192).view(torch.float32))
        return a @ b

    assert "times the bound" in str(gate.check(case, rounded, probes[0].x.clone(), probes))


def test_winners_in_a_word() -> None:
    name = "tilefold::matmul_autotuned"
    assert winners([("mm", "decompose_k_mm_32_split_4"), ("bmm", "bmm")]) == "decompose_k_mm_32_split_4"
    assert winners([]) == "one candidate"
    assert (
        winners([(name, f"{name}_decomposed_epilogue_relu_k_splits__64_7"), ("bmm", "b")]) == "decompose-k 64"
    )
    ranged = [(f"{name}_range_1_1", "tilefold_matmul_fallback"), (f"{name}_range_2_inf", f"{name}_plain_3")]
    assert winners(ranged) == "M 1-1: the operation itself; M 2-inf: plain"
    of_torch_2_11 = f"{name}_tuned_matmul_bias_None_epilogue_relu_precision_None_5"
    assert winners([(name, of_torch_2_11)]) == "the operation itself"
    split = f"{name}_decomposed_bias_None_epilogue_relu_k_splits_64_precision_None_6"
    assert winners([(name, split)]) == "decompose-k 64"


def test_both_reducers_are_right_in_the_interpreter() -> None:
    """Every tile on a shape that no tile divides; the interpreter is chosen before Triton is imported."""
    code = """
from tilefold.bench import gate
from tilefold.bench.product_variants import SERIAL, SERIAL_APART, VECTOR, VECTOR_APART
from tilefold.bench.product_cases import product_case
for relu in (True, False):
    case = product_case(48, 20, 256, "fp32", relu, "x")
    probes = gate.probes_of(case, "cpu")
    x = probes[0].x.clone()
    for variant in (SERIAL, SERIAL_APART, VECTOR, VECTOR_APART):
        choices = variant.build(case, x)
        assert bool(choices) == (relu or "apart" not in variant.name), variant.name
        for choice in choices[::2]:
            assert gate.check(case, choice.call, x, probes) is None, (variant.name, choice.label)
            print(variant.name, choice.label)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 12


@compiles
def test_one_graph_serves_all_rows_of_a_router() -> None:
    """It is compiled for one case, and a worker compiles it for one of them."""
    from torch._dynamo.utils import counters

    one, other = (product_case(rows, 16, 64, "fp32", True, "x") for rows in (1, 16))
    assert not any(faults(ways.RANGES, one))
    graphs = counters["stats"]["unique_graphs"]
    assert not any(faults(ways.RANGES, other))
    assert counters["stats"]["unique_graphs"] == graphs
    assert ways.RANGES.compiles
    assert len(ways.RANGES.compiles(one, one.draw("cpu"))) == 1
    assert list(ways.RANGES.compiles(other, other.draw("cpu"))) == []


def test_the_search_covers_what_the_source_tries() -> None:
    """Splits from 2 to 256 and few warps for tiny tiles, for every shape."""
    for case in decompose_k.cases():
        if case.headline:
            tried = list(ways.vector_configurations(case))
            splits = {config["S"] for config in tried}
            assert {2, 8, 32, 64} <= splits
            assert (256 in splits) == (case.shape[2] % (256 * 64) == 0)
            assert {config["rw"] for config in tried} >= {1, 2}
            largest = max(
                2 * (config["m"] + config["n"]) * config["k"] * DTYPES[case.dtype].itemsize
                for config in tried
            )
            assert largest <= 227 << 10  # two steps of the largest tiles of float32 would not fit


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", ["partial_products", "reduce_serial", "reduce_vector", "counted", "added"])
def test_kernels_compile_without_a_gpu(name: str, architecture: int) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tilefold.bench.kernels import one_launch, split_k

    kernel = getattr(split_k, name, None) or getattr(one_launch, name)
    known = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 64, "SPLITS": 64, "BLOCK": 32, "RELU": True}
    known |= {"PRECISION": "ieee", "LANES": 8, "CHAINED": architecture == 90}
    constants = {key: value for key, value in known.items() if key in kernel.arg_names}
    pointers = {"p_ptr": "*fp32", "sums_ptr": "*fp32", "counters": "*i32"}
    types = {key: pointers.get(key, "*bf16" if key.endswith("_ptr") else "i32") for key in kernel.arg_names}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    assert "cubin" in triton.compile(source, target=GPUTarget("cuda", architecture, 32)).asm


def test_one_compiled_for_another_shape_is_found() -> None:
    from tilefold.bench.inductor_choices import OfPair, check_compiled

    call = OfPair(
        traps.fresh_compile(lambda pair: pair[0] @ pair[1], backend="eager"),
        (torch.ones(2, 3), torch.ones(3, 2)),
    )
    call(torch.empty(0))
    check_compiled(call, torch.empty(0))
    with pytest.raises(traps.TrapError, match="specialised on another shape"):
        check_compiled(OfPair(call.function, (torch.ones(4, 3), torch.ones(3, 2))), torch.empty(0))


def test_the_summary_says_how_often_ours_is_faster_and_how_far() -> None:
    cases = [
        replace(
            case_result(measurement(ours), measurement(theirs, "torch", graph_us=2.0)),
            name=str(ours),
            operation="matmul",
        )
        for ours, theirs in ((10.0, 20.0), (10.0, 9.0), (10.0, 15.0))
    ]
    lines = summary.summary(suite_result(*cases, suite="router"))
    (line,) = (line for line in lines if "over ours" in line)
    assert line == (
        "matmul bf16: torch over ours: cold ours faster in 2 of 3, 1.392 on average (0.900 to 2.000, median 1.500); "
        "graph ours faster in 3 of 3, 2.000 on average (2.000 to 2.000, median 2.000)"
    )


# ---------------------------------------------------------------------------------------------- drawn products


def test_a_seed_draws_the_same_products_and_a_larger_count_begins_with_them() -> None:
    few, many = products.cases("full", 5, 10), products.cases("full", 5, 30)
    assert [case.name for case in few] == [case.name for case in many[:10]]
    assert {case.name for case in few}.isdisjoint(case.name for case in products.cases("full", 6, 10))


def test_drawn_products_keep_their_bounds_and_take_every_kind() -> None:
    cases = products.cases("full", 1, 400)
    for case in cases:
        rows, columns, depth = case.shape
        assert 1 <= min(rows, columns) <= max(rows, columns) <= 4096
        assert 16 <= depth <= 100_000
        assert case.elements * DTYPES[case.dtype].itemsize <= products.OPERAND_BYTES
    extents = [n for case in cases for n in case.shape]
    odd, eighths = (sum(n % m == r for n in extents) / len(extents) for m, r in ((2, 1), (8, 0)))
    assert 0.4 < odd < 0.6
    assert odd + eighths > 0.95, "bounds are neither"
    assert {case.dtype for case in cases} == {"bf16", "fp16", "fp32"}
    rectified = sum(case.operation == "matmul+relu" for case in cases) / len(cases)
    assert 0.4 < rectified < 0.6


@pytest.mark.parametrize("case", products.cases("small", 3, 6), ids=lambda case: case.name)
def test_eager_ways_of_drawn_products_are_right(case: ProductCase) -> None:
    for variant in (ways.OURS, ways.CUBLAS, ways.CUBLASLT):
        found = faults(variant, case)
        assert not any(found), variant.name
        assert bool(found) == (case.operation == "matmul+relu" or variant != ways.CUBLASLT)


def test_drawn_products_are_judged_by_the_better_of_cublas_and_torch_compile() -> None:
    cases = [
        replace(
            case_result(measurement(ours), measurement(cublas, "torch"), measurement(compiled, "compile")),
            name=str(ours),
            operation="matmul",
        )
        for ours, cublas, compiled in ((10.0, 20.0, 12.0), (10.0, 9.0, 15.0))
    ]
    lines = summary.summary(suite_result(*cases, suite="products"))
    assert (
        "all: the better of torch and compile over ours 1.039 on average, worst 0.900 (10.0); "
        "slower beyond 3 % in 1 of 2 (50%)"
    ) in lines
