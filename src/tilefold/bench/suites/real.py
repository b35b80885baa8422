"""Folds of models in training and use: gradients of biases, statistics of norms, pooling, vocabularies, attention."""

from __future__ import annotations

from tilefold.bench.cases import Case, Suite
from tilefold.bench.operations import Dim, fold_case, make_fold
from tilefold.bench.ours import OURS

# A name, the fold, its dims, the shape, and a small shape for a CPU.
FOLDS: tuple[tuple[str, str, Dim, tuple[int, ...], tuple[int, ...]], ...] = (
    ("bias gradient", "sum", 0, (8192, 4096), (64, 32)),
    ("bias gradient", "sum", (0, 1), (16, 2048, 5120), (4, 16, 24)),
    ("batch norm", "var", (0, 2, 3), (64, 256, 56, 56), (4, 8, 7, 7)),
    ("batch norm", "sum", (0, 2, 3), (64, 256, 56, 56), (4, 8, 7, 7)),
    ("group norm", "var", 2, (16, 32, 10 * 64 * 64), (2, 4, 90)),
    ("layer norm", "var", 1, (16384, 5120), (32, 80)),
    ("pooling", "sum", 1, (32, 512, 768), (4, 16, 24)),
    ("pooling", "amax", (2, 3), (64, 2048, 7, 7), (4, 16, 7, 7)),
    ("vocabulary", "logsumexp", 1, (4096, 50257), (8, 257)),
    ("vocabulary", "logsumexp", 1, (2048, 128256), (4, 1256)),
    ("vocabulary", "logsumexp", 1, (2048, 151936), (4, 1936)),
    ("vocabulary", "argmax", 1, (256, 151936), (4, 1936)),
    ("attention", "softmax_pair", 3, (4, 32, 1024, 1024), (1, 2, 16, 64)),
    ("attention", "softmax_pair", 3, (4, 32, 577, 577), (1, 2, 17, 77)),
    ("gradient norm", "vector_norm", 0, (225_000_000,), (2500,)),
)


def cases(size: str = "full") -> tuple[Case, ...]:
    """Fifteen folds in bf16 and fp32."""
    return tuple(
        fold_case(name, dim, shape if size == "full" else small, dtype, f"{what}, {dtype}")
        for dtype in ("bf16", "fp32")
        for what, name, dim, shape, small in FOLDS
    )


SUITE = Suite("real", str(__doc__).strip(), cases, (OURS,), make=make_fold)
