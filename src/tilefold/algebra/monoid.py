"""A monoid: an associative way to combine states, and how elements become states and states become results."""

from __future__ import annotations

import functools
import sys
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from tilefold.algebra import expression
from tilefold.algebra.algebra import Algebra, FieldDtype, completed, number_text
from tilefold.algebra.arguments import (
    check_identity_fits,
    check_kinds,
    expect_arguments,
    field_dtypes,
    gives_elements,
    positional_count,
    state_shape,
    take_elements,
)
from tilefold.algebra.expression import Graph
from tilefold.algebra.operations import Number
from tilefold.errors import ArityError, MonoidError


class Monoid:
    """An associative fold, written once, run anywhere.

    The fold of x_0 ... x_{n-1} is project(combine(... combine(lift(x_0), lift(x_1)) ..., lift(x_{n-1}))), combined in
    any grouping; in any order too where `commutative` holds.

    Args:
        combine: `combine(a, b) -> state`, associative. For a tuple state, a and b are named tuples of the fields.
        identity: the state e with combine(e, s) == combine(s, e) == s: a number, or a tuple of one number a field.
            None where there is none: absent elements are then selected away, and folding nothing is an error. An
            infinity on its way into an integer field, given or chosen by a function, means the dtype's least or greatest
            value; where arithmetic with that one wraps and so breaks a law, as in min-plus products, the monoid folds
            floats only.
        lift: `lift(x[, y, ...][, i]) -> state` for one element of each input. Default: the elements are the state.
        project: `project(*state)` -> the result, one value or a tuple. Default: the state.
        absorb: `absorb(state, x[, y, ...][, i]) -> state` takes a block of further elements, whose positions may be
            before the state's own: `tilefold.math.block_max`, `block_min`, `block_sum`, `block_count` turn the block into
            one value. Must equal combining the lifted elements one by one; use it where one rescaling serves the whole
            block. A pair `(begin, absorb)` says besides how a first block becomes a state:
            `begin(x[, y, ...][, i]) -> state`.
            None: derived from `combine` where every field is the sum, maximum or minimum of one term of either side, as
            in a max-shifted sum, and where that agrees with `combine` on samples. False: none, and none is derived.
        fields: names of a tuple state, each matching [A-Za-z][A-Za-z0-9_]{0,63} and no keyword.
        dtypes: per field, or one for all: "compute" (the default: float32 for floats up to 32 bits, float64, int64 for
            integers and bool), "input", "index" (int64), or a torch dtype. A "compute" field of an integer fold in which
            the algebra makes fractions is float32.
        index: pass the element's position along the folded dims (row-major, from 0) as lift's last argument.
        commutative: whether combine(a, b) == combine(b, a). Default: found out on samples; absent when unsure.
        name: for messages and plans.
        check: verify the laws on sampled reachable states. The functions are trusted code and run once, symbolically.

    Raises:
        TraceError: a function uses Python control flow or foreign operations on its arguments.
        ArityError: a function takes or returns the wrong number of values.
        LawError: identity or associativity fails on a sample, which the message shows.
        DtypeError: a field's dtype is complex, or does not hold the identity; or nothing that is sampled can be folded.

    Example:
        >>> import tilefold
        >>> largest = tilefold.Monoid(tilefold.math.maximum, -float("inf"), name="largest")
        >>> tilefold.reduce(torch.tensor([[1.0, 5.0], [4.0, 2.0]]), largest, dim=1)
        tensor([5., 4.])
    """

    __slots__ = ("_state_type", "algebra", "name", "outputs", "total")

    def __init__(
        self,
        combine: Callable[..., Any],
        identity: Number | Sequence[Number] | None,
        *,
        lift: Callable[..., Any] | None = None,
        project: Callable[..., Any] | None = None,
        absorb: Callable[..., Any]
        | tuple[Callable[..., Any], Callable[..., Any]]
        | Literal[False]
        | None = None,
        fields: Sequence[str] | None = None,
        dtypes: FieldDtype | Sequence[FieldDtype] | None = None,
        index: bool = False,
        commutative: bool | None = None,
        name: str | None = None,
        check: bool = True,
    ) -> None:
        self.name = str(name or getattr(combine, "__name__", "monoid").strip("<>"))
        check_kinds(self.name, combine, lift, project, absorb, commutative, index=index, check=check)
        names, identities = state_shape(self.name, identity, fields)
        scalar = fields is None and not isinstance(identity, tuple | list)
        self._state_type = None if scalar else _state_type(names)
        n, inputs = len(names), len(names)
        if lift is not None:
            inputs = positional_count(self.name, "lift", lift) - index
            if inputs < 1:
                before = " before the index" if index else ""
                raise ArityError(
                    f"{self.name}: lift must take at least one element{before}, got {inputs}; add an argument for it"
                )
        taken = inputs + index
        expect_arguments(self.name, "lift", lift, taken)
        expect_arguments(self.name, "combine", combine, 2)
        expect_arguments(self.name, "project", project, n)
        derives, begin = absorb is not False, None
        if isinstance(absorb, tuple):
            begin, absorb = absorb
        absorb = absorb or None
        expect_arguments(self.name, "absorb", absorb, 1 + taken)
        expect_arguments(self.name, "absorb's begin", begin, taken)
        self.outputs: type | None = None
        kinds = field_dtypes(self.name, "compute" if dtypes is None else dtypes, names)
        check_identity_fits(self.name, names, identities, kinds)
        self.algebra = Algebra(
            fields=names,
            identity=None if identities is None else tuple(number_text(i) for i in identities),
            dtypes=kinds,
            inputs=inputs,
            index=index,
            commutative=bool(commutative),
            lift=self._traced("lift", lift or take_elements(n), taken, n),
            combine=self._traced(
                "combine", combine, 2 * n, n, lambda s: [self._state(s[:n]), self._state(s[n:])]
            ),
            project=None if project is None else self._project(project, n),
            absorb=None
            if absorb is None
            else self._traced("absorb", absorb, n + taken, n, lambda s: [self._state(s[:n]), *s[n:]], taken),
            begin=None if begin is None else self._traced("absorb", begin, taken, n, blocks=taken),
            derives=derives,
        )
        if check or commutative is None:
            self._apply_laws(check, commutative)
        self.total = completed(self.algebra)

    def _apply_laws(self, check: bool, commutative: bool | None) -> None:
        from tilefold.algebra import laws, samples  # need torch evaluation: not at import of the catalogue

        with samples.real_samples():
            if check:
                object.__setattr__(self.algebra, "folds_integers", laws.verify(self.algebra, self.name))
            if commutative is None:
                object.__setattr__(self.algebra, "commutative", laws.is_commutative(self.algebra))

    def _state(self, values: Sequence[Any]) -> Any:
        return values[0] if self._state_type is None else self._state_type(*values)

    def _traced(
        self,
        role: str,
        function: Callable[..., Any],
        arity: int,
        outputs: int,
        wrap: Callable[..., Sequence[Any]] | None = None,
        blocks: int = 0,
    ) -> Graph:
        """A function's graph, checked; the last `blocks` of its arguments are blocks of elements."""
        graph = expression.trace(function, arity, wrap=wrap)
        if len(graph.outputs) != outputs:
            wanted = "one value" if outputs == 1 else f"{outputs} values, one for each state field"
            raise ArityError(
                f"{self.name}: {role} must return {wanted}, got {len(graph.outputs)}; return the whole state"
            )
        if role != "absorb" and any(node.op.startswith("block_") for node in graph.nodes):
            raise MonoidError(
                f"{self.name}: block functions stand only in absorb, got one in {role}; combine works on two states"
            )
        if blocks and gives_elements(graph, arity - blocks):
            raise MonoidError(
                f"{self.name}: absorb must give one value a field for a whole block, got one for each element; take "
                "tilefold.math.block_sum of it, or another block function"
            )
        return graph

    def _project(self, project: Callable[..., Any], n: int) -> Graph:
        kept: list[Any] = []

        def remember(*state: Any) -> Any:
            kept.append(project(*state))
            return kept[0]

        remember.__name__ = getattr(project, "__name__", "project")
        graph = expression.trace(remember, n)
        if not graph.outputs:
            raise ArityError(
                f"{self.name}: project must return one value or more, got none; leave project out to get the state"
            )
        if isinstance(kept[0], tuple | list):
            self.outputs = type(kept[0]) if hasattr(kept[0], "_fields") else tuple
        return graph

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the state's fields."""
        return self.algebra.fields

    @property
    def commutative(self) -> bool:
        """Whether the engine may combine states in any order."""
        return self.algebra.commutative

    def pack(self, results: Sequence[torch.Tensor]) -> Any:
        """Arrange result tensors as the user wrote them: one tensor, a tuple, or a named tuple."""
        if self.algebra.project is not None:
            if self.outputs is None:
                return results[0]
            return tuple(results) if self.outputs is tuple else self.outputs(*results)
        return self._state(results)

    def __copy__(self) -> Monoid:
        return self  # nothing changes a monoid, and compiled kernels are kept by it

    def __deepcopy__(self, memo: dict[int, Any]) -> Monoid:
        return self

    def __reduce__(self) -> tuple[Callable[..., Monoid], tuple[Any, ...]]:
        """Pickled as its graphs, which are data: lambdas do not hinder. A member of the catalogue goes by its name."""
        from tilefold.algebra import catalogue  # it is made of monoids

        for name in catalogue.__all__:
            if getattr(catalogue, name) is self:
                return _member, (name,)
        if self.outputs is not None and not _has_a_name(self.outputs):
            raise MonoidError(
                f"{self.name}: what project returns must be found by its name to be pickled, got "
                f"{self.outputs.__qualname__}; define that class at the top of a module"
            )
        return _restored, (self.algebra, self.name, self.outputs, self._state_type is not None)

    def __repr__(self) -> str:
        order = "commutative" if self.commutative else "ordered"
        return f"Monoid({self.name}: {', '.join(self.fields)}; {order})"


@functools.lru_cache(maxsize=256)
def _state_type(names: tuple[str, ...]) -> Any:
    """The named tuple of a state, which results come in: one of these names alone, and pickled by them."""
    make: Any = namedtuple  # the names are not known to a type checker
    made = make("State", names)
    made.__reduce__ = lambda state: (_unpickled_state, (names, tuple(state)))
    return made


def _unpickled_state(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _state_type(names)(*values)


def _member(name: str) -> Monoid:
    from tilefold.algebra import catalogue

    member: Monoid = getattr(catalogue, name)
    return member


def _restored(algebra: Algebra, name: str, outputs: type | None, tuple_state: bool) -> Monoid:
    """A pickled monoid; its laws were checked when it was made."""
    monoid = Monoid.__new__(Monoid)
    monoid.name, monoid.algebra, monoid.outputs = name, algebra, outputs
    monoid._state_type = _state_type(algebra.fields) if tuple_state else None
    monoid.total = completed(algebra)
    return monoid


def _has_a_name(kind: type) -> bool:
    """Whether another process would find the class where this one says that it is."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind
