"""Needless work of a loop's rounds: folds across warps that could wait, layouts changed through shared memory."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tilefold.xray.evidence import Evidence
from tilefold.xray.execution import Execution
from tilefold.xray.ir import Operation, read, tensors
from tilefold.xray.layouts import holding
from tilefold.xray.machine.counts import shared_cost
from tilefold.xray.observe.joined import NARROWED
from tilefold.xray.observe.promises import divided, divisors_of, promising_each, unpromised
from tilefold.xray.observe.racing import drawn_values
from tilefold.xray.observe.rewrites import IDLE, ROUND, counted, counted_at, lifts, masked_moves, spread_into
from tilefold.xray.observe.stakes import sampled
from tilefold.xray.observe.trials import BARRIER, CLOCKS, NO_GAIN, Trials, UntriedError
from tilefold.xray.observe.values import is_elementwise
from tilefold.xray.observe.wants import wants
from tilefold.xray.ptx.syntax import Instruction
from tilefold.xray.report.model import Line, Observation, Report
from tilefold.xray.report.static import access_of, kind_of, line_of

_LOOPS = ("scf.for", "scf.while")
_ATOMICS = {"tt.atomic_rmw", "tt.atomic_cas"}
_ALL = 32  # programs of a grid up to which all are executed to count rounds
_FEW = 8  # changes of layout at one line outside of loops from which they count as a loop that was unrolled


def fold_in_loop(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Reductions across warps inside a loop whose result is only added (or the like) to a variable of the loop."""
    lines = {(x.file, x.line): x for x in report.lines}
    for loop in evidence.ttgir.walk():
        if loop.name != "scf.for":
            continue
        (block,) = loop.blocks
        for operation in block.operations:
            place = line_of(operation.place)
            if operation.name != "tt.reduce" or place is None or not _could_wait(operation, loop):
                continue
            tile = tensors(operation.types)[0]
            held = holding(tile, evidence.ttgir.aliases, report.num_warps)
            if held is None or (across := held.warps[operation.axis]) < 2:
                continue
            line = lines.get(place)
            barriers = 0 if line is None or line.work is None else line.work.barriers // report.num_warps
            if evidence.execution is not None and (barriers < 4 or _rounds(place, evidence) < 2):
                continue  # few rounds: nothing to win
            yield Observation(
                "fold-in-loop",
                "warning",
                *place,
                f"a tile of {tile.elements} elements is folded across {across} warps in every round of a loop: "
                f"{barriers} barriers in the executed programs",
                "its result is only combined with the loop's variable, which could be a tile as well",
                "let the loop combine tiles, element by element, and fold the one tile behind it",
                cycles_at_stake=BARRIER * barriers * report.num_warps,
                numbers=(("elements", tile.elements), ("warps", across), ("barriers", barriers)),
            )


def _could_wait(reduction: Operation, loop: Operation) -> bool:
    """Whether the result goes into one combination with a variable that the loop carries, by the reduction's own operation,
    and nowhere else."""
    (block,) = loop.blocks
    inner = [o for o in reduction.blocks[0].operations if not o.name.startswith("tt.reduce.return")]
    if len(inner) != 1 or len(reduction.results) != 1:
        return False
    if spread_into(reduction, loop) is not None:
        return True
    user = lifts(reduction, loop)[1]
    if user is None or user.name != inner[0].name or user not in block.operations:
        return False
    carried = next((v for v in user.operands if v in block.arguments[1:]), None)
    yielded = next((o.operands for o in block.operations if o.name == "scf.yield"), ())
    if carried is None or not set(user.results) & set(yielded):
        return False
    # Read elsewhere in the round, the running value is needed as it is.
    others = [o for o in loop.walk() if o is not loop and o is not user]
    return not any({carried, *user.results} & set(o.operands) for o in others if o.name != "scf.yield")


