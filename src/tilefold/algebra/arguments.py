"""The arguments of `Monoid`: kinds, arities, fields and dtypes, refused by name where they do not fit."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilefold.algebra.algebra import FieldDtype
from tilefold.algebra.dtypes import GIVEN, carried_dtype, concrete
from tilefold.algebra.expression import Graph
from tilefold.algebra.numbers import Number, fits_a_float, plain_number, short_text
from tilefold.errors import ArityError, DtypeError, MonoidError, is_function, is_one_of, shown

_NAME = re.compile(r"[A-Za-z]\w{0,63}\Z", re.ASCII)


def check_kinds(
    monoid: str,
    combine: object,
    lift: object,
    project: object,
    absorb: object,
    commutative: object,
    **truths: object,
) -> None:
    """Refuse what is no function, or no truth, where one belongs."""
    for role, function in (("combine", combine), ("lift", lift), ("project", project)):
        if not is_function(function) and (function is not None or role == "combine"):
            raise MonoidError(
                f"{monoid}: {role} must be a function, got {shown(function)}; give one of Python, a lambda say"
            )
    functions = absorb if isinstance(absorb, tuple) and len(absorb) == 2 else (absorb,)
    if absorb is not None and absorb is not False and not all(map(is_function, functions)):
        raise MonoidError(
            f"{monoid}: absorb must be a function, a pair of them, None or False, got {shown(absorb)}; "
            "leave it out to have it derived"
        )
    for name, truth in truths.items():
        if not isinstance(truth, bool):
            fix = "True passes positions to lift" if name == "index" else "False skips the laws"
            raise MonoidError(f"{monoid}: {name} must be True or False, got {shown(truth)}; {fix}")
    if commutative is not None and not isinstance(commutative, bool):
        raise MonoidError(
            f"{monoid}: commutative must be True, False or None, got {shown(commutative)}; leave it out to have it found"
        )


def checked_name(name: object, combine: object) -> str:
    """What messages call a monoid: its name, or without one its combine's."""
    if name is not None and not isinstance(name, str):
        raise MonoidError(f'Monoid: `name` must be text or None, got {shown(name)}; write name="..."')
    return name or str(getattr(combine, "__name__", "monoid")).strip("<>")


def state_shape(
    monoid: str, identity: Number | Sequence[Number] | None, fields: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[Number, ...] | None]:
    """The names of the fields, and the identity one number a field."""
    given = (
        None if identity is None else tuple(identity) if isinstance(identity, tuple | list) else (identity,)
    )
    names = _field_names(monoid, fields, 1 if given is None else len(given))
    return names, None if given is None else _identities(monoid, given, names)


def is_one_value(identity: Any, fields: Any) -> bool:
    """Whether a state is one value without a name, and no tuple."""
    return fields is None and not isinstance(identity, (tuple, list))


