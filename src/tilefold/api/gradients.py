"""Folds, scans and maps that autograd sees: each backward is made of folds, scans and maps again, so that it has one, too.

What is saved are the inputs. States are folded again: a gradient of the total alone is one map whose rows are folded and read
once (`algebra.derivatives.folds`).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._functorch import autograd_function

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.derivatives.folds import Gradient, elementwise, opposite
from tilefold.algebra.derivatives.linear import as_float
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.monoid import Monoid, restored
from tilefold.algebra.typing import element_dtype
from tilefold.api import reduce as folds
from tilefold.api import reduce_map as maps
from tilefold.api import scan as scans
from tilefold.errors import GradientError
from tilefold.planner.products.functions import Traced, of_graph
from tilefold.problem.canonical import broadcast_shape, normalize_dims
from tilefold.runtime.caching import kept_outside_modes

# Private names of torch, as its functorch uses them: a Function that a kernel of the dispatcher may apply, and the context in
# which it may inside of a transform.
SingleLevel: Any = torch.autograd.function._SingleLevelFunction
one_level: Any = autograd_function.enable_single_level_autograd_function  # type: ignore[attr-defined]


class Call:
    """A call as its backward needs it: what is saved, which results change with an element, and the inputs' cotangents."""

    fills = True  # whether a cotangent that nobody asked for comes as zeros; else as None

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a call that has no derivative.

        Raises:
            GradientError: it has none.
        """

    def given(self, made: list[Tensor]) -> list[Tensor]:
        """The results that the caller gets, of those that the forward call makes."""
        return made

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """What the backward reads: the inputs, where nothing else is said."""
        return tensors

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return True

    @abc.abstractmethod
    def backward(self, saved: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents, None of those that are not asked for."""


class _Differentiated(SingleLevel):  # type: ignore[misc]  # torch's class is untyped
    """A call and its backward. `run` makes the results."""

    @staticmethod
    def forward(
        ctx: Any, call: Any, run: Callable[[Sequence[Tensor]], list[Tensor]], *tensors: Tensor
    ) -> Any:
        made = run(tensors)
        ctx.call = call
        ctx.set_materialize_grads(call.fills)
        wrt = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        ctx.save_for_backward(*call.saved(tensors, made, wrt))
        flat = [t for i, t in enumerate(made) if not (t.is_floating_point() and call.moves(i, tensors))]
        ctx.mark_non_differentiable(*flat)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        wrt = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        return None, None, *ctx.call.backward(ctx.saved_tensors, grads, wrt)


def applied(
    call: Call, run: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor]
) -> list[Tensor]:
    """The results of a call, with its backward.

    Raises:
        GradientError: it has none.
    """
    call.check(tensors)
    made = list(_Differentiated.apply(call, run, *tensors))
    return call.given(made)


# ------------------------------------------------------------------------------------------------------------ folds


@dataclass(frozen=True)
class Fold(Call):
    """A fold as its backward needs it. `convert` is the dtype that elements are read as, `call` its name in messages."""

    monoid: Monoid
    dims: Any
    convert: torch.dtype | None
    guarantee: str
    call: str = "reduce"

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a fold that has no derivative.

        Raises:
            GradientError: it is to extremes, which share ties as no rule here says.
        """
        check_fold(gradient_of_call(self.monoid, tensors, self.convert), tensors, self.dims, self.call)

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return result in gradient_of_call(self.monoid, tensors, self.convert).results

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents."""
        gradient = gradient_of_call(self.monoid, tensors, self.convert)
        shape = broadcast_shape(tensors, self.call)
        dims = normalize_dims(self.dims, len(shape), self.call)
        kept = [1 if d in dims else n for d, n in enumerate(shape)]
        cotangents = [grads[i].reshape(kept).expand(shape) for i in gradient.results]
        wide = Wide(tensors, shape, dims, self.convert, self.guarantee)
        return as_inputs(wide.of_fold(gradient, cotangents, wrt, self.call), tensors, wrt)


def check_fold(gradient: Gradient, tensors: Sequence[Tensor], dims: Any, call: str) -> None:
    """Refuse folds of several elements to extremes.

    Raises:
        GradientError: it is one.
    """
    shape = broadcast_shape(tensors, call)
    if any(shape[d] != 1 for d in normalize_dims(dims, len(shape), call)):
        check_ties(gradient, call)


