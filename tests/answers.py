"""Folds with answers of their own: for each monoid what it must give, computed in plain Python from the elements.

`Fold.answer` takes the elements of one result in row-major order (a tuple for each position, one number for each input)
and returns the outputs. Nothing here uses the library's evaluator: integers are exact and wrap only where a result is
stored, floats are dyadic so that sums of them are exact, and what cannot be exact comes with a bound.
"""

from __future__ import annotations

import math as python
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold import Monoid, math, monoids

INF, NAN = float("inf"), float("nan")
BACKENDS = ("auto", "cpu", "reference")
GUARANTEES = ("run_to_run", "batch_invariant", "none")
Elements = Sequence[tuple[Any, ...]]

BOOL = (torch.bool,)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32, torch.float64)
INTS = (*SIGNED, *UNSIGNED)
NUMBERS = (*INTS, *FLOATS)
ALL = (*BOOL, *NUMBERS)

# What elements are drawn from: exact in every dtype that holds them.
SMALL = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -1.5, 3.0)
UNITS = (1.0, -1.0, 2.0, 0.5, -2.0, -0.5)
WHOLE = (0, 1, -1, 2, -3, 5, 100, -100)


@dataclass(frozen=True)
class Fold:
    """A monoid, the dtypes it is tried with, what its elements are drawn from, and its answer.

    `outputs` are the results' dtypes for a dtype of elements. `bound` is how far a result may be off, for n elements in
    an arithmetic of unit roundoff u: 0 where the answer is exact and only rounded once.
    """

    name: str
    monoid: Monoid
    dtypes: tuple[torch.dtype, ...]
    answer: Callable[[Elements], Any]
    outputs: Callable[[torch.dtype], tuple[torch.dtype, ...]]
    floats: Sequence[float] = SMALL
    bound: Callable[[int, float, Elements], float] = lambda n, u, elements: 0.0
    empty: bool = True

    def __repr__(self) -> str:
        return self.name


def own(dtype: torch.dtype) -> tuple[torch.dtype]:
    return (dtype,)


def computed(dtype: torch.dtype) -> tuple[torch.dtype]:
    """Floats stay; integers and bool become int64."""
    return (dtype if dtype.is_floating_point else torch.int64,)


def always(*dtypes: torch.dtype) -> Callable[[torch.dtype], tuple[torch.dtype, ...]]:
    return lambda dtype: dtypes


def firsts(elements: Elements) -> list[Any]:
    return [e[0] for e in elements]


def depth(n: int) -> int:
    """Roundings on the way of an element through a tree of n lanes."""
    return python.ceil(python.log2(max(n, 2)))


def total(elements: Elements) -> Any:
    values = firsts(elements)
    return python.fsum(values) if any(isinstance(v, float) for v in values) else sum(values)


