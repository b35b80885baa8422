"""A monoid: an associative way to combine states, and how elements become states and states become results."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tilefold.algebra import expression, typing
from tilefold.algebra.expression import Graph, Number, fits_a_float, plain_number, short_text
from tilefold.errors import ArityError, DtypeError, MonoidError

FieldDtype = str | torch.dtype
_NAME = re.compile(r"[A-Za-z]\w{0,63}\Z", re.ASCII)


@dataclass(frozen=True)
class Algebra:
    """What the engine computes with: graphs and their signature, nothing else. Equal algebras share compiled kernels.

    With n fields and k inputs: `lift` takes k elements (and the index) and gives n; `combine` takes 2 n and gives n;
    `absorb` takes n, then k blocks (and their indices) and gives n; `begin` takes the blocks alone and gives n; `project`
    takes n and gives the outputs. `derives`: without `absorb`, a block form may be derived from `combine`.
    `folds_integers`: not where the laws hold for floats alone, an infinity being no number that integers have.
    """

    fields: tuple[str, ...]
    identity: tuple[str, ...] | None
    dtypes: tuple[FieldDtype, ...]
    inputs: int
    index: bool
    commutative: bool
    lift: Graph
    combine: Graph
    project: Graph | None
    absorb: Graph | None
    begin: Graph | None = None
    derives: bool = True
    folds_integers: bool = True

    @property
    def identity_numbers(self) -> tuple[Number, ...] | None:
        """The identity as Python numbers, one a field; None where there is none."""
        return None if self.identity is None else tuple(_parse_number(text) for text in self.identity)

    @property
    def index_is_label(self) -> bool:
        """Whether index fields are only compared and selected, never computed with, so that 32 bits can hold them."""
        labels = [i for i, dtype in enumerate(self.dtypes) if dtype == "index"]
        return bool(labels) and all(
            _only_moves(graph, frozenset(inputs), list(labels)) for graph, inputs in self._index_flows(labels)
        )

    def _index_flows(self, labels: Sequence[int]) -> list[tuple[Graph, list[int]]]:
        n = len(self.fields)
        flows = [(self.lift, [self.inputs]), (self.combine, [*labels, *(n + i for i in labels)])]
        if self.absorb is not None:
            flows.append((self.absorb, [*labels, n + self.inputs]))
        if self.begin is not None:
            flows.append((self.begin, [self.inputs]))
        return flows


def _parse_number(text: str) -> Number:
    kind, _, literal = text.partition(" ")
    return literal == "True" if kind == "bool" else int(literal) if kind == "int" else float(literal)


def _number_text(number: Number) -> str:
    return f"{type(number).__name__} {number!r}"


_MOVES = {"where", "minimum", "maximum", "block_min", "block_max", "block_first"}
_TESTS = {"lt", "le", "gt", "ge", "eq", "ne"}


def _only_moves(graph: Graph, tainted_inputs: frozenset[int], label_outputs: Sequence[int]) -> bool:
    """Whether values from `tainted_inputs` reach only comparisons, selections and the label outputs."""
    tainted = set[int]()
    for position, node in enumerate(graph.nodes):
        if node.op == "input":
            if node.value in tainted_inputs:
                tainted.add(position)
        elif any(a in tainted for a in node.args):
            if node.op in _MOVES:
                tainted.add(position)
            elif node.op not in _TESTS:
                return False
    return all(o not in tainted or i in label_outputs for i, o in enumerate(graph.outputs))


class Monoid:
    """An associative fold, written once, run anywhere.

    The fold of x_0 ... x_{n-1} is project(combine(... combine(lift(x_0), lift(x_1)) ..., lift(x_{n-1}))), combined in
    any grouping; in any order too where `commutative` holds.

    Args:
        combine: `combine(a, b) -> state`, associative. For a tuple state, a and b are named tuples of the fields.
        identity: the state e with combine(e, s) == combine(s, e) == s: a number, or a tuple of one number a field.
            None where there is none: absent elements are then selected away, and folding nothing is an error. An
            infinity in an integer field means the dtype's least or greatest value; where arithmetic with that one
            wraps and so breaks a law, as in min-plus products, the monoid folds floats only.
        lift: `lift(x[, y, ...][, i]) -> state` for one element of each input. Default: the elements are the state.
        project: `project(*state)` -> the result, one value or a tuple. Default: the state.
        absorb: `absorb(state, x[, y, ...][, i]) -> state` takes a block of elements that come after the state's own:
            `tilefold.math.block_max`, `block_min`, `block_sum`, `block_count` turn the block into one value. Must equal
            combining the lifted elements one by one; use it where one rescaling serves the whole block. A pair
            `(begin, absorb)` says besides how a first block becomes a state: `begin(x[, y, ...][, i]) -> state`.
            None: derived from `combine` where every field is the sum, maximum or minimum of one term of either side, as
            in a max-shifted sum, and where that agrees with `combine` on samples. False: none, and none is derived.
        fields: names of a tuple state, each matching [A-Za-z][A-Za-z0-9_]{0,63} and no keyword.
        dtypes: per field, or one for all: "compute" (float32 for floats up to 32 bits, float64, int64 for integers and
            bool), "input", "index" (int64), or a torch dtype. A "compute" field of an integer fold in which the algebra
            makes fractions is float32.
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
        dtypes: FieldDtype | Sequence[FieldDtype] = "compute",
        index: bool = False,
        commutative: bool | None = None,
        name: str | None = None,
        check: bool = True,
    ) -> None:
        self.name = name or getattr(combine, "__name__", "monoid").strip("<>")
        _check_kinds(self.name, combine, lift, project, absorb, index)
        names, identities = _state_shape(self.name, identity, fields)
        scalar = fields is None and not isinstance(identity, tuple | list)
        self._state_type = None if scalar else _state_type(names)
        n, inputs = len(names), len(names)
        if lift is not None:
            inputs = _positional_count(self.name, "lift", lift) - int(index)
            if inputs < 1:
                before = " before the index" if index else ""
                raise ArityError(
                    f"{self.name}: lift must take at least one element{before}, got {inputs}; add an argument for it"
                )
        _expect_arguments(self.name, "lift", lift, inputs + int(index))
        _expect_arguments(self.name, "combine", combine, 2)
        _expect_arguments(self.name, "project", project, n)
        derives, begin = absorb is not False, None
        if isinstance(absorb, tuple):
            begin, absorb = absorb
        absorb = absorb or None
        _expect_arguments(self.name, "absorb", absorb, 1 + inputs + int(index))
        _expect_arguments(self.name, "absorb's begin", begin, inputs + int(index))
        self.outputs: type | None = None
        kinds = _field_dtypes(self.name, dtypes, names)
        _check_identity_fits(self.name, names, identities, kinds)
        self.algebra = Algebra(
            fields=names,
            identity=None if identities is None else tuple(_number_text(i) for i in identities),
            dtypes=kinds,
            inputs=inputs,
            index=index,
            commutative=bool(commutative),
            lift=self._traced("lift", lift or _take_elements(n), inputs + int(index), n),
            combine=self._traced(
                "combine", combine, 2 * n, n, lambda s: [self._state(s[:n]), self._state(s[n:])]
            ),
            project=None if project is None else self._project(project, n),
            absorb=None
            if absorb is None
            else self._traced(
                "absorb", absorb, n + inputs + int(index), n, lambda s: [self._state(s[:n]), *s[n:]]
            ),
            begin=None if begin is None else self._traced("absorb", begin, inputs + int(index), n),
            derives=derives,
        )
        if check or commutative is None:
            self._apply_laws(check, commutative)
        self.total = completed(self.algebra)

    def _apply_laws(self, check: bool, commutative: bool | None) -> None:
        from tilefold.algebra import laws  # needs torch evaluation: not at import of the catalogue

        with laws.real_samples():
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
    ) -> Graph:
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


