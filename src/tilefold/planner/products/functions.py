"""When a user's functions of scalars are traced to graphs, and by which keys the graphs are found again.

A function is run with symbols, once in each call that is given it, and its graph is all that is kept: graphs that are equal
are one object. It is not run again where it is known to give the same graph as before (`unchanged`). So what an object holds
may change between two calls, and nothing here keeps a function, what it is bound to or what it closes over.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from tilefold.algebra import text
from tilefold.algebra.expression import OPS, Graph, trace
from tilefold.errors import ArityError, TextError, TraceError, shown
from tilefold.planner.products.unchanged import contents
from tilefold.runtime.caching import kept_outside_modes


@dataclass(frozen=True, eq=False)
class Traced:
    """The graph of a function. Equal graphs are one object, so that identity compares and hashes them.

    `rebase`: a graph of what some elements of a row fold to and what the whole row folds to, giving results with which the
    function makes the same of these elements as with the whole row's.
    `rows`: a graph of what a row folds to, giving what is stored of it, one value a row.
    `sums`: so many of the function's last values are not stored, but summed over rows. `dtypes`: what the others are stored
    as, where that is said.
    `rule`: of a map, graphs of its backward (`api.map_gradients`).
    """

    graph: Graph
    rebase: Graph | None = None
    rows: Graph | None = None
    sums: int = 0
    dtypes: tuple[Any, ...] = ()
    rule: tuple[Graph, ...] = ()
    text: str = ""  # of all these, for `of_text`

    def __post_init__(self) -> None:
        """The text, for graphs that torch keeps. It is made beforehand, so that Dynamo need not trace how."""
        object.__setattr__(self, "text", text.dumps(self._parts))

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.graph, self.rebase, self.rows, self.sums, self.dtypes, self.rule

    def but(self, **parts: Any) -> Traced:
        """The object with some parts changed."""
        names = ("graph", "rebase", "rows", "sums", "dtypes", "rule")
        return of_graph(*({**dict(zip(names, self._parts, strict=True)), **parts}[name] for name in names))


@kept_outside_modes(1024)
def of_graph(
    graph: Graph,
    rebase: Graph | None = None,
    rows: Graph | None = None,
    sums: int = 0,
    dtypes: tuple[Any, ...] = (),
    rule: tuple[Graph, ...] = (),
) -> Traced:
    """The one object of these graphs."""
    return Traced(graph, rebase, rows, sums, dtypes, rule)


@kept_outside_modes(1024)
def of_text(written: str) -> Traced:
    """The value that `Traced.text` was written from.

    Raises:
        TextError: it is another text.
    """
    graphs = text.loads(written)
    if not (isinstance(graphs, tuple) and len(graphs) == 6 and isinstance(graphs[0], Graph)):
        raise TextError(
            f"text: a function's text must be of six parts, got {shown(graphs)}; write Traced.text"
        )
    return of_graph(*graphs)


# For each code: the graphs of its functions, by the identities of the values that they read, which the entry keeps alive.
_unchanged: weakref.WeakKeyDictionary[CodeType, dict[tuple[int, ...], tuple[list[Any], Traced]]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class Role:
    """A function's role in messages: a name if it has none, what it must take, and the fix.

    `call` is whose argument it is; with `several` it may return more than one value.
    """

    what: str
    rule: str
    fix: str
    call: str = "matmul"
    several: bool = False


def traced(function: Callable[..., Any], others: int, role: Role, name: str | None = None) -> Traced:
    """The graph of a function of a value and `others` more. `role` and `name` are for messages.

    Raises:
        ArityError, TraceError: it does not take so many, or gives no value (no single one) of one element.
    """
    read = contents(function)
    if read is None:
        return _run(function, others, role, name)
    known = _unchanged.setdefault(function.__code__, {})
    key = (others, role.several, *map(id, read))
    found = known.get(key)
    if found is None:
        if len(known) >= 64:
            known.clear()
        # an entry of a code must not keep the code alive
        held = [value for value in read if value is not function.__code__]
        found = known[key] = (held, _run(function, others, role, name))
    return found[1]


def _run(function: Callable[..., Any], others: int, role: Role, name: str | None) -> Traced:
    name = name or getattr(function, "__name__", role.what.split()[-1]).strip("<>")
    try:
        graph = trace(function, 1 + others, what=role.what)
    except TypeError:
        _check_takes(function, name, others, role)
        raise
    _check_gives(graph, name, role)
    return of_graph(graph)


def _check_takes(function: Callable[..., Any], name: str, others: int, role: Role) -> None:
    """Refuse a function whose signature does not take a value and so many others."""
    try:
        inspect.signature(function).bind(*range(1 + others))
    except ValueError:  # a builtin without a signature: tracing will show
        return
    except TypeError:
        raise ArityError(
            f"{role.call}: {role.rule}, {1 + others} in all, got {name}{inspect.signature(function)}; {role.fix}"
        ) from None


def _check_gives(graph: Graph, name: str, role: Role) -> None:
    """Refuse a graph of several outputs where one is wanted, of none, or one that folds a block."""
    outputs = len(graph.outputs)
    if not outputs or (outputs > 1 and not role.several):
        raise ArityError(
            f"{role.call}: {role.what} must return {'one value or more' if role.several else 'one value'}, got {outputs} "
            f"from {name}; return {'what is' if role.several else 'the one'} to be stored"
        )
    block = next((n.op for n in graph.nodes if n.op in OPS and OPS[n.op].kind == "block"), None)
    if block is not None:
        raise TraceError(
            f"{role.call}: {role.what} sees one element, got {block}, which folds a block, in {name}; fold each row with "
            f"{'the monoid' if role.several else '`row`'}, or the result with tilefold.reduce"
        )
