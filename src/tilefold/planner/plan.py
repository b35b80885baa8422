"""The frozen answer to "how": steps over named buffers, for every operation and every backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tilefold.runtime.notebooks import table


@dataclass(frozen=True)
class KeptDims:
    """The part that a first launch keeps apart: reduced dims by number, and so many neighbours of the innermost dim left.

    No dims and one neighbour: results alone, in the order of memory.
    """

    dims: tuple[int, ...] = ()
    together: int = 1

    @property
    def note(self) -> str:
        """In the shortest form."""
        return "+".join(map(str, self.dims)) + (f"x{self.together}" if self.together > 1 else "")

    def __str__(self) -> str:
        words = [f"reduced dim {n}" for n in self.dims]
        words += [f"{self.together} neighbours"] * (self.together > 1)
        return f"{' and '.join(words)} kept apart" if words else "results in the order of memory"


@dataclass(frozen=True)
class Stage:
    """The decisions of one launch of a fold: a program owns `block_outputs` results.

    It reads tiles of [run, lanes, block_outputs, unroll].
    `ordered` combines in the elements' order (a tree of neighbours inside registers); otherwise each of the `lanes` folds
    its own elements, `unroll` runs of `run` neighbours a tile, and lanes are combined once, at the end. `in_order`: a lane's
    elements stay in one thread and come in order, their positions too where the monoid sees them. `align`: rows start
    anywhere and are read from the multiple of so many elements before. `prefetch`: a tile is loaded while the one before it
    is folded. `num_stages`: with more than one, so many tiles are on their way at a time, through shared memory
    (asynchronous copies). `evict_first`: what was read leaves the L2 first. `splits` programs share one result; each leaves
    a partial state. `shares`: of an ordered fold, each lane folds a part of all whole tiles, and lanes are combined once, not
    once a tile. `kept_dims`: what the launch keeps apart besides results, for a second launch to fold (`planner.kept_dims`).
    `flat`: results are walked along all output dims as one, not along the last. `shift`: a program's places begin so many
    elements before the first result (both `planner.first_launch`). `gathered`: rows side by side are read as one run of
    memory, and each thread takes its own from shared memory (`planner.gathered`).
    """

    family: str
    block_outputs: int
    lanes: int
    run: int
    unroll: int
    splits: int
    num_warps: int
    ordered: bool = False
    absorb: bool = False
    in_order: bool = False
    evict_first: bool = True
    align: int = 1
    prefetch: bool = False
    num_stages: int = 1
    kept_dims: KeptDims | None = None
    flat: bool = False
    shift: int = 0
    shares: bool = False
    gathered: bool = False

    @property
    def step(self) -> int:
        """Elements of one result in one tile."""
        return self.run * self.lanes * self.unroll

    def but(self, **changes: Any) -> Stage:
        """The same with other values of these fields: `replace` in a fifth of its time, for choices among hundreds."""
        made = object.__new__(Stage)
        made.__dict__.update(self.__dict__, **changes)
        return made

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"k{self.block_outputs},l{self.lanes},r{self.run}x{self.unroll}"
        kept = f",a{self.kept_dims.note}" if self.kept_dims else ""
        kept += (
            ",f" * self.flat
            + f",b{self.shift}" * (self.shift > 0)
            + ",once" * self.shares
            + ",g" * self.gathered
        )
        return f"{self.family}:{tile},s{self.splits},w{self.num_warps}{kept}"

    def __str__(self) -> str:
        order = "in order" if self.ordered else "lanes first"
        elements = count(self.run * self.unroll, "element")
        tile = f"{count(self.block_outputs, 'result')} x {count(self.lanes, 'lane')} x {elements}"
        words = [f"{tile} a step", count(self.splits, "split"), count(self.num_warps, "warp"), order]
        words += ["absorbing blocks"] * self.absorb + ["reading ahead"] * self.prefetch
        words += [f"{self.num_stages} tiles on their way"] * (self.num_stages > 1) + ["aligned"] * (
            self.align > 1
        )
        words += ["lanes combined once"] * self.shares
        words += ["rows from one run of memory"] * self.gathered
        words += [str(self.kept_dims)] if self.kept_dims else []
        words += ["output dims as one"] * self.flat
        words += [f"from {count(self.shift, 'element')} before the first result"] * (self.shift > 0)
        return f"{self.family}: {', '.join(words)}"


@dataclass(frozen=True)
class Buffer:
    """A contiguous tensor that a plan needs besides its inputs: a workspace, or a result (all results in one dim)."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Launch:
    """One kernel launch: the kernel's family, what its planner decided, and the buffers it reads and writes.

    `early`: it may begin before the step ahead of it ends, and waits before it reads what that writes (programmatic dependent
    launch). `releases`: it lets the step after it begin early.
    """

    kernel: str
    settings: Any
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    early: bool = False
    releases: bool = False

    def __str__(self) -> str:
        return str(self.settings)


