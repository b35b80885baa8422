"""How operands are copied into rows of whole vectors, if vector loads cannot read them where they are.

b [K, 3011] bf16   ->   packed1 [K, 3024], zeros behind each row: every row begins at a multiple of 32 bytes
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilefold.planner.problem.canonical import Dim
from tilefold.planner.products.operands import Contraction
from tilefold.planner.products.plan import Packing
from tilefold.planner.sizes import power_above

PACKED = ("packed0", "packed1")
MULTIPLE = 16  # elements: the largest divisor of an extent that Triton looks for, a limit of it
# That a program copies: within 6 % of the fastest of 512 to 4096 (docs/experiments/products.md#packed).
ELEMENTS, WARPS = 1024, 4


def lines_of(problem: Contraction, operand: int) -> tuple[Dim, Dim, bool]:
    """(the dim of an operand's rows in memory, the dim along them, whether that is K)."""
    own = (problem.rows, problem.columns)[operand]
    along_depth = problem.depth.strides[operand] == 1 and (own.strides[operand] != 1 or own.size == 1)
    return (own, problem.depth, True) if along_depth else (problem.depth, own, False)


def padded(size: int) -> int:
    """An extent, rounded up to whole vectors."""
    return math.ceil(size / MULTIPLE) * MULTIPLE


def packed_shape(problem: Contraction, operand: int) -> tuple[int, int]:
    """The shape of a packed operand: rows in memory, and elements of one."""
    lines, along, _ = lines_of(problem, operand)
    return lines.size, padded(along.size)


def packing_of(problem: Contraction, packed: tuple[bool, bool]) -> Packing:
    """The launch that packs operands: a program copies as many neighbours as a row has, up to `ELEMENTS`."""
    blocks = [min(ELEMENTS, power_above(packed_shape(problem, n)[1])) for n in (0, 1)]
    return Packing(packed, (blocks[0], blocks[1]), ELEMENTS, WARPS)


def packed_problem(problem: Contraction, packed: tuple[bool, bool]) -> Contraction:
    """The problem with the strides and addresses of packed operands."""
    rows, columns, depth = problem.rows, problem.columns, problem.depth
    for operand in (0, 1):
        if not packed[operand]:
            continue
        _, along, by_depth = lines_of(problem, operand)
        pitch = padded(along.size)
        depth = _stepped(depth, operand, 1 if by_depth else pitch)
        own = _stepped((rows, columns)[operand], operand, pitch if by_depth else 1)
        rows, columns = (own, columns) if operand == 0 else (rows, own)
    aligned = tuple(16 if n < 2 and packed[n] else address for n, address in enumerate(problem.aligned))
    return replace(problem, dims=(*problem.batch, rows, columns, depth), aligned=aligned)


def _stepped(dim: Dim, operand: int, stride: int) -> Dim:
    strides = tuple(stride if n == operand else step for n, step in enumerate(dim.strides))
    return replace(dim, strides=strides)
