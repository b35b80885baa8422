"""Folds over no dims on torch operations: a function of every element, in tiles that stay in cache.

What is the same for many elements (a row's value, expanded) is computed with once: such operands keep length 1 along the dims
that they repeat in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from tilefold.algebra.evaluate import stored
from tilefold.algebra.program import Program
from tilefold.backends import reference
from tilefold.backends.cpu import workers
from tilefold.backends.cpu.elementwise import Kernel, Workspace
from tilefold.backends.cpu.step_builder import Builder
from tilefold.backends.cpu.tiles import Tile, tiles_of
from tilefold.planner.stages.cpu import FEW
from tilefold.runtime.caching import kept_outside_modes

SHARE = 1 << 15  # elements of a thread's tile, as of maps' (not measured)
Tensor = torch.Tensor


class Settled:
    """Each element lifted and projected, for tensors of one shape with elements, of these layouts; results are contiguous.

    `placeless`: the bits of a result depend on its own elements alone, not on their place.
    """

    def __init__(
        self, program: Program, tensors: Sequence[Tensor], threads: int, *, placeless: bool = False
    ) -> None:
        self.program, self.shape, self.few = program, tensors[0].shape, threads if 1 < threads <= FEW else 1
        self.dtypes = [stored(d) for d in program.outputs]
        self.unsigned = torch.uint64 in program.outputs
        layouts = [once(t.shape, t.stride()) for t in tensors]
        whole = tuple(size == self.shape for size, _ in layouts)
        self.kernel, self.at_once = _kernel(program, whole, placeless)
        self.views = [None if full else layout for full, layout in zip(whole, layouts, strict=True)]
        self.reads = [
            None if t.dtype == e == d else functools.partial(_read, element=e, dtype=d)
            for t, e, d in zip(tensors, program.elements, self.kernel.dtypes, strict=True)
        ]
        self.tiles = list(tiles_of(self.shape, SHARE * (threads if self.few == 1 else 1)))

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """The results of such tensors."""
        parts = [
            t if v is None else t.as_strided(*v, t.storage_offset())
            for t, v in zip(tensors, self.views, strict=True)
        ]
        made = self._whole(parts) if len(self.tiles) == 1 else self._by_tiles(parts)
        if not self.unsigned:
            return made
        pairs = zip(made, self.program.outputs, strict=True)
        return [m.view(torch.uint64) if d == torch.uint64 else m for m, d in pairs]

    def _whole(self, parts: Sequence[Tensor]) -> list[Tensor]:
        values = [p if r is None else r(p) for p, r in zip(parts, self.reads, strict=True)]
        made = self.at_once([*values, values[0]])
        return [_own(m, d, self.shape, values) for m, d in zip(made, self.dtypes, strict=True)]

    def _by_tiles(self, parts: Sequence[Tensor]) -> list[Tensor]:
        made = [torch.empty(self.shape, dtype=d, device="cpu") for d in self.dtypes]
        read = [v is not None and r is not None for v, r in zip(self.views, self.reads, strict=True)]
        once = [r(p) if now and r else p for p, r, now in zip(parts, self.reads, read, strict=True)]
        later = [None if now else r for r, now in zip(self.reads, read, strict=True)]
        rows = self.kernel.of_rows([*once, made[0]]) if None in self.views else {}

        def run(some: Sequence[Tile]) -> None:
            workspace: Workspace = {}
            for tile in some:
                cut = zip(once, later, strict=True)
                values = [
                    narrow_where_long(p, tile) if r is None else r(narrow_where_long(p, tile)) for p, r in cut
                ]
                targets = [narrow_where_long(m, tile) for m in made]
                known = {place: narrow_where_long(value, tile) for place, value in rows.items()}
                self.kernel.of_tile([*values, targets[0]], known, targets, workspace)

        workers.shared_out(run, self.tiles, self.few)
        return made


class Cells(Kernel):
    """The steps from elements to results; the last argument has a piece's whole shape and is not read."""

    dtypes: tuple[torch.dtype, ...]

    def of_rows(self, arguments: Sequence[Tensor]) -> dict[int, Tensor]:
        """The values, by their slots, of what is not made of whole tensors: made once, for all tiles."""
        values = list(self._bound)
        values[: self.inputs] = arguments
        made = [step for step in self._steps if not self._full[step.result]]
        for step in made:
            values[step.result] = step.function(*[values[a] for a in step.arguments])
        read = {a for step in self._steps if self._full[step.result] for a in step.arguments} | set(
            self.outputs
        )
        return {step.result: values[step.result] for step in made if step.result in read}

    def of_tile(
        self,
        arguments: Sequence[Tensor],
        rows: dict[int, Tensor],
        targets: Sequence[Tensor],
        workspace: Workspace,
    ) -> None:
        """The results of a tile, with what is known of its rows, if anything is."""
        if not rows:
            self.run(arguments, targets, workspace)
            return
        values = self._bind(arguments, workspace, targets)
        for place, value in rows.items():
            values[place] = value
        for step in self._steps:
            if self._full[step.result]:
                operands = [values[a] for a in step.arguments]
                if step.writes:
                    step.function(*operands, out=values[step.result])
                else:
                    values[step.result] = step.function(*operands)
        for output, direct, target in zip(self.outputs, self._direct, targets, strict=True):
            if not direct:
                target.copy_(values[output])


@kept_outside_modes(256)
def _kernel(
    program: Program, whole: tuple[bool, ...], placeless: bool
) -> tuple[Cells, Callable[[Sequence[Tensor]], list[Tensor]]]:
    builder, n = Builder(placeless=placeless), len(whole)
    taken = program.lift.input_dtypes[:n]
    slots = [builder.inputs([d], full=full)[0] for d, full in zip(taken, whole, strict=True)]
    builder.inputs([program.outputs[0]])
    slots += [builder._constant(0, torch.int64)] * program.algebra.index
    lifted = zip(builder.inline(program.lift, slots), program.state, strict=True)
    state = [builder.cast(value, dtype) for value, dtype in lifted]
    shown = zip(builder.inline(program.project, state), program.outputs, strict=True)
    kernel = Cells(builder, n + 1, [builder.cast(value, dtype) for value, dtype in shown])
    kernel.dtypes = tuple(stored(d) for d in taken)
    return kernel, kernel.at_once(SHARE)


def once(shape: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A layout with length 1 along the dims that it repeats in."""
    return tuple(1 if step == 0 else n for n, step in zip(shape, stride, strict=True)), tuple(stride)


def _read(part: Tensor, element: torch.dtype, dtype: torch.dtype) -> Tensor:
    """A part of an input in the dtype that its values are computed in; uint64 as int64 of the same bits."""
    made = reference.as_element(part, element) if part.dtype != element else part
    made = made.view(torch.int64) if made.dtype == torch.uint64 else made
    return made if made.dtype == dtype else made.to(dtype)


def _own(made: Tensor, dtype: torch.dtype, shape: Sequence[int], values: Sequence[Tensor]) -> Tensor:
    """A result in memory of its own."""
    if made.dtype == dtype and made.shape == shape and made.is_contiguous():
        return made.clone() if any(made is v for v in values) else made
    return made.to(dtype).expand(shape).clone(memory_format=torch.contiguous_format)


def narrow_where_long(t: Tensor, tile: Tile) -> Tensor:
    """A tile of a tensor that has length 1 where it repeats; a number is none."""
    for d, (start, length) in enumerate(tile if t.ndim else ()):
        if t.shape[d] > length and t.shape[d] > 1:
            t = t.narrow(d, start, length)
    return t