def layout_in_loop(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """Tiles whose layout changes through shared memory again and again; one observation a line."""
    lines = {(x.file, x.line): x for x in report.lines}
    looped = {id(o) for loop in evidence.ttgir.walk() if loop.name in _LOOPS for o in loop.walk()}
    found: dict[tuple[str, int], list[Operation]] = {}
    for operation in evidence.ttgir.walk():
        place = line_of(operation.place)
        if (
            operation.name == "ttg.convert_layout"
            and place is not None
            and "dot_op" not in evidence.ttgir.layout(tensors(operation.types)[-1])
            and not _well_spent(operation, evidence)
        ):
            found.setdefault(place, []).append(operation)
    for place, changes in found.items():
        line = lines.get(place)
        repeated = evidence.execution is None or _rounds(place, evidence) > 1
        inside = [o for o in changes if id(o) in looped and repeated]
        passes, barriers = _shared(line, report, evidence)
        if line is None or not passes or barriers < 4 or not (inside or len(changes) >= _FEW):
            continue
        tile = tensors((inside or changes)[0].types)[0]
        where = "in every round of a loop" if inside else f"{len(changes)} times at this line"
        reason, change = _cause(place, (inside or changes)[0], evidence, trials)
        yield Observation(
            "layout-in-loop",
            "note" if change.startswith(NO_GAIN) else "warning",
            *place,
            f"a tile of {'x'.join(map(str, tile.shape))} {tile.element} changes its layout through shared memory {where}: "
            f"{passes} passes and {barriers} barriers in the executed programs",
            reason,
            change,
            cycles_at_stake=4 * passes + BARRIER * barriers * report.num_warps,
            numbers=(("passes", passes), ("barriers", barriers)),
        )


def _cause(place: tuple[str, int], change: Operation, evidence: Evidence, trials: Trials) -> tuple[str, str]:
    """Why a layout changes, and what to do: it is narrow accesses that have a layout of their own, or two neighbours."""
    moves = [o for o in evidence.ttir.walk() if o.name in ("tt.load", "tt.store")]
    names = unpromised(
        evidence, {(*at, kind[3:]) for o in moves if (at := line_of(o.place)) for kind in [o.name]}
    )
    differ = (
        f"what stands before and behind wants its elements in different threads: {wants(change, evidence)}"
    )
    promise = divisors_of(evidence, names)
    try:
        compiled = trials.compile(promising_each(evidence.compiled.ttir, promise))
        made = read(compiled.ttgir) if promise else None
    except UntriedError:
        made = None
    if made is not None and not any(o.name == change.name and line_of(o.place) == place for o in made.walk()):
        advice, came = divided(evidence, promise), ""
        with contextlib.suppress(UntriedError):
            before, after = trials.clocks(compiled)
            came = f"tried, {CLOCKS} {before:,} -> {after:,}"
            if after >= before:
                return f"{NARROWED} {differ}", f"{NO_GAIN}{advice}: {came}"
        return f"{NARROWED} {differ}", f"{advice} (compiled so: no change{came and f'; {came}'})"
    return differ, (
        "let the loop work in one of the two layouts (transpose, reshape or reduce behind it), or change the order of "
        "dims that a tile is loaded in"
    )


def _rounds(place: tuple[str, int], evidence: Evidence) -> int:
    """How often a program came to an instruction of a line at most."""
    assert evidence.execution is not None
    here = evidence.at(place)
    return max((int(o.issued[here].max()) for o in evidence.execution.outcomes), default=0) if here else 0


def _well_spent(operation: Operation, evidence: Evidence) -> bool:
    """Whether a change of layout makes the stores of a matrix unit's result wide, once a tile of it, or the loads of what is
    combined with it; or lets neighbours send neighbouring atomics, which costs L2 less than the change costs."""
    users = {o.name for o in evidence.ttgir.walk() if set(operation.results) & set(o.operands)}
    source, target = map(evidence.ttgir.layout, tensors(operation.types)[:2])
    maker = evidence.ttgir.made_by().get(operation.operands[0])
    while maker is not None and is_elementwise(maker) and len(maker.operands) == 1:
        maker = evidence.ttgir.made_by().get(maker.operands[0])
    loaded = maker is not None and maker.name == "tt.load"
    return bool(users) and (
        users <= _ATOMICS
        or ("mma" in source and users <= {"tt.store", *_ATOMICS})
        or ("mma" in target and loaded)
    )


def _shared(line: Line | None, report: Report, evidence: Evidence) -> tuple[int, int]:
    """Passes through the banks, and barriers, of a line's stores to shared memory and loads from there, in the executed
    programs: not of asynchronous copies, nor of those who wait for them, nor of a product's operand."""
    if line is None or evidence.execution is None:
        return 0, 0
    place = (line.file, line.line)
    here = [(number, evidence.entry.instructions[number]) for number in evidence.at(place)]
    passes = sum(a.passes or 0 for a in line.accesses if a.space == "shared" and a.kind != "copy")
    if any(o.name == "ttg.local_load" and line_of(o.place) == place for o in evidence.ttgir.walk()):
        operand = {number for number, instruction in here if "ldmatrix" in instruction.name}
        here = [step for step in here if step[0] not in operand]
        for outcome in evidence.execution.outcomes:
            passes -= shared_cost(a for a in outcome.accesses if a.instruction in operand).passes
    steps = [(number, kind) for number, instruction in here if (kind := _step(instruction))]
    warps = evidence.execution.warps()
    before = ["", *(kind for _, kind in steps)]
    barriers = sum(
        int(warps[number])
        for (number, kind), last, after in zip(steps, before, [*before[2:], ""], strict=False)
        if kind == "barrier" and (after == "store" or (last, after) == ("store", "load"))
    )
    return passes, barriers // report.num_warps


def _step(instruction: Instruction) -> str:
    """What an instruction is to a change of layout: a store, a load, a barrier, or (copies, and waiting for them) no part."""
    accessed = access_of(instruction)
    if accessed is not None and accessed[1] == "shared":
        return accessed[0]
    if kind_of(instruction) == "barriers":
        return "barrier"
    return "copy" if instruction.name.startswith("cp.async") else ""


def masked_rounds(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """Loops with rounds in which every lane of every load and store is masked off and nothing else is computed; one
    observation a loop. Masks that come out of memory that nobody filled are left out."""
    execution = evidence.execution
    if execution is None:
        return
    drawn = drawn_values(evidence)
    loops = [o for o in evidence.ttir.walk() if o.name == "scf.for" and _may_idle(o, evidence, drawn)]
    grid = report.grid
    count, executed = grid[0] * grid[1] * grid[2], execution.programs
    said = f"in the {len(executed)} executed programs of {count}; the others may do otherwise"
    try:
        made = trials.compile(counted(evidence.compiled.ttir, evidence.ttir, loops))
        ran = trials.run(made)
    except UntriedError:  # of no loops, too
        return
    # Where rounds end, programs differ: of a small grid all are asked, of others some more where one idles, by a kernel that
    # stores nothing but its counts.
    many = np.full(len(executed), 1.0)
    more = count <= _ALL or any(sum(_counts(n, ran)[1]) for n in range(len(loops)))
    with contextlib.suppress(UntriedError):
        if not more:
            raise UntriedError("no round idles in the executed programs")
        bare = trials.compile(counted(_without_stores(evidence), evidence.ttir, loops))
        programs, of_each = sampled(grid, _ALL, alike=False, run=_ALL)
        if programs and all(_counts(n, trials.run(bare)) == _counts(n, ran) for n in range(len(loops))):
            ran, many = trials.run(bare, programs), of_each
            said = (
                f"in all {count} programs"
                if len(programs) == count
                else f"in {len(programs)} programs of {count}"
            )
    for number, loop in enumerate(loops):
        rounds, idle = _counts(number, ran)
        moves = masked_moves(loop) or []
        place = next((at for move, _ in moves if (at := line_of(move.place)) is not None), None)
        if not sum(idle) or place is None:
            continue
        inside = {at for o in loop.blocks[0].operations if (at := line_of(o.place)) is not None}
        here = evidence.at(*inside)
        each = {p: int(o.issued[here].sum()) for p, o in zip(executed, execution.outcomes, strict=True)}
        shares = {p: of / max(n, 1) for p, of, n in zip(ran.programs, idle, rounds, strict=True)}
        worst = max(range(len(idle)), key=lambda n: idle[n])
        yield Observation(
            "masked-rounds",
            "warning",
            *place,
            f"in {sum(idle)} of {sum(rounds)} rounds of a loop no lane of a load or store is on and no variable changes, "
            f"{said}; {idle[worst]} of {rounds[worst]} in program {ran.programs[worst]}",
            "the loop goes on where its mask is false for the whole tile",
            "let a program that has nothing to do return at once, or launch fewer (not tried)"
            if all(n in (0, of) for n, of in zip(idle, rounds, strict=True))
            else "let the loop begin and end where the mask does: its bounds from the same numbers as the mask (not tried)",
            cycles_at_stake=round(
                sum(each.values()) * float(many @ idle) / float(many @ rounds)
                if ran.programs != executed
                else sum(of * shares[p] for p, of in each.items())
            ),
            numbers=(("rounds", sum(rounds)), ("idle", sum(idle))),
        )


def _may_idle(loop: Operation, evidence: Evidence, drawn: set[str]) -> bool:
    """Whether all that a loop moves is masked, by what is known, and each of its moves was off in some round."""
    moves = masked_moves(loop)
    if not moves or drawn & evidence.ttir.reached_from([*loop.operands[:3], *(mask for _, mask in moves)]):
        return False
    assert evidence.execution is not None
    places = {line_of(move.place) for move, _ in moves}
    instructions = evidence.entry.instructions
    numbers = [
        n for n in evidence.at(*places) if (access := access_of(instructions[n])) and access[1] == "global"
    ]
    copies = any(instructions[n].opcode == "cp" for n in numbers)
    for outcome in evidence.execution.outcomes:
        on = Counter(a.instruction for a in outcome.accesses if a.active.any() and a.space == "global")
        off = {n: int(outcome.issued[n].max()) - on[n] for n in numbers if outcome.issued[n].any()}
        if not copies and min(off.values(), default=0) > 0:
            return True
        # Copies run ahead of the round that uses them: in the last rounds there is nothing left to copy.
        ahead = (evidence.compiled.job.num_stages - 1) * sum(int(outcome.issued[n].max()) > 1 for n in off)
        if copies and sum(off.values()) > ahead:
            return True
    return False


def _without_stores(evidence: Evidence) -> str:
    """The TTIR without stores and atomics whose results nobody uses."""
    rows, operations = evidence.compiled.ttir.splitlines(), [*evidence.ttir.walk()]
    used = {v for o in operations for v in o.operands}
    for operation in operations:
        if operation.name in {"tt.store", *_ATOMICS} and not used & set(operation.results):
            rows[operation.row] = ""
    return "\n".join(rows)


def _counts(loop: int, execution: Execution) -> tuple[list[int], list[int]]:
    """Rounds of a loop in each program, and those in which nothing is done."""
    rounds, idle = (_stores_at(counted_at(loop) + offset, execution) for offset in (ROUND, IDLE))
    return rounds, idle


def _stores_at(address: int, execution: Execution) -> list[int]:
    """How often each program stored to an address."""
    stores = [
        [a for a in outcome.accesses if a.kind == "store" and a.active.any()]
        for outcome in execution.outcomes
    ]
    return [sum(int(a.addresses[a.active][0]) == address for a in found) for found in stores]
