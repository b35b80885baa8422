"""Lines of source with all that became of them: layouts, instructions, accesses, work."""

from __future__ import annotations

import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from tilefold.xray.execution import Execution
from tilefold.xray.ir import Function, Tensor, tensors
from tilefold.xray.layouts import holding
from tilefold.xray.machine.counts import global_cost, shared_cost
from tilefold.xray.machine.log import Access as Logged
from tilefold.xray.machine.log import Transfer
from tilefold.xray.machine.roles import atomic_of
from tilefold.xray.ptx.syntax import Entry, Instruction
from tilefold.xray.report.issued import Issued
from tilefold.xray.report.model import Access, Layout, Line, Work
from tilefold.xray.report.static import Lines, access_of, flops_of, kind_of, line_of

Key = tuple[str, int]  # file and line
Log = tuple[dict[int, list[Logged]], dict[int, list[Transfer]]]  # by the number of the instruction
# Whose layouts decide something: what moves data, what is combined across threads, and arithmetic. Pointers repeat their
# data's.
_SILENT = (
    "tt.splat", "tt.expand_dims", "tt.broadcast", "arith.constant", "tt.make_range", "tt.addptr", "scf.yield",
)  # fmt: skip
NOWHERE: Key = ("", 0)


def source_lines(
    entry: Entry,
    lines: Lines,
    ttgir: Function,
    warps: int,
    sass: dict[Key, int],
    execution: Execution | None,
    machine: Issued | None,
) -> tuple[Line, ...]:
    """Every line that has an instruction or a layout, in the order of files and lines."""
    instructions: dict[Key, list[int]] = defaultdict(list)
    for number, instruction in enumerate(entry.instructions):
        instructions[lines.line(instruction) or NOWHERE].append(number)
    layouts = layouts_by_line(ttgir, warps)
    absent = None if machine is None else machine.absent
    log = None if execution is None else (execution.accesses(absent), execution.transfers())
    found = sorted(set(instructions) | set(layouts) | {k for k, n in sass.items() if n})
    return tuple(
        _line(key, [(n, entry.instructions[n]) for n in instructions.get(key, ())], layouts.get(key, ()),
              sass.get(key, 0), execution, log)
        for key in found
    )  # fmt: skip


def _line(
    key: Key,
    instructions: list[tuple[int, Instruction]],
    layouts: Iterable[Layout],
    sass: int,
    execution: Execution | None,
    log: Log | None,
) -> Line:
    opcodes = Counter(_family(i) for _, i in instructions)
    return Line(
        key[0],
        key[1],
        linecache.getline(*key).strip(),
        tuple(layouts),
        len(instructions),
        sass,
        tuple(opcodes.most_common()),
        tuple(_accesses(instructions, log)),
        tuple(sorted({_semantics(i) for _, i in instructions if kind_of(i) == "atomics"})),
        None if execution is None else work_of(instructions, execution),
    )


def _family(instruction: Instruction) -> str:
    """`ld.global.v4`, `fma.f32`: the opcode with what tells its kind."""
    if kind_of(instruction) == "tensor":
        return instruction.opcode if instruction.opcode == "mma" else f"{instruction.opcode}.mma"
    accessed = access_of(instruction)
    if accessed is not None:
        return f"{instruction.opcode}.{accessed[1]}"
    last = instruction.modifiers[-1] if instruction.modifiers else ""
    return f"{instruction.opcode}.{last}" if re.fullmatch(r"[a-z]+\d+(x2)?", last) else instruction.opcode


def _semantics(instruction: Instruction) -> str:
    """`relaxed gpu add`: how an atomic is ordered, for whom, and what it does."""
    found = atomic_of(instruction)
    return f"{found.order} {found.scope} {found.operation}"


def work_of(instructions: Iterable[tuple[int, Instruction]], execution: Execution) -> Work:
    """How often the programs issued these instructions."""
    warps, lanes = execution.warps(), execution.lanes()
    total = Work()
    for number, instruction in instructions:
        issued, active = int(warps[number]), int(lanes[number])
        kind, (of_lane, of_warp) = kind_of(instruction), flops_of(instruction)
        counted = {kind: active if kind == "atomics" else issued} if kind else {}
        total += Work(issued, 32 * issued - active, flops=of_lane * active + of_warp * issued, **counted)
    return total


