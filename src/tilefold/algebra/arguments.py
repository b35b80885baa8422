"""What `Monoid` is given: kinds, arities, fields and dtypes, refused by name where they do not fit."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tilefold.algebra import typing
from tilefold.algebra.algebra import FieldDtype
from tilefold.algebra.expression import Graph
from tilefold.algebra.operations import Number, fits_a_float, plain_number, short_text
from tilefold.errors import ArityError, DtypeError, MonoidError

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
    for name, truth in truths.items():
        if not isinstance(truth, bool):
            fix = "True passes positions to lift" if name == "index" else "False skips the laws"
            raise MonoidError(f"{monoid}: {name} must be True or False, got {truth!r}; {fix}")
    if commutative is not None and not isinstance(commutative, bool):
        raise MonoidError(
            f"{monoid}: commutative must be True, False or None, got {commutative!r}; leave it out to have it found"
        )


def state_shape(
    monoid: str, identity: Number | Sequence[Number] | None, fields: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[Number, ...] | None]:
    """The names of the fields, and the identity one number a field."""
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


def field_dtypes(
    monoid: str, dtypes: FieldDtype | Sequence[FieldDtype], names: Sequence[str]
) -> tuple[FieldDtype, ...]:
    """One dtype rule a field."""
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


def check_identity_fits(
    monoid: str, names: Sequence[str], identities: Sequence[Number] | None, dtypes: Sequence[FieldDtype]
) -> None:
    """Refuse an identity that its field's own dtype cannot hold. Those of "compute" and "input" depend on the fold."""
    for name, number, dtype in zip(names, identities or (), dtypes, strict=identities is not None):
        own = torch.int64 if dtype == "index" else dtype
        if isinstance(own, torch.dtype):
            typing.concrete(number, typing.carried_dtype(own), f"{monoid}: {name}")


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
            f"{monoid}: {role} must tell its arguments so that they can be counted, got {function!r} without a signature; "
            "write it as a lambda"
        ) from None
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        raise ArityError(
            f"{monoid}: {role} must name its arguments so that they can be counted, got *arguments; write them out"
        )
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)


def expect_arguments(monoid: str, role: str, function: Callable[..., Any] | None, expected: int) -> None:
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


def gives_elements(graph: Graph, first: int) -> bool:
    """Whether an output has a value for each element of the blocks, which are the inputs from `first` on."""
    spread: list[bool] = []
    for node in graph.nodes:
        element = node.op == "input" and node.value >= first
        spread.append(element or (not node.op.startswith("block_") and any(spread[a] for a in node.args)))
    return any(spread[output] for output in graph.outputs)
