"""A monoid: an associative way to combine states, and how elements become states and states become results."""

from __future__ import annotations

import inspect
import sys
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn

import torch
from torch.compiler import is_dynamo_compiling

from tilefold.algebra import expression, formulas, text
from tilefold.algebra.algebra import Algebra, FieldDtype, completed, number_text, with_positions
from tilefold.algebra.arguments import (
    argument_names,
    check_identity_fits,
    check_kinds,
    check_returns,
    checked_name,
    count_inputs,
    expect_arguments,
    field_dtypes,
    gives_elements,
    is_one_value,
    state_shape,
    take_elements,
)
from tilefold.algebra.domain import Declared, read_domain
from tilefold.algebra.expression import Graph
from tilefold.algebra.inlined import count_arguments, function_of, inlined
from tilefold.algebra.numbers import Number
from tilefold.algebra.proofs import laws
from tilefold.algebra.scalars import named, refuse, refuse_field
from tilefold.algebra.symbols import constants
from tilefold.errors import ArityError, MonoidError, TextError, TraceError, is_function, shown
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import outside_modes
from tilefold.runtime.notebooks import table
from tilefold.runtime.uncompiled import constant_in_graphs

Absorb = Callable[..., Any] | tuple[Callable[..., Any], Callable[..., Any]] | Literal[False] | None


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
        dtypes: per field, or one for all: "compute" (the default: what the field's own lift and combine make of it, int64
            for whole numbers, float32 or float64 for floats), "input" (the dtype of the inputs that it comes from), "index"
            (int64), or a torch dtype. A "compute" field of positions that are only chosen and compared is an "index".
        index: pass the element's position along the reduced dims (row-major, from 0) as lift's last argument.
        commutative: whether combine(a, b) == combine(b, a). Default: where combine's graph shows it and no sample denies
            it; what is not shown is ordered. Declared, it is checked on samples.
        domain: what the inputs are: for each, or one for all, a range (low, high), both ends among it and None for no end,
            or "any", "finite", "positive", "nonnegative", "negative", "nonpositive" (the last five finite), or None for
            anything. The laws are tried within it, and need to hold there only. Elements are not looked at when a fold
            runs: what others give is undefined, and may differ between runs that group them differently.
        name: for messages and plans.
        check: verify the laws on sampled reachable states. The functions are trusted code and run once, symbolically.
            Without it no sample is tried, and whether order matters is declared where combine's graph does not show it.

    Raises:
        TraceError: a function uses Python control flow or foreign operations on its arguments.
        ArityError: a function takes or returns the wrong number of values.
        LawError: identity or associativity fails on a sample, which the message shows, with a domain in which they hold
            where there is such a one.
        MonoidError: an argument is of the wrong kind; or with check=False nothing says whether order matters.
        DtypeError: a field's dtype is complex, or does not hold the identity; or nothing that is sampled can be folded. A
            fold raises it where whole numbers that are only chosen would be rounded beside floats.

    Example:
        >>> import tilefold
        >>> largest = tilefold.Monoid(tilefold.math.maximum, -float("inf"), name="largest")
        >>> tilefold.reduce(torch.tensor([[1.0, 5.0], [4.0, 2.0]]), largest, dim=1)
        tensor([5., 4.])
    """

    __slots__ = (
        "__weakref__",
        "_by_name",
        "_hash",
        "_state_type",
        "algebra",
        "name",
        "outputs",
        "several",
        "text",
        "total",
    )

    def __new__(cls, *given: Any, **named: Any) -> Monoid:
        """Inside of a graph that torch.compile makes, the monoid is a constant of it."""
        if is_dynamo_compiling():
            if cls.__init__ is not Monoid.__init__:
                refuse(
                    f"{cls.__name__}: inside of a compiled function a class of monoids must have Monoid's own __init__, got "
                    "one of its own; make the monoid outside, or by a function that returns Monoid(...)"
                )
            return _in_a_graph(cls, *given, **named)
        return object.__new__(cls)

    def __init__(
        self,
        combine: Callable[..., Any],
        identity: Number | Sequence[Number] | None,
        *,
        lift: Callable[..., Any] | None = None,
        project: Callable[..., Any] | None = None,
        absorb: Absorb = None,
        fields: Sequence[str] | None = None,
        dtypes: FieldDtype | Sequence[FieldDtype] | None = None,
        index: bool = False,
        commutative: bool | None = None,
        domain: Declared = None,
        name: str | None = None,
        check: bool = True,
    ) -> None:
        """Trace the functions, try the laws."""
        if is_dynamo_compiling():  # `__new__` has made it
            return
        self._by_name: tuple[Callable[[str], Monoid], tuple[str]] | None = None  # how it is pickled
        self._hash: int | None = None
        self.name = checked_name(name, combine)
        check_kinds(self.name, combine, lift, project, absorb, commutative, index=index, check=check)
        names, identities = state_shape(self.name, identity, fields)
        self._state_type = None if is_one_value(identity, fields) else _state_type(names)
        self.outputs: type | None = None  # the named tuple that results come in
        self.several = False  # whether they come in a tuple
        kinds = field_dtypes(self.name, "compute" if dtypes is None else dtypes, names)
        check_identity_fits(self.name, names, identities, kinds)
        inputs = len(names) if lift is None else count_inputs(self.name, lift, index=index)
        begin, block = absorb if isinstance(absorb, tuple) else (None, absorb or None)
        algebra = Algebra(
            fields=names,
            identity=None if identities is None else tuple(number_text(i) for i in identities),
            dtypes=kinds,
            inputs=inputs,
            index=index,
            commutative=bool(commutative),
            domain=read_domain(self.name, domain, inputs),
            derives=absorb is not False,
            **self._graphs(names, argument_names(inputs, index=index), lift, combine, project, block, begin),
        )
        self.algebra = with_positions(algebra)
        self._apply_laws(check, commutative)
        self.take(self.algebra)

    def take(self, algebra: Algebra) -> None:
        """Make this the monoid of an algebra, before anything has seen it."""
        self.algebra, self.total, self.text = algebra, completed(algebra), text.dumps(algebra)

    def _graphs(
        self,
        names: tuple[str, ...],
        elements: tuple[str, ...],
        lift: Callable[..., Any] | None,
        combine: Callable[..., Any],
        project: Callable[..., Any] | None,
        absorb: Callable[..., Any] | None,
        begin: Callable[..., Any] | None,
    ) -> dict[str, Any]:
        """The functions' graphs by role, once all take what they will be given. `elements` includes the position."""
        expect_arguments(self.name, "lift", lift, elements)
        expect_arguments(self.name, "combine", combine, ("a", "b"))
        expect_arguments(self.name, "project", project, names)
        expect_arguments(self.name, "absorb", absorb, ("state", *elements))
        expect_arguments(self.name, "absorb's begin", begin, elements)
        n, taken = len(names), len(elements)

        def pair(values: list[Any]) -> list[Any]:
            return [self._state(values[:n]), self._state(values[n:])]

        def block(values: list[Any]) -> list[Any]:
            return [self._state(values[:n]), *values[n:]]

        graphs: dict[str, Any] = {
            "lift": self._traced("lift", lift or take_elements(n), taken, names),
            "combine": self._traced("combine", combine, 2 * n, names, pair),
            "project": None if project is None else self._project(project, n),
            "absorb": None,
        }
        if absorb is not None:
            graphs["absorb"] = self._traced("absorb", absorb, n + taken, names, block, taken)
        if begin is not None:
            graphs["begin"] = self._traced("absorb", begin, taken, names, blocks=taken)
        return graphs

    def _apply_laws(self, check: bool, commutative: bool | None) -> None:
        """Try the laws on samples, and find whether order matters where nobody says so."""
        with outside_modes():
            if check:
                self.algebra = replace(self.algebra, folds_integers=laws.verify(self.algebra, self.name))
            if commutative is not None:
                return
            shown = laws.is_commutative(self.algebra, sampled=check)
            if not shown and not check:
                raise MonoidError(
                    f"{self.name}: with check=False, whether order matters must be declared where combine's graph does not "
                    "show it, got commutative=None; pass commutative=True, or False to have elements combined in order"
                )
            self.algebra = replace(self.algebra, commutative=shown)

    def _state(self, values: Sequence[Any]) -> Any:
        # torch.compile knows the class alone of a monoid that is a constant, and none of its functions.
        return values[0] if self._state_type is None else tuple.__new__(self._state_type, values)

    def _traced(
        self,
        role: str,
        function: Callable[..., Any],
        arity: int,
        names: Sequence[str],
        wrap: Callable[..., Sequence[Any]] | None = None,
        blocks: int = 0,
    ) -> Graph:
        """A function's graph, checked; `names` are the fields. The last `blocks` of its arguments are blocks of elements."""
        try:
            graph = expression.trace(function, arity, wrap=wrap)
        except TypeError as error:  # of a function of torch's, say, that tuples do not suit
            if "State" not in str(error):
                raise
            raise TraceError(
                f"{self.name}: {role} must be made of a state's fields, got a function that takes none of a whole state "
                f"({str(error).splitlines()[0]}); use the fields, {named(names)}, by operators and tilefold.math"
            ) from None
        check_returns(self.name, role, len(graph.outputs), names, scalar=self._state_type is None)
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
            self.outputs, self.several = type(kept[0]) if hasattr(kept[0], "_fields") else None, True
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
            if not self.several:
                return results[0]
            return tuple(results) if self.outputs is None else self.outputs(*results)
        return self._state(results)

    def __eq__(self, other: object) -> bool:
        """Whether the other has the same graphs, name and form of results, as a pickle of this one has."""
        if not isinstance(other, Monoid):
            return NotImplemented
        return self is other or self._parts() == other._parts()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._parts())
        return self._hash

    def _parts(self) -> tuple[Algebra, str, type | None, bool, bool]:
        return self.algebra, self.name, self.outputs, self.several, self._state_type is not None

    def __copy__(self) -> Monoid:
        return self  # nothing changes a monoid, and compiled kernels are kept by it

    def __deepcopy__(self, memo: dict[int, Any]) -> Monoid:
        return self

    def __reduce__(self) -> tuple[Callable[..., Monoid], tuple[Any, ...]]:
        """Pickled as its graphs, which are data: lambdas do not hinder. A member of the catalogue goes by its name."""
        if self._by_name is not None:
            return self._by_name
        if self.outputs is not None and not _has_a_name(self.outputs):
            raise MonoidError(
                f"{self.name}: what project returns must be found by its name to be pickled, got "
                f"{self.outputs.__qualname__}; define that class at the top of a module"
            )
        return restored, self._parts()

    def __repr__(self) -> str:
        order = "commutative" if self.commutative else "ordered"
        return f"Monoid({self.name}: {', '.join(self.fields)}; {order})"

    def _repr_html_(self) -> str:
        """What notebooks show: the traced functions as formulas."""
        algebra = self.algebra
        count = 0 if algebra.project is None else len(algebra.project.outputs)
        results = getattr(self.outputs, "_fields", None) or [f"result {i}" for i in range(count)]
        parts = (
            ("lift", formulas.lift_formulas(algebra)),
            ("combine", formulas.combine_formulas(algebra)),
            ("project", formulas.project_formulas(algebra, results)),
        )
        rows = [(name, line.name, line.text) for name, lines in parts for line in lines]
        return table(repr(self), rows, ("function", "value", "formula"))


