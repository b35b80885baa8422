"""The host's cost of a repeated call: inputs so small that the device waits for the host."""

from __future__ import annotations

from tilefold.bench.cases import Case, Suite
from tilefold.bench.operations import fold_case, make_fold
from tilefold.bench.ours import OURS

FOLDS = ("sum", "amax", "argmax", "logsumexp", "var", "aminmax")
SHAPE = (32, 1024)


def cases(size: str = "full") -> tuple[Case, ...]:
    """One small shape, rows and columns, the same on a CPU."""
    return tuple(
        fold_case(name, dim, SHAPE, "fp32", f"dim {dim}", headline=name == "sum" and dim == 1)
        for dim in (1, 0)
        for name in FOLDS
    )


SUITE = Suite("host", str(__doc__).strip(), cases, (OURS,), against=("torch",), host=True, make=make_fold)
