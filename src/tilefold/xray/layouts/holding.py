"""How a tile's elements are spread over registers, lanes and warps, dim by dim.

Computed from the layout's text, for the layouts whose rule is written down in Triton's `LinearLayoutConversions.cpp` and
the PTX ISA's fragment tables: blocked, slice, linear, mma (versions 2 and 3) and the operands of mma. Others give None.
All sizes are powers of two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilefold.xray.ir.syntax import Tensor
from tilefold.xray.layouts.attributes import Attribute, parse


@dataclass(frozen=True)
class Holding:
    """Along each dim: elements that one thread holds, lanes of a warp, and warps that share the rest.

    `copies`: threads that hold the same element (the redundancy factor). `together`: elements of a thread that lie beside
    each other.
    """

    elements: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    copies: int
    together: int = 1

    @property
    def held(self) -> int:
        """Elements a thread holds, each once."""
        return math.prod(self.elements)


@dataclass(frozen=True)
class _Step:
    """A part of a layout: `count` neighbours of `where` (register, lane, warp) along `dim`; dim -1 holds copies."""

    where: str
    dim: int
    count: int


def holding(tensor: Tensor, aliases: dict[str, str], warps: int) -> Holding | None:
    """Which threads hold which elements of a tensor; None where the layout's rule is not known here."""
    if not tensor.encoding:
        return None
    steps = _steps(parse(tensor.encoding, aliases), len(tensor.shape))
    return None if steps is None else _fill(tensor.shape, steps, warps)


def _fill(shape: tuple[int, ...], steps: list[_Step], warps: int) -> Holding:
    """Give every step what is left of its dim: what is too many are copies, what is too few goes to registers."""
    left = list(shape)
    counts = {where: [1] * len(shape) for where in ("register", "lane", "warp")}
    for step in steps:
        if step.dim < 0:
            continue
        taken = min(step.count, left[step.dim])
        counts[step.where][step.dim] *= taken
        left[step.dim] //= taken
    alone = itertools.takewhile(lambda step: step.where == "register", steps)
    together = math.prod(min(step.count, shape[step.dim]) for step in alone if step.dim >= 0)
    elements = tuple(c * rest for c, rest in zip(counts["register"], left, strict=True))
    lanes, along = tuple(counts["lane"]), tuple(counts["warp"])
    return Holding(elements, lanes, along, 32 * warps // (math.prod(lanes) * math.prod(along)), together)


def _steps(layout: Attribute, rank: int) -> list[_Step] | None:
    """The layout from the finest part to the coarsest."""
    kind = layout.kind.rsplit(".", 1)[-1]
    rule = _RULES.get(kind)
    return None if rule is None else rule(layout.fields, rank)


def _blocked(fields: dict[str, Any], rank: int) -> list[_Step]:
    parts = (("register", "sizePerThread"), ("lane", "threadsPerWarp"), ("warp", "warpsPerCTA"))
    return [_Step(where, dim, n) for where, key in parts for dim, n in enumerate(fields[key])]


def _slice(fields: dict[str, Any], rank: int) -> list[_Step] | None:
    """The parent's layout of a tile of length 1 along the dim that is gone."""
    steps = _steps(fields["parent"], rank + 1)
    if steps is None:
        return None
    gone = fields["dim"]
    kept = [s for s in steps if s.dim != gone]
    return [_Step(s.where, s.dim - (s.dim > gone), s.count) for s in kept]


def _linear(fields: dict[str, Any], rank: int) -> list[_Step] | None:
    """Bases, each a step of two; one that moves along several dims at once counts for the first of them."""
    steps = []
    for where in ("register", "lane", "warp"):
        for basis in fields.get(where, []):
            moved = [dim for dim, n in enumerate(basis) if n]
            steps.append(_Step(where, moved[0] if moved else -1, 2))
    return steps


def _mma(fields: dict[str, Any], rank: int) -> list[_Step] | None:
    """A result of mma (16x8) or wgmma (16xN a warp): pairs, four lanes a row, eight rows, then the second half."""
    if fields["versionMajor"] not in (2, 3):
        return None
    m, n = rank - 2, rank - 1
    instruction = fields["instrShape"]
    columns = int(instruction[1]) if fields["versionMajor"] == 3 else instruction[-1]
    tile = [
        _Step("register", n, 2), _Step("lane", n, 4), _Step("lane", m, 8), _Step("register", m, 2),
        _Step("register", n, columns // 8),
    ]  # fmt: skip
    return tile + [_Step("warp", dim, count) for dim, count in enumerate(fields["warpsPerCTA"])]


def _operand(fields: dict[str, Any], rank: int) -> list[_Step] | None:
    """An operand of dot in registers. Its dim K is whole in every warp, so warps along the other's dim hold copies."""
    parent = fields["parent"]
    k = rank - 1 if fields["opIdx"] == 0 else rank - 2
    other = rank - 2 if fields["opIdx"] == 0 else rank - 1
    if parent.kind.endswith("blocked"):
        return [s for s in _blocked(parent.fields, rank) if s.dim != k]
    warps: list[int] = parent.fields["warpsPerCTA"]
    if not parent.kind.endswith("mma") or parent.fields["versionMajor"] not in (2, 3):
        return None
    tile = [_Step("register", k, fields["kWidth"]), _Step("lane", k, 4), _Step("lane", other, 8)]
    tile += [_Step("register", other, 2)] if fields["opIdx"] == 0 else []
    return [*tile, _Step("register", k, 2), _Step("warp", other, warps[other])]


_RULES: dict[str, Callable[[dict[str, Any], int], list[_Step] | None]] = {
    "blocked": _blocked, "slice": _slice, "linear": _linear, "nvidia_mma": _mma, "dot_op": _operand,
    "generic_linear": _linear,
}  # fmt: skip
