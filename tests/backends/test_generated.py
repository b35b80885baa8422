"""Generated functions of blocks, lanes and rows as plain Python: Triton's operations on torch tensors, and the definition."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilefold
from tilefold import math as tm
from tilefold import monoids
from tilefold.algebra import units
from tilefold.algebra.operations import OPS
from tilefold.algebra.program import Program, specialize
from tilefold.backends import reference
from tilefold.backends.triton import axes, emit

TILES, ROWS, THREADS = 3, 2, 4


def _reduced(x: Any, dim: int, combine: Any) -> Any:
    several = isinstance(x, tuple)
    parts = [t.unbind(dim) for t in (x if several else (x,))]
    found = [p[0] for p in parts]
    for k in range(1, len(parts[0])):
        made = combine(*found, *(p[k] for p in parts))
        found = list(made) if several else [made]
    return tuple(found) if several else found[0]


def _either(condition: Any, a: Any, b: Any) -> torch.Tensor:
    return torch.where(torch.as_tensor(condition), a, b)


TL = SimpleNamespace(
    **{
        name: getattr(torch, name)
        for name in ("float16", "float32", "float64", "int32", "int64", "abs", "exp", "exp2", "log", "log2")
    },
    int1=torch.bool,
    where=_either,
    maximum=lambda a, b, propagate_nan=None: torch.maximum(*map(torch.as_tensor, (a, b))),
    minimum=lambda a, b, propagate_nan=None: torch.minimum(*map(torch.as_tensor, (a, b))),
    PropagateNan=SimpleNamespace(ALL=None),
    full=lambda shape, value, dtype: torch.as_tensor(value, dtype=dtype).expand(shape).clone(),
    arange=torch.arange,
    broadcast_to=torch.broadcast_to,
    reduce=_reduced,
    expand_dims=torch.unsqueeze,
)


def _over_whole(combine: Any) -> Any:
    """Of tiles [runs, unroll, results, lanes]: over all but the results."""
    return lambda x: _reduced(x.movedim(2, 0).flatten(1), 1, combine)


def scope_of(*sources: str) -> dict[str, Any]:
    """What the generated functions are called, and what they call."""
    scope: dict[str, Any] = {
        "tl": TL,
        **{name: value for name, value in vars(axes).items() if name.isupper()},
        "convert": lambda x, dtype: x.to(dtype),
        "unit": units.of,
        "per_unit": units.per,
        "rescale": torch.mul,
        "FIRST_LANE": lambda x, at, y, other: (_either(at < other, x, y), torch.minimum(at, other)),
        "WHOLE_FIRST": lambda x: x[0, 0, :, 0],
        "WHOLE_BLOCK_FIRST": lambda x: x[0, 0, :, 0],
        "WHOLE_FIRST_OF": lambda mask, x: x[0, 0, :, 0],
    }
    for row in OPS.values():
        if row.kind == "block" and row.triton is not None and row.name not in ("block_first", "block_count"):
            name = row.name.upper()
            exec(f"def {name}(a, b): return {(row.triton.floats or row.triton.text).format('a', 'b')}", scope)
            scope[f"WHOLE_{name}"] = _over_whole(scope[name])
    for source in sources:
        exec(source, scope)
    return scope


def block_of_ends(s: Any, x: Any) -> Any:
    """A count, the first element and the largest one, in a block form of its own."""
    first = tm.where(s.n == 0, tm.block_first(x), s.first)
    return s.n + tm.block_count(x), first, tm.maximum(s.top, tm.block_max(x)), s.total + tm.block_sum(x)


ENDS = tilefold.Monoid(
    lambda a, b: (
        a.n + b.n,
        tm.where(a.n == 0, b.first, a.first),
        tm.maximum(a.top, b.top),
        a.total + b.total,
    ),
    (0, 0.0, -float("inf"), 0.0),
    fields=("n", "first", "top", "total"),
    dtypes=(torch.int64, torch.float32, torch.float32, torch.float32),
    lift=lambda x: (1, x, x, x),
    absorb=block_of_ends,
    name="ends",
)
BLOCKS = {"ends": ENDS, "welford": monoids.WELFORD, "logsumexp": monoids.LOGSUMEXP}
MONOIDS = {**BLOCKS, "max": monoids.MAX, "sum": monoids.SUM}  # these are folded one by one
DTYPES = [torch.float32, torch.float16]


def programs(table: dict[str, tilefold.Monoid]) -> pytest.MarkDecorator:
    made = [
        pytest.param(specialize(monoid.total, (dtype,)), id=f"{name}-{dtype}")
        for name, monoid in table.items()
        for dtype in DTYPES
    ]
    return pytest.mark.parametrize("program", made)


def agrees(program: Program, state: Any, elements: torch.Tensor, functions: dict[str, Any]) -> None:
    """The results of a state are those of folding each row of the elements that count, one after another."""
    made = functions["PROJECT"](*(torch.as_tensor(field) for field in state))
    for got, want in zip(
        made if isinstance(made, tuple) else (made,), reference.fold([elements], program, (1,)), strict=True
    ):
        torch.testing.assert_close(
            got.to(want.dtype), want, rtol=2e-3 if want.dtype == torch.float16 else 1e-5, atol=1e-6
        )


def drawn(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers near 3, none of them small."""
    return (torch.randn(*shape) + 3).to(dtype)