def _check_kinds(
    monoid: str, combine: object, lift: object, project: object, absorb: object, index: object
) -> None:
    """Refuse what is no function where one belongs."""
    for role, function in (("combine", combine), ("lift", lift), ("project", project)):
        if not callable(function) and (function is not None or role == "combine"):
            raise MonoidError(
                f"{monoid}: {role} must be a function, got {function!r}; give one of Python, a lambda say"
            )
    functions = absorb if isinstance(absorb, tuple) and len(absorb) == 2 else (absorb,)
    if absorb is not None and absorb is not False and not all(map(callable, functions)):
        raise MonoidError(
            f"{monoid}: absorb must be a function, a pair of them, None or False, got {absorb!r}; "
            "leave it out to have it derived"
        )
    if not isinstance(index, bool):
        raise MonoidError(
            f"{monoid}: index must be True or False, got {index!r}; True passes positions to lift"
        )


def _state_shape(
    monoid: str, identity: Number | Sequence[Number] | None, fields: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[Number, ...] | None]:
    identities = (
        None if identity is None else tuple(identity) if isinstance(identity, tuple | list) else (identity,)
    )
    if fields is None:
        names = tuple(f"field{i}" for i in range(len(identities or (0,))))
        names = ("value",) if len(names) == 1 else names
    elif isinstance(fields, str):
        names = (fields,)
    elif isinstance(fields, Iterable):
        names = tuple(fields)
    else:
        raise MonoidError(f"{monoid}: fields must be a sequence of names, got {fields!r}; name each field")
    for name in names:
        if not isinstance(name, str) or not _NAME.match(name) or keyword.iskeyword(name):
            raise MonoidError(
                f"{monoid}: a field name must match [A-Za-z][A-Za-z0-9_]{{0,63}} and be no keyword, got {name!r}; rename it"
            )
    if not names or len(set(names)) != len(names):
        raise MonoidError(f"{monoid}: fields must be distinct and at least one, got {names}; name each once")
    if identities is not None:
        for number in identities:
            if not isinstance(number, bool | int | float):
                raise MonoidError(
                    f"{monoid}: the identity must be a Python number for each field, got {type(number).__name__}; "
                    "write a number, or None where there is no identity"
                )
            if not fits_a_float(number):
                raise MonoidError(
                    f"{monoid}: the identity must be a number that a float or 64 bits can hold, got {short_text(number)}; "
                    "write an infinity"
                )
        identities = tuple(map(plain_number, identities))
        if len(identities) != len(names):
            raise ArityError(
                f"{monoid}: the identity must have one number for each of the fields {names}, got {len(identities)}; "
                "give as many, or name as many fields"
            )
    return names, identities


