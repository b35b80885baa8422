"""An entry made ready to run: basic blocks of steps, decided once for all programs of the grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError, UnknownInstructionError
from tilefold.xray.machine import (
    access,
    atomics,
    carry,
    convert,
    copies,
    floats,
    integers,
    outside,
    select,
    warp,
)
from tilefold.xray.machine.binding import Binder, Mask, Read, Step, place_of, refuse_strangers, unknown
from tilefold.xray.machine.bulk import barriers, moves, remote, tensormap
from tilefold.xray.machine.gather import Gather, gather_of
from tilefold.xray.machine.matrix import groups, warps
from tilefold.xray.machine.memory import MODULE_BASE
from tilefold.xray.machine.order import ranks
from tilefold.xray.machine.spaces import PARAMETER_BASE
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import (
    Entry,
    Immediate,
    Instruction,
    Label,
    Module,
    Register,
    Symbol,
    Variable,
    Vector,
    items_of,
)

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

# Nothing here that one CTA could notice: order between its threads is kept anyway, its neighbours run one by one.
_SILENT = ("membar", "fence", "griddepcontrol", "nanosleep", "pragma", "setmaxnreg")


@dataclass(frozen=True)
class Planned:
    """One instruction of a block: its number, its step, its guard."""

    number: int
    step: Step
    guard: Read | None


@dataclass(frozen=True)
class Ending:
    """What follows a block: the next block, a jump, one of several `targets` by its `index`, a barrier (of the program, or
    of its cluster), the end of the thread or (trap, unknown) of everything. A barrier may have `votes`: those whom it lets
    go learn how they all voted."""

    kind: str
    number: int = -1
    target: int = -1
    guard: Read | None = None
    barrier: int = 0
    expected: int = 0
    targets: tuple[int, ...] = ()
    index: Read | None = None
    votes: Callable[[Cta, Array], None] | None = None


@dataclass(frozen=True)
class Block:
    """Instructions without a jump among them; `numbers` are the steps' in the kernel.

    Only its first instruction may be one of several lanes: `gather` says who has to be there.
    """

    steps: tuple[Planned, ...]
    ending: Ending
    numbers: slice
    gather: Gather | None = None

    @property
    def number(self) -> int:
        """The first instruction of the block."""
        return self.steps[0].number if self.steps else max(self.ending.number, 0)

    def follow(self, at: int) -> tuple[int, ...]:
        """The blocks that threads may go to from this, the `at`-th."""
        if self.ending.kind == "jump":
            return (self.ending.target,) if self.ending.guard is None else (at + 1, self.ending.target)
        if self.ending.kind == "switch":
            return self.ending.targets
        ends = self.ending.kind in ("end", "trap") and self.ending.guard is None
        return () if ends else (at + 1,)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel that `run` can execute.

    `shared` is in bytes a block, `local` in bytes a thread; `variables` are the module's own bytes of global memory,
    `parameters` the offset and size in bytes of each parameter. `ranks` say in which order blocks are executed where threads
    stand before several. `unknown` are the numbers of instructions that have no
    meaning here: reaching one is an error, having it is none.
    """

    entry: Entry
    threads: int
    shared: int
    local: int
    variables: Array
    parameters: dict[str, tuple[int, int]]
    blocks: tuple[Block, ...]
    ranks: tuple[int, ...]
    dtypes: tuple[np.dtype[np.generic], ...]
    unknown: tuple[int, ...]

    def place(self, number: int) -> str:
        """Where an instruction stands, in words."""
        return place_of(self.entry.instructions[number])


