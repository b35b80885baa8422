"""The product's kernels under Triton's interpreter, and compiled without a GPU for the architectures we promise."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilefold
from plans import product_calls, run_interpreted
from tilefold.backends.triton import call as calls
from tilefold.backends.triton import launch
from tilefold.planner.device import Device
from tilefold.planner.products.choose import choose_product
from tilefold.planner.products.epilogue import Epilogue, accumulator_dtype, make_epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.plan import Candidate, Finish, Sizes, Tile
from tilefold.planner.products.steps import pitch_of
from tilefold.planner.products.tiles import even_splits, finish_of

Tensor = torch.Tensor

interpreted = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WHOLE = Candidate("whole", Tile(16, 16, 32, 1, 2))
SPLIT = Candidate("split", Tile(16, 32, 32, 1, 2), 3, Finish(32, 2, 1))
ONE_LANE = Candidate("split", Tile(32, 16, 64, 1, 2), 2, Finish(128, 1, 1))
LARGE_FINISH = Candidate("split", Tile(16, 16, 16, 1, 2), 5, Finish(16, 8, 1))
CUBLAS = Candidate("cublas", finish=Finish(64, 1, 1))
PLANS = {
    "whole": WHOLE,
    "split": SPLIT,
    "one lane": ONE_LANE,
    "more lanes than splits": LARGE_FINISH,
    "cublas": CUBLAS,
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: torch.zeros([*x.shape[:-1], 2 * x.shape[-1]], dtype=x.dtype)[..., ::2].copy_(x),
    "cut": lambda x: torch.zeros([*x.shape[:-1], x.shape[-1] + 1], dtype=x.dtype)[..., 1:].copy_(x),
}


def filled(shape: Sequence[int], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        return torch.randint(-128, 128, tuple(shape), generator=generator, dtype=dtype)
    return torch.randn(tuple(shape), generator=generator).to(dtype)


def run(
    plan: Candidate, a: Tensor, b: Tensor, extras: Sequence[Tensor] = (), epilogue: Epilogue | None = None
) -> Tensor:
    """Any plan under the interpreter, whatever the planner would have chosen."""
    ending = epilogue or make_epilogue(None, None, (), a.dtype, accumulator_dtype(a.dtype))
    shape = torch.matmul(a.to("meta").float(), b.to("meta").float()).shape
    result = torch.empty(shape, dtype=ending.result)
    seen = [e.expand(shape) for e in extras]
    run_interpreted(plan, [a, b, *seen], ending, [result])
    return result


@interpreted
@pytest.mark.parametrize(
    "layouts",
    [("contiguous", "transposed"), ("transposed", "cut"), ("every second", "every second")],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(1, 160, 1), (5, 155, 33), (17, 131, 16), (16, 192, 32)], ids=str)
@pytest.mark.parametrize("plan", list(PLANS))
def test_sizes_and_strides(plan: str, sizes: tuple[int, int, int], layouts: tuple[str, str]) -> None:
    rows, depth, columns = sizes
    a, b = LAYOUTS[layouts[0]](filled((rows, depth))), LAYOUTS[layouts[1]](filled((depth, columns), seed=1))
    torch.testing.assert_close(run(PLANS[plan], a, b), a @ b, rtol=1e-5, atol=1e-4)


ROUNDING = {torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@st.composite
def plans(draw: st.DrawFn, depth: int) -> Candidate:
    """Any tile, any even number of splits, any second launch."""
    power = lambda low, high: 1 << draw(st.integers(low, high))  # noqa: E731
    tile = Tile(power(4, 6), power(4, 6), power(4, 7), 1, 2)
    splits = even_splits(depth, tile, draw(st.integers(1, 9)))
    if splits == 1 and draw(st.booleans()):
        return Candidate("whole", tile)
    return Candidate("split", tile, splits, Finish(power(3, 8), power(0, 4), 1))


@interpreted
@settings(max_examples=30)
@given(data=st.data())
def test_any_plan_of_any_shape_and_strides_is_near_float64(data: st.DataObject) -> None:
    """Within the stated bound: gamma_K |a| |b| with u = 2^-23 before the result's one rounding, u_out |result|."""
    batch = data.draw(st.sampled_from([(), (), (2,)]), "batch")
    rows, columns = (data.draw(st.integers(1, 33), name) for name in ("M", "N"))
    depth = data.draw(st.one_of(st.integers(1, 20), st.integers(1, 200)), "K")
    dtype = data.draw(st.sampled_from(list(ROUNDING)), "dtype")
    shared = data.draw(st.booleans(), "one b for all")
    places = [LAYOUTS[data.draw(st.sampled_from(list(LAYOUTS)), name)] for name in "ab"]
    a = places[0](filled((*batch, rows, depth), dtype))
    b = places[1](filled((depth, columns) if shared else (*batch, depth, columns), dtype, 1))
    got = run(data.draw(plans(depth), "plan"), a, b, epilogue=make_epilogue(None, None, (), dtype, None))
    want, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    unit = depth * (2.0**-53 if dtype == torch.float64 else 2.0**-23)
    bound = unit / (1 - unit) * size + ROUNDING[dtype] * want.abs() + (6e-8 if dtype == torch.float16 else 0)
    assert bool(((got.double() - want).abs() <= bound).all())


