"""Remedies and suspicions tried: the kernel compiled again with one thing changed, executed, and its memory compared.

A comparison is of all memory that the executed programs touched, so it holds whatever wrote it. Trials are bounded in number
and in steps: a kernel whose programs take long is not executed again, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilefold.errors import TilefoldError
from tilefold.xray.compile import offline
from tilefold.xray.compile.arguments import Argument
from tilefold.xray.compile.job import Compiled, Job
from tilefold.xray.execution import Execution, Program, execute
from tilefold.xray.machine import Outcome
from tilefold.xray.machine.counts import global_cost, shared_cost
from tilefold.xray.machine.memory import Allocation, Memory
from tilefold.xray.machine.run import Turns
from tilefold.xray.machine.types import Array
from tilefold.xray.ptx import parse
from tilefold.xray.report.build import PORT
from tilefold.xray.report.occupancy import occupancy
from tilefold.xray.stages import Stages

BARRIER = 32  # instructions that a warp could issue while a barrier keeps it
CLOCKS = "clocks of all units"
NO_GAIN = "nothing was gained by "
STEPS = 150_000  # instructions of a warp, times the trials
TRIALS = 32
SCHEDULERS = 4  # of an SM, each of which issues an instruction of its warps in a clock
_LONGER, _FEWEST = 4, 1000  # blocks that a variant may take: times the kernel's instructions, and at least
_MANTISSA = {"fp64": 52, "fp32": 23, "fp16": 10, "bf16": 7, "fp8e5": 2, "fp8e4nv": 3}
_SPARE_BITS = 4  # by which results may differ where sums come in another order


class UntriedError(Exception):
    """A trial that was not made; its message says why."""


class EndlessError(UntriedError):
    """A variant that does not end, where the kernel does."""


@dataclass(frozen=True)
class Difference:
    """Elements of an argument that two executions left with different values, and the first of those that differ most."""

    name: str
    count: int
    element: int
    ours: float
    theirs: float

    def __str__(self) -> str:
        return f"{self.name}[{self.element}] is {self.ours:.6g} and not {self.theirs:.6g}"


class Trials:
    """Variants of one compiled kernel, executed. The first execution is what they are compared with."""

    def __init__(
        self, compiled: Compiled, execution: Execution | None, stages: Stages | None, count: int = 1
    ) -> None:
        """`stages` follows them; None: nothing is tried. `count`: the programs of the grid."""
        self.compiled, self.execution, self._stages, self._count = compiled, execution, stages, count
        self._left, self._done = STEPS, TRIALS
        self._compiled = {compiled.ttir.strip(): compiled}
        self._launched: dict[Job, Compiled] = {}
        self._kept: dict[tuple[Compiled, tuple[Program, ...], int, Turns], Memory] = {}
        self._last: tuple[Compiled, Execution] | None = None
        self._clocks: dict[Compiled, tuple[int, int]] = {}
        self._taken: list[Compiled] = []

    @property
    def wanted(self) -> bool:
        """Whether anything is tried at all."""
        return self._stages is not None

    def compile(self, ttir: str) -> Compiled:
        """Compile another TTIR.

        Raises:
            UntriedError: it does not compile, or there were too many trials.
        """
        key = ttir.strip()
        if key not in self._compiled:
            self._compiled[key] = self._made(lambda: offline.recompile(self.compiled, ttir))
        return self._take(self._compiled[key])

    def launch(self, *, warps: int | None = None, stages: int | None = None) -> Compiled:
        """The kernel for a launch with other warps or stages.

        Raises:
            UntriedError: it does not compile, or there were too many trials.
        """
        job = self.compiled.job
        job = replace(job, num_warps=warps or job.num_warps, num_stages=stages or job.num_stages)
        if job not in self._launched:
            self._launched[job] = self._made(lambda: offline.compile_job(job))
        return self._take(self._launched[job])

    def padded(self, names: Sequence[str], multiple: int) -> Compiled:
        """The same code, launched with some numbers rounded up to multiples."""
        job = self.compiled.job
        arguments = tuple(
            replace(a, value=-(-a.value // multiple) * multiple)
            if a.name in names and isinstance(a.value, int)
            else a
            for a in job.arguments
        )
        return self._take(replace(self.compiled, job=replace(job, arguments=arguments)))

    def _take(self, made: Compiled) -> Compiled:
        self._taken.append(made)
        return made

    def taken(self) -> list[Compiled]:
        """The variants that were asked for since the last call of this."""
        taken, self._taken = self._taken, []
        return taken

    def _made(self, make: Callable[[], Compiled]) -> Compiled:
        if self._stages is None:
            raise UntriedError("no trials were asked for")
        self._done -= 1
        if self._done < 0:
            raise UntriedError(f"more than {TRIALS} trials")
        try:
            with self._stages.stage("compiling trials"):
                return make()
        except TilefoldError as error:
            raise UntriedError(f"does not compile: {str(error).splitlines()[0]}") from None

    def run(self, compiled: Compiled, programs: Sequence[Program] | None = None) -> Execution:
        """Execute a variant; by default the programs that the report is of.

        Raises:
            UntriedError: it cannot be executed, or takes too many steps.
        """
        chosen = self._programs(programs)
        if self._last is None or self._last[0] is not compiled or self._last[1].programs != chosen:
            self._last = (compiled, self._run(compiled, chosen, 0))
            self._kept[compiled, chosen, 0, "together"] = self._last[1].memory
        return self._last[1]

    def memory(
        self, compiled: Compiled, programs: Sequence[Program] | None = None, sign: int = 0, turns: Turns = "together"
    ) -> Memory:  # fmt: skip
        """What a variant leaves behind. `sign`: of all numbers that memory without data holds; 0 for both. `turns`: which
        warps go on first.

        Raises:
            UntriedError: it cannot be executed, or takes too many steps.
        """
        chosen = self._programs(programs)
        first = self.execution
        if (
            compiled is self.compiled
            and first is not None
            and not sign
            and turns == "together"
            and chosen == first.programs
        ):
            return first.memory
        key = (compiled, chosen, sign, turns)
        if key not in self._kept:
            self._kept[key] = self._run(compiled, chosen, sign, turns).memory
        return self._kept[key]

    def clocks(self, compiled: Compiled) -> tuple[int, int]:
        """Clocks of all units that the executed programs take, and those of a variant of them.

        Raises:
            UntriedError: it cannot be executed, or takes too many steps.
        """
        if compiled not in self._clocks:
            other = self.run(compiled)
            assert self.execution is not None
            self._clocks[compiled] = self._weigh(self.execution, self.compiled), self._weigh(other, compiled)
        return self._clocks[compiled]

    def _weigh(self, done: Execution, compiled: Compiled) -> int:
        """With registers that are spilled, once a thread: the PTX has none of that."""
        chip, used = compiled.job.chip, offline.resources(compiled)
        held = max(occupancy(chip, used, compiled.num_warps).blocks, 1)
        spilled = used.spilled * 32 * compiled.num_warps * len(done.outcomes)
        return round(clocks_of(done.outcomes, min(held, -(-self._count // chip.sms))) + spilled / PORT)

    def _programs(self, given: Sequence[Program] | None) -> tuple[Program, ...]:
        if self.execution is None:
            raise UntriedError("the kernel was not executed")
        return self.execution.programs if given is None else tuple(given)

    def _run(
        self, compiled: Compiled, programs: tuple[Program, ...], sign: int, turns: Turns = "together"
    ) -> Execution:
        assert self.execution is not None
        if self._stages is None:
            raise UntriedError("no trials were asked for")
        # A variant that has run takes what it took; of others nothing is known but the kernel itself.
        like = self._last[1] if self._last is not None and self._last[0] is compiled else self.execution
        done = [o.instructions // max(o.issued.shape[1], 1) for o in like.outcomes]
        self._left -= (
            max(done, default=0) * len(programs) * (1 if turns == "together" else compiled.num_warps)
        )
        if self._left < 0:
            raise UntriedError(f"trials would take more than {STEPS} steps")
        # A block has an instruction at least; a variant that goes on for many more than the kernel is not waited for.
        steps = _LONGER * max((o.instructions for o in self.execution.outcomes), default=0) + _FEWEST
        try:
            with self._stages.stage("executing trials"):
                return execute(compiled, parse(compiled.ptx), programs, sign=sign, steps=steps, turns=turns)
        except TilefoldError as error:
            said = str(error).removeprefix("xray: ")
            kind = EndlessError if said.startswith("a program must end") else UntriedError
            raise kind(f"not executed: {said}") from None


def clocks_of(outcomes: Sequence[Outcome], resident: int = 1) -> float:
    """Clocks of an SM in all its units, added up: what is issued, passes through shared memory, bytes from L2, barriers.

    A warp stays with one of the schedulers, so a program of fewer warps than these keeps fewer of them busy, unless the other
    programs that the SM holds (`resident`, of such programs) take turns with it.
    """
    return sum(
        _issuing(o, resident) + shared_cost(o.accesses).passes + global_cost(o.accesses).moved / PORT
        for o in outcomes
    )


def _issuing(outcome: Outcome, resident: int) -> float:
    """Clocks in which a program's warps issue, an even share of the schedulers and no less than the busiest one takes, and
    those in which all of its warps wait at barriers."""
    each = outcome.issued.sum(0)
    busiest = max(int(each[first::SCHEDULERS].sum()) for first in range(SCHEDULERS))
    waiting = BARRIER * outcome.barriers
    return max(float(each.sum()) / SCHEDULERS, busiest / resident) + waiting / resident


def difference(compiled: Compiled, ours: Memory, theirs: Memory, *, exact: bool = False) -> Difference | None:
    """Where two memories differ by more than rounding (`exact`: at all); None where they hold the same."""
    each = [_differing(a, pairs, exact=exact) for a, pairs in _arguments(compiled, ours, theirs)]
    return next((one for one in each if one is not None), None)


def changed(compiled: Compiled, ours: Memory, theirs: Memory) -> set[tuple[str, int]]:
    """Elements of arguments, by name and number, that two executions left with different bits."""
    return {
        (argument.name, n)
        for argument, pairs in _arguments(compiled, ours, theirs)
        for first, a, b in pairs
        for n in np.unique((first + np.flatnonzero(a != b)) // argument.itemsize).tolist()
    }


def _arguments(
    compiled: Compiled, ours: Memory, theirs: Memory
) -> Iterator[tuple[Argument, list[tuple[int, Array, Array]]]]:
    """The arguments that have memory of their own in both, and what two executions left there."""
    named = {f"{i}:{a.name}": a for i, a in enumerate(compiled.parameters) if a.pointer}
    for left, right in zip(ours.allocations, theirs.allocations, strict=False):
        if left.name in named and left.name == right.name:
            yield named[left.name], _pairs(left, right, ours, theirs)


def _pairs(
    left: Allocation, right: Allocation, ours: Memory, theirs: Memory
) -> list[tuple[int, Array, Array]]:
    """(first byte from the argument's address, bytes, bytes) of all that either of them touched."""
    if left.data is not None and right.data is not None:
        return [(0, left.data[: left.size], right.data[: right.size])]
    return [
        (
            number * len(ours.page(left, number)) - ours.middle,
            ours.page(left, number),
            theirs.page(right, number),
        )
        for number in sorted({*left.pages, *right.pages})
    ]


def _differing(
    argument: Argument, parts: list[tuple[int, Array, Array]], *, exact: bool
) -> Difference | None:
    kind, worst, count = argument.type, None, 0
    largest = 0.0
    for first, ours, theirs in parts:
        if np.array_equal(ours, theirs):
            continue
        a, b = numbers(ours, kind), numbers(theirs, kind)
        with np.errstate(all="ignore"):
            far = np.abs(a - b)
            scale = np.maximum(np.abs(a), np.abs(b))
            scale = np.where(np.isfinite(scale), scale, 0)
            bits = 0 if exact or kind not in _MANTISSA else _MANTISSA[kind] - _SPARE_BITS
            room = 0.0 if not bits else 2.0**-bits * max(float(scale.max()), 1.0)
            apart = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (far <= room))
        count += int(apart.sum())
        if apart.any():
            rank = np.where(apart, np.where(np.isfinite(far), far, np.inf), -1)
            at = int(rank.argmax())
            if worst is None or rank[at] > largest:
                size = len(ours) // len(a)
                largest, worst = float(rank[at]), (first // size + at, float(a[at]), float(b[at]))
    return None if worst is None else Difference(argument.name, count, *worst)


def numbers(held: Array, kind: str) -> Array:
    """Bytes as numbers of a type; of 8-bit floats the bits."""
    if kind == "bf16":
        return (held.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    dtype = {"fp64": "f8", "fp32": "f4", "fp16": "f2", "i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1",
             "u64": "u8", "u32": "u4", "u16": "u2"}.get(kind, "u1")  # fmt: skip
    whole: Array = held[: len(held) // int(dtype[1]) * int(dtype[1])].view(dtype).astype(np.float64)
    return whole