def _field_dtypes(
    monoid: str, dtypes: FieldDtype | Sequence[FieldDtype], names: Sequence[str]
) -> tuple[FieldDtype, ...]:
    one = isinstance(dtypes, str | torch.dtype) or not isinstance(dtypes, Iterable)
    each: tuple[Any, ...] = (dtypes,) * len(names) if one else tuple(dtypes)  # type: ignore[arg-type]  # see `one`
    if len(each) != len(names):
        raise ArityError(
            f"{monoid}: dtypes must be one for all or one for each of the fields {tuple(names)}, got {len(each)}; "
            "give as many"
        )
    for dtype in each:
        if not isinstance(dtype, torch.dtype) and dtype not in ("compute", "input", "index"):
            raise MonoidError(
                f'{monoid}: a field dtype must be "compute", "input", "index" or a torch dtype, got {dtype!r}; '
                "choose one of them"
            )
        if isinstance(dtype, torch.dtype) and dtype not in typing.FOLDABLE:
            fix = "carry real and imaginary parts in two fields" if dtype.is_complex else "choose another"
            raise DtypeError(f"{monoid}: a field dtype must be of real numbers or bool, got {dtype}; {fix}")
    return each


def _check_identity_fits(
    monoid: str, names: Sequence[str], identities: Sequence[Number] | None, dtypes: Sequence[FieldDtype]
) -> None:
    """Refuse an identity that its field's own dtype cannot hold. Those of "compute" and "input" depend on the fold."""
    for name, number, dtype in zip(names, identities or (), dtypes, strict=identities is not None):
        own = torch.int64 if dtype == "index" else dtype
        if isinstance(own, torch.dtype):
            typing.concrete(number, typing.carried_dtype(own), f"{monoid}: {name}")


def _take_elements(n: int) -> Callable[..., Any]:
    return lambda *elements: tuple(elements[:n])


def _positional_count(monoid: str, role: str, function: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise ArityError(
            f"{monoid}: {role} must tell its arguments so that they can be counted, got {function!r} without a signature; "
            "write it as a lambda"
        ) from None
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        raise ArityError(
            f"{monoid}: {role} must name its arguments so that they can be counted, got *arguments; write them out"
        )
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)


def _expect_arguments(monoid: str, role: str, function: Callable[..., Any] | None, expected: int) -> None:
    """One clear line instead of Python's TypeError from inside the trace."""
    if function is None:
        return
    try:
        inspect.signature(function).bind(*range(expected))
    except TypeError as error:
        raise ArityError(
            f"{monoid}: {role} must take {expected} argument{'s' * (expected > 1)}, got a signature with: {error}; mend it"
        ) from None
    except ValueError:  # a builtin like max tells no signature: tracing it says what is wrong
        return


PRESENT = "is_present"


def completed(algebra: Algebra) -> Algebra:
    """A monoid for a fold without an identity: a flag says whether a state stands for anything yet."""
    if algebra.identity is not None:
        return algebra
    n = len(algebra.fields)

    def combine(*values: Any) -> tuple[Any, ...]:
        a, b = values[: n + 1], values[n + 1 :]
        both = algebra.combine(*a[:n], *b[:n])
        kept = [expression.apply("where", b[n], c, x) for c, x in zip(both, a[:n], strict=True)]
        merged = [expression.apply("where", a[n], x, y) for x, y in zip(kept, b[:n], strict=True)]
        return (*merged, a[n] | b[n])

    def lift(*elements: Any) -> tuple[Any, ...]:
        return (*algebra.lift(*elements), True)

    def project(*state: Any) -> tuple[Any, ...]:
        return state[:n] if algebra.project is None else algebra.project(*state[:n])

    arity = algebra.inputs + int(algebra.index)
    return Algebra(
        fields=(*algebra.fields, PRESENT),
        identity=(*["int 0"] * n, "bool False"),
        dtypes=(*algebra.dtypes, torch.bool),
        inputs=algebra.inputs,
        index=algebra.index,
        commutative=algebra.commutative,
        lift=expression.trace(lift, arity),
        combine=expression.trace(combine, 2 * (n + 1)),
        project=expression.trace(project, n + 1),
        absorb=None,
        folds_integers=algebra.folds_integers,
    )
