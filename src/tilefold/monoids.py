"""The catalogue of monoids, by the names the field uses (re-exported from `tilefold.algebra.catalogue`)."""

from tilefold.algebra.catalogue import *  # noqa: F403  # re-export; the catalogue's __all__ says what
from tilefold.algebra.catalogue import __all__ as __all__
from tilefold.errors import hint_at_names

# What other libraries and people call them, in lower case and without underscores.
ALIASES = {
    "add": "SUM", "plus": "SUM", "sumreduce": "SUM", "multiply": "PROD", "mul": "PROD", "product": "PROD", "times": "PROD",
    "maximum": "MAX", "amax": "MAX", "fmax": "MAX", "minimum": "MIN", "amin": "MIN", "fmin": "MIN", "aminmax": "MINMAX",
    "or": "BITWISE_OR", "and": "BITWISE_AND", "xor": "BITWISE_XOR", "bitor": "BITWISE_OR", "bitand": "BITWISE_AND",
    "bitxor": "BITWISE_XOR", "logicalor": "ANY", "logicaland": "ALL", "count": "COUNT_NONZERO", "nnz": "COUNT_NONZERO",
    "mean": "WELFORD", "average": "WELFORD", "var": "WELFORD", "variance": "WELFORD", "std": "WELFORD", "moments": "WELFORD",
    "varmean": "WELFORD", "stdmean": "WELFORD", "lse": "LOGSUMEXP", "logaddexp": "LOGSUMEXP", "softmax": "LOGSUMEXP",
    "l1": "NORM(1)", "l2": "NORM(2)", "norm1": "NORM(1)", "norm2": "NORM(2)", "vectornorm": "NORM",
    "kahan": "SUM_COMPENSATED",
    "kahansum": "SUM_COMPENSATED", "head": "FIRST", "tail": "LAST", "linear": "AFFINE", "recurrence": "AFFINE",
    "matmul": "MATMUL2X2", "maxindex": "MAX_WITH_INDEX", "minindex": "MIN_WITH_INDEX", "cumsum": "SUM", "cumprod": "PROD",
    "logcumsumexp": "LOGSUMEXP",
}  # fmt: skip
hint_at_names(__name__, __all__, ALIASES)