@programs(BLOCKS)
@pytest.mark.parametrize("count", [THREADS * TILES * 2, THREADS * TILES * 2 - 3, 5])
def test_all_elements_of_tiles(program: Program, count: int) -> None:
    """Tiles [1, 2, rows, threads]: elements of a row lie along the threads of one tile after another's two runs."""
    assert program.begin is not None
    (dtype,) = program.elements
    x = drawn(dtype, TILES, 1, 2, ROWS, THREADS)
    place = torch.arange(TILES * 2 * THREADS).view(TILES, 1, 2, 1, THREADS).expand(TILES, 1, 2, ROWS, THREADS)
    mask = place < count
    masks = [t for t in range(TILES) if not bool(mask[t].all())]
    functions = scope_of(
        emit.emit(program, index=torch.int64, interpret=True), emit.emit_blocks(program, TILES, masks, True)
    )
    counted = torch.full((ROWS,), count)
    state = functions["ROW_BEGIN"](counted, *mask, *x)
    rows = x.permute(3, 0, 1, 2, 4).flatten(1)[:, :count]
    agrees(program, state, rows, functions)


@programs(MONOIDS)
@pytest.mark.parametrize("last", [False, True], ids=["any", "last"])
def test_elements_of_a_thread(program: Program, last: bool) -> None:
    """Begun with and without elements that do not count, then absorbed; a tile for each element, a lane for each row."""
    (dtype,) = program.elements
    functions = scope_of(
        emit.emit(program, index=torch.int64, interpret=True),
        emit.emit_lanes(program, TILES, True, last=last),
    )
    functions["OR_IDENTITY"] = lambda mask, *state: tuple(
        _either(mask, field, other)
        for field, other in zip(state, functions["IDENTITY"](state[0].shape), strict=True)
    )
    taken = [TILES - 1] if last else range(TILES)
    for begun, more in itertools.product(
        [(1,) * len(taken), (0,) * len(taken), (*(1, 0, 1)[: len(taken)],)], repeat=2
    ):
        x, y = drawn(dtype, TILES, ROWS), drawn(dtype, TILES, ROWS)
        first, second = ([torch.full((ROWS,), bool(k)) for k in which] for which in (begun, more))
        state = (
            functions["LANE_BEGIN"](*x.float())
            if all(begun)
            else functions["LANE_BEGIN_MASKED"](*first, *x.float())
        )
        state = (
            functions["LANE_ABSORB"](*state, *y.float())
            if all(more)
            else functions["LANE_ABSORB_MASKED"](*second, *state, *y.float())
        )
        counts = [
            t not in taken or bool(which[[*taken].index(t)]) for which in (begun, more) for t in range(TILES)
        ]
        rows = torch.cat([x, y])[torch.tensor(counts)].T
        agrees(program, state, rows, functions)


@programs(BLOCKS)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_elements_of_a_rows_threads(program: Program, masked: bool) -> None:
    """[rows, threads], a tile for each turn of the threads."""
    assert program.begin is not None
    (dtype,) = program.elements
    x = drawn(dtype, TILES, ROWS, THREADS)
    count = TILES * THREADS - (2 if masked else 0)
    mask = (torch.arange(THREADS) < THREADS - 2).expand(ROWS, THREADS)
    functions = scope_of(
        emit.emit(program, index=torch.int64, interpret=True), emit.emit_across(program, TILES, masked, True)
    )
    state = functions["ROW_ACROSS"](torch.full((ROWS,), count), mask, *x.float())
    agrees(program, state, x.permute(1, 0, 2).flatten(1)[:, :count], functions)
