"""States of many lifts, and states on both sides of every comparison of a combine.

The samples of `samples` stop at states of a few lifts. A combine may turn where a state has grown past a constant, where two
states differ by less than a tolerance, or at one value among thousands. So its graph is asked: of every comparison in it
(those of maxima and minima among them) the two sides are found that are as near to each other as elements and counts allow.

    many      random trees of 1 to 64 lifts, and every lift combined with itself, to 2^40 of it
    counts    a lift combined with more of itself, by bisection, up to the last before a comparison changes and the next two
    elements  of two lifts one is bisected between two samples, to the neighbours between which a comparison changes; with
              them go elements at other multiples of that distance, since a tolerance shows in three
    triples   every such state in each of three places, beside others

Where positions are lifted, a tree's elements are neighbours, so that positions rise through every triple.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.domain import Range, ends_of, within
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.evaluate import stored
from tilefold.algebra.proofs.exact import Exact
from tilefold.algebra.proofs.exact import State as ExactState
from tilefold.algebra.proofs.samples import Pool, State, constants, full
from tilefold.algebra.proofs.turns import Turns
from tilefold.algebra.written import Program, as_written
from tilefold.runtime.caching import kept_outside_modes

MANY = "many lifts"
_DOUBLINGS, _FEW_DOUBLINGS = 40, 6
_BISECTIONS = 64  # as many as a float64 has bits
_LIFTS, _GENERATORS, _TREES, _ROUNDS = 64, 16, 128, 6
_SPECIAL = 48  # rows for comparisons
_RANDOM, _PLACES = 512, 3  # triples of any states, and of each special one in each place
_MIXED = 16  # triples of the states of one row
_SOUND = 2.0**52  # of larger whole numbers a product may wrap
_CONSTANTS = 12
_SHARES = (0.0, 0.5, 0.6, 1.2, 1.6, 2.0)  # of the distance at which a comparison changes
_RUNS, _RUN = 8, 1024  # of neighbours, where positions count
_FLOATS = (
    0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 3.0, -3.25, 7.0, -8.0, 1e-3, 100.0, -100.0, 1e4, 1e6, 0.3719268453, -2.718281828459045,
    1234.56789012345, 7.31828e-7,
)  # fmt: skip
_INTS = (
    0, 1, -1, 2, 3, 5, -5, 7, -8, 100, -100, 10_000, 1_000_000,
    # any bits, high and low
    0x174217E96BA87, -0x7419BCF4B4D1F, 0x291574B17653E, -0x2DC027C7573A5, -0x33E7610ABFFE1, 0x7CB06546DBE30, 0x50DEB55ABE200,
)  # fmt: skip
Elements = tuple[torch.Tensor, ...]


@dataclass
class Reached:
    """States in the order in which they were reached, and of what: an element of each input, or two states before."""

    program: Program
    fields: list[torch.Tensor] = field(default_factory=list)
    elements: list[torch.Tensor] = field(default_factory=list)
    left: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64, device="cpu"))
    right: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64, device="cpu"))
    count: int = 0

    def lifted(self, elements: Elements) -> torch.Tensor:
        """The places of lifted elements."""
        places = self._added(full(self.program.lifted(elements), len(elements[0])))
        for kept, given in zip(self.elements, elements, strict=True):
            kept[places] = given
        return places

    def combined(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The places of the combinations of states at these places."""
        state = self.program.combined([*self.state(left), *self.state(right)])
        places = self._added(full(state, len(left)))
        self.left[places], self.right[places] = left, right
        return places

    def state(self, places: torch.Tensor) -> State:
        """The states at some places."""
        return tuple(values[places] for values in self.fields)

    def is_sound(self, places: torch.Tensor) -> torch.Tensor:
        """Whether a state is finite, and small enough that combining it wraps nothing."""
        good = torch.ones(places.shape, dtype=torch.bool, device="cpu")
        for values in self.state(places):
            if values.dtype != torch.bool:
                good &= values.abs() < (math.inf if values.is_floating_point() else _SOUND)
        return good

    def exactly(self, exact: Exact, place: int, made: dict[int, ExactState]) -> ExactState:
        """A state as exact arithmetic makes it of the same elements; `made` are those that it has made before."""
        pending = [place]
        while pending:
            at = pending[-1]
            left, right = int(self.left[at]), int(self.right[at])
            missing = [p for p in (left, right) if p >= 0 and p not in made]
            if missing:
                pending += missing
                continue
            pending.pop()
            if left >= 0:
                made[at] = exact.combine(made[left], made[right])
            else:
                made[at] = exact.lift([values[at].item() for values in self.elements])
        return made[place]

    def _added(self, state: State) -> torch.Tensor:
        begin, self.count = self.count, self.count + len(state[0])
        if not self.fields or self.count > len(self.fields[0]):
            self._grow(2 * self.count + 4096)
        for kept, values in zip(self.fields, state, strict=True):
            kept[begin : self.count] = values
        return torch.arange(begin, self.count, device="cpu")

    def _grow(self, length: int) -> None:
        program = self.program
        dtypes = (*program.elements, *[torch.int64] * program.algebra.index)
        fields = self.fields or [torch.empty(0, dtype=stored(d), device="cpu") for d in program.state]
        elements = self.elements or [torch.empty(0, dtype=d, device="cpu") for d in dtypes]
        self.fields = [torch.cat([v, v.new_zeros(length - len(v))]) for v in fields]
        self.elements = [torch.cat([v, v.new_zeros(length - len(v))]) for v in elements]
        self.left, self.right = (
            torch.cat([v, v.new_full((length - len(v),), -1)]) for v in (self.left, self.right)
        )


