"""Whether a CUDA file does what a kernel's PTX does: nvcc's PTX and Triton's, executed on one data, store the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from tilefold.errors import ArgumentError, ExecutionError, PtxError, UnknownInstructionError, XrayError
from tilefold.xray.compile.arguments import TYPES, Argument
from tilefold.xray.compile.job import Compiled
from tilefold.xray.cuda.nvcc import compile_ptx, find_nvcc
from tilefold.xray.execution import Program, execute
from tilefold.xray.machine import Memory, all_programs, chosen_programs
from tilefold.xray.machine.run import Turns
from tilefold.xray.machine.types import Array
from tilefold.xray.ptx import Module, parse

MOST_PROGRAMS = 32  # of a grid that are executed: all of a small one, else the first, a middle and the last
MOST_OTHER_PROGRAMS = 4  # that are executed with other numbers than the case's
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40)


@dataclass(frozen=True)
class Verdict:
    """Whether a file is proven, and why not or on what."""

    proven: bool
    said: str


def prove(compiled: Compiled, source: str, programs: Sequence[Program] | None = None) -> Verdict:
    """Compile a file by nvcc and execute it beside Triton's PTX.

    All programs of a small grid are executed, the file's in each order in which the machine lets warps go on, on the case's
    data; then on numbers among which are NaN and infinities, and on numbers near 1; then with whole numbers that are zero,
    and negative, where Triton's kernel stays in its memory. Every byte of memory must be the same afterwards.
    """
    if find_nvcc() is None:
        return Verdict(False, "nvcc was not found, so it is neither compiled nor executed")
    try:
        triton = parse(compiled.ptx)
        other = parse(compile_ptx(source, triton.target[0]))
    except (XrayError, PtxError) as error:
        return Verdict(False, f"nvcc refuses it: {_first_line(error)}")
    grid = compiled.job.grid
    whole = grid[0] * grid[1] * grid[2] <= MOST_PROGRAMS
    chosen = list(programs or (all_programs(grid) if whole else chosen_programs(grid)))
    try:
        first = _executed(compiled, triton, chosen)
        for turns in get_args(Turns):
            second = _executed(compiled, other, chosen, turns)
            place = differing_memory(first, second)
            if (
                place and turns != "together"
            ):  # Triton's may leave other bits in another order too: sums by atomics
                place = differing_memory(_executed(compiled, triton, chosen, turns), second)
            if place:
                return Verdict(False, f"it stores other bits in {place} (turns: {turns})")
        refilled = list(_other_data(compiled))
        for name, filled in refilled:
            if place := differing_memory(*(_executed(filled, m, chosen) for m in (triton, other))):
                return Verdict(False, f"it stores other bits in {place} (data with {name})")
    except (ExecutionError, UnknownInstructionError, ArgumentError) as error:
        return Verdict(False, f"it could not be executed: {_first_line(error)}")
    said = [f"{len(chosen)} of {grid[0] * grid[1] * grid[2]} programs", "in each order of warps"]
    said += [f"with {name}" for name, _ in refilled]
    for name, numbered in _other_numbers(compiled):
        place = _differing_if_it_runs(numbered, triton, other, chosen[:MOST_OTHER_PROGRAMS])
        if place:
            return Verdict(False, f"it stores other bits in {place} ({name})")
        said += [f"with {name}"] if place is not None else []
    return Verdict(True, ", ".join(said))


def _other_data(compiled: Compiled) -> Iterator[tuple[str, Compiled]]:
    """The kernel with other floats in memory: with some that are none, and near 1, of which products stay in range."""
    for name, drawn in (("NaN and infinities", _special), ("numbers near 1", _near_one)):
        arguments = tuple(_refilled(a, drawn) for a in compiled.job.arguments)
        if any(a is not b for a, b in zip(arguments, compiled.job.arguments, strict=True)):
            yield name, replace(compiled, job=replace(compiled.job, arguments=arguments))


def _other_numbers(compiled: Compiled) -> Iterator[tuple[str, Compiled]]:
    """The kernel with zero for its whole numbers, and with negative ones; what divides them stays."""
    for name, times in (("sizes of zero", 0), ("negative sizes", -1)):
        arguments = tuple(
            replace(a, value=a.value * times) if _is_size(a) and a.value is not None else a
            for a in compiled.job.arguments
        )
        if arguments != compiled.job.arguments:
            yield name, replace(compiled, job=replace(compiled.job, arguments=arguments))


def _is_size(argument: Argument) -> bool:
    signed = argument.type in ("i32", "i64")
    return not argument.pointer and signed and isinstance(argument.value, int) and not argument.constant


def _differing_if_it_runs(
    compiled: Compiled, one: Module, other: Module, programs: Sequence[Program]
) -> str | None:
    """The name of the memory that two modules leave different, "" where all is the same; None if Triton's does not run."""
    try:
        first = execute(compiled, one, programs)
    except (ExecutionError, ArgumentError, OverflowError):
        return None
    if first.stopped or first.memory.faults:
        return None  # it does not end, or reaches memory that nobody has
    second = execute(compiled, other, programs)
    if second.stopped:
        return "nothing, as it does not end"
    return differing_memory(first.memory, second.memory) or ""


def _executed(
    compiled: Compiled, module: Module, programs: Sequence[Program], turns: Turns = "together"
) -> Memory:
    """What a module leaves in memory.

    Raises:
        ExecutionError: it does not end.
    """
    found = execute(compiled, module, programs, turns=turns)
    if found.stopped:
        raise ExecutionError(f"xray: {found.stopped}")
    return found.memory


def differing_memory(one: Memory, other: Memory) -> str | None:
    """The first allocation that is not the same in both, but for the modules' own variables."""
    for mine, theirs in zip(one.allocations[1:], other.allocations[1:], strict=True):
        if mine.data is not None and theirs.data is not None:
            same = np.array_equal(mine.data, theirs.data)
        else:
            pages = {*mine.pages, *theirs.pages}
            same = all(np.array_equal(one.page(mine, p), other.page(theirs, p)) for p in pages)
        if not same:
            return mine.name.partition(":")[2] or mine.name
    return None


def _refilled(argument: Argument, drawn: Callable[[np.random.Generator, int], Array]) -> Argument:
    """Memory of floats with drawn numbers; all other arguments as they are."""
    if (
        not argument.pointer
        or TYPES.get(argument.type) not in ("f2", "f4", "f8")
        or argument.storage
        or argument.size is None
    ):
        return argument
    numbers = drawn(np.random.default_rng(7), argument.size + argument.before)
    return replace(argument, data=numbers.astype(TYPES[argument.type]))


def _special(random: np.random.Generator, count: int) -> Array:
    numbers = random.standard_normal(count)
    numbers[random.random(count) < 0.02] = 0.0
    for at in np.flatnonzero(random.random(count) < 0.03):
        numbers[at] = _SPECIAL[at % len(_SPECIAL)]
    return numbers


def _near_one(random: np.random.Generator, count: int) -> Array:
    return random.choice([-1.0, 1.0], count) * (1 + random.standard_normal(count) / 64)


def _first_line(error: Exception) -> str:
    rows = str(error).removeprefix("cuda: ").removeprefix("xray: ").split("\n")
    return " ".join([rows[0], *(row for row in rows[1:] if "error" in row)])[:300]
