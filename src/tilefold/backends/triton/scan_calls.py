"""A launch of a scan as a kernel call: arguments, constants, grid, and the functions that are generated for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.program import Program
from tilefold.backends.triton.call import Call, Pointer, launchable, output_dims
from tilefold.backends.triton.emit import emit, emit_sums
from tilefold.backends.triton.records import Lines, LineStates, LineSteps, Look, Scan
from tilefold.backends.triton.words import TL_DTYPES
from tilefold.planner.folds import NARROW
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.sizes import VECTOR_BYTES
from tilefold.planner.stages.scans import ScanTile, line_blocks, scan_program, state_words


def scan_call(step: Launch, plan: Plan, problem: Problem, program: Program, interpret: bool) -> Call:
    """Arguments and constants of one launch of a scan. Pointers stand as `Pointer` until launch."""
    tile: ScanTile = step.settings
    declared = program.state
    program = scan_program(program, tile.work, problem.length)
    _, blocks = line_blocks(problem, tile)
    programs = blocks * max(1, tile.shares)
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    source = emit(program, index=index, interpret=interpret)
    return Call(
        kernel=step.kernel,
        source="\n\n".join(
            [source, emit_states(program, interpret, tile.pause), *_sums_of(tile, program, interpret)]
        ),
        arguments=_arguments(tile, problem, program.outputs, declared, plan.guarantee, interpret),
        constants=tuple(_constants(tile, problem, program, interpret).items()),
        grid=launchable(programs, problem.outputs, "scan", "scan"),
        num_warps=tile.num_warps,
        num_stages=1,
        dependent=False,
        registers=tile.registers,
    )


def _arguments(
    tile: ScanTile,
    problem: Problem,
    outputs: Sequence[torch.dtype],
    state: Sequence[torch.dtype],
    guarantee: str,
    interpret: bool,
) -> tuple[Any, ...]:
    """The arguments in the order of the kernels' parameters. `state`: the dtypes in which states are given and kept."""
    work = tile.work
    (scanned,) = problem.reduced_dims
    *outer, last = output_dims(problem)
    along, blocks = line_blocks(problem, tile)
    # States lie in the rows' order, which is the results' without the scanned dim.
    states = _state_steps([*outer, last], scanned)
    # A row by itself is read in no wider vectors than one among others: they decide the order of combination.
    rows = [*outer, last] if tile.by_rows and guarantee == "batch_invariant" else []
    # Pointers are to the vectors in which the first elements lie, but for the interpreter, which is given tensors.
    before = [r if tile.shift and not interpret else 0 for r in problem.residues] or [0] * len(problem.dtypes)
    aligned = [VECTOR_BYTES if tile.shift else a for a in problem.aligned]
    inputs = tuple(
        Lines(
            Pointer(dtype, math.gcd(aligned[i], *(d.strides[i] * dtype.itemsize for d in rows)), before[i]),
            tuple(d.strides[i] for d in outer),
            last.strides[i],
            scanned.strides[i],
        )
        for i, dtype in enumerate(problem.dtypes)
    )
    inits = tuple(LineStates(Pointer(dtype, 1), states[:-1], states[-1]) for dtype in state) * work.init
    results = tuple(
        Pointer(dtype, math.gcd(16, *(d.output * dtype.itemsize for d in rows))) for dtype in outputs
    )
    after = tuple(Pointer(dtype, 16) for dtype in state) * work.state
    shared = (Pointer(torch.int64, 16),) if tile.shares else ()
    return (
        inputs, inits, results, after, *shared, LineSteps(tuple(d.output for d in outer), last.output), scanned.output,
        LineSteps(states[:-1], states[-1]), tuple(d.size for d in outer), last.size, scanned.size, along,
        *((blocks, tile.shares) if tile.shares else ()),
    )  # fmt: skip


