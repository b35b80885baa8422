"""Norms of many tensors, which are parts of one buffer: of each, and of all together."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

import tilefold
from tilefold import monoids
from tilefold.bench.cases import DTYPES, Case, Choice, Outputs, Suite, Tolerance, grid, maker
from tilefold.bench.ours import OURS

Tensor = torch.Tensor
EACH, ALL = OPERATIONS = ("norms of tensors", "norm of all tensors")
# Tensors and elements: of a model of 225M parameters; small ones; a few large ones.
SHAPES = ((2000, 112_500), (300, 750_000), (2000, 1024), (200, 64))
SMALL = ((20, 1100), (3, 5000))


def parts(x: Tensor) -> list[Tensor]:
    """Tensors of x[T, n]: of n / 8 to 3 n elements, T of them or fewer, whole vectors each but the last."""
    count, each = x.shape
    sizes = itertools.cycle([each, max(each // 8, 8), 3 * each, each // 2 + 8])
    ends = list(itertools.accumulate(n // 8 * 8 for n in itertools.islice(sizes, count)))
    flat = x.view(-1)
    cuts = [0, *(end for end in ends if end < flat.numel()), flat.numel()]
    return [flat[a:b] for a, b in itertools.pairwise(cuts)]


@functools.cache
def count_of(shape: tuple[int, ...]) -> int:
    """How many tensors a case has."""
    return len(parts(torch.empty(shape, dtype=torch.uint8, device="meta")))


def of_torch(operation: str, tensors: list[Tensor]) -> Tensor:
    """Torch's norms; of all as clip_grad_norm_ has it."""
    norms = torch.stack(torch._foreach_norm(tensors))
    return norms if operation == EACH else torch.linalg.vector_norm(norms)


def of_ours(operation: str, tensors: list[Tensor]) -> Tensor:
    """The same by `reduce_many`; all together by the states of each."""
    made = tilefold.reduce_many(tensors, monoids.NORM(2.0), together=operation == ALL)
    result: Tensor = made.together if operation == ALL else made
    return result


def called(case: Case, function: Callable[[str, list[Tensor]], Tensor], x: Tensor) -> Outputs:
    """A function's norms of the tensors, which it has as a list, as an optimizer has gradients."""
    return (function(case.operation, _parts_of(x)),)


@functools.lru_cache(1)
def _parts_of(x: Tensor) -> list[Tensor]:
    """The tensors of the latest x, made once: a model has them."""
    return parts(x)


def many_case(operation: str, shape: tuple[int, ...], dtype: str) -> Case:
    """A case of one of `OPERATIONS`; x is [T, n], cut into about T tensors of about n elements."""
    case = Case(
        operation=operation,
        dim=None,
        shape=shape,
        dtype=dtype,
        torch_call=lambda x: called(case, of_torch, x),
        reference=lambda x: (of_torch(operation, parts(x.double())),),
        tolerance=Tolerance(
            "(2 eps + 1e-5) |want|: a norm is rounded once, and by torch once for each tensor too; float32's sums",
            lambda want, dtype: want.abs() * (2 * torch.finfo(dtype).eps + 1e-5),
        ),
        result_dtypes=(DTYPES[dtype],),
        operations_each=2,
        group=f"{operation}, {dtype}",
        headline=shape == SHAPES[0] and dtype == "bf16",
        results=(count_of(shape),) if operation == EACH else (),
    )
    return case


def cases(size: str = "full") -> tuple[Case, ...]:
    """Both operations of every list of tensors, in bf16 and fp32; headline cases first."""
    return grid(many_case, OPERATIONS, SHAPES if size == "full" else SMALL, ("bf16", "fp32"))


def build_ours(case: Case, x: Tensor) -> Sequence[Choice]:
    """`reduce_many`."""
    return [Choice("default", functools.partial(called, case, of_ours))]


SUITE = Suite(
    "many",
    str(__doc__).strip(),
    cases,
    (replace(OURS, build=build_ours, graphs=False),),
    against=("torch",),
    make=maker(many_case, OPERATIONS, 2, (0, None)),
)
