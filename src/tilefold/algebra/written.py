"""An algebra made concrete for given element dtypes, as its author wrote it: typed graphs, carried state, result dtypes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra import fields, typing
from tilefold.algebra.algebra import Algebra, FieldDtype
from tilefold.algebra.dtypes import (
    GIVEN,
    carried_dtype,
    check_foldable,
    concrete,
    element_dtype,
    integer_limits,
    is_float,
    promote,
    result_dtype,
)
from tilefold.algebra.evaluate import Steps
from tilefold.algebra.expression import Graph, Value, apply, trace
from tilefold.algebra.narrow import without_infinities, wrapped
from tilefold.algebra.numbers import Number
from tilefold.algebra.operations import COMPARISONS, OPS
from tilefold.algebra.typing import TypedGraph
from tilefold.errors import DtypeError
from tilefold.runtime.caching import kept_outside_modes


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

    @functools.cached_property
    def lifted(self) -> Steps:
        """`lift`, ready for many rows of samples on a CPU: its outputs as the state's dtypes."""
        return Steps(self.lift, self.state)

    @functools.cached_property
    def combined(self) -> Steps:
        """`combine`, as `lifted`."""
        return Steps(self.combine, self.state)

    @functools.cached_property
    def every_node(self) -> Steps:
        """All nodes of `combine`, as `lifted`."""
        return Steps(self.combine)


@kept_outside_modes(1024)
def as_written(
    algebra: Algebra, elements: tuple[torch.dtype, ...], dtype: torch.dtype | None = None
) -> Program:
    """The program without a derived block form. `dtype` asks for another dtype of the results that come from computing."""
    for element in elements:
        check_foldable(element, "monoid")
    check_convertible(dtype)
    common = functools.reduce(promote, elements)
    _check_integers(algebra, common)
    declared = fields.declared_dtypes(algebra, elements)
    state = [carried_dtype(d) for d in declared]
    functions = _Functions(algebra, elements, declared, state)
    project = typing.infer(algebra.project or _pass_through(len(state)), state)
    return Program(
        algebra=algebra,
        elements=elements,
        state=tuple(state),
        outputs=tuple(_outputs(algebra, project, state, declared, common, dtype)),
        identity=functions.identity,
        project=project,
        **functions.fitted(),
    )


class _Functions:
    """An algebra's graphs for fields so declared and carried, with positions of one dtype.

    An infinity that goes into an integer field is that dtype's limit, as in an identity.
    """

    def __init__(
        self,
        algebra: Algebra,
        elements: Sequence[torch.dtype],
        declared: Sequence[torch.dtype],
        state: Sequence[torch.dtype],
        positions: torch.dtype = torch.int64,
    ) -> None:
        numbers = algebra.identity_numbers
        assert numbers is not None, "a program needs a total algebra"
        self.algebra = algebra
        self.limits = [s if is_float(s) else d for d, s in zip(declared, state, strict=True)]
        self.identity = tuple(
            concrete(_within(n, d, rule), d, field)
            for n, d, rule, field in zip(numbers, self.limits, algebra.dtypes, algebra.fields, strict=True)
        )
        places = [positions] * algebra.index
        lifted, pair = [*map(element_dtype, elements), *places], (*state, *state)
        # What each takes: the dtypes of the values, and those that carry them.
        block = ([*elements, *places], lifted)
        two = ([*self.limits, *self.limits], pair)
        after = ([*self.limits, *block[0]], (*state, *lifted))
        roles = {
            "lift": (algebra.lift, block),
            "combine": (algebra.combine, two),
            "absorb": (algebra.absorb, after),
        }
        begin = algebra.begin
        if algebra.absorb is not None and begin is None:
            begin = _absorbed_by(self.identity, algebra)
        roles["begin"] = (begin, block)
        self.values = {role: taken[0] for role, (_, taken) in roles.items()}
        self.typed = {
            role: typing.infer(without_infinities(graph, self.limits, role), taken[1])
            for role, (graph, taken) in roles.items()
            if graph is not None
        }

    def fitted(self) -> dict[str, Any]:
        """The typed graphs by role, where what goes into an integer field of fewer bits than its register wraps."""
        found: dict[str, Any] = {"absorb": None, "begin": None}
        found |= {role: self._fitted(role, typed.graph) for role, typed in self.typed.items()}
        later = _with_positions_in_order(self.algebra, self.typed["combine"].graph)
        found["combine_later"] = self._fitted("combine", later)
        return found

    def _fitted(self, role: str, graph: Graph) -> TypedGraph:
        fitted, typed = wrapped(graph, self.limits, self.values[role]), self.typed[role]
        return typed if fitted == typed.graph else typing.infer(fitted, typed.input_dtypes)


