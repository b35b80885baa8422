"""Random products: operands of any dtype and layout, bias, an epilogue, a row's fold. Compared with sums in float64.

Elements are small whole numbers, so that products and their sums are exact in every dtype that they are summed in, and so
are the epilogues that are expressions: then there is one answer, rounded once. Named epilogues come with a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

import tilefold
from fuzz.exclusions import waits
from fuzz.expressions import Expression, Span, made_exact, numbers, of_arity
from layouts import Layout, layouts
from tilefold import monoids
from tilefold.algebra.typing import is_float
from tilefold.planner.products.epilogue import IN_TORCH, make_epilogue
from tilefold.planner.products.plan import Candidate, Finish, Tile
from tilefold.planner.products.tiles import even_splits

Tensor = torch.Tensor
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
OPERANDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, *FLOAT8)
EXTRAS = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int8, torch.bool)
MOST = 4  # of an element; float8 holds it, and its half
ROWS = {"sum": monoids.SUM, "largest and where": monoids.MAX_WITH_INDEX}


@dataclass(frozen=True)
class Operand:
    """A tensor that broadcasts to `shape`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout
    seed: int

    def make(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)

        def fill(size: Sequence[int]) -> Tensor:
            least = 0 if self.dtype == torch.bool else -MOST
            return torch.randint(least, MOST + 1, list(size), generator=generator).to(self.dtype)

        return self.layout.place(self.shape, fill)


@dataclass(frozen=True)
class Product:
    """A call of `matmul`, and a plan of its own for backends that take any."""

    a: Operand
    b: Operand
    bias: Operand | None
    extras: tuple[Operand, ...]
    epilogue: str | Expression | None
    row: str | None
    out_dtype: torch.dtype | None
    guarantee: str
    plan: Candidate

    @property
    def ops(self) -> frozenset[str]:
        return self.epilogue.ops if isinstance(self.epilogue, Expression) else frozenset()

    @property
    def function(self) -> str | Callable[..., object] | None:
        """The epilogue as `matmul` takes it."""
        if isinstance(self.epilogue, Expression):
            return of_arity(self.epilogue, 1 + len(self.extras))
        return self.epilogue


@st.composite
def plans(draw: st.DrawFn, depth: int) -> Candidate:
    """Any small tile, any even number of splits, any second launch."""
    power = lambda low, high: 1 << draw(st.integers(low, high))  # noqa: E731
    tile = Tile(power(4, 6), power(4, 6), power(5, 6), draw(st.sampled_from((1, 4))), draw(st.integers(1, 3)))
    splits = even_splits(depth, tile, draw(st.integers(1, 5))) if depth else 1
    if splits == 1:
        return Candidate("whole", tile)
    return Candidate("split", tile, splits, Finish(power(3, 7), power(0, 3), 1))