def product(elements: Elements) -> Any:
    result: Any = 1
    for value in firsts(elements):
        result *= value
    return result


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Bits to compare; a NaN counts as any other."""
    if not tensor.is_floating_point():
        return tensor
    quiet = torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)
    return quiet.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.itemsize])


def bits(start: int, join: Callable[[int, int], int]) -> Callable[[Elements], int]:
    def answer(elements: Elements) -> int:
        result = start
        for value in firsts(elements):
            result = join(result, int(value))
        return result

    return answer


def located(best: Callable[..., Any], elements: Elements) -> tuple[Any, int]:
    values = firsts(elements)
    value = best(values)
    return value, values.index(value)


def log_sum_exp(elements: Elements) -> float:
    values = firsts(elements)
    return python.log(python.fsum(map(python.exp, values))) if values else -INF


def moments(elements: Elements) -> tuple[int, float, float]:
    values = [float(v) for v in firsts(elements)]
    if not values:
        return 0, 0.0, 0.0
    mean = python.fsum(values) / len(values)
    return len(values), mean, python.fsum((v - mean) ** 2 for v in values)


def description(elements: Elements) -> tuple[Any, ...]:
    values = [float(v) for v in firsts(elements)]
    count, mean, squares = moments(elements)
    return (
        count, 0, 0, sum(v == 0 for v in values), min(values, default=INF), max(values, default=-INF),
        max(map(abs, values), default=0.0), mean if count else NAN,
        python.sqrt(squares / max(count - 1, 1)) if count else NAN,
    )  # fmt: skip


def norm(p: float) -> Callable[[Elements], float]:
    return lambda elements: python.fsum(abs(float(v)) ** p for v in firsts(elements)) ** (1 / p)


def affine(elements: Elements) -> tuple[Any, Any]:
    a, b = 1, 0
    for slope, shift in elements:
        a, b = slope * a, slope * b + shift
    return a, b


def matrix(elements: Elements) -> tuple[Any, ...]:
    a, b, c, d = 1, 0, 0, 1
    for e, f, g, h in elements:
        a, b, c, d = a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h
    return a, b, c, d


def digest(elements: Elements) -> tuple[int, int]:
    """A polynomial hash: any two elements swapped change it."""
    h = 0
    for position, (value,) in enumerate(elements):
        h = h * 31 + int(value) * 7 + position
    return h, 31 ** len(elements)


def longest_run(elements: Elements) -> int:
    best = now = 0
    for (value,) in elements:
        now = now + 1 if value > 0 else 0
        best = max(best, now)
    return best


def _longest_run() -> Monoid:
    """The longest run of positive elements: prefix, suffix, best and length of a stretch."""

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        prefix = math.where(a.prefix == a.length, a.length + b.prefix, a.prefix)
        suffix = math.where(b.suffix == b.length, b.length + a.suffix, b.suffix)
        return (
            prefix,
            suffix,
            math.maximum(math.maximum(a.best, b.best), a.suffix + b.prefix),
            a.length + b.length,
        )

    def lift(x: Any) -> tuple[Any, ...]:
        one = math.where(x > 0, 1, 0)
        return one, one, one, 1

    return Monoid(
        combine, (0, 0, 0, 0), fields=("prefix", "suffix", "best", "length"), lift=lift, dtypes=torch.int64,
        project=lambda prefix, suffix, best, length: best, name="longest run",
    )  # fmt: skip


def last_wins(elements: Elements) -> tuple[Any, int]:
    """The largest, the last of equals."""
    values = firsts(elements)
    best = max(values)
    return best, len(values) - 1 - values[::-1].index(best)


LAST_OF_EQUALS = Monoid(
    lambda a, b: (math.where(b.v >= a.v, b.v, a.v), math.where(b.v >= a.v, b.i, a.i)),
    None,
    fields=("v", "i"),
    lift=lambda x, i: (x, i),
    dtypes=("input", "index"),
    index=True,
    name="last of equals",
)
DIGEST = Monoid(
    lambda a, b: (a.h * b.p + b.h, a.p * b.p),
    (0, 1),
    fields=("h", "p"),
    lift=lambda x, i: (math.cast(x, torch.int64) * 7 + i, 31),
    dtypes=torch.int64,
    index=True,
    name="digest",
)
DOT = Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, name="dot")
MASKED = Monoid(
    lambda a, b: (a.sum + b.sum, a.count + b.count),
    (0, 0),
    fields=("sum", "count"),
    lift=lambda x, keep: (math.where(keep > 0, x, 0), math.where(keep > 0, 1, 0)),
    dtypes=("compute", torch.int64),
    project=lambda s, n: (n, s),
    name="masked sum",
)
AT = Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x * i, index=True, name="sum of x times its position")


def value_and_index(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    return dtype, torch.int64


def rescaled(n: int, u: float, elements: Elements) -> float:
    """Each level has an exponential, a product and a sum, of positive numbers; the logarithm makes that absolute."""
    return 8 * (depth(n) + 4) * u


def moved(n: int, u: float, elements: Elements) -> float:
    """A mean moves by rounding at each level; squared deviations of data within [-3, 3] are at most 36."""
    return 8 * (depth(n) + 4) * u * 36


def powered(p: float) -> Callable[[int, float, Elements], float]:
    """3 u for a power and a root, and u a level of a sum of positive powers."""
    return lambda n, u, elements: 2 * (depth(n) + 8) * u * norm(p)(elements)


INT64 = always(torch.int64)
WIDE = (torch.float32, torch.float64)
WHOLES = (*BOOL, *INTS)
FOLDS = {
    fold.name: fold
    for fold in [
        Fold("SUM", monoids.SUM, ALL, total, computed),
        Fold("PROD", monoids.PROD, (*BOOL, *SIGNED, *FLOATS), product, computed, floats=UNITS),
        Fold("MAX", monoids.MAX, ALL, lambda e: max(firsts(e)), own, empty=False),
        Fold("MIN", monoids.MIN, ALL, lambda e: min(firsts(e)), own, empty=False),
        Fold("ARGMAX", monoids.ARGMAX, NUMBERS, lambda e: located(max, e)[1], INT64, empty=False),
        Fold("ARGMIN", monoids.ARGMIN, NUMBERS, lambda e: located(min, e)[1], INT64, empty=False),
        Fold("MAX_WITH_INDEX", monoids.MAX_WITH_INDEX, NUMBERS, lambda e: located(max, e), value_and_index, empty=False),
        Fold("MIN_WITH_INDEX", monoids.MIN_WITH_INDEX, NUMBERS, lambda e: located(min, e), value_and_index, empty=False),
        Fold("MINMAX", monoids.MINMAX, ALL, lambda e: (min(firsts(e)), max(firsts(e))), lambda d: (d, d), empty=False),
        Fold("ANY", monoids.ANY, ALL, lambda e: any(firsts(e)), always(torch.bool)),
        Fold("ALL", monoids.ALL, ALL, lambda e: all(firsts(e)), always(torch.bool)),
        Fold("COUNT_NONZERO", monoids.COUNT_NONZERO, ALL, lambda e: sum(v != 0 for v in firsts(e)), INT64),
        Fold("BITWISE_OR", monoids.BITWISE_OR, WHOLES, bits(0, lambda a, b: a | b), own),
        Fold("BITWISE_AND", monoids.BITWISE_AND, WHOLES, bits(-1, lambda a, b: a & b), own),
        Fold("BITWISE_XOR", monoids.BITWISE_XOR, WHOLES, bits(0, lambda a, b: a ^ b), own),
        Fold("LOGSUMEXP", monoids.LOGSUMEXP, FLOATS, log_sum_exp, own, bound=rescaled),
        Fold("WELFORD", monoids.WELFORD, WIDE, moments, lambda d: (torch.int64, d, d),
             bound=lambda n, u, e: n * moved(n, u, e)),
        Fold("NORM(1)", monoids.NORM(1), FLOATS, lambda e: python.fsum(abs(v) for v in firsts(e)), own),
        Fold("NORM(2)", monoids.NORM(2), FLOATS, norm(2), own, bound=lambda n, u, e: 2 * u * norm(2)(e)),
        Fold("NORM(3)", monoids.NORM(3), FLOATS, norm(3), own, bound=powered(3)),
        Fold("NORM(inf)", monoids.NORM(INF), FLOATS, lambda e: max((abs(v) for v in firsts(e)), default=0), own),
        Fold("NORM(0)", monoids.NORM(0), FLOATS, lambda e: sum(v != 0 for v in firsts(e)), own),
        Fold("SUM_COMPENSATED", monoids.SUM_COMPENSATED, FLOATS, total, own),
        Fold("DESCRIBE", monoids.DESCRIBE, WIDE, description, lambda d: (*(torch.int64,) * 4, *(d,) * 5), bound=moved),
        Fold("AFFINE", monoids.AFFINE, SIGNED, affine, always(torch.int64, torch.int64)),
        Fold("MATMUL2X2", monoids.MATMUL2X2, SIGNED, matrix, always(*(torch.int64,) * 4)),
        Fold("FIRST", monoids.FIRST, ALL, lambda e: e[0][0], own, empty=False),
        Fold("LAST", monoids.LAST, ALL, lambda e: e[-1][0], own, empty=False),
        Fold("digest", DIGEST, WHOLES, digest, always(torch.int64, torch.int64)),
        Fold("last of equals", LAST_OF_EQUALS, NUMBERS, last_wins, value_and_index, empty=False),
        Fold("longest run", _longest_run(), NUMBERS, longest_run, INT64),
        Fold("dot", DOT, NUMBERS, lambda e: sum(x * y for x, y in e), computed),
        Fold("masked", MASKED, NUMBERS, lambda e: (sum(k > 0 for x, k in e), sum(x for x, k in e if k > 0)),
             lambda d: (torch.int64, *computed(d))),
        Fold("at", AT, SIGNED, lambda e: sum(x * i for i, (x,) in enumerate(e)), INT64),
    ]
}  # fmt: skip
ORDERED = ("AFFINE", "MATMUL2X2", "FIRST", "LAST", "digest", "last of equals", "longest run")


def fill(fold: Fold, dtype: torch.dtype, shape: Sequence[int], seed: int) -> torch.Tensor:
    """A tensor of values that every dtype holds exactly, with many ties."""
    generator = torch.Generator().manual_seed(seed)
    choices: Sequence[float] = fold.floats if dtype.is_floating_point else WHOLE
    if dtype in UNSIGNED:
        choices = [abs(v) for v in choices]
    picks = torch.randint(len(choices), list(shape), generator=generator)
    return torch.tensor(choices, dtype=torch.float64)[picks].to(dtype)


def wrapped(value: Any, dtype: torch.dtype) -> Any:
    """An answer as `dtype` stores it: whole numbers wrap, floats are rounded by the tensor that takes them."""
    if dtype.is_floating_point or dtype == torch.bool:
        return bool(value) if dtype == torch.bool else value
    info = torch.iinfo(dtype)
    return (int(value) - info.min) % (info.max - info.min + 1) + info.min


def rows(tensors: Sequence[torch.Tensor], dims: Sequence[int]) -> tuple[list[int], list[Elements]]:
    """The results' shape, and for each result its elements in row-major order of the inputs' own dims."""
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    outputs = [d for d in range(len(shape)) if d not in dims]
    results = [shape[d] for d in outputs]
    length = python.prod(shape[d] for d in dims)
    columns = [
        t.expand(shape).permute(*outputs, *sorted(dims)).reshape(python.prod(results), length).tolist()
        if shape
        else [[t.item()]]
        for t in tensors
    ]
    return results, [list(zip(*of_row, strict=True)) for of_row in zip(*columns, strict=True)]


def answers(
    fold: Fold, tensors: Sequence[torch.Tensor], dims: Sequence[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each output the expected tensor (in float64, or exact integers) and how far off it may be."""
    dtype = tensors[0].dtype
    shape, lists = rows(tensors, dims)
    given = [fold.answer(elements) for elements in lists]
    given = [g if isinstance(g, tuple) else (g,) for g in given]
    unit = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    expected = []
    for position, output in enumerate(fold.outputs(dtype)):
        values = [wrapped(g[position], output) for g in given]
        stored = torch.float64 if output.is_floating_point else output
        want = torch.tensor(values, dtype=stored).reshape(shape)
        bounds = [fold.bound(len(e), unit, e) if output.is_floating_point else 0.0 for e in lists]
        expected.append((want, torch.tensor(bounds, dtype=torch.float64).reshape(shape)))
    return expected