@interpreted
@pytest.mark.parametrize("plan", ["whole", "split"])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn],
)
def test_dtypes(dtype: torch.dtype, plan: str) -> None:
    a, b = filled((9, 150), dtype), filled((150, 20), dtype, 1)
    got = run(PLANS[plan], a, b)
    torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


@interpreted
@pytest.mark.parametrize("plan", ["whole", "split"])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4, 150), (150, 9)),
        ((3, 4, 150), (3, 150, 9)),
        ((2, 1, 4, 130), (3, 130, 5)),
        ((2, 3, 4, 130), (3, 130, 5)),
    ],
    ids=str,
)
def test_batches(left: tuple[int, ...], right: tuple[int, ...], plan: str) -> None:
    a, b = filled(left), filled(right, seed=1)
    residual = filled((left[-2], 1), seed=2)
    ending = make_epilogue(lambda x, r: x + r, None, (torch.float32,), torch.float32, None)
    torch.testing.assert_close(
        run(PLANS[plan], a, b, [residual], ending), a @ b + residual, rtol=1e-5, atol=1e-4
    )


@interpreted
@pytest.mark.parametrize("plan", ["whole", "split"])
@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "sigmoid", "tanh"])
def test_named_epilogues(name: str, plan: str) -> None:
    # Gates of about 1, which would be 0 or 1 alone for larger numbers.
    a, b, bias = filled((5, 150)) / 16, filled((150, 20), seed=1), filled((20,), torch.bfloat16, 2)
    ending = make_epilogue(name, torch.bfloat16, (), torch.float32, None)
    want = tilefold.matmul(a, b, bias=bias, epilogue=name)
    torch.testing.assert_close(run(PLANS[plan], a, b, [bias], ending), want, rtol=1e-5, atol=1e-4)


@interpreted
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.uint8])
@pytest.mark.parametrize("plan", ["whole", "split"])
def test_extra_tensors_of_other_dtypes(plan: str, dtype: torch.dtype) -> None:
    a, b = filled((5, 150)), filled((150, 20), seed=1)
    extra = torch.arange(5).remainder(2).to(dtype)[:, None]
    ending = make_epilogue(
        lambda x, e: tilefold.math.where(e != 0, x, -1.0), None, (dtype,), torch.float32, None
    )
    want = torch.where(extra != 0, a @ b, -1.0)
    torch.testing.assert_close(run(PLANS[plan], a, b, [extra], ending), want, rtol=1e-5, atol=1e-4)


