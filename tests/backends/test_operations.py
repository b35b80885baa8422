"""Every operation on every carried dtype at the corners of its range: one answer on every backend, bit for bit.

`reference` defines it. Lanes, the interpreter, PTX executed by the X-ray's machine, and a GPU are held to its bits; what a
chip approximates is held to a few units in the last place, and to the least normal number where it flushes smaller ones.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tilefold
from answers import bits_of
from tilefold import math as tm
from tilefold.algebra import typing
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.operations import OPS
from tilefold.algebra.program import Program, specialize
from tilefold.api import dispatch
from tilefold.api.on_cpu import by_tiles
from tilefold.api.requests import Reduction
from tilefold.backends import reference
from tilefold.backends.triton import instantiate
from tilefold.errors import DtypeError
from xray.running import fold

INF, NAN = math.inf, math.nan
BACKENDS = ["cpu", "interpret", "ptx", pytest.param("triton", marks=pytest.mark.gpu)]
CARRIED = (torch.bool, torch.int32, torch.int64, torch.uint64, torch.float32, torch.float64)
FLOATS = (torch.float32, torch.float64)
pytestmark = [  # of numpy's, in Triton's interpreter
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WHOLE = [0, 1, -1, 2, -2, 3, 5, -7, 31, 32, 33, 62, 63, 64, 65, 200, -64, 1 << 30]


def corners(dtype: torch.dtype) -> torch.Tensor:
    """Where operations of a dtype go wrong."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype == torch.uint64:
        return torch.tensor(
            [n % (1 << 64) for n in (*WHOLE, (1 << 63) - 1, 1 << 63, (1 << 63) + 1)], dtype=dtype
        )
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([*WHOLE, info.min, info.min + 1, info.max, info.max - 1], dtype=dtype)
    info = torch.finfo(dtype)
    sizes = [0.0, info.smallest_normal / 4, info.smallest_normal, 0.1, 0.5, 1.0, 2.5, 7.0, 1e9, info.max, INF]
    return torch.tensor([*sizes, *(-s for s in sizes), NAN, 3e9, -3e9, 1e19, -1.5], dtype=dtype)


def lifting(
    lift: Callable[..., Any],
    elements: Sequence[torch.dtype],
    fields: Sequence[torch.dtype | str],
    dtype: torch.dtype | None = None,
) -> Program:
    """The fold whose results, of one element, are what `lift` makes of it."""
    monoid = tilefold.Monoid(
        lambda a, b: tuple(a) if len(fields) > 1 else a,
        None,
        lift=lift,
        fields=[f"f{i}" for i in range(len(fields))],
        dtypes=tuple(fields),
        commutative=True,
        absorb=False,
        check=False,
    )
    return specialize(monoid.total, tuple(elements), dtype)


def run(
    backend: str, program: Program, inputs: Sequence[torch.Tensor], dims: tuple[int, ...] = (1,)
) -> list[torch.Tensor]:
    """A fold on one backend."""
    shape = tuple(n for d, n in enumerate(inputs[0].shape) if d not in dims)
    request = Reduction(program, dims, "run_to_run", shape)
    if backend == "ptx":
        return fold(inputs, program, dims, 90, ordered=not program.algebra.commutative)[0]
    if backend == "triton":
        there = [x.cuda() for x in inputs]
        return [y.cpu() for y in dispatch.compiled(request, there).call(*there)]
    if backend == "interpret":
        with tilefold.backend("interpret"):
            return dispatch.run(request, inputs)
    if backend == "cpu":
        return by_tiles(inputs, program, dims, "run_to_run")[0]
    return reference.fold(inputs, program, dims)