def _within(number: Number, dtype: torch.dtype, rule: FieldDtype) -> Number:
    """A position of an identity may be beyond what narrower positions reach."""
    if rule != "index" or not math.isfinite(number):
        return number
    least, greatest = integer_limits(dtype)
    return max(least, min(greatest, number))


def _with_positions_in_order(algebra: Algebra, combine: Graph) -> Graph:
    """The combine graph where every position on the left is below every position on the right."""
    labels = {i for i, dtype in enumerate(algebra.dtypes) if dtype == "index"}
    n, numbers = len(algebra.fields), algebra.identity_numbers or ()
    last = all(numbers[i] == float("inf") for i in labels)  # so that an identity counts as after everything
    if not algebra.index or not algebra.index_is_label or not labels or not last:
        return combine

    def settle(op: str, operands: Sequence[Any], value: Any = None) -> Any:
        sides = [o.node.value for o in operands if isinstance(o, Value) and o.node.op == "input"]
        if op in COMPARISONS and len(sides) == 2:
            left, right = sides
            if left in labels and right - n in labels:
                return OPS[op].python(0, 1)
            if right in labels and left - n in labels:
                return OPS[op].python(1, 0)
        return apply(op, *operands, value=value)

    return trace(lambda *states: combine.replay(states, settle), 2 * n)


def _check_integers(algebra: Algebra, common: torch.dtype) -> None:
    if not algebra.folds_integers and not is_float(common):
        raise DtypeError(
            "monoid: one whose laws hold for floats alone, since its infinity is an integer's limit and wraps, must "
            f"fold floats, got {common}; give the monoid dtypes=torch.float32, or convert the tensor"
        )


def _absorbed_by(identity: Sequence[Number], algebra: Algebra) -> Graph:
    """A first block as a state, where the monoid does not say how: absorbed by the identity."""
    absorb = algebra.absorb
    assert absorb is not None
    return trace(lambda *blocks: absorb(*identity, *blocks), algebra.inputs + int(algebra.index))


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
    """Floats computed from float inputs come back in the inputs' dtype, or in the one asked for; the rest as declared.

    A dtype that no fold gives is float32.
    """
    results = []
    for position, produced in enumerate(project.output_dtypes):
        sources = project.graph.reads(position)
        plain = project.graph.nodes[project.graph.outputs[position]].op == "input"
        explicit = bool(sources) and all(
            isinstance(algebra.dtypes[s], torch.dtype) or algebra.dtypes[s] == "index" for s in sources
        )
        label = plain and is_float(common) and not is_float(produced)
        if explicit or (label and fields.is_chosen(algebra, next(iter(sources)))):
            result = declared[next(iter(sources))] if plain else produced
        elif requested is not None and (is_float(produced) or produced != torch.bool):
            result = requested
        elif is_float(produced):
            result = common if is_float(common) else produced
        elif plain and algebra.dtypes[next(iter(sources))] == "input":
            result = declared[next(iter(sources))]
        else:
            result = produced
        results.append(result_dtype(result))
    return results


def check_convertible(requested: torch.dtype | None) -> None:
    """Refuse result dtypes no fold can give."""
    if requested is not None and requested not in GIVEN:
        raise DtypeError(
            f"monoid: `dtype` must be a real or bool dtype, got {requested}; convert the result instead"
        )


def with_index_dtype(program: Program, dtype: torch.dtype) -> Program:
    """The same program with positions (and fields that only hold positions) in another integer dtype."""
    algebra = program.algebra
    known = fields.declared_dtypes(algebra, program.elements)
    declared = [dtype if d == "index" else own for d, own in zip(algebra.dtypes, known, strict=True)]
    state = [dtype if d == "index" else s for d, s in zip(algebra.dtypes, program.state, strict=True)]
    functions = _Functions(algebra, program.elements, declared, state, dtype)
    fitted = functions.fitted()
    if algebra.absorb is None and program.absorb is not None and program.begin is not None:  # derived
        lifted = fitted["lift"].input_dtypes
        fitted["absorb"] = typing.infer(program.absorb.graph, [*state, *lifted])
        fitted["begin"] = typing.infer(program.begin.graph, lifted)
    return replace(
        program,
        state=tuple(state),
        identity=functions.identity,
        project=typing.infer(program.project.graph, state),
        **fitted,
    )