@interpreted
@pytest.mark.parametrize("plan", ["whole", "split"])
def test_offsets_beyond_32_bits(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "NARROW", 64)  # a small product is walked as a huge one
    a, b = filled((2, 5, 150)), filled((2, 150, 20), seed=1)
    bias = filled((20,), seed=2)
    ending = make_epilogue("relu", torch.float32, (), torch.float32, None)
    want = torch.relu(a @ b + bias)
    torch.testing.assert_close(run(PLANS[plan], a, b, [bias], ending), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("plan", ["whole", "split"])
def test_products_beyond_32_bits_compile(plan: str) -> None:
    a, b = (
        torch.empty(s, dtype=torch.float16, device="meta") for s in ((1 << 17, 1 << 15), (1 << 15, 1 << 15))
    )
    problem = canonical_product(a, b, [])
    for call in product_calls(PLANS[plan], problem, make_epilogue(None, None, (), torch.float16, None)):
        constants = dict(call.constants)
        assert constants["TILE"].WIDE if "TILE" in constants else constants["WIDE"]
        calls.compile_for(call, 90)


@interpreted
def test_the_public_call() -> None:
    a, b, bias = filled((3, 700)), filled((700, 5), seed=1), filled((5,), seed=2)
    with tilefold.backend("interpret"):
        got = tilefold.matmul(a, b, bias=bias, epilogue="relu")
        plan = tilefold.last_plan()
        nothing = tilefold.matmul(a[:0], b)
        zeros = tilefold.matmul(a[:, :0], b[:0], bias=bias)
    torch.testing.assert_close(got, torch.relu(a @ b + bias), rtol=1e-5, atol=1e-4)
    assert plan is not None
    assert plan.backend == "interpret"
    assert nothing.shape == (0, 5)
    assert torch.equal(zeros, bias.expand(3, 5))


@interpreted
def test_a_row_does_not_know_its_batch() -> None:
    a, b = filled((70, 515)), filled((515, 9), seed=1)
    with tilefold.backend("interpret"):
        whole = tilefold.matmul(a, b, guarantee="batch_invariant")
        for rows in (1, 16, 33):
            assert torch.equal(tilefold.matmul(a[:rows], b, guarantee="batch_invariant"), whole[:rows])


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.float8_e5m2]


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strategy", ["split", "whole", "cublas"])
def test_compiles(strategy: str, dtype: torch.dtype, architecture: int) -> None:
    a, b = (torch.empty(s, dtype=dtype, device="meta") for s in ((16, 8192), (8192, 48)))
    bias = torch.empty(48, device="meta").expand(16, 48)
    problem = canonical_product(a, b, [bias])
    plan = choose_product(problem, Device("any", 132, architecture, 4000.0), cublas=False)
    assert plan.strategy == "split"
    plan = replace(plan, chained=False)
    if strategy == "whole":
        plan = Candidate("whole", Tile(32, 32, 32, 4, 2))
    if strategy == "cublas":
        plan = Candidate("cublas", finish=finish_of(Sizes(16, 48, 8192, 1, 2), 1))
    for call in product_calls(plan, problem, make_epilogue("gelu", torch.float32, (), dtype, None)):
        ptx = ptx_of(call, architecture)
        assert "ld.local" not in ptx, "no array may live in local memory"
        waits, releases = ("griddepcontrol.wait", "griddepcontrol.launch_dependents")
        split = plan.overlap and strategy == "split"
        assert (waits in ptx) == (split and call.kernel == "finish_products")
        assert (releases in ptx) == (split and call.kernel == "product_partials")


def ptx_of(call: calls.Call, architecture: int) -> str:
    """What a call compiles to.

    Triton 3.6 keeps for a whole process how float8 is converted on the chip it first compiled for, and sm_80 cannot do it as
    later chips do: that one gets a process of its own.
    """
    if "float8" in str(call) and architecture < 90:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(_ptx_of, call, architecture).result()
    return _ptx_of(call, architecture)