@kept_outside_modes(4)
def pool_of_many(algebra: Algebra, dtypes: tuple[torch.dtype, ...]) -> Pool | None:
    """Triples of states of many lifts, and of those that a comparison tells apart; None where there are none."""
    samples = _samples(algebra, dtypes)
    if samples is None:
        return None
    try:
        search = _Search(as_written(algebra, dtypes), samples)
        triples = search.triples()
    except RuntimeError:  # a DtypeError of ours, or torch's own
        return None
    if triples is None:
        return None
    reached, made = search.reached, dict[int, ExactState]()
    return Pool(
        reached.program, MANY, [], [], [reached.state(t) for t in triples], torch.zeros(len(triples[0]), dtype=torch.float64),
        lambda exact, row: [reached.exactly(exact, int(t[row]), made) for t in triples],
    )  # fmt: skip


def _samples(algebra: Algebra, dtypes: Sequence[torch.dtype]) -> Elements | None:
    """Elements of each input: small ones, larger ones, those around constants; None where the domain has none."""
    drawn = []
    for number, dtype in enumerate(dtypes):
        given = (*(_FLOATS if is_float(dtype) else _INTS), *_around(algebra, dtype))
        if dtype == torch.bool:
            given = (False, True)
        if algebra.domain is not None:
            one: Range = algebra.domain[number]
            given = (*within(given, one, dtype), *ends_of(one, dtype))
        if not given:
            return None
        values = torch.tensor(tuple(dict.fromkeys(given)), dtype=dtype, device="cpu")
        picks = _picks(_LIFTS, len(values), 3000 + number)
        if number == 0:
            picks[: len(values)] = torch.arange(len(values), device="cpu")[:_LIFTS]
        drawn.append(values[picks])
    return tuple(drawn)


