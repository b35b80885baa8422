"""Maps on torch operations: a loop over tiles of elements and their rows' results that stay in cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tilefold.algebra.evaluate import evaluate_as, stored
from tilefold.algebra.typing import TypedGraph, compute_dtype, element_dtype
from tilefold.backends import reference
from tilefold.backends.cpu import workers
from tilefold.backends.cpu.cells import Cells, narrow_where_long, once
from tilefold.backends.cpu.elementwise import Workspace
from tilefold.backends.cpu.step_builder import Builder
from tilefold.backends.cpu.tiles import Tile, bits, narrow, tiles_of
from tilefold.planner.products.row import Row
from tilefold.planner.stages.cpu import FEW
from tilefold.runtime.caching import kept_outside_modes

SHARE = 1 << 15  # elements of a thread's tile: a few operands of them stay in its cache (not measured)
Tensor = torch.Tensor


def map_tiles(
    row: Row, operands: Sequence[Tensor], threads: int, *, placeless: bool, dims: Sequence[int] = ()
) -> tuple[list[Tensor], list[Tensor]]:
    """`row.apply` of operands expanded to one shape, which has elements, and its sums over all dims but `dims`; contiguous.

    `placeless`: the bits of a result depend on its own operands alone, not on its place. Each sum is of sums of tiles, which
    are added up in one order.
    """
    shape = operands[0].shape
    results = [torch.empty(shape, dtype=stored(d), device="cpu") for d in row.results]
    few = threads if 1 < threads <= FEW else 1
    alone = placeless and bool(row.sums)  # of which no sum depends on the threads
    tiles = list(tiles_of(shape, SHARE * (1 if few > 1 or alone else threads)))
    outer = [d for d in range(len(shape)) if d not in dims]
    shared = [False, *(0 in t.stride() for t in operands[1:])]
    sources = [
        _of_rows(bits(t), d) if some else bits(t)
        for t, d, some in zip(operands, row.taken, shared, strict=True)
    ]
    kernel = apply_kernel(row, tuple(shared), placeless)
    rows = (
        kernel.of_rows([*sources, results[0]] if results else [*sources, operands[0]]) if any(shared) else {}
    )

    def run(some: Sequence[Tile]) -> list[list[Tensor]]:
        workspace: Workspace = {}
        found = []
        for tile in some:
            values = [
                narrow_where_long(s, tile) if of_rows else _gathered(s, d, tile, i, workspace)
                for i, (s, d, of_rows) in enumerate(zip(sources, row.taken, shared, strict=True))
            ]
            known = {place: narrow_where_long(value, tile) for place, value in rows.items()}
            terms = [_terms(i, d, values[0].shape, workspace) for i, d in enumerate(row.sums)]
            targets = [*(narrow(r, tile) for r in results), *terms]
            kernel.of_tile([*values, values[0]], known, targets, workspace)
            found.append([t.sum(outer, keepdim=True) if outer else t.clone() for t in terms])
        return found

    parts = workers.shared_out(run, tiles, few)
    made = [
        r.view(torch.uint64) if d == torch.uint64 else r for r, d in zip(results, row.results, strict=True)
    ]
    return made, _added(row, shape, outer, tiles, [p for some in parts for p in some]) if row.sums else []


class Small:
    """`map_tiles` for so few elements that each operation of torch's counts, of operands that broadcast to `shape`: the first
    has it. Made for operands of these layouts."""

    def __init__(
        self,
        row: Row,
        layouts: Sequence[tuple[Sequence[int], Sequence[int]]],
        shape: Sequence[int],
        *,
        placeless: bool,
        dims: Sequence[int],
    ) -> None:
        self.row, self.shape = row, tuple(shape)
        self.outer = [d for d in range(len(shape)) if d not in dims]
        views = [once(size, stride) for size, stride in layouts]
        shared = (False, *(size != self.shape for size, _ in views[1:]))
        self.run = apply_kernel(row, shared, placeless).at_once(math.prod(self.shape))
        given = [(tuple(size), tuple(stride)) for size, stride in layouts]
        self.views = [
            None if i == 0 or v == g else v for i, (v, g) in enumerate(zip(views, given, strict=True))
        ]
        self.wide = [stored(element_dtype(d)) for d in row.taken]

    def __call__(self, operands: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The results, and the sums."""
        values = [
            _wide(bits(t if v is None else t.as_strided(*v, t.storage_offset())), d, w)
            for t, v, d, w in zip(operands, self.views, self.row.taken, self.wide, strict=True)
        ]
        made, n = self.run([*values, values[0]]), len(self.row.results)
        results = [
            _own(m, d, self.shape, (*values, *made[:i]))
            for i, (m, d) in enumerate(zip(made[:n], self.row.results, strict=True))
        ]
        terms = zip(made[n:], self.row.sums, strict=True)
        sums = [_own(t, d, self.shape, values).sum(self.outer, keepdim=True) for t, d in terms]
        return results, sums