@st.composite
def products(draw: st.DrawFn, most: int = 40, depth: int = 200) -> Product:
    """Any product of up to `most` rows and columns."""
    batch = draw(st.sampled_from(((), (), (2,), (3, 1))))
    rows, columns = (draw(st.integers(1, most)) for _ in "MN")
    length = draw(st.one_of(st.integers(0, 20), st.integers(1, depth)))
    dtype = draw(st.sampled_from(OPERANDS))
    shared = draw(st.booleans())

    def operand(shape: Sequence[int], kind: torch.dtype, broadcasts: bool = False) -> Operand:
        layout = draw(layouts(len(shape), may_broadcast=broadcasts))
        return Operand(tuple(shape), kind, layout, draw(st.integers(0, 99)))

    a = operand((*batch, rows, length), dtype)
    b = operand((length, columns) if shared else (*batch, length, columns), dtype)
    bias = operand((columns,), draw(st.sampled_from(EXTRAS))) if draw(st.booleans()) else None
    taken = draw(st.integers(0, 2))
    extras = tuple(
        operand((*batch, rows, columns), draw(st.sampled_from(EXTRAS)), True) for _ in range(taken)
    )
    sums = Span(MOST * MOST * length + MOST, 1.0)
    if taken or draw(st.booleans()):
        spans = (sums, *(Span(MOST, 1.0) for _ in extras))
        epilogue: str | Expression | None = made_exact(
            draw(numbers(tuple(range(1 + taken)), (), 2)), spans, columns
        )
    else:
        epilogue = draw(st.sampled_from((None, *IN_TORCH)))
    exact = not isinstance(epilogue, str) or epilogue == "relu"
    return Product(
        a, b, bias, extras, epilogue, draw(st.sampled_from((None, None, *ROWS))) if exact else None,
        draw(st.sampled_from((None, None, torch.float32, torch.float64, torch.bfloat16))),
        draw(st.sampled_from(("run_to_run", "batch_invariant"))), draw(plans(length)),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ comparing


def check(case: Product, backends: Sequence[str], device: str = "cpu") -> None:
    """The product on each backend beside its definition in float64."""
    if waits(case, "any"):
        return
    a, b, bias, extras = _tensors(case)
    values, bound = _definition(case, a, b, bias, extras)
    for backend in backends:
        if waits(case, backend):
            continue
        if backend == "ptx":
            if not a.shape[-1] > 0 or case.row is not None:
                continue
            got, folded = _by_ptx(case, a, b, bias, extras), None
        else:
            with tilefold.backend("auto" if device != "cpu" else backend):
                made = tilefold.matmul(
                    a.to(device), b.to(device), bias=None if bias is None else bias.to(device),
                    epilogue=case.function, epilogue_args=[e.to(device) for e in extras],
                    row=None if case.row is None else (ROWS[case.row], None), out_dtype=case.out_dtype,
                    guarantee=case.guarantee,
                )  # fmt: skip
            got, folded = made if case.row is not None else (made, None)
        _compare(got.cpu(), values, bound, backend)
        if folded is not None:
            _compare_rows(case, folded, values, backend)


def _tensors(case: Product) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    bias = None if case.bias is None else case.bias.make()
    return case.a.make(), case.b.make(), bias, [e.make() for e in case.extras]


def _definition(
    case: Product, a: Tensor, b: Tensor, bias: Tensor | None, extras: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The values before they are rounded to the result's dtype, in float64, and how far off they may be."""
    sums = torch.matmul(a.double(), b.double())
    if bias is not None:
        sums = sums + bias.double()
    nothing = torch.zeros_like(sums)
    if case.epilogue is None:
        return sums, nothing
    if isinstance(case.epilogue, str):
        want = IN_TORCH[case.epilogue](sums)
        if case.epilogue == "relu":
            return want, nothing
        # a few operations and an exponential, whose argument rounds; gelu's 1 + erf cancels below 0
        size = sums.abs() if case.epilogue == "gelu" else want.abs()
        return want, (8 + 2 * sums.abs()) * 2.0**-23 * size + 2.0**-120
    columns = [t.expand(sums.shape).reshape(-1).tolist() for t in (sums, *extras)]
    expression = case.epilogue
    values = [float(expression(*row)) for row in zip(*columns, strict=True)]
    return torch.tensor(values, dtype=torch.float64).reshape(sums.shape), nothing


def _compare(got: Tensor, values: Tensor, bound: Tensor, by: str) -> None:
    want = _rounded(values, got.dtype)
    assert got.shape == want.shape, f"{by}: shape {list(got.shape)}, not {list(want.shape)}"
    a, b = got.double(), want.double()
    unit = torch.finfo(got.dtype).eps if is_float(got.dtype) else 0.0
    room = torch.where(bound > 0, bound + unit * b.abs(), 0.0)
    fine = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= room)
    assert bool(fine.all()), f"{by}: got\n{got}, not\n{want}"


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    if is_float(dtype) or dtype == torch.bool:
        return values.to(dtype)
    return values.to(torch.int64).to(dtype)


def _compare_rows(case: Product, folded: object, values: Tensor, by: str) -> None:
    if case.row == "sum":
        assert isinstance(folded, Tensor)
        assert torch.equal(folded.cpu().double(), values.sum(-1)), f"{by}: the rows' sums are {folded}"
        return
    largest = values.max(-1)
    at, where = (t.cpu() for t in folded)  # type: ignore[attr-defined]
    assert torch.equal(at.double(), largest.values), f"{by}: the rows' largest are {at}"
    first = (values == largest.values[..., None]).to(torch.int8).argmax(-1)
    assert torch.equal(where, first), f"{by}: they stand at {where}, not {first}"


def _by_ptx(case: Product, a: Tensor, b: Tensor, bias: Tensor | None, extras: Sequence[Tensor]) -> Tensor:
    from xray import running

    ending = make_epilogue(
        case.function,
        None if bias is None else bias.dtype,
        tuple(e.dtype for e in extras),
        a.dtype,
        case.out_dtype,
    )
    given = [*([] if bias is None else [bias]), *extras]
    return running.product(case.plan, a, b, given, ending, 90)
