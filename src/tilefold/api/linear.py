"""Folds of the rows of a product, chunk by chunk of its columns: the product itself is never held.

Of x [N, D] and w [V, D] a chunk's logits x @ w_c.T are multiplied, by torch, into float32 (float64 of float64), folded to a
state a row, and dropped. States are folded to one as they come. Backward multiplies a chunk again, makes of it the logits'
cotangents, in x's dtype, by one function of a logit and of its row's total and cotangents, and multiplies these twice:

    dx += dl @ w_c, in float32, rounded once at the end;   dw_c = dl.T @ x, rounded once;   db_c = the sum of dl over rows

Memory beside operands and results: a chunk's logits and their cotangents, N C (4 + bytes of x's dtype), and backward dx in
float32, 4 N D. `chunks` gives the first as much as the second, and 128 MiB at least: dx is read and written with each chunk,
which takes a fixed share of the products' time then. Of x 8192x4096 in bfloat16 C = 2^27 / (8192 * 6) = 2730, in whole tiles
of 256 columns 2560: logits of 84 MB, cotangents of 42 MB and dx of 134 MB are 260 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold import math, monoids
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.algebra.typing import compute_dtype
from tilefold.api.differentiated import Call, at_places
from tilefold.api.ends import Ends, ends_of, function_of
from tilefold.api.gradients import converted, derived
from tilefold.api.losses import check_targets
from tilefold.api.parts import Dtypes, finish_text, partial_text, result_dtypes, state_dtypes
from tilefold.api.recorded import DIFFERENTIATED, OPERATIONS, is_differentiated, is_plainly_differentiated
from tilefold.api.reduce import fold_tensors
from tilefold.errors import GradientError
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import as_given, is_seen

LEAST_BYTES = 1 << 27  # of a chunk's logits and their cotangents (not measured)
COLUMNS = 256  # of a tile (not measured)
JOINED = 16  # chunks whose states are held until they become one (not measured)


def chunks(x: Tensor, classes: int) -> list[tuple[int, int]]:
    """Where chunks of the classes begin and end: of one size, but the last one may be smaller."""
    rows, features, wide = max(x.shape[0], 1), x.shape[1], compute_dtype(x.dtype).itemsize
    fitting = max(LEAST_BYTES, wide * rows * features) // (rows * (wide + x.dtype.itemsize))
    count = -(-classes // max(fitting // COLUMNS * COLUMNS, COLUMNS))
    size = -(-classes // (count * COLUMNS)) * COLUMNS
    return [(start, min(start + size, classes)) for start in range(0, classes, size)]


class Parts(NamedTuple):
    """A call's tensors: rows [N, D]; of each class its weights [V, D], a bias [V], other values [V]; targets [N]."""

    x: Tensor
    w: Tensor
    bias: Tensor | None
    beside: list[Tensor]
    target: Tensor | None

    def elements(self, start: int, stop: int) -> list[Tensor]:
        """What the fold takes of some classes: logits, in memory of their own, and the classes' values."""
        logits = _multiplied(self.x, self.w[start:stop].t())
        if self.bias is not None:
            logits += self.bias[start:stop]
        return [logits, *(t[start:stop].expand(logits.shape) for t in self.beside)]


class Known(NamedTuple):
    """Of a monoid: the folds of a chunk to a state, of states to one, and to results; what is derived of it; dtypes of
    results and of a state; whether it takes positions."""

    partial: Monoid
    joined: Monoid
    finish: Monoid
    ends: Ends
    results: Dtypes
    state: Dtypes
    is_placed: bool


@kept_outside_modes(256)
def _known(monoid: str, elements: Dtypes) -> Known:
    total = monoid_of(monoid).total
    return Known(
        monoid_of(partial_text(monoid, elements, False)),
        monoid_of(finish_text(monoid, elements, False, False)),
        monoid_of(finish_text(monoid, elements, False, True)),
        ends_of(derived(monoid_of(monoid), elements)),
        result_dtypes(monoid, elements, None),
        state_dtypes(total, elements),
        total.index,
    )