# What help and editors show: inspect would take `__new__`'s.
_written = inspect.signature(Monoid.__init__)
Monoid.__signature__ = _written.replace(  # type: ignore[attr-defined]
    parameters=[*_written.parameters.values()][1:], return_annotation=inspect.Signature.empty
)


def _in_a_graph(
    cls: type[Monoid], combine: Any, identity: Any, *, lift: Any = None, project: Any = None, absorb: Any = None,
    fields: Any = None, index: bool = False, domain: Declared = None, **rest: Any,
) -> Monoid:  # fmt: skip
    """A monoid that is written inside of a compiled function. torch.compile traces this, and its functions by it."""
    identity, domain = constants(identity), constants(domain)
    written = _as_literals(combine, lift, project, absorb, identity, fields, index)
    return _made_of_literals(cls, written, identity, fields=fields, index=index, domain=domain, **rest)


def _as_literals(
    combine: Any, lift: Any, project: Any, absorb: Any, identity: Any, fields: Any, index: bool
) -> tuple[Any, ...]:
    """A monoid's functions as literals, once torch.compile has traced them; what is no function stays as it is."""
    name = checked_name(None, combine)
    names = _shape(name, identity, fields)
    state = None if is_one_value(identity, fields) else names
    inputs = count_arguments(name, "lift", lift) - index if is_function(lift) else len(names)

    def written(function: Any, arguments: Sequence[Any]) -> Any:
        return inlined(function, arguments, "a monoid's function") if is_function(function) else function

    elements = [None] * (inputs + index)
    begin, block = absorb if isinstance(absorb, tuple) else (None, absorb)
    return (
        written(combine, [state, state]),
        written(lift, elements),
        written(project, [None] * len(names)),
        written(begin, elements),
        written(block, [state, *elements]),
    )