def _ptx_of(call: calls.Call, architecture: int) -> str:
    return str(calls.compile_for(call, architecture).asm["ptx"])


def test_a_skinny_product_divides_by_constants() -> None:
    """A division by what only the launch knows is thirty instructions on the way to the first load."""
    for rows, divides in ((16, False), (33, False), (300, True)):
        a, b = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((rows, 8192), (8192, 48)))
        problem = canonical_product(a, b, [])
        plan = Candidate("split", Tile(16, 16, 64, 1, 2), 7, Finish(32, 8, 1), True)
        made = make_epilogue("relu", None, (), torch.bfloat16, None)
        for call in product_calls(plan, problem, made):
            ptx = calls.compile_for(call, 90).asm["ptx"]
            found = re.search(r"\b(div|rem)\.[su](32|64)", ptx) is not None
            assert found == (divides and call.kernel == "product_partials"), (rows, call.kernel)


@pytest.mark.parametrize("outputs", [1, 256, 300, 48 * 48, 1 << 18, (1 << 18) + 1, 3 << 20, 10**7])
def test_a_pitch_serves_many_shapes(outputs: int) -> None:
    """So that one kernel does: a power of two, or one of eight numbers an octave; never twice the results."""
    a, b = torch.empty(1, 8, device="meta"), torch.empty(8, outputs, device="meta")
    pitch = pitch_of(canonical_product(a, b, []))
    assert outputs <= pitch < 2 * outputs
    assert pitch.bit_count() <= (1 if outputs <= 1 << 18 else 4)


def test_a_chained_plan_waits_before_it_reads() -> None:
    """The first launch waits, then releases: the second one may read extra tensors at once."""
    a, b = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((16, 8192), (8192, 48)))
    problem = canonical_product(a, b, [])
    plan = replace(choose_product(problem, Device("any", 132, 90, 4000.0)), chained=True)
    first, second = (
        calls.compile_for(c, 90).asm["ptx"]
        for c in product_calls(plan, problem, make_epilogue("relu", None, (), torch.bfloat16, None))
    )
    waits, releases = ("griddepcontrol.wait", "griddepcontrol.launch_dependents")
    assert first.index(waits) < first.index(releases) < first.index("cp.async")
    assert waits in second
    assert releases in second


@pytest.mark.parametrize("row", [None, (tilefold.monoids.SUM, None)], ids=["results", "rows"])
def test_a_chained_launch_of_its_own_waits_before_it_reads(row: object) -> None:
    """Its operands, and extra tensors with them, may be what the launch before writes."""
    a, b, r = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((16, 512), (512, 32), (16, 32)))
    plan = Candidate("whole", Tile(16, 32, 64, 4, 3), chained=True, reserved_bytes=1 << 16)
    ending = make_epilogue(lambda x, y: x + y, None, (torch.bfloat16,), torch.bfloat16, None, row)  # type: ignore[arg-type]
    (call,) = product_calls(plan, canonical_product(a, b, [r]), ending)
    text = calls.compile_for(call, 90).asm["ptx"]
    first_read = min(text.index(read) for read in ("cp.async", "ld.global"))
    assert text.index("griddepcontrol.wait") < text.index("griddepcontrol.launch_dependents") < first_read
    assert (call.dependent, call.shared_bytes) == (True, 1 << 16)


