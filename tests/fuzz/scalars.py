"""Random functions of scalars over corner values: the definition beside the lanes, the interpreter and PTX, bit for bit.

A fold over a dim of length 1 that keeps its element lifts and stores it, so a lift is a function that every backend runs.
Where operations are exact or rounded once, all backends owe the same bits (of a NaN any). A chip may fuse a product with
the sum that it goes into, so sums here take no products; and which of two zeros an extreme gives is open, so that 0.0 is
added to those.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

import tilefold
from fuzz.exclusions import waits
from fuzz.expressions import COMPARISONS, Expression, argument, number, of, of_arity
from fuzz.folds import by_ptx
from tilefold.algebra.typing import is_float
from tilefold.errors import DtypeError, TraceError

INF, NAN = float("inf"), float("nan")
Tensor = torch.Tensor
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (
    torch.int64, torch.int32, torch.int8, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
)  # fmt: skip
CORNERS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.0, 10.0, -8.0, 0.1, 1 / 3, 8.5, 100.0, 1e4, -1e4, 2.0**-14,
    2.0**-20, 65504.0, 1e9, 2.0**31, -(2.0**31), 2.0**24 + 2, 1e30, -1e30, 1e-30, 2.0**-126, 2.0**-140, INF, -INF, NAN,
)  # fmt: skip
WHOLE = (
    0, 1, -1, 2, -2, 3, 5, 7, -8, 9, 31, 32, 63, 64, 100, 127, -128, 255, 1 << 15, -(1 << 31), (1 << 31) - 1, 1 << 40,
    -(1 << 62),
)  # fmt: skip
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 3.0, 7, 2, -1, 10.0, 1e9, INF, -INF, 2.0**31)


@dataclass(frozen=True)
class Scalars:
    """Functions of two elements, of these dtypes, and the values that they are computed of."""

    functions: tuple[Expression, ...]
    dtypes: tuple[torch.dtype, torch.dtype]
    seed: int

    @property
    def ops(self) -> frozenset[str]:
        return frozenset[str]().union(*(f.ops for f in self.functions))

    @property
    def inputs(self) -> tuple[Any, ...]:
        """As folds have them, where only dtypes are asked for."""
        return ()

    def tensors(self) -> list[Tensor]:
        """Two columns of corner values, paired at random."""
        generator, columns = torch.Generator().manual_seed(self.seed), []
        for dtype in self.dtypes:
            values = _values(dtype)
            picks = torch.randint(len(values), (48,), generator=generator)
            columns.append(values[picks][:, None])
        return columns


@functools.cache
def _values(dtype: torch.dtype) -> Tensor:
    """The corners that a dtype holds; wholes wrap into it."""
    if is_float(dtype):
        return torch.tensor(CORNERS, dtype=torch.float64).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([False, True])
    least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.tensor([w for w in (*WHOLE, least, greatest) if least <= w <= greatest], dtype=dtype)


@functools.cache
def floats(depth: int) -> st.SearchStrategy[Expression]:
    """Functions of two floats, of operations that are exact or rounded once."""
    leaves = st.one_of(st.sampled_from([argument(0), argument(1)]), st.sampled_from(CONSTANTS).map(number))
    if depth == 0:
        return leaves
    part = floats(depth - 1)
    return st.one_of(
        leaves,
        st.builds(_sum, st.sampled_from(("add", "sub")), part, part),
        st.builds(of, st.just("mul"), part, part),
        st.builds(of, st.sampled_from(("floordiv", "mod")), part, part),
        st.builds(_extreme, st.sampled_from(("maximum", "minimum")), part, part),
        st.builds(of, st.sampled_from(("neg", "abs", "floor", "ceil")), part),
        st.builds(of, st.just("where"), float_truths(depth - 1), part, part),
    )


@functools.cache
def float_truths(depth: int) -> st.SearchStrategy[Expression]:
    """Conditions of two floats."""
    part = floats(depth)
    return st.one_of(
        st.builds(of, st.sampled_from(COMPARISONS), part, part),
        st.builds(of, st.sampled_from(("isnan", "isinf", "isfinite")), part),
        st.builds(
            lambda op, a, b: of(op, of("lt", a, b), of("ne", a, b)),
            st.sampled_from(("and", "or", "xor")),
            part,
            part,
        ),
    )


@functools.cache
def integers(depth: int) -> st.SearchStrategy[Expression]:
    """Functions of two whole numbers."""
    leaves = st.one_of(
        st.sampled_from([argument(0), argument(1)]),
        st.sampled_from((0, 1, -1, 2, 3, 7, 31, 64, 255, 1 << 31, 1 << 40)).map(number),
    )
    if depth == 0:
        return leaves
    part = integers(depth - 1)
    amounts = st.one_of(st.sampled_from((0, 1, 7, 31, 32, 63, 64, 100)).map(number), part)
    return st.one_of(
        leaves,
        st.builds(
            of, st.sampled_from(("add", "sub", "mul", "maximum", "minimum", "and", "or", "xor")), part, part
        ),
        st.builds(
            of,
            st.sampled_from(("floordiv", "mod")),
            part,
            st.sampled_from((1, 3, -4, 7, 1 << 33)).map(number),
        ),
        st.builds(of, st.sampled_from(("neg", "abs", "invert", "floor")), part),
        st.builds(of, st.sampled_from(("lshift", "rshift")), part, amounts),
        st.builds(of, st.just("where"), st.builds(of, st.sampled_from(COMPARISONS), part, part), part, part),
        st.builds(
            lambda a, d: Expression("cast", (a,), d),
            part,
            st.sampled_from(
                (torch.int64, torch.int32, torch.bool, torch.uint64, torch.float64, torch.float32)
            ),
        ).flatmap(
            lambda e: st.just(e) if not e.value.is_floating_point else st.just(of("eq", e, argument(0)))
        ),
    )


def _casts() -> st.SearchStrategy[Expression]:
    """Floats made whole numbers."""
    to = st.sampled_from((torch.int64, torch.int32, torch.bool, torch.uint64))
    return st.builds(lambda a, d: Expression("cast", (a,), d), floats(2), to)


def _sum(op: str, a: Expression, b: Expression) -> Expression:
    return of(op, *(of("abs", x) if _is_product(x) else x for x in (a, b)))


def _is_product(x: Expression) -> bool:
    return x.op in ("mul", "mod", "floordiv") or (x.op == "neg" and _is_product(x.args[0]))


def _extreme(op: str, a: Expression, b: Expression) -> Expression:
    return of("add", of(op, a, b), number(0.0))


@st.composite
def scalars(draw: st.DrawFn) -> Scalars:
    """Some functions of two floats, or of two whole numbers."""
    whole = draw(st.booleans())
    dtypes = INTEGERS if whole else FLOATS
    functions = draw(
        st.lists(integers(3) if whole else st.one_of(floats(3), _casts()), min_size=1, max_size=4)
    )
    return Scalars(
        tuple(functions),
        (draw(st.sampled_from(dtypes)), draw(st.sampled_from(dtypes))),
        draw(st.integers(0, 99)),
    )


def check(case: Scalars, backends: Sequence[str], device: str = "cpu") -> None:
    """Every function of every pair, on each backend, beside the definition."""
    if waits(case, "any"):
        return
    tensors = case.tensors()
    try:
        monoid = _monoid(case)
        with tilefold.backend("reference"):
            want = tilefold.reduce(tensors, monoid, dim=1)
    except (DtypeError, TraceError):  # refused on every backend: divided by 0, constants out of range
        return
    for backend in backends:
        if waits(case, backend):
            continue
        if backend == "ptx":
            got = by_ptx(_Call(), monoid, tensors)  # type: ignore[arg-type]
        else:
            with tilefold.backend("auto" if device != "cpu" else backend):
                got = tilefold.reduce([t.to(device) for t in tensors], monoid, dim=1)
        for function, g, w in zip(case.functions, got, want, strict=True):
            _compare(case, function, g.cpu(), w, backend)


class _Call:
    """How `by_ptx` is to fold."""

    dtype, dims, keepdim = None, (1,), False


def _monoid(case: Scalars) -> Any:
    """A fold that keeps its element, of fields as wide as each function's result."""
    from tilefold.algebra.expression import trace
    from tilefold.algebra.typing import element_dtype, infer

    graph = trace(of_arity(lambda *x: tuple(f(*x) for f in case.functions), 2), 2)
    typed = infer(graph, [element_dtype(d) for d in case.dtypes])
    dtypes = [
        d if graph.nodes[o].op != "const" else _carries(graph.nodes[o].value)
        for d, o in zip(typed.output_dtypes, graph.outputs, strict=True)
    ]
    n = len(case.functions)
    return tilefold.Monoid(
        lambda a, b: tuple(b),
        None,
        lift=of_arity(lambda *x: tuple(f(*x) for f in case.functions), 2),
        fields=[f"f{k}" for k in range(n)],
        dtypes=dtypes,
        commutative=False,
        check=False,
        name="scalars",
    )


def _carries(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, float):
        return torch.float64
    return torch.int64 if value < 1 << 63 else torch.uint64


def _compare(case: Scalars, function: Expression, got: Tensor, want: Tensor, by: str) -> None:
    assert got.dtype == want.dtype
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[want.itemsize]
    fine = got.view(bits) == want.view(bits)
    if is_float(want.dtype):
        fine |= got.isnan() & want.isnan()
    if not bool(fine.all()):
        row = int((~fine).nonzero()[0])
        elements = ", ".join(f"x{k} = {t[row].item()!r}" for k, t in enumerate(case.tensors()))
        raise AssertionError(
            f"{by}: {function} is {got[row].item()!r}, not {want[row].item()!r}, for {elements} ({case.dtypes})"
        )