@dataclass(frozen=True)
class LibraryCall:
    """A function of torch (cuBLAS behind it), or a loop of torch's operations: by the name that a backend knows it by.

    What it writes is given to it where the plan has a buffer of that name; else that is what it returns.
    """

    function: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    settings: Any = None

    def __str__(self) -> str:
        return self.function


@dataclass(frozen=True)
class Fill:
    """Results of folding nothing: the projected identity everywhere."""

    writes: tuple[str, ...]


Step = Launch | LibraryCall | Fill


@dataclass(frozen=True)
class Plan:
    """How one call runs: `steps`, in order, over its inputs ("input0" ...), `workspaces` and `outputs`.

    Equal plans for equal problems: a plan is a pure function of problem, computation and device. `strategy` is the form it
    has among those that it might have, `reason` says why in words. `moved_bytes` is what the steps read and write, `least_us`
    what that and the launches take on the chip at least (`least_time`); 0 on a CPU. `chip` is its name.
    """

    backend: str
    steps: tuple[Step, ...] = ()
    outputs: tuple[Buffer, ...] = ()
    workspaces: tuple[Buffer, ...] = ()
    guarantee: str = "run_to_run"
    strategy: str = ""
    reason: str = ""
    moved_bytes: int = field(default=0, compare=False)
    least_us: float = field(default=0.0, compare=False)
    chip: str = field(default="", compare=False)

    @property
    def stages(self) -> tuple[Any, ...]:
        """The decisions of each kernel launch, in order."""
        return tuple(step.settings for step in self.launched)

    @property
    def launched(self) -> tuple[Launch, ...]:
        """The steps that are kernels of this library."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @property
    def working(self) -> tuple[Launch | LibraryCall, ...]:
        """The steps that do work on the device: kernels and library calls."""
        return tuple(step for step in self.steps if not isinstance(step, Fill))

    @property
    def launches(self) -> int:
        """How many steps do work on the device."""
        return len(self.working)

    @property
    def overlap(self) -> bool:
        """Whether a launch of this plan lets the next begin early."""
        return any(step.early for step in self.launched[1:])

    @property
    def chained(self) -> bool:
        """Whether the first launch begins before what ran ahead of this call has ended."""
        return any(step.early for step in self.launched[:1])

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a workspace."""
        return next(buffer.shape for buffer in self.workspaces if buffer.name == name)

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        notes = [
            step.function if isinstance(step, LibraryCall) else step.settings.note for step in self.working
        ]
        early = f"{' chained' if self.chained else ''}{' overlap' if self.overlap else ''}"
        return (" + ".join(notes) or self.backend) + early

    def __str__(self) -> str:
        head = ", ".join(filter(None, (self.strategy, self.reason)))
        lines = [f"{self.backend}: {head}" if head else self.backend]
        lines += [f"  {number}. {step}" for number, step in enumerate(self.working, 1)]
        if self.moved_bytes:
            where = f" on {self.chip}" if self.chip else ""
            moved = f"{self.moved_bytes / 1e6:.2f} MB read and written"
            lines.append(f"  expected{where}: at least {self.least_us:.1f} us; {moved}")
        launches = [(n, step) for n, step in enumerate(self.working, 1) if isinstance(step, Launch)]
        early = [str(number) for number, step in launches if step.early]
        if early:
            which = f"launch{'es' * (len(early) > 1)} {' and '.join(early)} start{'s' * (len(early) == 1)}"
            lines.append(f"  {which} early (programmatic dependent launch)")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What notebooks show: each step with the buffers that it reads and writes."""
        head, *others = str(self).split("\n")
        steps = [
            (n, type(step).__name__, "" if isinstance(step, Fill) else step, ", ".join(getattr(step, "reads", ())),
             ", ".join(step.writes)) for n, step in enumerate(self.steps, 1)
        ]  # fmt: skip
        said = [("", "", line.strip(), "", "") for line in others[len(self.working) :]]
        return table(head, [*steps, *said], ("", "step", "decisions", "reads", "writes"))


def names(kind: str, number: int) -> tuple[str, ...]:
    """The names of buffers of one kind: input0, input1 ..."""
    return tuple(f"{kind}{i}" for i in range(number))


def count(n: int, thing: str) -> str:
    """A number and what it counts: "1 split", "4 splits"."""
    return f"{n} {thing}{'s' * (n != 1)}"
