"""Random problems, drawn from a seed so that no plan can be tuned to them: folds and every other operation in turns, of any
rank, extents, dims, views and dtypes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from tilefold.bench import map_cases, settings
from tilefold.bench.cases import DTYPES, Case, Choice, Make, Suite
from tilefold.bench.layout import Layout
from tilefold.bench.map_cases import make_map, map_case
from tilefold.bench.operations import OPERATIONS, Dim, fold_case, make_fold
from tilefold.bench.ours import OURS
from tilefold.bench.segment_cases import SegmentCase, segment_case
from tilefold.bench.suites import normalize, scan, segment, topk, transpose
from tilefold.bench.suites.scan import SCANS, make_scan, scan_case
from tilefold.bench.suites.topk import make_topk, topk_case
from tilefold.bench.suites.transpose import make_transpose, transpose_case

NORMS = ("layer_norm", "rms_norm", "rms_norm+residual")
OTHERS = (
    "softmax", "cumsum", "transpose", *NORMS[:2], "segment", "affine", "topk", "cummax", NORMS[2], "logcumsumexp",
)  # fmt: skip
MAPPED_DTYPES = ("bf16", "bf16", "bf16", "fp32", "fp32", "fp32", "fp16")
SELECTED = (1, 2, 5, 8, 16, 32)
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
    """`count` problems of `seed`, every other one a fold. The first ones of a larger count are the same."""
    kinds = (numbered(size, seed, draw_case), numbered(f"{size} others", seed, draw_other))
    return tuple(next(kinds[number % 2]) for number in range(count))


def numbered(size: str, seed: int, draw: Callable[[random.Random, str, int], Case]) -> Iterator[Case]:
    """Problems of one kind, no two of one name."""
    names: set[str] = set()
    for number in itertools.count():
        case = draw(random.Random(f"{size} {seed} {number}"), size.split()[0], number)
        if case.name not in names:
            names.add(case.name)
            yield case


def draw_case(rng: random.Random, size: str, number: int) -> Case:
    """One problem of a fold. Folds take turns, so that few cases hold them all; the rest is drawn."""
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


def draw_other(rng: random.Random, size: str, number: int) -> Case:
    """One problem of another operation. They take turns as well."""
    for _ in range(TRIES):
        name, dtype = OTHERS[number % len(OTHERS)], rng.choice(MAPPED_DTYPES)
        least, most = (b // DTYPES[dtype].itemsize for b in BYTES[size])
        if name == "segment":
            return draw_segments(rng, int(log_uniform(rng, least, most // 4)), dtype)
        # Bytes written count like bytes read.
        kind = "last" if name in NORMS else rng.choice(("last", "last", "first", "middle"))
        drawn = draw_shape(rng, kind, least, most // 4)
        case = drawn and other_case(rng, name, *drawn, dtype)
        if case:
            return case
    raise AssertionError("a problem is found within a few tries")


def other_case(
    rng: random.Random, name: str, shape: tuple[int, ...], dims: tuple[int, ...], dtype: str
) -> Case | None:
    """The case of a drawn shape, in a drawn layout where the operation's cases have any; None where k is too large."""
    layout, (dim,) = draw_layout(rng, shape), dims
    if name == "topk":
        k = rng.choice(SELECTED)
        return topk_case(shape, dim, k, dtype, layout=layout) if k <= shape[dim] else None
    if name == "transpose":
        swapped = tuple(sorted(rng.sample(range(len(shape)), 2)))
        return transpose_case((swapped[0], swapped[1]), shape, dtype, layout)
    if name in SCANS:
        return scan_case(name, dim, shape, dtype, layout if SCANS[name].inputs == 1 else None)
    return map_case(name, dim, shape, dtype, f"{name}, {dtype}")


def draw_segments(rng: random.Random, elements: int, dtype: str) -> Case:
    """Equal segments of 3 elements to a sixteenth of all, or lengths by a power law; a row that is cut at no multiple."""
    each = rng.choice((0, int(log_uniform(rng, LENGTHS[0], elements // 16))))
    return segment_case(elements // each * each if each else elements, each, dtype)


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


def make_any(
    operation: str, dim: Dim | None, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
) -> Case | None:
    """A case of any shape, of the suite that has the operation; of segments none, whose lengths a shape does not say."""
    if operation in OPERATIONS:
        return make_fold(operation, dim, shape, dtype, layout)
    name = operation.partition("(")[0]
    if name not in MAKE:
        return None
    return MAKE[name](operation, dim, shape, dtype, layout)


MAKE: dict[str, Make] = {
    "topk": make_topk,
    "transpose": make_transpose,
    **dict.fromkeys(SCANS, make_scan),
    **dict.fromkeys(map_cases.OPERATIONS, make_map),
}


def build_ours(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """Tilefold's function, as the suite of the operation calls it."""
    build = OF_CASES.get(type(case)) or (scan.build_ours if case.operation in SCANS else OURS.build)
    return build(case, x)


OF_CASES = {
    map_cases.MapCase: normalize.build_ours,
    SegmentCase: segment.build_ours,
    topk.TopkCase: topk.build_ours,
    transpose.TransposeCase: transpose.build_ours,
}

SUITE = Suite(
    "shapes",
    " ".join(str(__doc__).split()),
    cases,
    (replace(OURS, build=build_ours), *settings.variants_of(build_ours)),
    drawn=cases,
    make=make_any,
)
