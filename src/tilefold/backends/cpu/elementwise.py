"""A fold's graphs as short lists of torch operations that write into reused buffers: the CPU's inner loop.

`evaluate` runs a graph node by node and allocates each result, which on a CPU costs more than the arithmetic: fresh
memory is mapped page by page. Here a graph, or two chained ones, becomes a list of steps once: casts and constants are
settled, and every step knows the buffer it writes, so that a piece stays in cache from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.algebra.operations import DROPS_DIMS
from tilefold.algebra.program import Program
from tilefold.algebra.proofs.derive import by_field
from tilefold.algebra.whole_vectors import SERIAL
from tilefold.backends.cpu.reductions import groups
from tilefold.backends.cpu.step_builder import Builder, is_reduction
from tilefold.backends.cpu.step_lists import Step, Steps, copy
from tilefold.runtime.caching import kept_outside_modes

Tensor = torch.Tensor
Function = Callable[..., Any]
Workspace = dict[Any, list[Tensor]]
Call = tuple[Function, tuple[Tensor, ...], Any]  # a function, its operands, and where its result goes


class Kernel:
    """A list of steps ready to run, again and again, on pieces of any shape."""

    def __init__(
        self, builder: Builder, inputs: int, outputs: Sequence[int], over: Sequence[int] | None = None
    ) -> None:
        """`over`: for each output the position of an argument that `bound` may write it over: steps are ordered for that."""
        made = Steps(builder.slots, builder.steps, tuple(outputs))
        if over is not None:
            made.in_place(over)
        self.inputs, self.outputs = inputs, made.outputs
        self._steps = made.steps
        self._full = [slot.full for slot in made.slots]
        self._buffer_dtypes = made.assign_buffers()
        self._direct = [i in made.direct for i in range(len(outputs))]
        self._bound: list[Any] = [s.constant for s in made.slots]
        self._buffered = [(i, s.buffer) for i, s in enumerate(made.slots) if s.buffer is not None]

    def run(self, arguments: Sequence[Tensor], targets: Sequence[Tensor], workspace: Workspace) -> None:
        """Run on tensors of one shape and write the outputs into `targets` of that shape, no argument among them."""
        values = self._bind(arguments, workspace, targets)
        self._go(values)
        for output, direct, target in zip(self.outputs, self._direct, targets, strict=True):
            if not direct:
                target.copy_(values[output])

    def bound(
        self, arguments: Sequence[Tensor], targets: Sequence[Tensor], workspace: Workspace
    ) -> list[Call]:
        """`run` on these very tensors, of a list without blocks, as calls that may be made again and again.

        Where a list was ordered for it, a target may be the argument that it is written over.
        """
        values = self._bind(arguments, workspace, targets)
        calls: list[Call] = []
        for step in self._steps:
            operands = tuple(values[a] for a in step.arguments)
            if step.writes:
                calls.append((step.function, operands, values[step.result]))
            else:
                values[step.result] = step.function(*operands)
        for output, direct, target in zip(self.outputs, self._direct, targets, strict=True):
            if not direct and values[output] is not target:
                calls.append((copy, (values[output],), target))
        return calls

    def small(self, arguments: Sequence[Tensor], workspace: Workspace) -> list[Tensor]:
        """Run an absorbing list, whose outputs do not have the piece's shape; the last argument does."""
        values = self._bind(arguments, workspace)
        self._go(values)
        return [values[o] for o in self.outputs]

    def at_once(self, elements: int) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """`small` for pieces of so few elements that each call counts: operations allocate what they give.

        A reduction that no other step reads loses the dims that it reduces.
        """
        steps = [self._unbuffered(step, elements) for step in self._steps]
        bound, inputs, outputs = self._bound, self.inputs, self.outputs

        def run(arguments: Sequence[Tensor]) -> list[Tensor]:
            values = list(bound)
            values[:inputs] = arguments
            for function, places, result in steps:
                values[result] = function(*[values[p] for p in places])
            return [values[o] for o in outputs]

        return run

    def _unbuffered(self, step: Step, elements: int) -> tuple[Function, tuple[int, ...], int]:
        """A step without a buffer; a reduction of the whole piece as torch's own call."""
        named = getattr(step.function, "keywords", {})
        axes = named.get("axes", ())
        whole = is_reduction(step.function) and self._full[step.arguments[0]]
        if not whole or len(groups(axes)) > 1 or elements >= SERIAL:
            return step.function, step.arguments, step.result
        function, kept = named["function"], any(step.result in s.arguments for s in self._steps)
        if function in DROPS_DIMS:
            return lambda value: function(value, axes, kept), step.arguments[:1], step.result
        reduced = function if kept else lambda value, dims: function(value, dims).squeeze(tuple(dims))
        return lambda value: reduced(value, axes), step.arguments[:1], step.result

    def is_reduced(self, output: int) -> bool:
        """Whether an output is a block's reduction: new memory, with one value for each result."""
        made = [step for step in self._steps if step.result == output]
        return bool(made) and is_reduction(made[0].function)

    def _bind(
        self, arguments: Sequence[Tensor], workspace: Workspace, targets: Sequence[Tensor] = ()
    ) -> list[Any]:
        """What each slot is: the arguments, buffers of their shape, and targets where a step writes an output there."""
        shape = arguments[-1].shape
        buffers = workspace.get((self, shape))
        if buffers is None:
            buffers = workspace[self, shape] = [
                torch.empty(shape, dtype=d, device="cpu") for d in self._buffer_dtypes
            ]
        values = list(self._bound)
        values[: self.inputs] = arguments
        for position, buffer in self._buffered:
            values[position] = buffers[buffer]
        for output, direct, target in zip(self.outputs, self._direct, targets, strict=False):
            if direct:
                values[output] = target
        return values

    def _go(self, values: list[Any]) -> None:
        for step in self._steps:
            operands = [values[a] for a in step.arguments]
            if step.writes:
                step.function(*operands, out=values[step.result])
            else:
                values[step.result] = step.function(*operands)


