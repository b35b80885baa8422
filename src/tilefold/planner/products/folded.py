"""How a product of one row or one column is a fold: results [M] or [N] of K products of two inputs, one of them broadcast.

    a [M, K] @ b [K, 1]   ->   fold along K of a[m, k] * b[k], which is the same for every m
    a [1, K] @ b [K, N]   ->   fold along K of a[k] * b[k, n]

A fold reads the matrix in whole vectors, whatever its width, and no tile is padded to 16 rows. The epilogue is the fold's
projection, so it must take no extra tensors.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tilefold.algebra.monoid import Monoid
from tilefold.algebra.program import Program, specialize
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem, by_stride, merged
from tilefold.planner.products.epilogue import Epilogue
from tilefold.planner.products.operands import Contraction, loads_of_elements
from tilefold.runtime.caching import kept_outside_modes

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# Limits for a matrix whose elements are loaded one by one (docs/experiments/products.md#folds). Bytes of columns: folds of
# more took 1.5 to 2.2 times their expected time. Bytes of rows, and elements of a row that one program reads: a fold took
# 0.84 of the tiles' time for 6.3 MB and for 8,219 elements, 1.7 for 19.6 MB and 1.2 for 19,311 elements.
LOOSE_COLUMNS, LOOSE_ROWS, LOOSE_DEPTH = 1 << 22, 1 << 23, 1 << 14
_PRODUCTS = Monoid(
    lambda x, y: x + y, 0, lift=lambda x, y: x * y, commutative=True, check=False, name="products"
)


def can_fold(problem: Contraction, epilogue: Epilogue, guarantee: str) -> bool:
    """Whether a fold is compared with tiles: for one matrix of floats, and no large one whose elements are loaded one by one.

    With "batch_invariant" no plan may depend on M.
    """
    return (
        guarantee != "batch_invariant"
        and 1 in (problem.rows.size, problem.columns.size)
        and problem.batches == 1
        and problem.depth.size > 0
        and problem.dtypes[0] in FLOATS
        and not epilogue.elements
        and epilogue.row is None
        and not _is_large_and_loose(problem)
    )


def folds_columns(problem: Contraction) -> bool:
    """Whether the fold goes along columns: results are neighbours in the matrix, not elements along K."""
    return problem.outputs > 1 and problem.depth.strides[_matrix(problem)] != 1


def _matrix(problem: Contraction) -> int:
    return 1 if problem.rows.size == 1 else 0


def _is_large_and_loose(problem: Contraction) -> bool:
    size = problem.outputs * problem.depth.size * problem.dtypes[0].itemsize
    most = LOOSE_COLUMNS if folds_columns(problem) else LOOSE_ROWS
    return loads_of_elements(problem)[_matrix(problem)] and size > most


def reads_long_rows_loosely(problem: Contraction, fold: Plan) -> bool:
    """Whether a program reads more of a row than `LOOSE_DEPTH` elements of half precision, one by one."""
    first = fold.stages[0]
    loose = problem.dtypes[0].itemsize < 4 and first.run == 1 and not folds_columns(problem)
    return loose and problem.depth.size > LOOSE_DEPTH * first.splits


def fold_of(problem: Contraction, epilogue: Epilogue) -> tuple[Problem, Program]:
    """The product as a fold: output dims in the order of memory, K, and nothing of length 1."""
    kept = [replace(d, strides=d.strides[:2]) for d in problem.dims if d.size != 1]
    outer = merged(by_stride([d for d in kept if d.role == "map"]))
    dims = (*outer, *(d for d in kept if d.role != "map"))
    dtypes, residues = problem.dtypes[:2], problem.residues[:2]
    return Problem(dims, dtypes, _aligned(problem), residues), fold_program(epilogue, dtypes[0])


def _aligned(problem: Contraction) -> tuple[int, ...]:
    """The alignments of the operands' addresses. If both are read along K, none exceeds the alignment of either one's rows:
    with vectors of different lengths a tile would pass through shared memory."""
    aligned, size = problem.aligned[:2], problem.dtypes[0].itemsize
    if problem.depth.strides[:2] != (1, 1):
        return aligned
    others = [d for d in problem.dims[:-1] if d.size > 1]
    common = math.gcd(*aligned, *(step * size for d in others for step in d.strides[:2]))
    return common, common


@kept_outside_modes(256)
def fold_program(epilogue: Epilogue, operand: torch.dtype) -> Program:
    """Products summed in float32 and finished by the epilogue, rounded once to the result's dtype."""
    program = specialize(_PRODUCTS.total, (operand, operand))
    return replace(program, project=epilogue.typed, outputs=(epilogue.result,))