def test_a_launch_asks_for_what_is_reserved_and_never_for_less_than_it_uses() -> None:
    """Packed as Triton packs what it launches with, whatever else that holds."""
    a, b = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((16, 512), (512, 32)))
    ending, problem = make_epilogue(None, None, (), torch.bfloat16, None), canonical_product(a, b, [])
    plan = Candidate("whole", Tile(16, 32, 64, 4, 3))
    used = calls.compile_for(product_calls(plan, problem, ending)[0], 90).metadata.shared
    assert used > 0
    for reserved, asked in ((0, used), (used - 1, used), (114 * 1024, 114 * 1024)):
        (call,) = product_calls(replace(plan, reserved_bytes=reserved), problem, ending)
        kernel = calls.compile_for(call, 90)
        launch._demand(kernel, call.shared_bytes, call.cluster)
        assert kernel.metadata.shared == asked
        assert kernel.packed_metadata[:3] == (4, 1, asked)


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize(("precision", "rounds"), [("ieee", False), ("tf32", True)])
def test_float32_is_true_unless_asked(precision: str, rounds: bool, architecture: int) -> None:
    problem = canonical_product(torch.empty(64, 512, device="meta"), torch.empty(512, 64, device="meta"), [])
    plan = Candidate("whole", Tile(64, 64, 32, 4, 2), precision=precision)
    (call,) = product_calls(plan, problem, make_epilogue(None, None, (), torch.float32, None))
    assert ("tf32" in calls.compile_for(call, architecture).asm["ptx"]) == rounds


@pytest.mark.parametrize("plan", ["whole", "split"])
def test_a_step_of_k_beyond_32_bits_is_made_of_64(plan: str) -> None:
    """Rows of b lie 8.5 million elements apart, so that a step of 256 of them reaches over 2^31."""
    a, b = (
        torch.empty(2, 257, dtype=torch.int8, device="meta"),
        torch.empty(257, 8_500_000, dtype=torch.int8, device="meta"),
    )
    problem = canonical_product(a, b[:, :3], [])
    wide = replace(PLANS[plan], tile=Tile(16, 16, 256, 1, 2), splits=1 if plan == "whole" else 2)
    ending = make_epilogue(None, None, (), torch.int8, None)
    first = product_calls(wide, problem, ending)[0]
    assert dict(first.constants)["TILE"].WIDE
    assert re.search(r"add\.s64\s+%rd\d+, %rd\d+, 2176000000;", calls.compile_for(first, 90).asm["ptx"])


@pytest.mark.parametrize("lanes", [1, 64])
def test_partial_products_lie_beyond_32_bits(lanes: int) -> None:
    """Those of the split 64 are 2.4 billion elements from the first: a number that an unsigned word could hold."""
    a, b = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((1, 4096), (4096, 34_000_000)))
    problem = canonical_product(a, b, [])
    bytes_off = 64 * 4 * pitch_of(problem)
    assert 1 << 31 <= bytes_off // 4 < 1 << 32
    plan = Candidate("split", Tile(16, 128, 32, 4, 2), 65, Finish(128, lanes, 4))
    ending = make_epilogue(None, None, (), torch.bfloat16, None)
    last = product_calls(plan, problem, ending)[-1]
    assert re.search(
        rf"(add\.s64\s+%rd\d+, %rd\d+, |\+){bytes_off}\b", calls.compile_for(last, 90).asm["ptx"]
    )


@pytest.mark.parametrize("row", [None, (tilefold.monoids.SUM, None)], ids=["results", "rows"])
@pytest.mark.parametrize("columns", [33, 256])
def test_no_layout_of_registers_orders_a_batch_invariant_sum(columns: int, row: object) -> None:
    """How registers are shared out follows from strides, and so from M: nothing is summed across threads in that order."""
    ending = make_epilogue(None, None, (), torch.bfloat16, None, row)  # type: ignore[arg-type]
    for rows in (1, 16, 17, 18):
        a, b = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((rows, 7168), (7168, columns)))
        problem = canonical_product(a, b, [])
        options = {"guarantee": "batch_invariant", "row": row is not None}
        plan = choose_product(problem, Device("any", 132, 90, 4000.0), **options)  # type: ignore[arg-type]
        first, last = product_calls(plan, problem, ending)
        for call in (first, last):
            assert "tt.reduce" not in calls.compile_for(call, 90).asm["ttgir"]