def _state_steps(lines: Sequence[Dim], scanned: Dim) -> tuple[int, ...]:
    """The steps of states, contiguous in the order of the results: what is above the scanned dim steps over less."""
    if scanned.size == 1:
        return tuple(d.output for d in lines)
    return tuple(d.output if d.output < scanned.output else d.output // scanned.size for d in lines)


def _constants(tile: ScanTile, problem: Problem, program: Program, interpret: bool) -> dict[str, Any]:
    work, length, none = tile.work, problem.length, (0,) * len(problem.dtypes)
    shared = {
        "SCAN": Scan(
            LINES=tile.lines,
            NUMBER=tile.length // tile.chunk,
            CHUNK=tile.chunk,
            COUNT=tile.stored,
            BY_ROWS=tile.by_rows,
            RUN=tile.run,
            SHIFT=tile.shift or none,
            REVERSE=work.reverse,
            EXCLUSIVE=work.exclusive,
            HAS_INIT=work.init,
            MASK_LINES=_masks_lines(tile, problem),
            SUMS=tile.sums,
        ),
        "ALIGN": tile.align,
        "FLAT": (32 if problem.outputs + tile.lines <= NARROW else 64) if tile.flat else 0,
        "BACK": tile.shift if tile.shift and interpret else none,
    }
    wide = {"WIDE": _reach(problem) + 2 * tile.length * _farthest(problem) > NARROW}
    if not tile.shares:
        return shared | _edges(tile, length) | wide | {"NEAR": tile.near}
    trees = {
        "LOOK": Look(tile.group, tile.groups, state_words(program), tile.num_warps),
        "AGAIN": tile.again,
        "BAND": tile.band,
    }
    part = tile.align > 1 or length % tile.length != 0
    return shared | {"PART": part, "SPLIT": part and tile.split} | trees | wide


def _masks_lines(tile: ScanTile, problem: Problem) -> bool:
    """Whether some program has fewer lines than a tile."""
    sizes = [d.size for d in output_dims(problem)]
    if tile.near:
        return sizes[-2] % tile.near != 0 or sizes[-1] % (tile.lines // tile.near) != 0
    return (problem.outputs if tile.flat else sizes[-1]) % tile.lines != 0


def _edges(tile: ScanTile, length: int) -> dict[str, Any]:
    """What tiles a loop has; of aligned rows only what lies between two tiles' ends is known when code is made."""
    if tile.align == 1:
        whole, part = min(2, length // tile.length), length % tile.length != 0
        return {"HEAD": False, "WHOLE": whole, "PART": part, "AHEAD": tile.ahead}
    several = length + tile.align - 1 > tile.length
    ahead = tile.ahead and length >= 2 * tile.length
    return {"HEAD": several, "WHOLE": 2 * several, "PART": True, "AHEAD": ahead}


def _farthest(problem: Problem) -> int:
    (scanned,) = problem.reduced_dims
    return max(1, scanned.output, *map(abs, scanned.strides))


def _reach(problem: Problem) -> int:
    """The farthest offset along a line, in elements."""
    return problem.length * _farthest(problem)


def _sums_of(tile: ScanTile, program: Program, interpret: bool) -> list[str]:
    return [emit_sums(program, interpret)] if tile.sums else []


def emit_states(program: Program, interpret: bool, pause: int) -> str:
    """AS_STATE, SELECT, and a state as words that say that they are there: WORDS, OF_WORDS, WORDS_AT, WORDS_AGAIN, FLAGS.

    `pause`: nanoseconds before words are looked at again, about.
    """
    fields = [(f"a{i}", d) for i, d in enumerate(program.state)]
    a, b = [name for name, _ in fields], [f"b{i}" for i in range(len(fields))]
    packed = [word for name, dtype in fields for word in _packed(name, dtype)]
    words = [f"w{i}" for i in range(len(packed))]
    numbers, back = iter(words), list[str]()
    for _, dtype in fields:
        back.append(_unpacked([next(numbers) for _ in range(max(1, dtype.itemsize // 4))], dtype))
    there = " & ".join(f"({w} >> 32)" for w in words)
    addresses = [f"pointer + {i} * stride + place" for i in range(len(words))]
    at = [_word(address, interpret) for address in addresses]
    again = [_word(address, interpret, pause) for address in addresses]
    selected = [f"tl.where(mask, {x}, {y})" for x, y in zip(a, b, strict=True)]
    return "\n\n".join(
        [
            _tuple("AS_STATE", a, [f"{name}.to({TL_DTYPES[dtype]})" for name, dtype in fields]),
            _tuple("SELECT", ["mask", *a, *b], selected),
            *_of_both(len(fields)),
            _tuple("WORDS", a, packed),
            _tuple("OF_WORDS", words, back),
            _tuple("WORDS_AT", ["pointer", "place", "wanted", "stride"], at),
            _tuple("WORDS_AGAIN", ["pointer", "place", "wanted", "stride"], again),
            f"def FLAGS({', '.join(words)}):\n    return {there}\n",
        ]
    )


def _of_both(fields: int) -> list[str]:
    """Two states as one: BOTH(latter, former), LATTER, FORMER, and COMBINE_BOTH (see `scanned_chunks`)."""
    a, c, b, d = ([f"{letter}{i}" for i in range(fields)] for letter in "acbd")
    latter, former = (f"COMBINE({', '.join([*a, *second])})" for second in (b, d))
    parts = [f"{name}[{i}]" for name in ("latter", "former") for i in range(fields)]
    combine = f"    latter = {latter}\n    former = {former}\n    return ({', '.join(parts)},)\n"
    return [
        _tuple("BOTH", [*a, *c], [*a, *c]),
        _tuple("LATTER", [*a, *c], a),
        _tuple("FORMER", [*a, *c], c),
        f"def COMBINE_BOTH({', '.join([*a, *c, *b, *d])}):\n{combine}",
    ]


def _tuple(name: str, parameters: Sequence[str], results: Sequence[str]) -> str:
    return f"def {name}({', '.join(parameters)}):\n    return ({', '.join(results)},)\n"


def _word(address: str, interpret: bool, pause: int = 0) -> str:
    """A word of memory, where it is wanted: all that wait would else read one place, and its slice of the L2 serves data too.

    By an instruction: Triton loads again what it wants in another layout, and a word's flag and value must be of one load.
    """
    if interpret:
        return f"tl.load({address}, mask=wanted, other=1 << 32)"
    slept = f"nanosleep.u32 {pause}; " if pause else ""
    text = f"{{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.b64 $0, 0x100000000; {slept}@p ld.relaxed.gpu.global.b64 $0, [$1]; }}"
    return (
        f'tl.inline_asm_elementwise("{text}", "=&l,l,r", [({address}).to(tl.int64), wanted.to(tl.int32)], dtype=tl.int64, '
        "is_pure=False, pack=1)"
    )


_PRESENT = "(1 << 32)"
_LOW = "0xFFFFFFFF"


def _packed(name: str, dtype: torch.dtype) -> list[str]:
    """A field's bits, 32 in each word, the upper half of which is 1."""
    wide = dtype.itemsize == 8
    bits = f"{name}.to(tl.int{64 if wide else 32}, bitcast=True)" if is_float(dtype) else name
    low = f"({bits}.to(tl.int64) & {_LOW}) | {_PRESENT}"
    return [low, f"(({bits}.to(tl.int64) >> 32) & {_LOW}) | {_PRESENT}"] if wide else [low]


def _unpacked(words: Sequence[str], dtype: torch.dtype) -> str:
    if len(words) == 1:
        bits = f"{words[0]}.to(tl.int32)"
        return f"{bits}.to(tl.float32, bitcast=True)" if is_float(dtype) else bits
    bits = f"(({words[1]} << 32) | ({words[0]} & {_LOW}))"
    if is_float(dtype):
        return f"{bits}.to(tl.float64, bitcast=True)"
    return f"{bits}.to({TL_DTYPES[dtype]})"
