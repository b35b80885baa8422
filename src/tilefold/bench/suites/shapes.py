"""Random problems: any rank, extents, dims, views and dtypes, drawn from a seed, so that no plan can be tuned to them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from tilefold.bench.cases import DTYPES, Case, Suite
from tilefold.bench.layout import Layout
from tilefold.bench.operations import OPERATIONS, Dim, fold_case, make_fold
from tilefold.bench.ours import OURS
from tilefold.bench.planners import PLANNED

FOLDS = ("sum", "amax", "argmax", "logsumexp", "var", "softmax_pair", "top2", "max_subarray")
# Shares of eight.
FOLDED_DTYPES = ("bf16", "bf16", "bf16", "fp32", "fp32", "fp32", "fp16", "int32")
BYTES = {"full": (4 << 20, 1 << 30), "small": (4 << 10, 256 << 10)}
LENGTHS = (3, 1 << 27)
# Which dims are reduced, and how the tensor lies in memory, each as often as it stands here.
REDUCED = ("last", "last", "first", "first", "middle", "several", "all")
LIES = ("contiguous", "contiguous", "contiguous", "permuted", "sliced", "offset")
TRIES = 1000


def cases(size: str = "full", seed: int = 0, count: int = 60) -> tuple[Case, ...]:
    """`count` problems of `seed`. The first ones of a larger count are the same."""
    found: dict[str, Case] = {}
    number = 0
    while len(found) < count:
        case = draw_case(random.Random(f"{size} {seed} {number}"), size, number)
        found.setdefault(case.name, case)
        number += 1
    return tuple(found.values())


def draw_case(rng: random.Random, size: str, number: int) -> Case:
    """One problem. Folds and dtypes take turns, so that few cases hold them all; the rest is drawn."""
    for _ in range(TRIES):
        name = FOLDS[number % len(FOLDS)]
        dtype = rng.choice(FOLDED_DTYPES)
        operation = OPERATIONS[name]
        kind = rng.choice([k for k in REDUCED if operation.several or k not in ("several", "all")])
        if dtype == "int32" and not operation.whole_numbers:
            continue
        drawn = draw_shape(rng, kind, *(b // DTYPES[dtype].itemsize for b in BYTES[size]))
        if drawn is None:
            continue
        shape, dims = drawn
        dim: Dim = dims[0] if len(dims) == 1 else dims
        return fold_case(name, dim, shape, dtype, f"{name}, {dtype}", layout=draw_layout(rng, shape))
    raise AssertionError("a problem is found within a few tries")


def draw_shape(
    rng: random.Random, kind: str, least: int, most: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Extents and the dims that are reduced; None where rounding went beyond the bounds."""
    elements = log_uniform(rng, least, most)
    length = elements if kind == "all" else log_uniform(rng, LENGTHS[0], min(LENGTHS[1], elements // 2))
    outputs = elements / length
    if kind == "all":
        rank = rng.randint(1, 4)
        dims = tuple(range(rank))
        shape = [rounded(rng, n) for n in parts(rng, elements, rank)]
    else:
        rank = rng.randint({"middle": 3, "several": 3}.get(kind, 2), 4)
        dims = reduced_dims(rng, kind, rank)
        reduced = iter([rounded(rng, n) for n in parts(rng, length, len(dims))])
        mapped = iter([rounded(rng, n) for n in parts(rng, outputs, rank - len(dims))])
        shape = [next(reduced if d in dims else mapped) for d in range(rank)]
    folded = math.prod(shape[d] for d in dims)
    fits = least <= math.prod(shape) <= most and LENGTHS[0] <= folded <= LENGTHS[1]
    return (tuple(shape), dims) if fits and min(shape) > 1 else None


def reduced_dims(rng: random.Random, kind: str, rank: int) -> tuple[int, ...]:
    """The last dim, the first, one between, or two or more (never all)."""
    if kind == "several":
        return tuple(sorted(rng.sample(range(rank), rng.randint(2, rank - 1))))
    if kind == "middle":
        return (rng.randint(1, rank - 2),)
    return (rank - 1 if kind == "last" else 0,)


def log_uniform(rng: random.Random, least: float, most: float) -> float:
    """A number whose logarithm is evenly distributed."""
    return math.exp(rng.uniform(math.log(least), math.log(max(most, least))))


def parts(rng: random.Random, product: float, count: int) -> Sequence[float]:
    """`count` factors of a product, their logarithms evenly distributed."""
    cuts = sorted(rng.random() for _ in range(count - 1))
    ends = zip([0.0, *cuts], [*cuts, 1.0], strict=True)
    return [product ** (b - a) for a, b in ends]


def rounded(rng: random.Random, extent: float) -> int:
    """An odd number or a multiple of 8, each half of the time."""
    if rng.random() < 0.5:
        return max(1, round((extent - 1) / 2) * 2 + 1)
    return max(8, round(extent / 8) * 8)


def draw_layout(rng: random.Random, shape: tuple[int, ...]) -> Layout | None:
    """Contiguous half of the time; else dims in another order, a slice of larger memory, or a few elements off."""
    kind, rank = rng.choice(LIES), len(shape)
    order, zeros = tuple(range(rank)), (0,) * rank
    if kind == "permuted" and rank > 1:
        while order == tuple(range(rank)):
            order = tuple(rng.sample(range(rank), rank))
        return Layout(order, shape, zeros)
    if kind == "sliced" and rank > 1:
        sliced, more = rng.randrange(1, rank), rng.randint(1, 16)
        sizes = tuple(n + more if d == sliced else n for d, n in enumerate(shape))
        first = tuple(rng.randint(0, more) if d == sliced else 0 for d in range(rank))
        return Layout(order, sizes, first)
    return Layout(order, shape, zeros, rng.randint(1, 7)) if kind == "offset" else None


SUITE = Suite("shapes", str(__doc__).strip(), cases, (OURS, *PLANNED), drawn=cases, make=make_fold)