def load(module: Module, *, shared: int = 0) -> Kernel:
    """Decode the module's one kernel; `shared` is the dynamic shared memory it is launched with.

    An instruction that has no meaning here is kept, and stops the execution when a thread reaches it.

    Raises:
        ExecutionError: the module has no kernel of a fixed size.
    """
    if len(module.entries) != 1 or not module.entries[0].threads:
        raise ExecutionError(
            f"xray: a module must have one kernel with a fixed number of threads, got {len(module.entries)}"
        )
    (entry,) = module.entries
    symbols: dict[str, int] = {}
    # Dynamic shared memory, whose size comes with the launch, lies behind the rest.
    variables = tuple(sorted((*module.variables, *entry.variables), key=lambda v: ".extern" in v.linkage))
    ends = {space: _lay_out(variables, space, symbols) for space in (".shared", ".local", ".global")}
    held = np.zeros(ends[".global"], np.uint8)
    for variable in variables:
        if variable.space == ".global":
            start = symbols[variable.name]
            data = np.array(variable.initial, TYPES[variable.type[1:]].dtype).view(np.uint8)
            held[start : start + len(data)] = data
            symbols[variable.name] = start + MODULE_BASE
    parameters = _parameters(entry)
    symbols |= {name: offset + PARAMETER_BASE for name, (offset, _) in parameters.items()}
    binder = Binder(entry, entry.threads, symbols)
    missing: list[int] = []
    blocks = _blocks(entry, binder, missing)
    return Kernel(
        entry,
        entry.threads,
        ends[".shared"] + shared,
        ends[".local"],
        held,
        parameters,
        blocks,
        tuple(ranks([[b for b in block.follow(at) if b < len(blocks)] for at, block in enumerate(blocks)])),
        tuple(binder.dtypes),
        tuple(missing),
    )