def check_ties(gradient: Gradient, call: str) -> None:
    """Refuse folds to extremes.

    Raises:
        GradientError: it is one.
    """
    if gradient.shares_ties and gradient.results:
        raise GradientError(
            f"{call}: a fold to an extreme, whose ties share its gradient, has no derivative yet, got an input that requires "
            "grad; use torch.amax, torch.amin or torch.linalg.vector_norm where a gradient is needed, else torch.no_grad()"
        )


def check_grouping(gradient: Gradient, call: str) -> None:
    """Refuse states that are no values of their elements.

    Raises:
        GradientError: fields depend on how a state was grouped, and no project gives the same for every grouping.
    """
    if gradient.algebra.project is None and not gradient.keeps_fields:
        raise GradientError(
            f"{call}: a state whose fields depend on how it was grouped (sums about a pivot) has no derivative, got an "
            "input that requires grad; give the monoid a project that gives the same for every grouping"
        )


def gradient_of_call(monoid: Monoid, tensors: Sequence[Tensor], convert: torch.dtype | None) -> Gradient:
    """The gradient of a fold of these tensors."""
    return derived(monoid, tuple(convert or t.dtype for t in tensors))


@kept_outside_modes(512)
def derived(monoid: Monoid, elements: tuple[torch.dtype, ...]) -> Gradient:
    """The gradient of a monoid's folds of such elements, derived once."""
    return Gradient(monoid.total, elements)


@dataclass(frozen=True)
class Wide:
    """The tensors of a call at its whole shape, and how its rows are folded."""

    tensors: Sequence[Tensor]
    shape: Sequence[int]
    dims: tuple[int, ...]
    convert: torch.dtype | None
    guarantee: str

    @property
    def elements(self) -> list[Tensor]:
        """The tensors, expanded and as they are read."""
        given = [t.expand(self.shape) for t in self.tensors]
        wide = [element_dtype(self.convert or t.dtype) if t.is_floating_point() else t.dtype for t in given]
        return [t if t.dtype == w else t.to(w) for t, w in zip(given, wide, strict=True)]

    def of_fold(
        self,
        gradient: Gradient,
        cotangents: Sequence[Tensor],
        wrt: Sequence[int],
        call: str,
        after: Any = None,
    ) -> list[Tensor]:
        """Cotangents of some inputs, at the whole shape, of those of the results that have one."""
        if all(self.shape[d] == 1 for d in self.dims) or 0 in self.shape:
            return self._alone(gradient, cotangents, wrt)
        if needs_total_alone(gradient, after):
            given = [t.expand(self.shape) for t in self.tensors]
            return maps.map_tensors(
                given, states_of(gradient), of_total(gradient, tuple(wrt)), self.dims, extras=cotangents,
                convert=self.convert, guarantee=self.guarantee, call=call,
            )  # fmt: skip
        check_grouping(gradient, call)
        return self._around(gradient, cotangents, wrt)

    def _alone(self, gradient: Gradient, cotangents: Sequence[Tensor], wrt: Sequence[int]) -> list[Tensor]:
        """Each element is a row of its own."""
        elements = [*self.elements, *positions(gradient, self.shape, self.dims, cotangents[0].device)]
        return cells(_of_lifts(gradient, tuple(wrt)), [*elements, *cotangents])

    def _around(self, gradient: Gradient, cotangents: Sequence[Tensor], wrt: Sequence[int]) -> list[Tensor]:
        """From the prefix and the suffix of each element of a row."""
        elements = [*self.elements, *positions(gradient, self.shape, self.dims, cotangents[0].device)]
        rows = [as_rows(t, self.dims) for t in (*elements, *cotangents)]
        x, g = rows[: len(elements)], rows[len(elements) :]
        before = scans.scan_tensors(x, states_of(gradient), 1, exclusive=True, guarantee=self.guarantee)
        after = scans.scan_tensors(
            x, _turned(gradient), 1, exclusive=True, reverse=True, guarantee=self.guarantee
        )
        made = cells(of_neighbours(gradient, tuple(wrt)), [*before, *x, *after, *g])
        return [from_rows(t, self.shape, self.dims) for t in made]


def as_rows(t: Tensor, dims: Sequence[int]) -> Tensor:
    """A tensor as [rows, elements of the reduced dims]."""
    kept = [d for d in range(t.ndim) if d not in dims]
    length = math.prod(t.shape[d] for d in dims)
    return t.permute(*kept, *dims).reshape(-1, length)