def _kernel(
    builder: Builder,
    inputs: int,
    values: Sequence[int],
    dtypes: Sequence[torch.dtype],
    over: Sequence[int] | None = None,
) -> Kernel:
    return Kernel(builder, inputs, [builder.cast(v, d) for v, d in zip(values, dtypes, strict=True)], over)


@dataclass(frozen=True)
class Kernels:
    """A fold's functions: `lift` elements (and positions) to states; `step` a state and the elements after it to a state;
    `combine` two states, the result possibly in the second one's memory; `project` a state to the results in their dtypes."""

    lift: Kernel
    step: Kernel
    combine: Kernel
    project: Kernel


@kept_outside_modes(256)
def kernels(program: Program, placeless: bool = False, ascending: bool = True) -> Kernels:
    """The lists of a program; with `placeless` an element's bits do not depend on its place in the piece.

    `ascending`: the elements that are combined with a state come after its own, so that comparisons of positions are settled.
    """
    return Kernels(
        _lift(program, placeless),
        _step(program, placeless, ascending),
        _combine(program, placeless),
        _project(program, placeless),
    )


def _lift(program: Program, placeless: bool) -> Kernel:
    builder = Builder(placeless=placeless)
    elements = builder.inputs(program.lift.input_dtypes)
    return _kernel(builder, len(elements), builder.inline(program.lift, elements), program.state)


def _step(program: Program, placeless: bool, ascending: bool) -> Kernel:
    builder = Builder(placeless=placeless)
    state = builder.inputs(program.state)
    elements = builder.inputs(program.lift.input_dtypes)
    lifted = builder.inline(program.lift, elements)
    right = [builder.cast(v, d) for v, d in zip(lifted, program.state, strict=True)]
    combine = program.combine_later if ascending else program.combine
    values = builder.inline(combine, [*state, *right])
    return _kernel(builder, len(state) + len(elements), values, program.state)


def _combine(program: Program, placeless: bool) -> Kernel:
    builder = Builder(placeless=placeless)
    states = builder.inputs((*program.state, *program.state))
    values = builder.inline(program.combine, states)
    return _kernel(builder, len(states), values, program.state, states[len(program.state) :])


def _project(program: Program, placeless: bool) -> Kernel:
    builder = Builder(placeless=placeless)
    state = builder.inputs(program.state)
    return _kernel(builder, len(state), builder.inline(program.project, state), program.outputs)


@kept_outside_modes(1024)
def begin_kernel(program: Program, axes: tuple[int, ...]) -> Kernel:
    """A first block of elements along `axes` (and their positions) -> state, of length 1 along `axes`."""
    builder = Builder(axes)
    elements = builder.inputs(program.lift.input_dtypes)
    values = (
        _block_by_field(builder, program, elements)
        if program.begin is None
        else builder.inline(program.begin, elements)
    )
    return _kernel(builder, len(elements), values, program.state)


@kept_outside_modes(1024)
def absorb_kernel(program: Program, axes: tuple[int, ...]) -> Kernel:
    """State, blocks of elements along `axes` (and their positions) -> state, of length 1 along `axes`."""
    builder = Builder(axes)
    state = builder.inputs(program.state, full=False)
    elements = builder.inputs(program.lift.input_dtypes)
    if program.absorb is None:
        values = builder.inline(program.combine, [*state, *_block_by_field(builder, program, elements)])
    else:
        values = builder.inline(program.absorb, [*state, *elements])
    return _kernel(builder, len(state) + len(elements), values, program.state)


def _block_by_field(builder: Builder, program: Program, elements: Sequence[int]) -> list[int]:
    """The state of a block whose fields are combined one by one: lifted, then each field reduced."""
    operations = by_field(program.combine.graph)
    assert operations is not None
    lifted = builder.inline(program.lift, elements)
    fields = zip(operations, lifted, program.state, strict=True)
    return [builder.block(op, builder.cast(value, dtype), dtype) for op, value, dtype in fields]