def _around(algebra: Algebra, dtype: torch.dtype) -> tuple[float, ...]:
    """Constants, halves and multiples of them, and their neighbours."""
    found: list[float] = []
    for c in constants(algebra)[:_CONSTANTS]:
        if is_float(dtype):
            found += [float(c), c / 2, c * 2, c + 1, c - 1]
        elif abs(c) < _SOUND:
            low = int(c)
            found += [low, low // 2, low * 2, low + 1, low - 1]
    return tuple(found)


def _picks(rows: int, options: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(max(options, 1), (rows,), generator=generator)


class _Search:
    """The states of one program that are found, and the triples of them."""

    def __init__(self, program: Program, samples: Elements) -> None:
        self.program, self.samples = program, samples
        self.index = program.algebra.index
        self.reached = Reached(program)
        self.turns = Turns(program)

    def triples(self) -> list[torch.Tensor] | None:
        """The places of three states each."""
        if self.index:
            rows = [*self._runs(), *self._near_in_order()]
        else:
            lifts = self._sound(self.reached.lifted(self.samples))
            if not len(lifts):
                return None
            rows = [*self._anywhere(lifts)]
        three = [torch.cat(column) for column in zip(*rows, strict=True)] if rows else []
        if not three:
            return None
        good = functools.reduce(torch.logical_and, [self.reached.is_sound(t) for t in three])
        return [t[good] for t in three] if bool(good.any()) else None

    def _sound(self, places: torch.Tensor) -> torch.Tensor:
        return places[self.reached.is_sound(places)]

    # ------------------------------------------------------------------------------------------ without positions

    def _anywhere(self, lifts: torch.Tensor) -> Iterator[Sequence[torch.Tensor]]:
        generators = self._distinct(lifts)[:_GENERATORS]
        powers = self._powers(generators)
        trees = self._trees(lifts)
        any_of = self._sound(torch.cat([lifts, trees, *powers]))
        if not len(any_of):
            return
        for seed, some in ((4000, any_of), (4010, lifts)):
            yield [some[_picks(_RANDOM, len(some), seed + k)] for k in range(3)]
        beside = torch.cat([generators, any_of[_picks(_SPECIAL, len(any_of), 4003)]])
        for chain in self._counted(powers):
            yield from _mixed([chain] * 3, 4100)
            special = self._sound(chain.flatten())
            yield from _placed(special, beside, 4200)
            if len(special):
                yield from _placed(special, special, 4300)
        near = self._near_elements()
        if near is not None:
            rows = torch.stack([self.reached.lifted(element) for element in near], dim=1)
            yield from _mixed([rows] * 3, 4400)
            yield from _placed(rows[:, 2:4].flatten(), beside, 4500)

    def _distinct(self, places: torch.Tensor) -> torch.Tensor:
        """The first of each state."""
        state = torch.stack([v.double() for v in self.reached.state(places)])
        seen, kept = set[tuple[float, ...]](), list[int]()
        for k, one in enumerate(zip(*state.tolist(), strict=True)):
            if one not in seen:
                seen.add(one)
                kept.append(k)
        return places[torch.tensor(kept, dtype=torch.int64, device="cpu")]

    def _powers(self, generators: torch.Tensor) -> list[torch.Tensor]:
        """Each generator, combined with itself, that with itself, and so on."""
        powers = [generators]
        for _ in range(_DOUBLINGS if self.turns.steps else _FEW_DOUBLINGS):
            last = powers[-1]
            grown = self.reached.combined(last, last)
            moved = functools.reduce(
                torch.logical_or,
                [x != y for x, y in zip(self.reached.state(last), self.reached.state(grown), strict=True)],
            )
            if not bool((moved & self.reached.is_sound(grown)).any()):
                break
            powers.append(grown)
        return powers

    def _trees(self, lifts: torch.Tensor) -> torch.Tensor:
        """Random trees, each of two before."""
        every, last = lifts, lifts
        for k in range(_ROUNDS):
            large = last[_picks(_TREES, len(last), 5000 + k)]
            any_one = every[_picks(_TREES, len(every), 5100 + k)]
            swap = _picks(_TREES, 2, 5200 + k) == 1
            last = self.reached.combined(torch.where(swap, large, any_one), torch.where(swap, any_one, large))
            every = torch.cat([every, last])
        return every[len(lifts) :]

    def _counted(self, powers: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Rows of a lift, a state of as many of it as leave a comparison of the two as it was, and the next two."""
        if not self.turns or len(powers) < 2:
            return
        top = torch.stack(powers)
        first = top[:1].expand_as(top)
        sound = self.reached.is_sound(top)
        doubled = self._told_states(top.flatten(), top.flatten()).view(-1, *top.shape)
        passed = (doubled != doubled[:, :1])[:, :-1]  # on the way to the next power
        powers_before = []
        for pair in ((top, first), (first, top)):
            before = self._told_states(*(p.flatten() for p in pair)).view(-1, *top.shape)
            changed = (before != before[:, :1]) & sound
            changed[:, 1:] |= passed
            changed = torch.cat([changed, changed.any(0, keepdim=True)])
            powers_before.append(torch.where(changed.any(1), changed.to(torch.int8).argmax(1), len(powers)))
        before_power = torch.stack(powers_before)
        shape = before_power.shape
        some = _spread(torch.arange(before_power.numel(), device="cpu") // shape[2] % shape[1], _SPECIAL)
        side, turn, which = some // (shape[1] * shape[2]), some // shape[2] % shape[1], some % shape[2]
        yield self._last_before(top, side == 0, turn, which, before_power[side, turn, which])

    def _last_before(
        self, top: torch.Tensor, is_left: torch.Tensor, turn: torch.Tensor, which: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        """A lift, as many of it as leave a comparison with one of it as it is of two, from a power of two on, and two more.

        The turn behind the last one is any of them.
        """
        one, grown = top[0, which], top[power - 1, which]
        power = power - 2
        was, rows = self._told_states(one, one)[:, None], torch.arange(len(turn), device="cpu")
        for _ in range(int(power.max()) + 1):
            more = top[power.clamp(min=0), which]
            tried = self.reached.combined(grown, more)
            left, right = torch.where(is_left, tried, one), torch.where(is_left, one, tried)
            told = self._told_states(torch.cat([left, grown]), torch.cat([right, more]))
            alike = (told.view(len(told), 2, -1) == was).all(1)
            kept = torch.cat([alike, alike.all(0, keepdim=True)])[turn, rows]
            grown = torch.where((power >= 0) & kept, tried, grown)
            power = power - 1
        after = self.reached.combined(grown, one)
        return torch.stack([one, grown, after, self.reached.combined(after, one)], dim=1)

    def _told_states(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.turns.told(self.reached.state(left), self.reached.state(right))

    # ------------------------------------------------------------------------------------------ elements

    def _near_elements(self) -> list[Elements] | None:
        """Elements by the distance at which a comparison of two changes: of `_SHARES`, and either side of it."""
        if not self.turns:
            return None
        count, rows = len(self.samples[0]), 512
        x, one, other = (_picks(rows, count, 6000 + k) for k in range(3))
        one[::2] = x[::2]
        is_left = torch.arange(rows, device="cpu") % 4 < 2
        still = tuple(v[x] for v in self.samples)
        low, high = (tuple(v[p] for v in self.samples) for p in (one, other))
        stays = self._lifted_at(still, 0), self._lifted_at(still, 1)
        was, will = self._told(stays, low, is_left), self._told(stays, high, is_left)
        turn, row = (was != will).nonzero(as_tuple=True)
        some = _spread(turn, _SPECIAL)
        turn, row = turn[some], row[some]
        if not len(turn):
            return None
        was, at, is_left = was[turn, row], torch.arange(len(turn), device="cpu"), is_left[row]
        still, low, high = (tuple(v[row] for v in of) for of in (still, low, high))
        stays = tuple(v[row] for v in stays[0]), tuple(v[row] for v in stays[1])
        for _ in range(_BISECTIONS):
            middle = tuple(_middle(*pair) for pair in zip(low, high, strict=True))
            if all(bool(((m == a) | (m == b)).all()) for m, a, b in zip(middle, low, high, strict=True)):
                break
            before = self._told(stays, middle, is_left)[turn, at] == was
            low, high = (
                tuple(torch.where(before == keeps, m, v) for m, v in zip(middle, of, strict=True))
                for keeps, of in ((True, low), (False, high))
            )
        apart = [self._shifted(still, high, share) for share in _SHARES]
        return [apart[0], apart[1], low, high, *apart[2:]]

    def _lifted_at(self, elements: Elements, place: int) -> State:
        """Lifted elements, at a place of their own."""
        places = [torch.full(elements[0].shape, place, device="cpu")] if self.index else []
        return full(self.program.lifted([*elements, *places]), len(elements[0]))

    def _told(self, stays: tuple[State, State], moved: Elements, is_left: torch.Tensor) -> torch.Tensor:
        """Of each comparison what it says of two elements' states, the one that is moved on the left or the right."""
        after, before = self._lifted_at(moved, 1), self._lifted_at(moved, 0) if self.index else None
        left = (torch.where(is_left, m, s) for m, s in zip(before or after, stays[0], strict=True))
        right = (torch.where(is_left, s, m) for m, s in zip(after, stays[1], strict=True))
        return self.turns.told(tuple(left), tuple(right))

    def _shifted(self, still: Elements, turn: Elements, share: float) -> Elements:
        """Elements at a share of the way to where a comparison changes, within the domain."""
        domain = self.program.algebra.domain
        shifted = []
        for number, (x, y) in enumerate(zip(still, turn, strict=True)):
            if x.dtype == torch.bool:
                shifted.append(y if share else x)
                continue
            moved = x + share * (y - x)
            if domain is not None:
                moved = moved.clamp(domain[number].low, domain[number].high)
            shifted.append(moved if is_float(x.dtype) else moved.to(x.dtype))
        return tuple(shifted)

    # ------------------------------------------------------------------------------------------ in order

    def _runs(self) -> Iterator[Sequence[torch.Tensor]]:
        """Neighbouring states of runs of elements: of 1, 2, 4 ... elements each, and prefixes beside single ones."""
        count = len(self.samples[0])
        picks = _picks(_RUNS * _RUN, count, 7000)
        # Of every second run few values, ties among them.
        few = torch.arange(_RUNS, device="cpu").repeat_interleave(_RUN) % 2 == 0
        picks = torch.where(few, picks % 8 % count, picks)
        places = torch.arange(_RUN, device="cpu").repeat(_RUNS)
        levels = [self.reached.lifted((*(v[picks] for v in self.samples), places)).view(_RUNS, _RUN)]
        while levels[-1].shape[1] >= 2:
            halves = [levels[-1][:, k::2].flatten() for k in range(2)]
            levels.append(self.reached.combined(*halves).view(_RUNS, -1))
        for level in levels[:-2]:
            width = min(level.shape[1], _LIFTS)
            yield [level[:, k : width - 2 + k].flatten() for k in range(3)]
        single, grown = levels[0], levels[0][:, 0]
        for k in range(1, _LIFTS):
            yield [grown, single[:, k], single[:, k + 1]]
            grown = self.reached.combined(grown, single[:, k])
        if self.turns:
            yield from self._prefixes(levels)

    def _prefixes(self, levels: list[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
        """The longest prefix that leaves a comparison with the next element as it was for one element, and others near it.

        Of blocks that get shorter, so that each begins where a block of its length does.
        """
        run = torch.arange(_RUNS, device="cpu").repeat(len(self.turns))
        turn = torch.arange(len(self.turns), device="cpu").repeat_interleave(_RUNS)
        single, rows = levels[0], torch.arange(2 * len(run), device="cpu")
        turns, size = torch.cat([turn, turn]), torch.zeros_like(run)
        was = self._told_states(single[run, 0], single[run, 1])[turn, rows[: len(run)]]
        grown, alike = single[run, 0], self._alike(levels, was.view(-1, _RUNS))
        for level in range(len(levels) - 2, -1, -1):
            more = levels[level][run, size >> level]
            tried = torch.where(size == 0, more, self.reached.combined(grown, more))
            after = size + (1 << level)
            left = torch.cat([tried, torch.where(size == 0, tried, grown)])
            told = self._told_states(left, torch.cat([single[run, after], more]))[turns, rows]
            ahead, behind = told.view(2, -1) == was
            kept = (
                ahead & (behind | (size == 0)) & (after < _RUN - 5) & alike[level][turn, run, size >> level]
            )
            grown, size = torch.where(kept, tried, grown), torch.where(kept, after, size)
        size = size.clamp(min=1)
        for k in range(3):
            one, two, three = (single[run, size + k + j] for j in range(3))
            yield [grown, one, two]
            yield [grown, one, self.reached.combined(two, three)]
            yield [grown, self.reached.combined(one, two), three]
            grown = self.reached.combined(grown, one)

    def _alike(self, levels: list[torch.Tensor], was: torch.Tensor) -> list[torch.Tensor]:
        """Of each comparison and block, whether it says the same of all halves that the block was made of."""
        alike = [torch.ones((len(self.turns), *levels[0].shape), dtype=torch.bool, device="cpu")]
        for level in levels[:-1]:
            left, right = level[:, ::2], level[:, 1::2]
            told = self._told_states(left.flatten(), right.flatten()).view(-1, *left.shape)
            alike.append((told == was[:, :, None]) & alike[-1][:, :, ::2] & alike[-1][:, :, 1::2])
        return alike

    def _near_in_order(self) -> Iterator[Sequence[torch.Tensor]]:
        near = self._near_elements()
        if near is None:
            return
        rows = len(near[0][0])
        places = [torch.full((rows,), place, device="cpu") for place in range(3)]
        tables = [torch.stack([self.reached.lifted((*e, at)) for e in near], dim=1) for at in places]
        yield from _mixed(tables, 4400)


def _mixed(tables: Sequence[torch.Tensor], seed: int) -> Iterator[Sequence[torch.Tensor]]:
    """Triples of the states of one row, the first out of the first table."""
    count, width = tables[0].shape
    for k in range(_MIXED):
        picks = [_picks(count, width, seed + 1000 * k + j)[:, None] for j in range(3)]
        yield [t.gather(1, p)[:, 0] for t, p in zip(tables, picks, strict=True)]


def _placed(special: torch.Tensor, beside: torch.Tensor, seed: int) -> Iterator[Sequence[torch.Tensor]]:
    """Every special state in each of three places, beside some of the others."""
    if not len(special) or not len(beside):
        return
    for place in range(3):
        for k in range(_PLACES):
            picks = (_picks(len(special), len(beside), seed + 31 * k + 7 * place + j) for j in range(2))
            others = [beside[p] for p in picks]
            yield [*others[:place], special, *others[place:]]


def _spread(turn: torch.Tensor, most: int) -> torch.Tensor:
    """At most so many places, of every turn some."""
    order = torch.arange(len(turn), device="cpu")
    if len(turn) <= most:
        return order
    picks = []
    kinds = list(dict.fromkeys(turn.tolist()))
    for kind in kinds:
        own = order[turn == kind]
        share = max(1, most // len(kinds))
        picks.append(own[torch.linspace(0, len(own) - 1, min(share, len(own)), device="cpu").long()])
    return torch.cat(picks)


def _middle(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Between two elements: of floats as many are on either side of it."""
    if low.dtype == torch.bool:
        return low
    a, b = (_ranked(v) if low.is_floating_point() else v for v in (low, high))
    middle = (a >> 1) + (b >> 1) + (a & b & 1)
    return _ranked(middle.view(torch.float64)).view(torch.float64) if low.is_floating_point() else middle


def _ranked(value: torch.Tensor) -> torch.Tensor:
    """The bits of a float64, in the order of the numbers; and back again."""
    bits = value.view(torch.int64)
    return bits ^ ((bits >> 63) & ((1 << 63) - 1))