@dataclass(frozen=True)
class Linear(Call):
    """A fold of the rows of x @ w.T with the monoid of a text, perhaps with a bias and with a target a row.

    Results are [N, 1] each: the monoid's, the target's logit, the fields of the state.
    """

    monoid: str
    has_bias: bool
    has_target: bool
    ignore_index: int
    validate: bool
    call: str

    def parts(self, tensors: Sequence[Tensor]) -> Parts:
        """The tensors x, w, bias, classes' values, targets by what they are."""
        x, w, *rest = tensors
        target = rest.pop() if self.has_target else None
        bias = rest.pop(0) if self.has_bias else None
        return Parts(x, w, bias, rest, target)

    def known(self, tensors: Sequence[Tensor]) -> Known:
        """What is derived of the monoid for such tensors."""
        parts = self.parts(tensors)
        return _known(self.monoid, (compute_dtype(parts.x.dtype), *(t.dtype for t in parts.beside)))

    def unwritten(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Memory of the results' shapes and dtypes."""
        x, known = tensors[0], self.known(tensors)
        dtypes = [*known.results, *[compute_dtype(x.dtype)] * self.has_target, *known.state]
        return [x.new_empty((x.shape[0], 1), dtype=dtype) for dtype in dtypes]

    def _fold(self, tensors: Sequence[Tensor], monoid: Monoid, dims: Any, **named: Any) -> list[Tensor]:
        return fold_tensors(tensors, monoid, dims, dims == 1, call=self.call, **named)

    def _places(self, target: Tensor, classes: int) -> Tensor:
        """The targets' classes, -1 of those that are none."""
        inside = (target >= 0) & (target < classes) & (target != self.ignore_index)
        return torch.where(inside, target, -1).unsqueeze(1)

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results.

        Raises:
            TargetError: a target that is looked at is no class.
        """
        parts, known = self.parts(tensors), self.known(tensors)
        classes, device, target = parts.w.shape[0], parts.x.device, parts.target
        spans = chunks(parts.x, classes)
        size = spans[0][1]
        numbers = torch.arange(classes, device=device) if known.is_placed else None
        if target is not None:
            check_targets(target, classes, self.ignore_index, self.validate, self.call)
            places = self._places(target, classes)
            chunk, inside = places // size, places % size

        def folded(start: int, stop: int) -> list[Tensor]:
            each = parts.elements(start, stop)
            logits = each[0]
            first = [] if numbers is None else [numbers[start].expand(logits.shape)]
            states = self._fold([*each, *first], known.partial, 1)
            if target is None:
                return states
            own = logits.gather(1, inside.clamp(max=stop - start - 1))
            return [*states, torch.where(chunk == start // size, own, 0.0)]

        def joined(parts: Sequence[Sequence[Tensor]], monoid: Monoid, **named: Any) -> list[Tensor]:
            states = [torch.cat(some, 1) for some in zip(*parts, strict=True)]
            own = [states.pop().sum(1, keepdim=True)] if self.has_target else []
            return [*self._fold(states, monoid, 1, **named), *own]

        found = list[list[Tensor]]()
        with as_given(device):
            for start, stop in spans:
                found.append(folded(start, stop))
                if len(found) == JOINED:
                    found = [joined(found, known.joined)]
        made, shown = joined(found, known.finish, return_state=True), len(known.results)
        if target is None:
            return made
        none = torch.where(target == self.ignore_index, 0.0, float("nan")).unsqueeze(1)
        own = torch.where(places >= 0, made[-1], none.to(made[-1].dtype))
        return [*made[:shown], own, *made[shown:-1]]

    # -------------------------------------------------------------------------------------------------------- backward

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a fold whose derivative reads more than a row's total.

        Raises:
            GradientError: it does.
        """
        ends = self.known(tensors).ends
        if ends.places and not (ends.total_is_enough and not ends.gradient.shares_ties):
            raise GradientError(
                f"{self.call}: to be differentiated a monoid must have a derivative that a logit and its row's state give "
                f"(log-sum-exp has), got one of the fields {', '.join(ends.gradient.algebra.fields)}; call it inside of "
                "torch.no_grad()"
            )

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with a logit: as the monoid's do, and the target's logit; states are no results."""
        known = self.known(tensors)
        return result in known.ends.places or (self.has_target and result == len(known.results))

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """The inputs, and the rows' states."""
        return [*tensors, *made[-len(self.known(tensors).state) :]]

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The cotangents of rows, of the classes' weights and of the bias."""
        known, count = self._saved(saved)
        moving = [*known.ends.places, *[len(known.results)] * self.has_target]
        g = [grads[i] for i in moving]
        arguments = [getattr(self, name) for name in ARGUMENTS]
        made = OPERATIONS.linear_gradient(list(saved), g, list(wrt), *arguments)
        return at_places(made, wrt, count)

    def gradients(self, saved: Sequence[Tensor], g: Sequence[Tensor], wrt: Sequence[int]) -> list[Tensor]:
        """The cotangents of some of the inputs, of those of results that have one."""
        known, count = self._saved(saved)
        parts, function = self.parts(saved[:count]), _of_logits(known.ends, self.has_target)
        x, w, classes = parts.x, parts.w, parts.w.shape[0]
        rows, columns = [*saved[count:], *g], list[Tensor]()
        if parts.target is not None:
            rows.append(self._places(parts.target, classes).to(torch.int32))
            columns.append(torch.arange(classes, dtype=torch.int32, device=x.device))
        found = {i: saved[i].new_empty(saved[i].shape) for i in wrt if i}
        of_x: Tensor | None = None

        def of_logits(start: int, stop: int) -> Tensor:
            each = parts.elements(start, stop)
            shape = each[0].shape
            beside = [*(t.expand(shape) for t in rows), *(t[start:stop].expand(shape) for t in columns)]
            return self._fold([*each, *beside], function, (), dtype=x.dtype)[0]

        with as_given(x.device):
            for start, stop in chunks(x, classes):
                made = of_logits(start, stop)
                if 0 in wrt:
                    of_x = _added(of_x, made, w[start:stop])
                if 1 in wrt:
                    _multiply(made.t(), x, found[1][start:stop])
                if 2 in wrt:
                    found[2][start:stop] = self._fold([made], monoids.SUM, 0, dtype=w.dtype)[0]
                del made  # before the next ones are there
        if of_x is not None:
            found[0] = converted(of_x, x.dtype)
        return [found[i] for i in wrt]

    def _saved(self, saved: Sequence[Tensor]) -> tuple[Known, int]:
        """What is known of tensors of which states were saved, and how many these tensors are."""
        count = len(saved) - len(monoid_of(self.monoid).total.fields)
        return self.known(saved[:count]), count


@dataclass(frozen=True)
class Once(Call):
    """A gradient that has no derivative itself."""

    call: str

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """Refuse it.

        Raises:
            GradientError: always.
        """
        raise GradientError(
            f"{self.call}: a fold of a product has a first derivative alone, got a second one asked for; multiply first, and "
            "fold the logits"
        )


ARGUMENTS: tuple[str, ...] = tuple(field.name for field in fields(Linear))
# The same as torch's schemas of operations have them.
SCHEMA = "str monoid, bool has_bias, bool has_target, int ignore_index, bool validate, str call"


@kept_outside_modes(256)
def _of_logits(ends: Ends, has_target: bool) -> Monoid:
    """(a logit and its class's values, its row's total, cotangents, its target's place; its own) -> its cotangent."""
    k, n, m = len(ends.gradient.elements), ends.gradient.n, len(ends.places)
    by_total = ends.by_total((0,)) if m else None

    def run(*v: Any) -> Any:
        made: Any = 0.0 if by_total is None else by_total(*v[: k + n + m])[0]
        if has_target:
            of_own, place, own_place = v[k + n + m :]
            made = made + math.where(place == own_place, of_own, 0.0)
        return made * 1.0

    return function_of(trace(run, k + n + m + 3 * has_target))


# ---------------------------------------------------------------------------------------------------------- products


def _in_one(a: Tensor) -> bool:
    """Whether torch multiplies such tensors into float32 at once."""
    return a.is_cuda or a.dtype == compute_dtype(a.dtype)


def _multiplied(a: Tensor, b: Tensor) -> Tensor:
    """The product, as wide as it is summed."""
    wide = compute_dtype(a.dtype)
    if a.dtype != wide and _in_one(a):
        return torch.mm(a, b, out_dtype=wide)
    return torch.mm(a.to(wide), b.to(wide))


def _added(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """The product added to a total of its own memory."""
    if total is None:
        return _multiplied(a, b)
    if a.dtype != total.dtype and _in_one(a):
        return torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    return total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """The product, rounded once, into memory that there is."""
    if _in_one(a):
        torch.mm(a, b, out=out)
    else:
        out.copy_(_multiplied(a, b))


# -------------------------------------------------------------------------------------------------------------- calls


def linear_tensors(tensors: Sequence[Tensor], linear: Linear) -> list[Tensor]:
    """The results of a fold of validated tensors, [N, 1] each: the monoid's, the target's logit, the state's fields."""
    compiles = is_dynamo_compiling()
    if not compiles and is_plainly_differentiated(tensors):
        return DIFFERENTIATED["linear"](tensors, linear)
    if compiles or is_seen(tensors) or is_differentiated(tensors):
        made: list[Tensor] = OPERATIONS.linear(tensors, *(getattr(linear, name) for name in ARGUMENTS))
        return made
    return linear.run(tensors)
