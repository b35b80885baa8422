"""The decisions of a launch that maps rows and the element of each that its index chooses."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.planner.plan import count


@dataclass(frozen=True)
class Choosing:
    """The decisions of a launch of `map_chosen`: a program takes `rows` rows.

    Inputs before `index` are rows' values, those after it have `classes` elements a row, `steps` apart. `stored`: into the
    last of these the result is written.
    """

    rows: int
    num_warps: int
    index: int
    classes: int
    steps: tuple[int, ...]
    stored: bool

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"chosen:{self.rows},w{self.num_warps}"

    def __str__(self) -> str:
        what = "stored in" if self.stored else "read of"
        return (
            f"chosen: one element {what} each of {self.rows} rows a program, {count(self.num_warps, 'warp')}"
        )
