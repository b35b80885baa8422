"""Nine folds over both dims of ten shapes in bf16 and fp32, and OR over six short axes: how near each is to the limit."""

from __future__ import annotations

from tilefold.bench.cases import Case, Suite, headline_first
from tilefold.bench.operations import fold_case, make_fold
from tilefold.bench.ours import OURS
from tilefold.bench.suites.or_small_axis import SHAPES as OR_SHAPES
from tilefold.bench.suites.or_small_axis import SMALL_SHAPES as SMALL_OR_SHAPES

FOLDS = ("sum", "amax", "argmax", "max", "logsumexp", "var", "all", "aminmax", "vector_norm")
SHAPES = (
    (32768, 256), (32768, 1024), (16384, 8192), (4096, 65536), (256, 1 << 20),
    (1, 1 << 28), (8, 1 << 25), (1 << 24, 8), (1 << 20, 64), (64, 1 << 20),
)  # fmt: skip
SMALL_SHAPES = ((32, 256), (256, 64), (1, 1 << 16), (4096, 8))
# Those that are judged by the worst: the folds most used, over rows, columns, one long row and many short ones.
HEADLINE_FOLDS = ("sum", "argmax", "logsumexp", "var")
HEADLINE_AXES = (((16384, 8192), 1), ((16384, 8192), 0), ((1, 1 << 28), 1), ((1 << 24, 8), 1))


def cases(size: str = "full") -> tuple[Case, ...]:
    """The grid, headline cases first, then shape by shape, so that an input is drawn once. A dim of length 1 is left out."""
    grid = [
        fold_case(
            name, dim, shape, dtype, f"{name}, dim {dim}, {dtype}", is_headline(name, dim, shape, dtype)
        )
        for dtype in ("bf16", "fp32")
        for shape in (SHAPES if size == "full" else SMALL_SHAPES)
        for dim in (1, 0)
        if shape[dim] != 1
        for name in FOLDS
    ]
    grid += [
        fold_case("bitwise_or", 2, shape, dtype, f"bitwise_or, dim 2, {dtype}")
        for dtype in ("int32", "int64")
        for shape in (OR_SHAPES if size == "full" else SMALL_OR_SHAPES)
    ]
    return headline_first(grid)


def is_headline(name: str, dim: int, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a case is one of the sixteen."""
    return dtype == "bf16" and name in HEADLINE_FOLDS and (shape, dim) in HEADLINE_AXES


SUITE = Suite("folds", str(__doc__).strip(), cases, (OURS,), make=make_fold)