def from_rows(t: Tensor, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """What `as_rows` was made of."""
    order = [*(d for d in range(len(shape)) if d not in dims), *dims]
    back = [order.index(d) for d in range(len(shape))]
    return t.reshape([shape[d] for d in order]).permute(back)


def positions(
    gradient: Gradient, shape: Sequence[int], dims: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Each element's position in its row, where the monoid takes it."""
    if not gradient.algebra.index:
        return []
    sizes = [n if d in dims else 1 for d, n in enumerate(shape)]
    return [torch.arange(math.prod(sizes), device=device).reshape(sizes).expand(shape)]


def as_inputs(made: Sequence[Tensor], tensors: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
    """A cotangent for each input: of its shape and dtype, or None."""
    found: list[Any] = [None] * len(tensors)
    for i, g in zip(wrt, made, strict=True):
        found[i] = g.sum_to_size(tensors[i].shape).to(tensors[i].dtype)
    return found


def monoid_of_algebra(algebra: Algebra) -> Monoid:
    """A monoid that no law is asked of."""
    return restored(algebra, "gradient", None, True)


@kept_outside_modes(512)
def states_of(gradient: Gradient) -> Monoid:
    """The monoid whose results are states."""
    return monoid_of_algebra(gradient.states)


@kept_outside_modes(512)
def lifts_of(gradient: Gradient) -> Monoid:
    """The state of each element."""
    return function_of(gradient.program.lift.graph)


@kept_outside_modes(512)
def _turned(gradient: Gradient) -> Monoid:
    """The same, combined the other way round."""
    return monoid_of_algebra(opposite(gradient.states))


@kept_outside_modes(512)
def needs_total_alone(gradient: Gradient, after: Any) -> bool:
    """`Gradient.needs_total_alone`, asked once."""
    return gradient.needs_total_alone(after)


def cells(function: Monoid, tensors: Sequence[Tensor]) -> list[Tensor]:
    """A function of every element of tensors of one shape."""
    graph = function.algebra.lift
    given = [graph.nodes[o] for o in graph.outputs]
    if all(node.op == "input" for node in given):
        return [tensors[node.value] for node in given]
    return folds.fold_tensors(tensors, function, (), False)


def function_of(graph: Graph) -> Monoid:
    """A function of elements, as the fold over no dims that makes it."""
    return monoid_of_algebra(elementwise(graph))


@kept_outside_modes(512)
def of_total(gradient: Gradient, wrt: tuple[int, ...]) -> Traced:
    """(elements, states, cotangents of the results) -> cotangents of elements."""
    k, n = gradient.algebra.inputs, gradient.n

    def run(*v: Any) -> tuple[Any, ...]:
        x, total, g = v[:k], v[k : k + n], v[k + n :]
        gs = pullback(gradient.program.project, total, gradient.of_results(g))
        found, _ = gradient.by_total(x, total, gs)
        return tuple(as_float(found[i]) for i in wrt)

    return of_graph(trace(run, k + n + len(gradient.results)))


@kept_outside_modes(512)
def _of_lifts(gradient: Gradient, wrt: tuple[int, ...]) -> Monoid:
    """(elements, cotangents of the results) -> cotangents of elements, of rows of one."""
    k = gradient.program.lift.graph.arity

    def run(*v: Any) -> tuple[Any, ...]:
        x = v[:k]
        s = gradient.program.lift.graph(*x)
        gs = pullback(gradient.program.project, s, gradient.of_results(v[k:]))
        found = pullback(gradient.program.lift, x, gs)
        return tuple(as_float(found[i]) for i in wrt)

    return function_of(trace(run, k + len(gradient.results)))


@kept_outside_modes(512)
def of_neighbours(gradient: Gradient, wrt: tuple[int, ...]) -> Monoid:
    """(prefix, elements, suffix, cotangents of the results) -> cotangents of elements."""
    k, n = gradient.program.lift.graph.arity, gradient.n

    def run(*v: Any) -> tuple[Any, ...]:
        found = gradient.around(v[:n], v[n : n + k], v[n + k : 2 * n + k], v[2 * n + k :])
        return tuple(as_float(found[i]) for i in wrt)

    return function_of(trace(run, 2 * n + k + len(gradient.results)))
