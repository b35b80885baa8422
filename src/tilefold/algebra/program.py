"""An algebra made concrete for given element dtypes: typed graphs, carried state, result dtypes. What backends run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra import typing
from tilefold.algebra.algebra import Algebra, FieldDtype
from tilefold.algebra.expression import Graph, Number, Value, apply, trace
from tilefold.algebra.narrow import wrapped
from tilefold.algebra.typing import TypedGraph, is_float
from tilefold.errors import DtypeError


@dataclass(frozen=True)
class Program:
    """One fold for one set of element dtypes.

    `elements` are the dtypes the inputs are read as (after an explicit conversion, if any); `state` is carried while
    folding; `outputs` are the results' dtypes. `begin` makes a first block a state, `absorb` takes further ones (the
    monoid's own, or derived from its combine). Graph boundaries convert: what lift, combine and absorb give is cast to
    `state` (an integer for a narrower field wraps first), what project gives is cast to `outputs`. `combine_later` is
    `combine` for a right state whose elements all come after the left one's (the right one may be an identity, the left
    one not): comparisons of positions are settled.
    """

    algebra: Algebra
    elements: tuple[torch.dtype, ...]
    state: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    identity: tuple[Number, ...]
    lift: TypedGraph
    combine: TypedGraph
    combine_later: TypedGraph
    absorb: TypedGraph | None
    begin: TypedGraph | None
    project: TypedGraph


@functools.lru_cache(maxsize=1024)
def specialize(
    algebra: Algebra, elements: tuple[torch.dtype, ...], dtype: torch.dtype | None = None
) -> Program:
    """Give every field and node its dtype. `dtype` asks for another dtype of the results that come from computing.

    Where the monoid gives no `absorb` and does not deny one, and where combine allows it, the block form is derived.
    """
    program = as_written(algebra, elements, dtype)
    if algebra.absorb is None and algebra.derives and algebra.commutative:
        from tilefold.algebra import derive  # it needs programs, and tries what it found on samples

        return derive.absorbing(program)
    return program


@functools.lru_cache(maxsize=1024)
def as_written(
    algebra: Algebra, elements: tuple[torch.dtype, ...], dtype: torch.dtype | None = None
) -> Program:
    """The program without a derived block form."""
    for element in elements:
        typing.check_foldable(element, "reduce")
    check_convertible(dtype)
    lifted = [typing.element_dtype(e) for e in elements] + [torch.int64] * algebra.index
    common = functools.reduce(typing.promote, elements)
    _check_integers(algebra, common)
    declared = [_declared(d, common) for d in algebra.dtypes]
    state = [typing.carried_dtype(d) for d in declared]
    graphs = _typed_graphs(algebra, state, lifted)
    if any(_makes_fractions(algebra.dtypes, state, graph) for graph in graphs if graph is not None):
        state = [
            torch.float32 if d == "compute" and not is_float(s) else s
            for d, s in zip(algebra.dtypes, state, strict=True)
        ]
        graphs = _typed_graphs(algebra, state, lifted)
    lift, combine, absorb, begin = graphs
    assert lift is not None
    assert combine is not None
    project = typing.infer(algebra.project or _pass_through(len(state)), state)
    numbers = algebra.identity_numbers
    assert numbers is not None, "a program needs a total algebra"
    limits = [s if is_float(s) else d for d, s in zip(declared, state, strict=True)]
    read, both = [*elements, *[torch.int64] * algebra.index], [*limits, *limits]
    lift = typing.infer(wrapped(_without_infinities(algebra.lift, limits), limits, read), lifted)
    combine = typing.infer(wrapped(algebra.combine, limits, both), [*state, *state])
    later = typing.infer(wrapped(_with_positions_in_order(algebra), limits, both), [*state, *state])
    identity = tuple(
        typing.concrete(n, d, algebra.fields[i]) for i, (n, d) in enumerate(zip(numbers, limits, strict=True))
    )
    if absorb is not None:
        first = _absorbed_by(identity, algebra) if begin is None else begin.graph
        begin = typing.infer(wrapped(first, limits, read), lifted)
        absorb = typing.infer(wrapped(absorb.graph, limits, [*limits, *read]), [*state, *lifted])
    return Program(
        algebra=algebra,
        elements=elements,
        state=tuple(state),
        outputs=tuple(_outputs(algebra, project, state, declared, common, dtype)),
        identity=identity,
        lift=lift,
        combine=combine,
        combine_later=later,
        absorb=absorb,
        begin=begin,
        project=project,
    )


_IN_ORDER = {"lt": True, "le": True, "ne": True, "gt": False, "ge": False, "eq": False}
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def _with_positions_in_order(algebra: Algebra) -> Graph:
    """The combine graph where every position on the left is below every position on the right."""
    labels = {i for i, dtype in enumerate(algebra.dtypes) if dtype == "index"}
    n, numbers = len(algebra.fields), algebra.identity_numbers or ()
    last = all(numbers[i] == float("inf") for i in labels)  # so that an identity counts as after everything
    if not algebra.index or not algebra.index_is_label or not labels or not last:
        return algebra.combine

    def settle(op: str, operands: Sequence[Any], value: Any = None) -> Any:
        sides = [o.node.value for o in operands if isinstance(o, Value) and o.node.op == "input"]
        if op in _IN_ORDER and len(sides) == 2:
            left, right = sides
            if left in labels and right - n in labels:
                return _IN_ORDER[op]
            if right in labels and left - n in labels:
                return _IN_ORDER[_SWAPPED[op]]
        return apply(op, *operands, value=value)

    return trace(lambda *states: algebra.combine.replay(states, settle), 2 * n)


def _without_infinities(graph: Graph, dtypes: Sequence[torch.dtype]) -> Graph:
    """The graph where an infinite constant that it gives to an integer field is that dtype's limit, as in an identity."""

    def finite(*arguments: Any) -> tuple[Any, ...]:
        outputs = graph(*arguments)
        return tuple(
            typing.concrete(o, d, "lift") if isinstance(o, float) and abs(o) == float("inf") else o
            for o, d in zip(outputs, dtypes, strict=True)
        )

    return trace(finite, graph.arity)


