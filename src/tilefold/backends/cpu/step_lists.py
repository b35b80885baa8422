"""A list of steps between slots, before it is bound to tensors: which buffer each step writes, and in which order.

A list that writes its results into the memory of some of its inputs must have read these before: `in_place` orders it so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilefold.algebra.evaluate import stored

Tensor = torch.Tensor
Function = Callable[..., Any]


@dataclass
class Slot:
    """A value: a constant, an input, or what a step gives. `full` ones have the whole piece's shape.

    A graph's own constant keeps its `number`, which its dtype need not hold.
    """

    dtype: torch.dtype
    full: bool
    constant: Tensor | None = None
    number: bool | int | float | None = None
    buffer: int | None = None


@dataclass(frozen=True)
class Step:
    """`function(*arguments)` into slot `result`: into a buffer (`writes`), freshly allocated, or a `view`."""

    function: Function
    arguments: tuple[int, ...]
    result: int
    writes: bool
    view: bool = False


@dataclass
class Steps:
    """Slots and the steps between them, from `inputs` (the first slots) to `outputs`.

    `direct` outputs are written by a step into their targets; others are copied there in the end.
    """

    slots: list[Slot]
    steps: list[Step]
    outputs: tuple[int, ...]
    direct: set[int] = field(default_factory=set)  # positions among the outputs

    def __post_init__(self) -> None:
        """Leave out values that no step reads."""
        needed, steps = set(self.outputs), []
        for step in reversed(self.steps):
            if step.result in needed:
                needed.update(step.arguments)
                steps.append(step)
        self.steps = steps[::-1]
        written = {step.result for step in self.steps if step.writes}
        self.direct = {i for i, o in enumerate(self.outputs) if o in written and self.outputs.index(o) == i}

    def in_place(self, over: Sequence[int]) -> None:
        """Order the steps so that output i may be written into the memory of the input slot `over[i]`.

        A step that writes an output comes after all others that read what it overwrites. Where that cannot be, the output is
        copied in the end. An output that is another output's input is taken out of there first.
        """
        roots = self._roots()
        for i, output in enumerate(self.outputs):
            source = roots.get(output, output)
            if source in over and source != over[i]:
                self._copy_first(i, output)
        overwritten = {self.outputs[i]: over[i] for i in self.direct}
        left, ordered = list(self.steps), []
        while left:
            to_come = {s.result for s in left}
            ready = [s for s in left if to_come.isdisjoint(s.arguments)]
            read = [{roots.get(a, a) for a in s.arguments} for s in left]
            times = Counter(place for places in read for place in places)
            for step in ready:
                place = overwritten.get(step.result)
                others = 0 if place is None else times[place] - (place in read[left.index(step)])
                if not others:
                    break
            else:
                step = ready[0]
                self.direct.discard(self.outputs.index(step.result))
                del overwritten[step.result]
            left.remove(step)
            ordered.append(step)
        self.steps = ordered

    def _copy_first(self, i: int, output: int) -> None:
        slot = self.slots[output]
        self.slots.append(Slot(slot.dtype, slot.full))
        copied = len(self.slots) - 1
        self.steps.append(Step(copy, (output,), copied, writes=True))
        self.outputs = (*self.outputs[:i], copied, *self.outputs[i + 1 :])
        self.direct.add(i)

    def _roots(self) -> dict[int, int]:
        """Of each slot that is a view the one that it is a view of."""
        roots: dict[int, int] = {}
        for step in self.steps:
            if step.view:
                roots[step.result] = roots.get(step.arguments[0], step.arguments[0])
        return roots

    def assign_buffers(self) -> list[torch.dtype]:
        """Give every written slot but the direct outputs a buffer; one that no later step reads is free again."""
        last = {a: number for number, step in enumerate(self.steps) for a in step.arguments}
        kept = {s.arguments[0] for s in self.steps if s.view} | set(self.outputs)
        direct = {self.outputs[i] for i in self.direct}
        free: dict[torch.dtype, list[int]] = {}
        dtypes: list[torch.dtype] = []
        for number, step in enumerate(self.steps):
            for argument in set(step.arguments):
                slot = self.slots[argument]
                if last[argument] == number and slot.buffer is not None and argument not in kept:
                    free.setdefault(stored(slot.dtype), []).append(slot.buffer)
            slot = self.slots[step.result]
            if step.writes and step.result not in direct:
                pool = free.setdefault(stored(slot.dtype), [])
                if not pool:
                    pool.append(len(dtypes))
                    dtypes.append(stored(slot.dtype))
                slot.buffer = pool.pop()
        return dtypes


def copy(value: Tensor, out: Tensor) -> Tensor:
    """A step that copies."""
    return out.copy_(value)