def check(
    fold: Fold, got: Any, tensors: Sequence[torch.Tensor], dims: Sequence[int], keepdim: bool = False
) -> None:
    """Compare every output with its answer: dtype, shape, value within the bound and one rounding."""
    outputs = list(got) if isinstance(got, tuple) else [got]
    expected = answers(fold, tensors, dims)
    assert len(outputs) == len(expected)
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    sizes = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
    for output, dtype, (want, bound) in zip(outputs, fold.outputs(tensors[0].dtype), expected, strict=True):
        assert output.dtype == dtype
        assert list(output.shape) == sizes
        output = output.reshape(want.shape)
        if dtype.is_floating_point:
            rounded, unit = want.to(dtype).double(), torch.finfo(dtype).eps / 2
            room = torch.where(bound > 0, bound + unit * want.abs(), 0.0)
            close = (output.double() - want).abs() <= room
            fine = (output.double() == rounded) | close | (rounded.isnan() & output.isnan())
            assert fine.all(), f"{fold.name}: {output} is not {want} within {room}"
        else:
            assert torch.equal(output, want), f"{fold.name}: {output} is not {want}"


def floor(want: torch.Tensor, dtype: torch.dtype, bound: float) -> float:
    """The absolute tolerance beside a relative `bound` of results in a dtype.

    Of numbers that are not negative (shares of a row, sums of squares) half a subnormal: they are no differences, so their
    error is relative, however small they are. Of others, in which terms of both signs may cancel, the bound of the largest,
    or of 1.
    """
    info, numbers = torch.finfo(dtype), want.double()[want.isfinite()]
    if (numbers >= 0).all():
        return info.smallest_normal * info.eps
    return bound * min(1.0, float(numbers.abs().max()))


def textbook(a: Any, b: Any) -> tuple[Any, Any]:
    """The online softmax pair (m, l) as books write it: NaN where both maxima are -inf."""
    m = math.maximum(a.m, b.m)
    return m, math.exp(a.m - m) * a.l + math.exp(b.m - m) * b.l


def guarded(a: Any, b: Any) -> tuple[Any, Any]:
    """The same pair with its subtraction guarded."""
    m = math.maximum(a.m, b.m)
    shift = math.where(m == -INF, 0, m)
    return m, math.exp(a.m - shift) * a.l + math.exp(b.m - shift) * b.l


NOBODY_S = Monoid(lambda a, b: a + b, 0, lift=lambda x: x * x * x - 2, name="a fold that torch has not")


def NAME(monoid: Monoid) -> str:  # noqa: N802  # stands among constants, as an `ids=`
    """What a test's parameter is called."""
    return monoid.name
