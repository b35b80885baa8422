"""The kernel of folds whose programs meet in memory: `fold_lanes` with another end. ATOMIC is generated."""

from tilefold.backends.triton.kernels.tiles import fold_lanes as fold_atomically

__all__ = ["fold_atomically", "store_results"]


def store_results(y_ptrs, offset, mask, state, PARTIAL):
    """Combine a program's states with what other programs have left, in whichever order they come."""
    results = PROJECT(*state)
    ATOMIC(y_ptrs[0] + offset, results[0], mask)
