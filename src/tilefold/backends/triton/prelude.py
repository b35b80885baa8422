"""What every generated source has at its end: instructions that Triton has no word for, and how blocks are reduced."""

from __future__ import annotations

import torch

from tilefold.algebra.columns import Op
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.operations import OPS

_INSTRUCTIONS = """\
def EXP2(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


def LOG2(x):
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


def RECIPROCAL(x):
    return tl.inline_asm_elementwise("rcp.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


def FLOOR(x):
    return tl.inline_asm_elementwise("cvt.rmi.f32.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


def CEIL(x):
    return tl.inline_asm_elementwise("cvt.rpi.f32.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


def RSQRT(x):
    return tl.inline_asm_elementwise("rsqrt.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
"""
_OF_MASKS = {
    "block_first": """\
def FIRST_THAT_COUNTS(a, counts_a, b, counts_b):
    return tl.where(counts_a != 0, a, b), counts_a | counts_b


def BLOCK_FIRST_OF(mask, x):
    runs = tl.reduce((x, mask.to(tl.int32)), 0, FIRST_THAT_COUNTS)
    return tl.reduce(runs, UNROLL_OF_RUNS, FIRST_THAT_COUNTS)[0]
""",
    "block_count": """\
# Of numbers, which no compiler packs into bits: LLVM reserves memory of the stack where it does that to half of a vector.
def ANY_OF(mask):
    ones = tl.where(mask, 1.0, 0.0)
    return tl.reduce(tl.reduce(ones, 0, BLOCK_MAX), UNROLL_OF_RUNS, BLOCK_MAX) != 0


def BLOCK_COUNT(mask):
    return tl.reduce(tl.reduce(mask.to(tl.int32), 0, BLOCK_SUM), UNROLL_OF_RUNS, BLOCK_SUM)
""",
}


# Over whole tiles: of all threads. The first is the one of the lowest lane, whichever thread asks.
_WHOLE = """\
def FIRST_LANE(a, lane_a, b, lane_b):
    return tl.where(lane_b < lane_a, b, a), tl.minimum(lane_a, lane_b)


def WHOLE_FIRST_OF(mask, x):
    runs = tl.reduce((x, mask.to(tl.int32)), 0, FIRST_THAT_COUNTS)
    value, counts = tl.reduce(runs, UNROLL_OF_RUNS, FIRST_THAT_COUNTS)
    return tl.reduce((value, tl.where(counts != 0, LANE_OF(value), 1 << 30)), LANES_OF_BLOCKS, FIRST_LANE)[0]


def WHOLE_FIRST(x):
    value = tl.reduce(tl.reduce(x, 0, BLOCK_FIRST), UNROLL_OF_RUNS, BLOCK_FIRST)
    return tl.reduce((value, LANE_OF(value)), LANES_OF_BLOCKS, FIRST_LANE)[0]


def LANE_OF(value):
    lane = tl.expand_dims(tl.arange(0, value.shape[LANES_OF_BLOCKS]), 1 - LANES_OF_BLOCKS)
    return tl.broadcast_to(lane, value.shape)
"""


def _whole(combine: str) -> str:
    text = f"tl.reduce(tl.reduce(x, 0, {combine}), UNROLL_OF_RUNS, {combine})"
    return f"def WHOLE_{combine}(x):\n    return tl.reduce({text}, LANES_OF_BLOCKS, {combine})\n"


def block_function(row: Op, dtype: torch.dtype) -> str:
    """The name of the function that combines two values of a block operation."""
    assert row.triton is not None
    return row.name.upper() + ("_INT" if row.triton.floats is not None and not is_float(dtype) else "")


def prelude() -> str:
    """The functions that generated ones call. Those of blocks are the table's: how two values are combined."""
    parts = [_INSTRUCTIONS]
    for row in OPS.values():
        if row.kind != "block" or row.triton is None:
            continue
        if row.name not in _OF_MASKS or row.name == "block_first":
            dtypes = _KINDS[row.triton.floats is not None]
            parts += [_combining(row, dtype) for dtype in dtypes]
            parts += [_whole(block_function(row, dtype)) for dtype in dtypes]
        if row.name in _OF_MASKS:
            parts.append(_OF_MASKS[row.name])
    return "\n\n".join([*parts, _WHOLE])


_KINDS = {False: (torch.float32,), True: (torch.float32, torch.int32)}


def _combining(row: Op, dtype: torch.dtype) -> str:
    assert row.triton is not None
    text = row.triton.of(dtype, interpret=False).format("a", "b")
    return f"def {block_function(row, dtype)}(a, b):\n    return {text}\n"
