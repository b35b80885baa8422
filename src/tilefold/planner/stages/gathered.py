"""Groups of short rows that lie in one run of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.sizes import VECTOR_BYTES, WARP, power_above


@dataclass(frozen=True)
class Groups:
    """How elements lie in one run of memory: groups of `inner` results begin `between` elements apart.

    A result's elements are `folded` apart, those of a group's results side by side. Rows are groups of one result.
    """

    between: int
    inner: int
    folded: int
    length: int

    def extent(self, groups: int) -> int:
        """Elements that so many groups lie in."""
        return (groups - 1) * self.between + (self.length - 1) * self.folded + self.inner

    def span(self, residue: int, itemsize: int, groups: int) -> int:
        """The power of two above, from the vector in which the first one begins."""
        return power_above(residue % VECTOR_BYTES // itemsize + self.extent(groups))

    def bank_turns(self, itemsize: int) -> int:
        """Turns of 32 banks of words in which a warp's lanes each load an element of their result."""
        firsts = [lane // self.inner * self.between + lane % self.inner for lane in range(WARP)]
        words = {first * itemsize // 4 for first in firsts}
        return max(Counter(word % 32 for word in words).values())


def groups_of(problem: Problem) -> Groups:
    """The groups of a problem of one input and one reduced dim."""
    *outer, last = problem.output_dims
    folded = problem.reduced_dims[0].strides[0]
    if not outer:
        return Groups(last.strides[0], 1, folded, problem.length)
    return Groups(outer[0].strides[0], last.size, folded, problem.length)


def are_one_run(outputs: Sequence[Dim]) -> bool:
    """Whether results of a group, and groups, lie end to end as they are walked."""
    return outputs[0].output == outputs[1].size * outputs[1].output