def _accesses(instructions: list[tuple[int, Instruction]], log: Log | None) -> Iterable[Access]:
    """Accesses that are alike in kind, space and width, with their costs."""
    groups: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for number, instruction in instructions:
        accessed = access_of(instruction)
        if accessed is not None:
            groups[accessed].append(number)
    for (kind, space, size), numbers in groups.items():
        plain = Access(kind, space, size, len(numbers))
        if log is None:
            yield plain
            continue
        accesses, transfers = log
        if kind == "tensor copy":
            yield _boxes(plain, [box for n in numbers for box in transfers.get(n, ())])
        else:
            yield from _costs(plain, [access for n in numbers for access in accesses.get(n, ())])


def _costs(plain: Access, logged: list[Logged]) -> Iterable[Access]:
    """The access with what it cost; what copies to shared memory write there follows as an access of its own."""
    base = (plain.kind, plain.space, plain.bytes, plain.instructions)
    if plain.space == "global":
        cost = global_cost(logged)
        counts = cost.requests, cost.sectors, None, cost.ideal, cost.asked
        yield Access(*base, *counts, usual_stride(logged), cost.again)
    elif plain.space == "shared":
        shared = shared_cost(logged)
        yield Access(*base, shared.requests, None, shared.passes, shared.ideal)
    else:
        yield plain
    if plain.kind == "copy":
        shared = shared_cost(logged)
        yield Access("copy", "shared", plain.bytes, 0, shared.requests, None, shared.passes, shared.ideal)


def _boxes(plain: Access, moved: list[Transfer]) -> Access:
    """The boxes that the tensor memory accelerator moved, a request each."""
    size = sum(box.bytes for box in moved)
    sectors, ideal = sum(box.sectors for box in moved), sum(-(-box.bytes // 32) for box in moved)
    return Access(
        plain.kind, plain.space, plain.bytes, plain.instructions, len(moved), sectors, None, ideal, size
    )


def usual_stride(logged: Iterable[Logged]) -> int | None:
    """The most common distance, in bytes, between neighbouring active lanes of a warp, in global memory."""
    steps: Counter[int] = Counter()
    for access in logged:
        if access.space != "global":
            continue
        lanes = access.addresses.astype(np.int64).reshape(-1, 32)
        active = access.active.reshape(-1, 32)
        both = active[:, 1:] & active[:, :-1]
        values, counts = np.unique((lanes[:, 1:] - lanes[:, :-1])[both], return_counts=True)
        steps.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return steps.most_common(1)[0][0] if steps else None


def layouts_by_line(ttgir: Function, warps: int) -> dict[Key, list[Layout]]:
    """The layouts that operations of a line leave their results in, or store from; each once."""
    found: dict[Key, list[Layout]] = defaultdict(list)
    for place, operation, tensor in tiles_by_line(ttgir):
        held = holding(tensor, ttgir.aliases, warps)
        spread = (None,) * 4 if held is None else (held.elements, held.lanes, held.warps, held.copies)
        kind = _kind(tensor.encoding, ttgir.aliases)
        layout = Layout(operation, tensor.shape, tensor.pointee, kind, *spread)
        if layout not in found[place]:
            found[place].append(layout)
    return found


def tiles_by_line(ttgir: Function) -> Iterator[tuple[Key, str, Tensor]]:
    """The tiles whose layouts a report shows: the line, the operation, and the tile that it leaves or stores."""
    for operation in ttgir.walk():
        place = line_of(operation.place)
        # Without a dot: a region of an operation, as a partition of specialised warps.
        if place is None or operation.name in _SILENT or "." not in operation.name:
            continue
        kinds = tensors(operation.types)
        shown = [t for t in kinds if not t.element.startswith("!tt.ptr")] or list(kinds)
        # A load, a store, a reduction: what enters; a conversion of layouts: what leaves.
        for tensor in shown[-1:] if operation.name == "ttg.convert_layout" else shown[:1]:
            yield place, operation.name.partition(".")[2], tensor


def _kind(encoding: str, aliases: dict[str, str]) -> str:
    """`blocked`, `slice`, `nvidia_mma` of an encoding's text or alias."""
    named = re.match(r"#(?:\w+\.)?(\w+)", aliases.get(encoding, encoding))
    return named[1] if named else encoding