def _wide(part: Tensor, dtype: torch.dtype, wide: torch.dtype) -> Tensor:
    """An operand as it is computed with."""
    return part if part.dtype == wide == stored(dtype) else reference.as_element(part, dtype).to(wide)


def _own(made: Tensor, dtype: torch.dtype, shape: Sequence[int], others: Sequence[Tensor]) -> Tensor:
    """A result in memory of its own, of the shape and the dtype."""
    plain = made.dtype == stored(dtype) and made.shape == shape and made.is_contiguous()
    if not plain or any(made is o for o in others):
        made = made.to(stored(dtype)).expand(shape).clone(memory_format=torch.contiguous_format)
    return made.view(torch.uint64) if dtype == torch.uint64 else made


def _terms(which: int, dtype: torch.dtype, shape: Sequence[int], workspace: Workspace) -> Tensor:
    """Where a tile's terms of a sum over rows go."""
    key = ("terms", which, shape)
    if key not in workspace:
        workspace[key] = [torch.empty(shape, dtype=stored(dtype), device="cpu")]
    return workspace[key][0]


def _added(
    row: Row, shape: Sequence[int], outer: Sequence[int], tiles: Sequence[Tile], parts: Sequence[list[Tensor]]
) -> list[Tensor]:
    """The sums of tiles, added up in the tiles' order."""
    sizes = [1 if d in outer else n for d, n in enumerate(shape)]
    sums = [torch.zeros(sizes, dtype=stored(d), device="cpu") for d in row.sums]
    for tile, found in zip(tiles, parts, strict=True):
        place = tuple((0, 1) if d in outer else part for d, part in enumerate(tile))
        for total, part in zip(sums, found, strict=True):
            narrow(total, place).add_(part)
    return sums


def map_rows(row: Row, folded: Sequence[Tensor]) -> list[Tensor]:
    """What is stored of each row, of what rows folded to."""
    if row.rows is None:
        return []
    taken = [
        reference.read(reference.as_element(t, d)) for t, d in zip(folded, row.program.outputs, strict=False)
    ]
    return _stored(row.rows, taken, row.of_rows, folded[0].shape)


def map_by_definition(row: Row, operands: Sequence[Tensor]) -> list[Tensor]:
    """The same, all at once, an operation of the graph after another."""
    shape = operands[0].shape
    taken = [reference.read(reference.as_element(t, d)) for t, d in zip(operands, row.taken, strict=True)]
    return _stored(row.apply, taken, row.made, shape)


def _stored(
    function: TypedGraph, taken: Sequence[Tensor], dtypes: Sequence[torch.dtype], shape: Sequence[int]
) -> list[Tensor]:
    """A graph's values of tensors, as they are stored."""
    made = []
    for value, dtype in zip(evaluate_as(function, taken, dtypes), dtypes, strict=True):
        if not isinstance(value, Tensor):
            carried = compute_dtype(dtype) if dtype.is_floating_point else stored(dtype)
            value = torch.tensor(value, dtype=carried, device="cpu")
        value = value.to(stored(dtype)).expand(shape).clone(memory_format=torch.contiguous_format)
        made.append(value.view(torch.uint64) if dtype == torch.uint64 else value)
    return made


@kept_outside_modes(256)
def apply_kernel(row: Row, shared: tuple[bool, ...], placeless: bool) -> Cells:
    """The steps of `row.apply`. Operands that are `shared` by elements may have length 1 along dims; the last is the first
    again, which has the whole shape."""
    builder = Builder(placeless=placeless)
    dtypes = row.apply.input_dtypes
    slots = [builder.inputs([d], full=not some)[0] for d, some in zip(dtypes, shared, strict=True)]
    builder.inputs([dtypes[0]])
    outputs = [builder.cast(v, d) for v, d in zip(builder.inline(row.apply, slots), row.made, strict=True)]
    return Cells(builder, len(slots) + 1, outputs)


def _of_rows(source: Tensor, dtype: torch.dtype) -> Tensor:
    """An operand that repeats, once, as it is computed with."""
    size, stride = once(source.shape, source.stride())
    return _wide(
        source.as_strided(size, stride, source.storage_offset()), dtype, stored(element_dtype(dtype))
    )


def _gathered(source: Tensor, dtype: torch.dtype, tile: Tile, which: int, workspace: Workspace) -> Tensor:
    """An operand's part in a tile, as it is computed with."""
    part, wide = narrow(source, tile), stored(element_dtype(dtype))
    if part.dtype == wide == stored(dtype):
        return part
    key = ("gather", which, part.shape)
    if key not in workspace:
        workspace[key] = [torch.empty(part.shape, dtype=wide, device="cpu")]
    return workspace[key][0].copy_(reference.as_element(part, dtype))
