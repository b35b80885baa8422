"""A compilation's input (`Job`) and output (`Compiled`): frozen values without a word of Triton."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilefold.planner.chips import Chip
from tilefold.xray.compile.arguments import Argument


@dataclass(frozen=True)
class Job:
    """A kernel with all that decides its code and its work.

    `constants` are the compile-time parameters; `source` is Triton's own form of a kernel of the library, whose arguments
    are nested (None: made from `kernel`, `arguments` and `constants`). Of the grid's programs `cluster` neighbours start
    together. A program is launched with `shared` bytes of shared memory at least.
    """

    kernel: Any
    name: str
    arguments: tuple[Argument, ...]
    constants: tuple[tuple[str, Any], ...]
    chip: Chip
    grid: tuple[int, int, int] = (1, 1, 1)
    num_warps: int = 4
    num_stages: int = 3
    options: tuple[tuple[str, Any], ...] = ()
    source: Any = field(default=None, compare=False, repr=False)
    cluster: int = 1
    shared: int = 0


@dataclass(frozen=True)
class Resources:
    """The assembler's resources of a program: registers a thread, bytes a thread of spills and of stack."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int

    @property
    def spilled(self) -> int:
        """Bytes a thread of spills, written and read."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class Machine:
    """Machine code as the disassembler shows it, with lines of the source between its instructions; what it occupies."""

    resources: Resources
    code: str


@dataclass(frozen=True)
class Compiled:
    """The compiler's texts of one job. `parameters` are the arguments that reach the PTX, in its order.

    `shared` is in bytes a block; `scratch` in bytes a program, of memory that Triton allocates for the kernel.
    """

    job: Job
    ttir: str
    ttgir: str
    ptx: str
    shared: int = 0
    num_warps: int = 4
    scratch: int = 0
    version: str = ""
    llir: str = ""

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """Arguments that were not compiled in."""
        return tuple(a for a in self.job.arguments if not a.constant)
