"""Programs of a grid, executed one after the other (those of a cluster together) on one memory."""

from __future__ import annotations

from collections.abc import Sequence

from tilefold.errors import ExecutionError
from tilefold.xray.machine.kernel import Kernel
from tilefold.xray.machine.log import Outcome
from tilefold.xray.machine.memory import Memory
from tilefold.xray.machine.run import LIMIT, Turns, run_together

Program = tuple[int, int, int]
# Triton's last two parameters: scratch of the grid, scratch of a profiler.
_SCRATCH = 2


def chosen_programs(grid: Program) -> tuple[Program, ...]:
    """The first, the middle (along every dim) and the last program of a grid, each once."""
    x, y, z = grid
    return tuple(dict.fromkeys(((0, 0, 0), (x // 2, y // 2, z // 2), (x - 1, y - 1, z - 1))))


def all_programs(grid: Program) -> tuple[Program, ...]:
    """Every program, x fastest."""
    return tuple((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))


def execute(
    kernel: Kernel,
    memory: Memory,
    values: Sequence[int | bytes],
    *,
    grid: Program = (1, 1, 1),
    programs: Sequence[Program] | None = None,
    scratch: bool = False,
    steps: int = LIMIT,
    turns: Turns = "together",
    cluster: int = 1,
) -> tuple[Outcome, ...]:
    """Run programs of a grid; by default its first, middle and last.

    `values` are the arguments in the order of the PTX's parameters: the bits of scalars, addresses that `memory` gave, tensor
    maps as their 128 bytes. Triton's two last parameters may be left out; `scratch` says whether the kernel uses
    the first of them, which then gets memory of its own; `steps` bounds the blocks that a
    program may execute, `turns` says which warps go on first (see `run`). So many neighbours along x as a `cluster` has run
    together: whole clusters are executed, each once, for the programs asked for. Accesses outside of every allocation are
    found in `memory.faults` afterwards.

    Raises:
        ExecutionError: too few or too many values, a program outside of the grid, a grid that is no multiple of the
            cluster, and what `run` raises.
    """
    names = [p.name for p in kernel.entry.parameters]
    missing = len(names) - len(values)
    if missing not in (0, _SCRATCH):
        raise ExecutionError(
            f"xray: a kernel of {len(names)} parameters must be given {len(names) - _SCRATCH} or {len(names)} values, got "
            f"{len(values)}"
        )
    if missing:
        values = [*values, memory.place_open("scratch") if scratch else 0, 0]
    if grid[0] % cluster:
        raise ExecutionError(f"xray: a grid must be whole clusters of {cluster} programs, got {grid}")
    arguments, found = dict(zip(names, values, strict=True)), dict[Program, Outcome]()
    wanted = chosen_programs(grid) if programs is None else tuple(programs)
    for program in wanted:
        if not all(0 <= at < size for at, size in zip(program, grid, strict=True)):
            raise ExecutionError(f"xray: a program must lie in the grid {grid}, got {program}")
        if program not in found:
            together = neighbours(program, cluster)
            outcomes = run_together(kernel, memory, arguments, together, grid=grid, limit=steps, turns=turns)
            found |= zip(together, outcomes, strict=True)
    return tuple(found[program] for program in wanted)


def neighbours(program: Program, cluster: int) -> tuple[Program, ...]:
    """The programs of a program's cluster."""
    x, y, z = program
    return tuple((x // cluster * cluster + rank, y, z) for rank in range(cluster))