def _check_integers(algebra: Algebra, common: torch.dtype) -> None:
    if not algebra.folds_integers and not is_float(common):
        raise DtypeError(
            "reduce: a monoid whose laws hold for floats alone, since its infinity is an integer's limit and wraps, must "
            f"fold floats, got {common}; give the monoid dtypes=torch.float32, or convert the tensor"
        )


def _declared(dtype: FieldDtype, common: torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        typing.check_foldable(dtype, "Monoid dtypes")
        return dtype
    return {"compute": typing.compute_dtype(common), "input": common, "index": torch.int64}[dtype]


def _typed_graphs(
    algebra: Algebra, state: Sequence[torch.dtype], lifted: Sequence[torch.dtype]
) -> tuple[TypedGraph, TypedGraph, TypedGraph | None, TypedGraph | None]:
    return (
        typing.infer(algebra.lift, lifted),
        typing.infer(algebra.combine, [*state, *state]),
        None if algebra.absorb is None else typing.infer(algebra.absorb, [*state, *lifted]),
        None if algebra.begin is None else typing.infer(algebra.begin, lifted),
    )


def _absorbed_by(identity: Sequence[Number], algebra: Algebra) -> Graph:
    """A first block as a state, where the monoid does not say how: absorbed by the identity."""
    absorb = algebra.absorb
    assert absorb is not None
    return trace(lambda *blocks: absorb(*identity, *blocks), algebra.inputs + int(algebra.index))


def _makes_fractions(dtypes: Sequence[FieldDtype], state: Sequence[torch.dtype], graph: TypedGraph) -> bool:
    """Whether the graph gives a float for a "compute" field that integers would carry."""
    return any(
        dtypes[i] == "compute"
        and is_float(produced)
        and not is_float(state[i])
        and graph.graph.nodes[graph.graph.outputs[i]].op != "const"
        for i, produced in enumerate(graph.output_dtypes)
    )


def _pass_through(n: int) -> Graph:
    return trace(lambda *state: tuple(state), n)


def _outputs(
    algebra: Algebra,
    project: TypedGraph,
    state: Sequence[torch.dtype],
    declared: Sequence[torch.dtype],
    common: torch.dtype,
    requested: torch.dtype | None,
) -> list[torch.dtype]:
    """Floats computed from float inputs come back in the inputs' dtype, or in the one asked for; the rest as declared."""
    results = []
    for position, produced in enumerate(project.output_dtypes):
        sources = project.graph.reads(position)
        plain = project.graph.nodes[project.graph.outputs[position]].op == "input"
        explicit = bool(sources) and all(
            isinstance(algebra.dtypes[s], torch.dtype) or algebra.dtypes[s] == "index" for s in sources
        )
        if explicit:
            result = declared[next(iter(sources))] if plain else produced
        elif requested is not None and (is_float(produced) or produced != torch.bool):
            result = requested
        elif is_float(produced):
            result = common if is_float(common) else produced
        elif plain and algebra.dtypes[next(iter(sources))] == "input":
            result = common
        else:
            result = produced
        results.append(result)
    return results


def check_convertible(requested: torch.dtype | None) -> None:
    """Refuse result dtypes no fold can give."""
    if requested is not None and requested not in typing.FOLDABLE:
        raise DtypeError(
            f"reduce: `dtype` must be a real or bool dtype, got {requested}; convert the result instead"
        )


def with_index_dtype(program: Program, dtype: torch.dtype) -> Program:
    """The same program with positions (and fields that only hold positions) in another integer dtype."""
    algebra = program.algebra
    state = tuple(dtype if d == "index" else s for d, s in zip(algebra.dtypes, program.state, strict=True))
    lifted = (*program.lift.input_dtypes[:-1], dtype)
    least, greatest = typing.integer_limits(dtype)
    identity = tuple(
        max(least, min(greatest, number)) if d == "index" else number
        for d, number in zip(algebra.dtypes, program.identity, strict=True)
    )
    begin = None if program.begin is None else program.begin.graph
    if algebra.absorb is not None and algebra.begin is None:
        begin = _absorbed_by(identity, algebra)
    return replace(
        program,
        state=state,
        identity=identity,
        lift=typing.infer(algebra.lift, lifted),
        combine=typing.infer(algebra.combine, [*state, *state]),
        combine_later=typing.infer(program.combine_later.graph, [*state, *state]),
        absorb=None if program.absorb is None else typing.infer(program.absorb.graph, [*state, *lifted]),
        begin=None if begin is None else typing.infer(begin, lifted),
        project=typing.infer(program.project.graph, state),
    )
