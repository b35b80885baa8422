"""How a tile's elements are spread over registers, lanes and warps, dim by dim.

Computed from the layout's text, for the layouts whose rule is written down in Triton's `LinearLayoutConversions.cpp` and
the PTX ISA's fragment tables: blocked, slice, linear, mma (versions 2 and 3) and the operands of mma. Others give None.
All sizes are powers of two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tilefold.xray.ir.syntax import Tensor
from tilefold.xray.layouts.attributes import Attribute, parse

_ALL = 1 << 30  # what is left of a dim


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
class Bases:
    """A layout element for element. A thread's registers, a warp's lanes and the warps are counted in binary: bit k of each
    moves the element by `register[k]`, `lane[k]` and `warp[k]` (a distance along each dim); all zeros are a copy."""

    register: tuple[tuple[int, ...], ...]
    lane: tuple[tuple[int, ...], ...]
    warp: tuple[tuple[int, ...], ...]

    def reach(self, where: str, rank: int) -> tuple[int, ...]:
        """Places along each dim that a thread's registers, the lanes or the warps reach."""
        return tuple(2 ** sum(1 for basis in getattr(self, where) if basis[d]) for d in range(rank))


@dataclass(frozen=True)
class _Step:
    """A part of a layout: `count` neighbours of `where` (register, lane, warp) along `dim`; dim -1 holds copies."""

    where: str
    dim: int
    count: int


def holding(tensor: Tensor, aliases: dict[str, str], warps: int) -> Holding | None:
    """Which threads hold which elements of a tensor; None where the layout's rule is not known here."""
    steps = _steps_of(tensor, aliases)
    if steps is None:
        return None
    rank, bases = len(tensor.shape), _fill(tensor.shape, steps)
    alone = itertools.takewhile(lambda step: step.where == "register", steps)
    together = math.prod(min(step.count, tensor.shape[step.dim]) for step in alone if step.dim >= 0)
    elements, lanes, along = (bases.reach(where, rank) for where in ("register", "lane", "warp"))
    return Holding(elements, lanes, along, 32 * warps // (math.prod(lanes) * math.prod(along)), together)


def bases(tensor: Tensor, aliases: dict[str, str]) -> Bases | None:
    """Which register of which lane and warp holds which element; None where the layout's rule is not known here."""
    if tensor.encoding and (layout := parse(tensor.encoding, aliases)).kind.endswith("linear"):
        named: dict[str, Any] = layout.fields
        held = [named.get(where, []) for where in ("register", "lane", "warp")]
        return Bases(*(tuple(tuple(basis) for basis in each) for each in held))
    steps = _steps_of(tensor, aliases)
    return None if steps is None else _fill(tensor.shape, steps)


def _steps_of(tensor: Tensor, aliases: dict[str, str]) -> list[_Step] | None:
    return _steps(parse(tensor.encoding, aliases), len(tensor.shape)) if tensor.encoding else None


def _fill(shape: tuple[int, ...], steps: list[_Step]) -> Bases:
    """Give every step what is left of its dim: what is too many are copies, what is too few goes to registers."""
    done, found = [1] * len(shape), dict[str, list[tuple[int, ...]]](register=[], lane=[], warp=[])
    for step in [*steps, *(_Step("register", dim, size) for dim, size in reversed([*enumerate(shape)]))]:
        for _ in range(step.count.bit_length() - 1):
            more = step.dim >= 0 and done[step.dim] < shape[step.dim]
            if more or step.where != "register":
                found[step.where].append(tuple(done[d] * (more and d == step.dim) for d in range(len(shape))))
            if more:
                done[step.dim] *= 2
    return Bases(*(tuple(found[where]) for where in ("register", "lane", "warp")))


def _steps(layout: Attribute, rank: int) -> list[_Step] | None:
    """The layout from the finest part to the coarsest."""
    kind = layout.kind.rsplit(".", 1)[-1]
    rule = _RULES.get(kind)
    return None if rule is None else rule(layout.fields, rank)


def _blocked(fields: dict[str, Any], rank: int) -> list[_Step]:
    parts = (("register", "sizePerThread"), ("lane", "threadsPerWarp"), ("warp", "warpsPerCTA"))
    steps = [_Step(where, dim, fields[key][dim]) for where, key in parts for dim in fields["order"]]
    return steps + [_Step("register", dim, _ALL) for dim in fields["order"]]


def _slice(fields: dict[str, Any], rank: int) -> list[_Step] | None:
    """The parent's layout of a tile of length 1 along the dim that is gone."""
    steps = _steps(fields["parent"], rank + 1)
    if steps is None:
        return None
    gone = fields["dim"]
    return [_Step(s.where, -1 if s.dim == gone else s.dim - (s.dim > gone), s.count) for s in steps]


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
    return tile + _warps(fields)


def _warps(fields: dict[str, Any]) -> list[_Step]:
    """The warps of a product: of mma the last dim's are neighbours, of wgmma the first's."""
    steps = [_Step("warp", dim, count) for dim, count in enumerate(fields["warpsPerCTA"])]
    return steps if fields["versionMajor"] == 3 else steps[::-1]


def _operand(fields: dict[str, Any], rank: int) -> list[_Step] | None:
    """An operand of dot in registers. Its dim K is whole in every warp, so warps along the other's dim hold copies."""
    parent = fields["parent"]
    k = rank - 1 if fields["opIdx"] == 0 else rank - 2
    other = rank - 2 if fields["opIdx"] == 0 else rank - 1
    if parent.kind.endswith("blocked"):
        whole = {"register": _Step("register", k, _ALL)}
        return [
            whole.get(s.where, replace(s, dim=-1)) if s.dim == k else s for s in _blocked(parent.fields, rank)
        ]
    if not parent.kind.endswith("mma") or parent.fields["versionMajor"] not in (2, 3):
        return None
    tile = [_Step("register", k, fields["kWidth"]), _Step("lane", k, 4), _Step("lane", other, 8)]
    tile += [_Step("register", other, 2)] if fields["opIdx"] == 0 else []
    across = [replace(s, dim=-1) if s.dim == k else s for s in _warps(parent.fields)]
    return [*tile, _Step("register", k, 2), *across, _Step("register", k, _ALL)]


_RULES: dict[str, Callable[[dict[str, Any], int], list[_Step] | None]] = {
    "blocked": _blocked, "slice": _slice, "linear": _linear, "nvidia_mma": _mma, "dot_op": _operand,
    "generic_linear": _linear,
}  # fmt: skip
