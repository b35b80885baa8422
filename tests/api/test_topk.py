"""topk: ties, NaN, dtypes, dims and layouts on every backend against the definition; what kernels do, from their PTX."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton

import tilefold
from tilefold import errors
from tilefold.api.requests import Selected
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.device import H200, Device
from tilefold.planner.selections import choose_selection, selection_problem
from tilefold.planner.stages.selections import Selection
from tilefold.xray.machine.counts import global_cost
from xray.running import run_call, run_plan

Tensor = torch.Tensor
INF, NAN = float("inf"), float("nan")
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def definition(x: Tensor, k: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    with tilefold.backend("reference"):
        values, indices = tilefold.topk(x, k, dim, largest)
    return values, indices


def bits(t: Tensor) -> Tensor:
    return t.view(BITS[t.element_size()])


def check(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, backends: tuple[str, ...] = ("auto", "interpret")
) -> None:
    values, indices = definition(x, k, dim, largest)
    for backend in backends:
        with tilefold.backend(backend):
            got = tilefold.topk(x, k, dim, largest)
        assert isinstance(got, torch.return_types.topk)
        assert torch.equal(got.indices, indices), backend
        assert torch.equal(bits(got.values), bits(values)), backend
        assert got.values.is_contiguous()
        assert got.indices.is_contiguous()


def hostile(*shape: int) -> Tensor:
    """Ties, both zeros, both infinities, NaN, denormals."""
    kinds = torch.tensor([0.0, -0.0, 1.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, -1e-45, 3.5])
    return kinds[torch.randint(len(kinds), shape)]


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "k"),
    [((3, 63), 3), ((40,), 32), ((7, 3), 3), ((2, 1025), 8), ((1, 1), 1), ((2, 1500), 2), ((1, 16400), 8), ((4, 64), 5)],
    ids=str,
)  # fmt: skip
def test_shapes(shape: tuple[int, ...], k: int, largest: bool) -> None:
    check(torch.randn(shape), k, -1, largest, ("auto",))
    check(hostile(*shape), k, -1, largest)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.0])
def test_rows_of_one_value_give_the_first_places(value: float) -> None:
    x = torch.full((2, 1000), value)
    for largest in (True, False):
        check(x, 8, -1, largest)
        assert tilefold.topk(x, 8, -1, largest).indices.tolist() == [list(range(8))] * 2


def test_zeros_of_both_signs_tie() -> None:
    x = torch.zeros(2, 300)
    x[:, ::2] = -0.0
    x[0, 100:] = -1.0
    for largest in (True, False):
        check(x, 6, -1, largest)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bfloat16], ids=str)
def test_ties_that_torch_settles_otherwise(dtype: torch.dtype) -> None:
    """Few of them, many, and some beyond what is looked at first."""
    for x in (
        torch.randint(0, 3, (20, 2000)),
        torch.randint(0, 500, (20, 2000)),
        torch.cat([torch.zeros(5, 1500), torch.randint(0, 9, (5, 900))], 1),
    ):
        for largest in (True, False):
            check(x.to(dtype), 8, -1, largest, ("auto",))


def test_values_are_torchs() -> None:
    for x in (torch.randn(9, 300), hostile(9, 300)):
        for largest in (True, False):
            got, want = tilefold.topk(x, 7, 1, largest), torch.topk(x, 7, 1, largest)
            torch.testing.assert_close(got.values, want.values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64,
     torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2],
    ids=str,
)  # fmt: skip
def test_dtypes(dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        x = hostile(3, 300).to(dtype)
    elif dtype == torch.bool:
        x = torch.rand(3, 300) > 0.99
    else:
        limits = torch.iinfo(dtype)
        numbers = [limits.min, limits.min + 1, 0, 5, limits.max // 2, limits.max - 1, limits.max]
        x = torch.tensor(numbers, dtype=dtype).view(BITS[dtype.itemsize])
        x = x[torch.randint(len(numbers), (3, 300))].view(dtype)
    for largest in (True, False):
        check(x, 4, -1, largest)


LAYOUTS = {
    "dim 0": (lambda: hostile(100, 9), 0),
    "middle": (lambda: hostile(2, 100, 3), 1),
    "sliced": (lambda: hostile(2, 300)[:, ::2], 1),
    "expanded": (lambda: hostile(150).expand(2, 150), 1),
    "one element": (lambda: torch.randn(1).expand(300), 0),
    "misaligned": (lambda: hostile(2 * 333 + 1)[1:].view(2, 333), 1),
    "permuted": (lambda: hostile(2, 2, 150).permute(1, 2, 0), 1),
    "no dim": (lambda: torch.tensor(3.0), 0),
}


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_layouts(name: str) -> None:
    make, dim = LAYOUTS[name]
    x = make()
    k = 5 if x.ndim else 1
    check(x, k, dim)
    with tilefold.backend("cpu"):
        assert tilefold.topk(x, k, dim).values.shape == torch.topk(x, k, dim).values.shape


def test_nothing() -> None:
    for shape, k, dim in (((3, 5), 0, 1), ((0, 5), 2, 1), ((3, 0), 0, 1), ((), 0, 0)):
        x = torch.empty(shape)
        for backend in ("auto", "interpret"):
            with tilefold.backend(backend):
                got = tilefold.topk(x, k, dim)
            assert got.values.shape == torch.topk(x, k, dim).values.shape
            assert got.indices.dtype == torch.int64


def test_a_tensor_without_dims_gives_its_element() -> None:
    x = torch.tensor(3.5)
    for k in (0, 1):
        assert tilefold.topk(x, k) == torch.topk(x, k) == (3.5, 0)


def test_into_out_abstract_and_classes() -> None:
    x = torch.randn(4, 50)
    out = torch.empty(3, 4).T, torch.empty(4, 3, dtype=torch.int64)
    got = tilefold.topk(x, 3, out=out)
    assert got.values is out[0]
    assert torch.equal(out[1], torch.topk(x, 3).indices)
    assert tilefold.topk(torch.empty(4, 50, device="meta"), 3).indices.shape == (4, 3)

    class Own(torch.Tensor):
        pass

    assert type(tilefold.topk(x.as_subclass(Own), 3).values) is Own


X = torch.arange(40.0).view(1, 40)
REFUSED = {
    "beyond the dim": (lambda: tilefold.topk(X[:, :3], 4), errors.ShapeError, r"in \[0, 3\], .*got 4"),
    "negative": (lambda: tilefold.topk(X, -1), errors.ShapeError, r"in \[0, 40\], .*got -1"),
    "beyond 32": (lambda: tilefold.topk(X, 33), errors.ArgumentError, r"at most 32, got 33; use torch.topk"),
    "no int": (lambda: tilefold.topk(X, 1.5), errors.KindError, r"`k` must be an int, got 1.5"),
    "several": (
        lambda: tilefold.topk(X, torch.tensor([1, 2])),
        errors.KindError,
        r"`k` must be an int, got Tensor of shape \[2\]",
    ),
    "a truth value": (
        lambda: tilefold.topk(X, torch.tensor(True)),
        errors.KindError,
        r"`k` must be an int, got tensor\(True\)",
    ),
    "a flag": (
        lambda: tilefold.topk(X, 2, largest=1),
        errors.KindError,
        r"`largest` must be True or False, got 1",
    ),
    "dims": (lambda: tilefold.topk(X, 2, (0, 1)), errors.KindError, r"`dim` must be one int, got \(0, 1\)"),
    "dim": (lambda: tilefold.topk(X, 2, 2), errors.DimError, r"in \[-2, 1\] .*got 2"),
    "complex": (lambda: tilefold.topk(X.to(torch.complex64), 2), errors.DtypeError, r"complex64"),
    "gradient": (
        lambda: tilefold.topk(
            X.clone().requires_grad_(), 1, out=(X[:, :1].clone(), torch.empty(len(X), 1, dtype=torch.int64))
        ),
        errors.GradientError,
        r"require grad",
    ),
    "out": (lambda: tilefold.topk(X, 2, out=(X, X)), errors.DtypeError, r"int64|shape"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals(name: str) -> None:
    call, error, rule = REFUSED[name]
    before = X.clone()
    with pytest.raises((error, errors.ShapeError) if name == "out" else error, match=rule):
        call()
    assert torch.equal(X, before)


# ------------------------------------------------------------------------------------------------------ kernels


def executed(
    x: Tensor, k: int, dim: int, largest: bool = True, device: Device = H200
) -> tuple[Tensor, Tensor]:
    """Planned for a chip, compiled, executed from the PTX."""
    shape = tuple(k if d == dim % x.ndim else n for d, n in enumerate(x.shape))
    request = Selected(k, dim % x.ndim, largest, x.dtype, "run_to_run", shape)
    problem, plan = request.plan([x], device, library=False)
    values, indices = torch.empty(shape, dtype=x.dtype), torch.empty(shape, dtype=torch.int64)
    run_plan(plan, problem, None, [x], [values, indices], 90)  # type: ignore[arg-type]  # no computation
    return values, indices


SMALL = replace(H200, sms=1)  # few programs: rows share one
CASES = {
    "a quarter of a warp": (lambda: hostile(17, 256), 4, 1, SMALL),
    "a warp": (lambda: hostile(5, 4000), 3, 1, SMALL),
    "a loop": (lambda: hostile(1, 50257), 8, 1, SMALL),
    "direct": (lambda: hostile(70, 13), 5, 1, SMALL),
    "parts": (lambda: hostile(1, 40000), 8, 1, H200),
    "columns": (lambda: hostile(300, 40), 4, 0, SMALL),
    "misaligned": (lambda: hostile(2, 999), 32, 1, SMALL),
    "a column a thread": (lambda: hostile(29, 40), 29, 0, SMALL),
    "four columns a thread": (lambda: hostile(7, 300), 2, 0, SMALL),
    "columns between dims": (lambda: hostile(5, 11, 37), 4, 1, SMALL),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(CASES))
def test_what_a_device_gives(name: str, dtype: torch.dtype) -> None:
    make, k, dim, device = CASES[name]
    x = (
        make().to(dtype)
        if name != "misaligned"
        else torch.cat([torch.zeros(1), make().reshape(-1)]).to(dtype)[1:].view(2, 999)
    )
    largest = dtype == torch.bfloat16
    values, indices = executed(x, k, dim, largest, device)
    want_values, want = definition(x, k, dim, largest)
    assert torch.equal(indices, want)
    assert torch.equal(bits(values), bits(want_values))


def test_64_bits_on_a_device() -> None:
    for x in (torch.randint(-3, 3, (3, 500)) * 2**61, hostile(3, 500).double()):
        values, indices = executed(x, 5, 1)
        want_values, want = definition(x, 5, 1, True)
        assert torch.equal(indices, want)
        assert torch.equal(values.isnan(), want_values.isnan())


def test_64_bits_of_columns_that_a_thread_holds() -> None:
    for x in (torch.randint(-3, 3, (9, 70)) * 2**61, hostile(9, 70).double()):
        values, indices = executed(x, 3, 0, device=SMALL)
        want_values, want = definition(x, 3, 0, True)
        assert torch.equal(indices, want)
        assert torch.equal(values.isnan(), want_values.isnan())


def test_columns_that_threads_hold() -> None:
    """The more columns each the more there are; long columns, and few, are shared by lanes."""

    def chosen(*shape: int, dtype: torch.dtype = torch.bfloat16, k: int = 2) -> Selection:
        problem = selection_problem(torch.empty(shape, dtype=dtype, device="meta"), 0, k)
        return choose_selection(problem, k, True, H200)

    wide = chosen(8, 1 << 20)
    assert (wide.rows, wide.lanes, wide.num_warps, wide.direct, wide.scattered) == (512, 1, 4, True, True)
    assert chosen(64, 1 << 20, k=32).rows == 128
    assert chosen(17, 1 << 20, dtype=torch.float32).rows == 128
    few = chosen(8, 132 * 32)
    assert (few.rows, few.num_warps) == (32, 1)
    for other in (chosen(8, 132 * 32 - 1), chosen(65, 1 << 20), chosen(33, 1 << 20, dtype=torch.float32)):
        assert not other.scattered


def test_columns_that_threads_hold_take_few_instructions() -> None:
    """From the PTX: neighbouring threads load neighbours, and no element is exchanged."""
    x = torch.randn(8, 4096)
    request = Selected(2, 0, True, torch.float32, "run_to_run", (2, 4096))
    problem, plan = request.plan([x], replace(H200, sms=4), library=False)
    (call,) = calls_of(plan, problem, None)
    found = [torch.empty(2, 4096), torch.empty(2, 4096, dtype=torch.int64)]
    outcomes = run_call(call, [x], found, 90)
    assert torch.equal(found[0], x.topk(2, dim=0).values)
    assert sum(int(outcome.warps.sum()) for outcome in outcomes) <= 30 * x.numel() / 32
    stored = global_cost(a for outcome in outcomes for a in outcome.accesses if a.kind == "store")
    assert stored.sectors == stored.ideal


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((8, 1 << 16), 0), ((32, 1 << 16), 0), ((9, 24, 3001), 1), ((32768, 1024), 1), ((16384, 8192), 1),
     ((8192, 151936), 1), ((64, 1 << 20), 1), ((4096, 4096), 0), ((1 << 20, 64), 1), ((16384, 4097), 0), ((40_000, 7), 0),
     ((20_000, 15, 31), 1)],
    ids=str,
)  # fmt: skip
def test_plans_of_a_gpu_stay_in_registers(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    x = torch.empty(shape, dtype=dtype, device="meta")
    results = tuple(8 if d == dim else n for d, n in enumerate(shape))
    problem, plan = Selected(8, dim, True, dtype, "run_to_run", results).plan([x], H200, library=False)
    for call in calls_of(plan, problem, None):
        (tmp_path / "cubin").write_bytes(calls.compile_for(call, 90).asm["cubin"])
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(tmp_path / "cubin")]
        usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
        assert "STACK:0 " in usage, usage


def test_the_plan_follows_the_length() -> None:
    def chosen(*shape: int, k: int = 8):
        problem = selection_problem(torch.empty(shape, dtype=torch.bfloat16, device="meta"), 1, k)
        return choose_selection(problem, k, True, H200)

    assert chosen(1 << 20, 64).direct
    assert (chosen(32768, 1024).rows, chosen(32768, 1024).turns) == (2, 2)
    assert chosen(8192, 151936).splits == 1
    assert chosen(1, 1 << 28).splits > 100
    assert chosen(1, 1 << 28, k=32).splits * 32 <= 4096
    assert chosen(100, 50257).align


@pytest.mark.parametrize("row", [[1.0, 1, 1, 0], [3.0, 2, 1, 0]], ids=["ties", "no ties"])
def test_inside_functionalize_another_tensor_is_selected_from(row: list[float]) -> None:
    x = torch.tensor([row])
    apart = torch.func.functionalize(lambda y: y + tilefold.topk(x, 2).indices)(torch.zeros(2))
    assert apart.tolist() == [[0, 1]]