@constant_in_graphs
def _shape(name: str, identity: Any, fields: Any) -> tuple[str, ...]:
    return state_shape(name, identity, fields)[0]


@constant_in_graphs
def _made_of_literals(cls: type[Monoid], written: Sequence[Any], identity: Any, **rest: Any) -> Monoid:
    """The monoid of `_as_literals`."""
    combine, lift, project, begin, block = map(function_of, written)
    absorb = block if begin is None else (begin, block)
    return cls(combine, identity, lift=lift, project=project, absorb=absorb, **rest)


@kept_outside_modes(256)
def _state_type(names: tuple[str, ...]) -> Any:
    """The named tuple of a state, which results come in: one of these names alone, and pickled by them."""
    make: Any = namedtuple  # the names are not known to a type checker
    made = make("State", names)
    made.__reduce__ = lambda state: (_unpickled_state, (names, tuple(state)))
    made.__getattr__ = _no_field
    return made


def _no_field(state: Any, name: str) -> NoReturn:
    refuse_field(name, state._fields)


def _unpickled_state(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _state_type(names)(*values)


def restored(algebra: Algebra, name: str, outputs: type | None, several: bool, tuple_state: bool) -> Monoid:
    """A pickled monoid; its laws were checked when it was made."""
    monoid = object.__new__(Monoid)
    monoid.name, monoid.outputs, monoid.several = name, outputs, several
    monoid.take(algebra)
    monoid._state_type = _state_type(algebra.fields) if tuple_state else None
    monoid._by_name = monoid._hash = None
    return monoid


@kept_outside_modes(1024)
def monoid_of(written: str) -> Monoid:
    """The monoid of a text, `Monoid.text`: a state of one field is a number; results are one tensor or a tuple.

    Raises:
        TextError: it is no monoid's.
    """
    algebra = text.loads(written)
    if not isinstance(algebra, Algebra):
        raise TextError(
            f"text: a monoid's text must be of an Algebra, got {shown(algebra)}; write Monoid.text"
        )
    return restored(algebra, "of_text", None, False, len(algebra.fields) > 1)


def _has_a_name(kind: type) -> bool:
    """Whether another process would find the class where this one says that it is."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind
