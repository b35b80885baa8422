"""The backward of `reduce_map`: a map of the same rows, that sums what a rule says along each (`map_rules`), and over rows.

The forward call stores the values of a row that the backward reads; so the backward reads tensors once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api import reduce as folds
from tilefold.api import reduce_map as maps
from tilefold.api.differentiated import Call
from tilefold.api.gradients import Wide, cells, converted, lifts_of, summed, unrounded
from tilefold.api.map_rules import Rules, rules_of
from tilefold.planner.library import LibraryMap, backward_of
from tilefold.planner.problem.canonical import normalize_dims
from tilefold.planner.products.functions import Traced
from tilefold.runtime.modes import has_none


@dataclass(frozen=True)
class Map(Call):
    """A map as its backward needs it: of `count` tensors that are folded, then extra ones; their sizes and dtypes.

    The forward's results are elements, rows that were asked for, rows that are saved, sums over rows.
    """

    monoid: Monoid
    apply: Traced
    axes: Any
    convert: torch.dtype | None
    guarantee: str
    count: int
    sizes: tuple[Sequence[int], ...]
    dtypes: tuple[torch.dtype, ...]
    library: LibraryMap | None = None
    on_cpu: bool = False
    call: str = "reduce_map"

    fills = False  # a cotangent that nobody asked for comes as None

    @functools.cached_property
    def rules(self) -> Rules:
        """The graphs."""
        elements = tuple(self.convert or d for d in self.dtypes[: self.count])
        return rules_of(self.monoid, self.apply, elements, self.dtypes[self.count :])

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The elements'."""
        return tuple(torch.broadcast_shapes(*self.sizes[: self.count]))  # type: ignore[no-untyped-call]  # torch's own

    @functools.cached_property
    def dims(self) -> tuple[int, ...]:
        """The reduced ones."""
        return normalize_dims(self.axes, len(self.shape), self.call)

    @functools.cached_property
    def is_of_rows(self) -> bool:
        """Whether the backward is one map of elements and values of their row."""
        return bool(self.dims) and not has_none(self.shape) and self.rules.needs_row_alone

    @functools.cached_property
    def stores_rows(self) -> bool:
        """Whether the forward call stores the row's values.

        Not states in units, which a CPU does without. Nor of halves on a CPU, where torch saves rows as halves: they are
        folded again.
        """
        halves = self.on_cpu and any(d.itemsize <= 2 for d in self.rules.elements)
        known = bool(self.rules.rule) or self.monoid.total.quick is None
        return self.is_of_rows and known and not halves and self.beside_if_stored > 0

    @property
    def beside_if_stored(self) -> int:
        """Values a row that the forward call would store beside those that were asked for."""
        return self.rules.rows - self.rules.asked

    @property
    def beside(self) -> int:
        """Values a row that it stores."""
        return self.beside_if_stored if self.stores_rows else 0

    def saving(self) -> tuple[Monoid, Traced, LibraryMap | None]:
        """What the forward call is made of."""
        if not self.beside:
            return self.monoid, self.apply, self.library
        monoid, function = self.rules.saving
        library = self.library if self.rules.rule else None
        return monoid, function, library and replace(library, rows=self.rules.rows)

    def given(self, made: list[Tensor]) -> list[Tensor]:
        """The results that the caller gets."""
        last = len(made) - self.apply.sums
        return [*made[: last - self.beside], *made[last:]]

    def saved(self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]) -> list[Tensor]:
        """What the backward reads."""
        if not self.is_of_rows:
            return list(tensors)
        every = {**self._named("tensor", tensors), **self._of_made(made)}
        return [every[name] for name in self._kept(tuple(wrt))]

    @staticmethod
    def _named(kind: str, tensors: Sequence[Any]) -> dict[tuple[str, int], Any]:
        return {(kind, i): t for i, t in enumerate(tensors)}

    def _of_made(self, made: Sequence[Any]) -> dict[tuple[str, int], Any]:
        """The forward's results, or their cotangents, by what they are."""
        sums = self.apply.sums
        stored = self.rules.results - sums
        elements, rows, summed = made[:stored], made[stored : len(made) - sums], made[len(made) - sums :]
        return {**self._named("result", [*elements, *summed]), **self._named("row", rows)}

    def _kept(self, wrt: tuple[int, ...]) -> list[tuple[str, int]]:
        """What is saved for some tensors' cotangents, whichever results have one."""
        rules = self.rules
        found = set[tuple[str, int]]()
        for p in rules.backward(wrt, (True,) * (rules.results + rules.rows)).reads:
            kind, i = rules.values[p]
            if kind in ("input", "extra"):
                found.add(("tensor", p))
            elif kind == "result" or (kind == "row" and (self.stores_rows or i < rules.asked)):
                found.add((kind, i))
            elif kind == "row":
                found.update(("tensor", i) for i in range(self.count))
        return sorted(found)

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The inputs' and extra tensors' cotangents."""
        found: list[Any] = [None] * len(self.sizes)
        if any(g is not None for g in grads):
            of_rows = self._of_rows if self.is_of_rows else self._around
            for i, g in of_rows(saved, grads, tuple(wrt)).items():
                size = self.sizes[i]
                found[i] = converted(
                    g.view(size) if g.numel() == math.prod(size) else summed(g, size), self.dtypes[i]
                )
        return found

    def _of_rows(
        self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: tuple[int, ...]
    ) -> dict[int, Tensor]:
        """In one map; cotangents of extra tensors that were repeated otherwise than over whole rows by folds."""
        rules, given = self.rules, self._of_made(grads)
        asked = tuple(
            given.get((kind, i)) is not None
            for kind, n in (("result", rules.results), ("row", rules.rows))
            for i in range(n)
        )
        plan = rules.backward(wrt, asked)
        if not plan.reads:  # no result that has a cotangent is made of these
            return {}
        values = self._values(plan.reads, dict(zip(self._kept(wrt), saved, strict=True)), given)
        whole = [i for i in wrt if i < self.count or self._wide_size(i) == list(self.shape)]
        column = [n if d in self.dims else 1 for d, n in enumerate(self.shape)]
        sums = [i for i in wrt if i not in whole and self._wide_size(i) == column]
        function = plan.alone(tuple(wrt.index(i) for i in whole)) if whole else None
        found = dict[int, Tensor]()
        if whole and function is not None:
            found = dict(zip(whole, cells(function, values), strict=True))
        elif whole:
            places, summed = (tuple(wrt.index(i) for i in some) for some in (whole, sums))
            dtypes = tuple(
                self.convert or self.dtypes[i] if i < self.count else self.dtypes[i] for i in whole
            )
            of_row = plan.of_row(places, summed, dtypes)
            library = self._library(plan.reads, tuple(whole), tuple(sums))
            made = maps.map_tensors(
                values,
                plan.summed(),
                of_row,
                self.dims,
                guarantee=self.guarantee,
                library=library,
                call=self.call,
            )
            found = dict(zip([*whole, *sums], made, strict=True))
        for i in wrt:
            if i not in found:
                terms = plan.alone((wrt.index(i),))
                assert terms is not None
                found[i] = self._summed(values, terms, i)
        return found

    def _library(
        self, reads: Sequence[int], whole: tuple[int, ...], sums: tuple[int, ...]
    ) -> LibraryMap | None:
        if self.library is None or self.convert not in (None, *self.dtypes[:1]):
            return None
        roles = tuple(f"{kind}{i}" for kind, i in (self.rules.values[p] for p in reads))
        return backward_of(self.library, roles, (*whole, *sums))

    def _values(
        self, reads: Sequence[int], kept: dict[tuple[str, int], Tensor], grads: dict[tuple[str, int], Any]
    ) -> list[Tensor]:
        """A rule's values, of the whole shape."""
        rules, again, found = self.rules, list[Tensor](), list[Tensor]()
        if any(rules.values[p][0] == "row" and ("row", rules.values[p][1]) not in kept for p in reads):
            x = [self._read(kept["tensor", i], i) for i in range(self.count)]
            again = folds.fold_tensors(
                x,
                rules.of_rows,
                self.dims,
                True,
                dtype=unrounded(x),
                guarantee=self.guarantee,
                call=self.call,
            )
        for p in reads:
            kind, i = rules.values[p]
            if kind in ("input", "extra"):
                value = self._read(kept["tensor", p], p)
            elif kind == "length":
                value = self._length(next(g for g in grads.values() if g is not None))
            elif kind.startswith("of_"):
                value = grads[kind[3:], i]
            else:
                value = kept[kind, i] if (kind, i) in kept else again[i]
            found.append(value.expand(self.shape))
        return found

    def _length(self, like: Tensor) -> Tensor:
        wide = torch.float64 if torch.float64 in (like.dtype, *self.dtypes) else torch.float32
        return dispatch.constant(like.new_full((), math.prod(self.shape[d] for d in self.dims), dtype=wide))

    def _read(self, t: Tensor, i: int) -> Tensor:
        """A tensor as the forward call read it."""
        t = t.expand(self.shape)
        return t if self.convert is None or i >= self.count else converted(t, self.convert)

    def _wide_size(self, i: int) -> list[int]:
        """The size of a tensor with as many dims as elements have."""
        return [*[1] * (len(self.shape) - len(self.sizes[i])), *self.sizes[i]]

    def _summed(self, given: Sequence[Tensor], terms: Monoid, i: int) -> Tensor:
        """A sum over the dims along which a tensor was repeated."""
        wide = self._wide_size(i)
        repeated = [d for d, n in enumerate(self.shape) if wide[d] == 1 and n != 1]
        (made,) = folds.fold_tensors(given, terms, repeated, True, guarantee=self.guarantee)
        return made.reshape(self.sizes[i])

    def _around(
        self, tensors: Sequence[Tensor], grads: Sequence[Any], wrt: tuple[int, ...]
    ) -> dict[int, Tensor]:
        """By states that are folded again, and for each element what is before it and after it."""
        rules, shape, dims, parts = self.rules, self.shape, self.dims, self._of_made(grads)
        every = [self._read(t, i) for i, t in enumerate(tensors)]
        x = every[: self.count]
        names = [*(("result", i) for i in range(rules.results)), *(("row", i) for i in range(rules.asked))]
        absent = every[0].new_zeros((), dtype=torch.float32)
        gs = [(absent if parts[name] is None else parts[name]).expand(shape) for name in names]
        several = bool(dims) and 0 not in shape
        rows = Wide(x, shape, dims, None, self.guarantee)
        if several:
            states = [t.expand(shape) for t in rows.states(rules.gradient, self.call)]
        else:
            states = cells(lifts_of(rules.gradient), rows.placed(rules.gradient))
        given = [*every, *gs, *states]
        inner = tuple(i for i in wrt if i < self.count or tuple(self.sizes[i]) == shape)
        found = (
            dict(
                zip(inner, cells(rules.around("tensors" if several else "lifted", inner), given), strict=True)
            )
            if inner
            else {}
        )
        places = rules.results_read
        if several and (places or rules.asked) and inner and inner[0] < self.count:
            of_fold = [i for i in inner if i < self.count]
            results = self._of_results(given, places)
            more = rows.of_fold(rules.gradient, results, of_fold, self.call, rules.after)
            found |= {i: found[i] + g for i, g in zip(of_fold, more, strict=True)}
        for i in wrt:
            if i not in found:
                found[i] = self._summed(given, rules.around("tensors", (i,)), i)
        return found

    def _of_results(self, given: Sequence[Tensor], places: Sequence[int]) -> list[Tensor]:
        """Cotangents of the fold's results, of each row: zeros of those that have none."""
        rules, every = self.rules, self.rules.gradient.results
        known = dict[int, Tensor]()
        if places:
            sums = rules.around("results", tuple(places))
            made = folds.fold_tensors(given, sums, self.dims, True, guarantee=self.guarantee, call=self.call)
            known = dict(zip(places, made, strict=True))
        found = [known[p].expand(self.shape) if p in known else torch.zeros_like(given[-1]) for p in every]
        if rules.asked:
            own = cells(rules.around("rows", tuple(every)), given)
            found = [a + b for a, b in zip(found, own, strict=True)]
        return found