def _field_names(monoid: str, fields: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """The fields as they were named, or so many by their numbers."""
    if fields is None:
        names = ("value",) if count == 1 else tuple(f"field{i}" for i in range(count))
    elif isinstance(fields, str):
        names = (fields,)
    else:
        listed = _listed(fields)
        if listed is None:
            raise MonoidError(
                f"{monoid}: fields must be a sequence of names, got {shown(fields)}; name each field"
            )
        names = listed
    for name in names:
        if not isinstance(name, str) or not _NAME.match(name) or keyword.iskeyword(name):
            raise MonoidError(
                f"{monoid}: a field name must match [A-Za-z][A-Za-z0-9_]{{0,63}} and be no keyword, got {shown(name)}; "
                "rename it"
            )
    if not names or len(set(names)) != len(names):
        raise MonoidError(f"{monoid}: fields must be distinct and at least one, got {names}; name each once")
    return names


def _listed(values: Any) -> tuple[Any, ...] | None:
    """What is iterated over; None for what is not."""
    try:
        return tuple(values)
    except Exception:  # of a class of the caller's, too
        return None


def _identities(monoid: str, given: tuple[Any, ...], names: tuple[str, ...]) -> tuple[Number, ...]:
    """The identity as plain numbers, one a field."""
    for number in given:
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
    if len(given) != len(names):
        raise ArityError(
            f"{monoid}: the identity must have one number for each of the fields {names}, got {len(given)}; "
            "give as many, or name as many fields"
        )
    return tuple(map(plain_number, given))


def field_dtypes(
    monoid: str, dtypes: FieldDtype | Sequence[FieldDtype], names: Sequence[str]
) -> tuple[FieldDtype, ...]:
    """One dtype rule a field."""
    several = None if isinstance(dtypes, str | torch.dtype) else _listed(dtypes)
    each: tuple[Any, ...] = (dtypes,) * len(names) if several is None else several
    if len(each) != len(names):
        raise ArityError(
            f"{monoid}: dtypes must be one for all or one for each of the fields {tuple(names)}, got {len(each)}; "
            "give as many"
        )
    for dtype in each:
        if not isinstance(dtype, torch.dtype) and not is_one_of(dtype, ("compute", "input", "index")):
            raise MonoidError(
                f'{monoid}: a field dtype must be "compute", "input", "index" or a torch dtype, got {shown(dtype)}; '
                "choose one of them"
            )
        if isinstance(dtype, torch.dtype) and dtype not in GIVEN:
            fix = "carry real and imaginary parts in two fields" if dtype.is_complex else "choose another"
            raise DtypeError(f"{monoid}: a field dtype must be of real numbers or bool, got {dtype}; {fix}")
    return each


def check_identity_fits(
    monoid: str, names: Sequence[str], identities: Sequence[Number] | None, dtypes: Sequence[FieldDtype]
) -> None:
    """Refuse an identity that its field's own dtype cannot hold. Those of "compute" and "input" depend on the fold."""
    for name, number, dtype in zip(names, identities or (), dtypes, strict=identities is not None):
        own = torch.int64 if dtype == "index" else dtype
        if isinstance(own, torch.dtype):
            concrete(number, carried_dtype(own), f"{monoid}: {name}")


def take_elements(n: int) -> Callable[..., Any]:
    """The lift where none is given: the elements are the state."""
    return lambda *elements: tuple(elements[:n])


def positional_count(monoid: str, role: str, function: Callable[..., Any]) -> int:
    """How many arguments a function takes by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise ArityError(
            f"{monoid}: {role} must tell its arguments so that they can be counted, got {shown(function)} without a "
            "signature; write it as a lambda"
        ) from None
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        raise ArityError(
            f"{monoid}: {role} must name its arguments so that they can be counted, got *arguments; write them out"
        )
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)


def count_inputs(monoid: str, lift: Callable[..., Any], *, index: bool) -> int:
    """How many inputs there are: as many as `lift` takes elements."""
    inputs = positional_count(monoid, "lift", lift) - index
    if inputs < 1:
        before = " before the index" if index else ""
        raise ArityError(
            f"{monoid}: lift must take at least one element{before}, got {inputs}; "
            f"write lift({', '.join(argument_names(1, index=index))})"
        )
    return inputs


def argument_names(inputs: int, *, index: bool) -> tuple[str, ...]:
    """What one calls the elements of so many inputs, and their position."""
    names = ("x", "y", "z")[:inputs] if inputs <= 3 else tuple(f"x{i}" for i in range(inputs))
    return (*names, *(["i"] if index else []))


def expect_arguments(
    monoid: str, role: str, function: Callable[..., Any] | None, arguments: Sequence[str]
) -> None:
    """One clear line instead of Python's TypeError from inside the trace. `arguments` are what it will be given."""
    if function is None:
        return
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin like max tells no signature: tracing it says what is wrong
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        count, written = len(arguments), ", ".join(arguments)
        raise ArityError(
            f"{monoid}: {role} must take {count} argument{'s' * (count > 1)}, got {signature}: {error}; "
            f"write {role.split()[-1]}({written})"
        ) from None


def check_returns(monoid: str, role: str, got: int, names: Sequence[str], *, scalar: bool) -> None:
    """Refuse a function that does not return one value for each field of the state."""
    if got == len(names):
        return
    if scalar:
        raise ArityError(
            f"{monoid}: {role} must return one value, got {got}; return one, or name {max(got, 2)} fields with fields=(...) "
            "and give the identity a number for each"
        )
    raise ArityError(
        f"{monoid}: {role} must return {len(names)} value{'s' * (len(names) > 1)}, one for each state field, got {got}; "
        f"return ({', '.join(names)}{',' * (len(names) == 1)})"
    )


def gives_elements(graph: Graph, first: int) -> bool:
    """Whether an output has a value for each element of the blocks, which are the inputs from `first` on."""
    spread: list[bool] = []
    for node in graph.nodes:
        element = node.op == "input" and node.value >= first
        spread.append(element or (not node.op.startswith("block_") and any(spread[a] for a in node.args)))
    return any(spread[output] for output in graph.outputs)