def carried(lift: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """`lift` on elements of a dtype that is carried: int32 elements are read as int64."""
    if dtype != torch.int32:
        return lift
    return lambda a, b: lift(tm.cast(a, torch.int32), tm.cast(b, torch.int32))


def agree(got: torch.Tensor, want: torch.Tensor, op: str) -> torch.Tensor:
    """Where two results are the same number; a zero's sign counts but where it is a maximum or minimum of zeros."""
    same = (
        bits_of(got) == bits_of(want)
        if got.itemsize > 1 or not want.is_floating_point()
        else alike(got, want)
    )
    if op in ("maximum", "minimum"):
        same |= got == want
    ulps = OPS[op].values.ulps if op in OPS else 0
    if ulps and want.is_floating_point():
        info = torch.finfo(want.dtype)
        got, want = (
            t.clamp(-info.max, info.max) for t in (got, want)
        )  # the greatest number is next to infinity
        same |= (got - want).abs() <= ulps * info.eps * want.abs() + info.smallest_normal
    return same


def alike(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Of 8-bit floats."""
    same: torch.Tensor = got.view(torch.uint8) == want.view(torch.uint8)
    return same | (got.float().isnan() & want.float().isnan())


def check(backend: str, names: Sequence[str], program: Program, inputs: Sequence[torch.Tensor]) -> None:
    """All results of a backend against the definition's, the wrong ones by name with their operands."""
    columns = [x[:, None] for x in inputs]
    wrong = {}
    for name, got, want in zip(
        names, run(backend, program, columns), run("reference", program, columns), strict=True
    ):
        assert got.dtype == want.dtype, name
        off = (~agree(got, want, name.partition(" ")[0])).nonzero().flatten().tolist()
        if off:
            wrong[name] = [(*(x[i].item() for x in inputs), got[i].item(), want[i].item()) for i in off[:6]]
    assert not wrong, "\n".join(f"{name}: {cases}" for name, cases in wrong.items())


def shares(names: Sequence[str]) -> list[list[str]]:
    """As many fields at a time as one kernel is compiled for quickly."""
    return [list(names[start : start + 15]) for start in range(0, len(names), 15)]


@functools.cache
def takes(op: str, dtype: torch.dtype, constants: tuple[Any, ...] = ()) -> torch.dtype | None:
    """The dtype that an operation gives, with constants for its last operands; None where it is refused."""
    arity = OPS[op].arity - len(constants)
    graph = trace(lambda *x: apply(op, *x, *constants), arity)
    try:
        return typing.infer(graph, [dtype] * arity).output_dtypes[0]
    except DtypeError:
        return None


def operations(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The table's operations on operands of one dtype, and what they give.

    But of float32 the approximate logarithm, which takes subnormal numbers for 0: it is given sums from e^-16 on.
    """
    away = ("log2_approximate",) if dtype == torch.float32 else ()
    ops = [name for name, op in OPS.items() if op.kind not in ("block", "cast") and name not in away]
    return {op: given for op in ops if (given := takes(op, dtype)) is not None}


def within(op: str, *operands: Any) -> tuple[Any, ...]:
    """Operands that an operation is defined for: inverses those of powers of two, and of 0."""
    if op != "per_unit":
        return operands
    (x,) = operands
    return (tm.where(x == 0, 0.0, apply("unit", x)),)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", CARRIED, ids=str)
def test_every_operation_of_the_table(dtype: torch.dtype, backend: str) -> None:
    """On every pair of corners; `where` chooses by its first operand."""
    table = operations(dtype)
    kinds = {"arithmetic", "float", "compare", "test", "bitwise", "select", "cast", "block"}
    assert {OPS[op].kind for op in OPS} == kinds, "a kind that this test knows nothing of"

    grid = list(itertools.product(range(len(corners(dtype))), repeat=2))
    inputs = [corners(dtype)[[pair[side] for pair in grid]] for side in (0, 1)]
    for ops in shares(list(table)):

        def lift(a: Any, b: Any, ops: Sequence[str] = tuple(ops)) -> Any:
            taken = [within(op, *((a, b) if OPS[op].arity < 3 else (a, a, b))[: OPS[op].arity]) for op in ops]
            return tuple(apply(op, *operands) for op, operands in zip(ops, taken, strict=True))

        check(backend, ops, lifting(carried(lift, dtype), [dtype] * 2, [table[op] for op in ops]), inputs)


# What an operation is given, with what constants on its right, or left. Floats' remainders and powers are long code.
CHOICES = ("add", "mul", "where", "maximum", "eq")
WHOLE_CONSTANTS = {
    **dict.fromkeys((*CHOICES, "floordiv", "mod"), (-1, 3, -7, (1 << 40) + 3)),
    **dict.fromkeys(("lshift", "rshift"), (0, 1, 31, 32, 63, 64, 200, -1)),
}
FLOAT_CONSTANTS = {
    **dict.fromkeys(CHOICES, (-0.0, 0.1, 1e-40, 1e39, -INF, NAN, -7, (1 << 40) + 3)),
    "mod": (0.1,),
}
POWERS = {"pow": (-0.5, 0.5, 3, 2.5), "floordiv": (0.1,)}


def with_constants(dtype: torch.dtype) -> dict[str, tuple[Callable[[Any], Any], torch.dtype]]:
    """Functions of one value by name, with what they give; `where` chooses between the value and the constant."""
    table = FLOAT_CONSTANTS if dtype.is_floating_point else WHOLE_CONSTANTS
    table = {**table, **(POWERS if dtype == torch.float32 else {})}
    found = {}
    for op, constants in table.items():
        for constant, first in itertools.product(constants, (False, True)):

            def function(x: Any, op: str = op, constant: Any = constant, first: bool = first) -> Any:
                operands = (constant, x) if first else (x, constant)
                return tm.where(x > 0, *operands) if op == "where" else apply(op, *operands)

            given = typing.infer(trace(lambda x, f=function: f(x), 1), [dtype]).output_dtypes[0]
            found[f"{op} {constant} {'first' if first else 'last'}"] = (function, given)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint64, *FLOATS], ids=str)
def test_operations_with_constants(dtype: torch.dtype, backend: str) -> None:
    """Also with those that a dtype cannot hold: whole numbers wrap, floats become infinite, or 0."""
    functions = with_constants(dtype)
    for names in shares(list(functions)):

        def lift(a: Any, b: Any, names: Sequence[str] = tuple(names)) -> Any:
            return tuple(functions[name][0](a) for name in names)

        fields = [functions[name][1] for name in names]
        check(backend, names, lifting(carried(lift, dtype), [dtype] * 2, fields), [corners(dtype)] * 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", CARRIED, ids=str)
def test_every_cast(dtype: torch.dtype, backend: str) -> None:
    def lift(a: Any, b: Any) -> Any:
        return tuple(tm.cast(a, target) for target in CARRIED)

    inputs = [corners(dtype)] * 2
    check(backend, list(map(str, CARRIED)), lifting(carried(lift, dtype), [dtype] * 2, CARRIED), inputs)


NARROW_FLOATS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
STORED = (*CARRIED, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, *NARROW_FLOATS)


def codes(dtype: torch.dtype) -> torch.Tensor:
    """Every number of 8 bits, of 16 those about the least, the least normal, 1 and the greatest."""
    if dtype.itemsize == 1:
        return torch.arange(256).to(torch.uint8).view(dtype)
    least = int(torch.tensor(torch.finfo(dtype).smallest_normal, dtype=dtype).view(torch.int16))
    greatest = int(torch.tensor(INF, dtype=dtype).view(torch.int16))
    near = [c + d for c in (0, least, 0x3C00, greatest) for d in range(-20, 20) if c + d >= 0]
    positive = torch.tensor(near, dtype=torch.int16)
    return torch.cat([positive, positive + torch.iinfo(torch.int16).min]).view(dtype)


def between(dtype: torch.dtype, source: torch.dtype) -> torch.Tensor:
    """Numbers of a narrow dtype, the middles between neighbours, and what is next to those in `source`."""
    exact = codes(dtype).double()
    exact = exact[exact.isfinite()].sort().values
    middles = (exact[1:] + exact[:-1]) / 2
    outer = torch.finfo(dtype).max * torch.tensor([1 + 2.0**-9, 1 + 2.0**-6, 1.0625, 1.1, 1.25, 4])
    centres = torch.cat([exact, middles, outer.double(), -outer.double()]).to(source)
    up, down = (torch.nextafter(centres, torch.full_like(centres, end)) for end in (INF, -INF))
    return torch.cat([centres, up, down, torch.tensor([INF, -INF, NAN], dtype=source)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint64, *FLOATS], ids=str)
def test_every_field_is_stored_as_torch_converts(dtype: torch.dtype, backend: str) -> None:
    values = corners(dtype)
    if dtype.is_floating_point:
        step = 5 if backend == "interpret" else 1  # it is slow
        values = torch.cat([values, *(between(narrow, dtype)[::step] for narrow in NARROW_FLOATS)])
    program = lifting(lambda x: (x,) * len(STORED), [dtype], STORED)
    check(backend, list(map(str, STORED)), program, [values])
    if dtype == torch.float32:
        got = dict(zip(STORED, run(backend, program, [values[:, None]]), strict=True))
        for narrow in NARROW_FLOATS:
            assert agree(got[narrow], values.to(narrow), "").all(), narrow


REQUESTED = [(torch.float64, d) for d in (*NARROW_FLOATS, torch.int8, torch.uint32)]
REQUESTED += [(torch.int64, d) for d in (torch.bfloat16, torch.float16, torch.float8_e5m2, torch.int16)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "requested"), REQUESTED, ids=str)
def test_results_asked_for_in_another_dtype(dtype: torch.dtype, requested: torch.dtype, backend: str) -> None:
    """By way of float32, as torch converts to a narrow float."""
    values = corners(dtype)
    if dtype.is_floating_point and requested.is_floating_point:
        values = torch.cat([values, between(requested, dtype)])
    check(backend, ["result"], lifting(lambda x: x, [dtype], ["compute"], requested), [values])


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_is_read(backend: str) -> None:
    """All of them at once, as inputs of one fold."""
    dtypes = [d for d in STORED if d not in CARRIED]
    inputs = [codes(d) if d.is_floating_point else torch.arange(-128, 128).to(d) for d in dtypes]
    inputs = [x.repeat(4)[:256] for x in inputs]
    fields = [torch.float32 if d.is_floating_point else torch.int64 for d in dtypes]
    names = [f"x{i}" for i in range(len(dtypes))]
    lift = eval(f"lambda {', '.join(names)}: ({', '.join(names)},)")
    check(backend, list(map(str, dtypes)), lifting(lift, dtypes, fields), inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW_FLOATS], ids=str)
def test_every_dtype_is_what_elements_are_read_as(dtype: torch.dtype, backend: str) -> None:
    """As `sum(x, dtype=...)` reads them: converted first."""
    values = codes(dtype)[::3] if dtype in NARROW_FLOATS else corners(dtype)
    if dtype in FLOATS:
        values = torch.cat([values, *(between(narrow, dtype)[::7] for narrow in NARROW_FLOATS)])
    fields = [d if d in (torch.bool, torch.uint64) else typing.compute_dtype(d) for d in STORED]
    names = [f"x{i}" for i in range(len(STORED))]
    lift = eval(f"lambda {', '.join(names)}: ({', '.join(names)},)")
    check(backend, list(map(str, STORED)), lifting(lift, STORED, fields), [values] * len(STORED))


@pytest.mark.parametrize("ends_in_nan", [False, True], ids=["saturates", "ends-in-nan"])
def test_float8_e4m3fn_ends_as_the_installed_torch_s_does(
    ends_in_nan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instantiate, "e4m3fn_ends_in_nan", lambda: ends_in_nan)
    for cached in ("scalar_functions", "device_functions", "kernel"):
        monkeypatch.setattr(instantiate, cached, functools.cache(getattr(instantiate, cached).__wrapped__))
    program = lifting(lambda x: x, [torch.float32], [torch.float8_e4m3fn])
    values = torch.tensor([448.0, 463.9, 464.0, 464.1, -465.0, 1e9, INF])
    (got,) = run("ptx", program, [values[:, None]])
    last = [NAN] * 4 if ends_in_nan else [448.0, -448.0, 448.0, 448.0]
    torch.testing.assert_close(got.float(), torch.tensor([448.0, 448.0, 448.0, *last]), equal_nan=True)


POWERS_OF_TWO = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.bfloat16, torch.bool], ids=str)
def test_powers_of_two(backend: str, target: torch.dtype) -> None:
    """All 256 codes, 2^-127 and NaN among them; without an own result dtype they give float32."""
    want = torch.tensor([math.ldexp(1.0, code - 127) for code in range(255)] + [NAN], dtype=torch.float64)
    (got,) = run(backend, lifting(lambda x: x, [POWERS_OF_TWO.dtype], [target]), [POWERS_OF_TWO[:, None]])
    assert got.dtype == target
    torch.testing.assert_close(got.double(), want.to(target).double(), rtol=0, atol=0, equal_nan=True)
    assert lifting(lambda x: x, [POWERS_OF_TWO.dtype], ["compute"]).outputs == (torch.float32,)


@pytest.mark.parametrize("architecture", [80, 100])
def test_powers_of_two_on_other_chips(architecture: int) -> None:
    program = lifting(lambda x: x, [POWERS_OF_TWO.dtype], [torch.float32])
    (got,) = fold([POWERS_OF_TWO[:, None]], program, (1,), architecture, ordered=False)[0]
    assert torch.equal(got[:255], 2.0 ** torch.arange(-127.0, 128.0, dtype=torch.float64).float())
    assert got[255].isnan()


def test_float8_e5m2_on_a_chip_without_the_instruction() -> None:
    """What Triton writes for sm_80 loses NaN and rounds ties otherwise."""
    program = lifting(lambda x: x, [torch.float32], [torch.float8_e5m2])
    values = torch.cat([corners(torch.float32), between(torch.float8_e5m2, torch.float32)])
    (got,) = fold([values[:, None]], program, (1,), 80, ordered=False)[0]
    assert agree(got, values.to(torch.float8_e5m2), "").all()