def _parameters(entry: Entry) -> dict[str, tuple[int, int]]:
    """Offset and size of each parameter, aligned as it says or by its own size."""
    end, found = 0, {}
    for parameter in entry.parameters:
        each = TYPES[parameter.type[1:]].bits // 8
        size = each * max(parameter.count, 1)
        words = parameter.attributes
        align = int(words[words.index(".align") + 1]) if ".align" in words and ".ptr" not in words else each
        end = -(-end // align) * align
        found[parameter.name] = (end, size)
        end += size
    return found


def _lay_out(variables: tuple[Variable, ...], space: str, symbols: dict[str, int]) -> int:
    """Give a space's variables their addresses, one behind the other from 0; the end of the last."""
    end = 0
    for variable in variables:
        if variable.space == space:
            end = -(-end // variable.align) * variable.align
            symbols[variable.name] = end
            count = 1 if variable.count is None else variable.count
            end += count * TYPES[variable.type[1:]].bits // 8
    return end


def _blocks(entry: Entry, binder: Binder, missing: list[int]) -> tuple[Block, ...]:
    """Cut the body behind jumps and barriers, before labels that are jumped to and before what lanes do together; what is
    unknown is `missing`."""
    jumped = {
        o.name
        for i in entry.instructions
        if i.opcode in ("bra", "brx")
        for given in i.operands
        for o in items_of(given)
        if isinstance(o, Symbol)
    }
    starts: dict[str, int] = {}
    cut: list[list[tuple[int, Instruction]]] = [[]]
    number = 0
    for item in entry.body:
        if isinstance(item, Label):
            if item.name in jumped:
                if cut[-1]:
                    cut.append([])
                starts[item.name] = len(cut) - 1
            continue
        gathers = gather_of(binder, item, number) is not None
        if gathers and cut[-1]:
            cut.append([])
        cut[-1].append((number, item))
        number += 1
        if _ends(item):
            cut.append([])
    return tuple(_block(part, binder, starts, missing) for part in cut)


def _ends(instruction: Instruction) -> bool:
    return instruction.opcode in ("bra", "brx", "ret", "exit", "trap") or (
        instruction.opcode in ("bar", "barrier")
        and not instruction.has("warp")
        and not instruction.name.startswith("barrier.cluster.arrive")
    )


def _block(
    part: list[tuple[int, Instruction]], binder: Binder, starts: dict[str, int], missing: list[int]
) -> Block:
    ending = Ending("next")
    if part and _ends(part[-1][1]):
        number, last = part[-1]
        part, ending = part[:-1], _ending(number, last, binder, starts)
        missing += [number] if ending.kind == "unknown" else []
    steps = tuple(Planned(n, _step(binder, i, n, missing), _guard(binder, i)) for n, i in part)
    first = steps[0].number if steps else 0
    gather = gather_of(binder, part[0][1], part[0][0]) if part else None
    return Block(steps, ending, slice(first, first + len(steps)), gather)


def _step(binder: Binder, instruction: Instruction, number: int, missing: list[int]) -> Step:
    """The step of an instruction; an unknown instruction raises when a thread reaches it."""
    try:
        return bind(binder, instruction, number)
    except UnknownInstructionError as error:
        missing.append(number)
        reached = error

    def stop(cta: Cta, mask: Mask) -> None:
        raise reached

    return stop


def _guard(binder: Binder, instruction: Instruction) -> Read | None:
    guard = instruction.guard
    return None if guard is None else binder.read(Register(guard.register, guard.negated), TYPES["pred"])


def _ending(number: int, instruction: Instruction, binder: Binder, starts: dict[str, int]) -> Ending:
    guard = _guard(binder, instruction)
    if instruction.opcode == "bra":
        (target,) = instruction.operands
        assert isinstance(target, Symbol)
        return Ending("jump", number, starts[target.name], guard)
    if instruction.name == "brx.idx" and guard is None and isinstance(instruction.operands[1], Vector):
        labels = [o.name for o in instruction.operands[1].items if isinstance(o, Symbol)]
        index = binder.read(instruction.operands[0], TYPES["u32"])
        return Ending("switch", number, targets=tuple(starts[name] for name in labels), index=index)
    if instruction.opcode in ("ret", "exit"):
        return Ending("end", number, guard=guard)
    if instruction.opcode == "trap":
        return Ending("trap", number, guard=guard)
    if instruction.name.startswith("barrier.cluster.wait"):
        return Ending("cluster barrier", number, guard=guard)
    operands, votes = instruction.operands, None
    if instruction.has("red"):
        operands, votes = operands[1:-1], _votes(binder, instruction)
    fixed = [o.value for o in operands if isinstance(o, Immediate)]
    if not (instruction.has("sync") or votes) or guard is not None or len(fixed) != len(operands):
        return Ending("unknown", number, guard=guard)
    return Ending(
        "barrier", number, barrier=fixed[0], expected=fixed[1] if len(fixed) > 1 else 0, votes=votes
    )


def _votes(binder: Binder, instruction: Instruction) -> Callable[[Cta, Array], None]:
    """`barrier.cta.red.op p, a{, b}, c`: whether c holds for any (or), for all (and), or for how many (popc)."""
    target, *_, source = instruction.operands
    read, counts = binder.read(source, TYPES["pred"]), instruction.has("popc")
    write = binder.write(target, TYPES["u32" if counts else "pred"])

    def vote(cta: Cta, who: Array) -> None:
        yes = read(cta)[who]
        found = yes.sum() if counts else yes.all() if instruction.has("and") else yes.any()
        write(cta, np.full(cta.threads, found), who)

    return vote


def bind(binder: Binder, instruction: Instruction, number: int) -> Step:
    """The step of any instruction that is no jump.

    Raises:
        UnknownInstructionError: no group of instructions knows it.
    """
    if instruction.name.startswith("bar.warp"):
        return lambda cta, mask: cta.sync()
    if instruction.name.startswith("fence.proxy.async") and not instruction.has("shared::cta"):
        return moves.after_stores
    if instruction.opcode in _SILENT and not instruction.has("mbarrier_init"):
        return lambda cta, mask: None
    refuse_strangers(binder, instruction)
    for group in (
        select.bind, carry.bind, integers.bind, floats.bind, convert.bind, warps.bind, tensormap.bind, outside.bind,
    ):  # fmt: skip
        step = group(binder, instruction)
        if step is not None:
            return step
    for numbered in (
        copies.bind,
        remote.bind,
        access.bind,
        atomics.bind,
        warp.bind,
        groups.bind,
        barriers.bind,
        moves.bind,
    ):
        step = numbered(binder, instruction, number)
        if step is not None:
            return step
    raise unknown(instruction)
