"""A monoid's traced graphs and the facts known of them: the frozen value from which everything later is made."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra import expression
from tilefold.algebra.domain import Domain
from tilefold.algebra.expression import Graph, Node
from tilefold.algebra.flows import meets_infinity, taken
from tilefold.algebra.numbers import Number
from tilefold.algebra.operations import COMPARISONS, values_of

FieldDtype = str | torch.dtype


@dataclass(frozen=True)
class Sums:
    """How the prefixes of some neighbours are sums of terms about one base: n fields, k elements, one base, one term.

    With b = base(x_1) joined(...) base(x_m), t_i = term(x_i, b): lift(x_1) combine ... lift(x_m) = total(b, t_1 + ... + t_m).
    And for a state before them, (start, scale, top) = rebased(state, b): each prefix's projection is
    shown(top, start + scale t_1 + ... + scale t_i) where near(state, base(x_1), top), which says that no prefix is so far
    below the last one that its sum is not held. `nothing` is the base of no element.
    """

    nothing: float
    base: Graph
    joined: Graph
    term: Graph
    total: Graph
    rebased: Graph
    near: Graph
    shown: Graph


@dataclass(frozen=True)
class Quick:
    """The same fold without units of squares (`algebra.units`), which takes less time where tensors are read operation by
    operation, and whose states say whether they hold their results.

    `trusted` takes the n fields and the least square that a dtype holds exactly, and gives one bool: whether the state holds
    its result to its dtype's own rounding. It does not where squares left the range of exponents.

    Of float32 elements times a power of two, `project` takes that scale and the n fields, and gives the results of the
    elements as they are. `following` takes the same, and gives the scale with which the state holds them: the same one where
    it does, or where none would. `narrow`: dtypes of `units.IN_RANGE` are folded by this form alone.
    """

    algebra: Algebra
    trusted: Graph
    project: Graph | None = None
    following: Graph | None = None
    narrow: bool = True


@dataclass(frozen=True)
class Algebra:
    """What the engine computes with: graphs and their signature, nothing else. Equal algebras share compiled kernels.

    With n fields and k inputs: `lift` takes k elements (and the index) and gives n; `combine` takes 2 n and gives n;
    `absorb` takes n, then k blocks (and their indices) and gives n; `begin` takes the blocks alone and gives n; `project`
    takes n and gives the outputs. `derives`: without `absorb`, a block form may be derived from `combine`.
    `folds_integers`: not where the laws hold for floats alone, an infinity being no number that integers have.
    `quick`: what a CPU and rings of rows fold first; results that it does not hold are folded again.
    `domain`: what each input is declared to be. `sums`: what scans of float32 states may do instead of combining.
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
    quick: Quick | None = None
    domain: Domain | None = None
    sums: Sums | None = None

    @property
    def identity_numbers(self) -> tuple[Number, ...] | None:
        """The identity as Python numbers, one a field; None where there is none."""
        return None if self.identity is None else tuple(_parse_number(text) for text in self.identity)

    @functools.cached_property
    def index_is_label(self) -> bool:
        """Whether index fields hold positions and nothing else, which are only compared and selected.

        Then 32 bits can hold them, and they are in the order of the elements that they are positions of.
        """
        labels = [i for i, dtype in enumerate(self.dtypes) if dtype == "index"]
        flows = self._index_flows(labels)
        moved = all(_only_moves(graph, inputs, labels) for graph, inputs in flows)
        alone = all(_labels(graph, inputs)[i] for graph, inputs in flows for i in labels)
        last = self.project
        shown = last is None or _only_moves(last, frozenset(labels), range(len(last.outputs)))
        return bool(labels) and moved and alone and shown

    def _index_flows(self, labels: Sequence[int]) -> list[tuple[Graph, frozenset[int]]]:
        """The graphs that make a state, and where positions come in."""
        n = len(self.fields)
        flows = [(self.lift, [self.inputs]), (self.combine, [*labels, *(n + i for i in labels)])]
        if self.absorb is not None:
            flows.append((self.absorb, [*labels, n + self.inputs]))
        if self.begin is not None:
            flows.append((self.begin, [self.inputs]))
        return [(graph, frozenset(inputs)) for graph, inputs in flows]


def elementwise(graph: Graph) -> Algebra:
    """The algebra whose fold over no dims makes a function of each element."""
    n = len(graph.outputs)
    return Algebra(
        fields=tuple(f"y{i}" for i in range(n)), identity=("int 0",) * n, dtypes=("compute",) * n, inputs=graph.arity,
        index=False, commutative=True, lift=graph,
        combine=expression.trace(lambda *v: tuple(v[i] + v[n + i] for i in range(n)), 2 * n), project=None, absorb=None,
        derives=False,
    )  # fmt: skip


def finished(algebra: Algebra, function: Graph) -> Algebra:
    """The algebra whose results are a function of the old ones."""

    def then(project: Graph | None, fields: int) -> Graph:
        first = project or (lambda *state: state)
        return expression.trace(lambda *v: function(*first(*v)), project.arity if project else fields)

    quick = algebra.quick
    if quick is not None:
        form = replace(quick.algebra, project=then(quick.algebra.project, len(quick.algebra.fields)))
        quick = replace(quick, algebra=form, project=quick.project and then(quick.project, 0))
    return replace(algebra, project=then(algebra.project, len(algebra.fields)), quick=quick, sums=None)


def _parse_number(text: str) -> Number:
    kind, _, literal = text.partition(" ")
    return literal == "True" if kind == "bool" else int(literal) if kind == "int" else float(literal)


def number_text(number: Number) -> str:
    """A number with its kind: what equal algebras share, though True == 1 == 1.0."""
    return f"{type(number).__name__} {number!r}"


def with_positions(algebra: Algebra) -> Algebra:
    """The algebra whose "compute" fields of positions, which are only chosen and compared, are "index" fields."""
    numbers = algebra.identity_numbers or (0,) * len(algebra.fields)
    starts = [math.isinf(n) or n == math.floor(n) if n == n else False for n in numbers]
    found = [f for f, rule in enumerate(algebra.dtypes) if rule == "compute" and starts[f] and algebra.index]
    while found:
        dtypes = tuple("index" if f in found else rule for f, rule in enumerate(algebra.dtypes))
        labels = [f for f, rule in enumerate(dtypes) if rule == "index"]
        flows = algebra._index_flows(labels)
        kept = [f for f in found if all(_labels(graph, inputs)[f] for graph, inputs in flows)]
        if kept == found:
            alone = all(_only_moves(g, i, labels) and not meets_infinity(g, i) for g, i in flows)
            return replace(algebra, dtypes=dtypes) if alone else algebra
        found = kept
    return algebra


def _only_moves(graph: Graph, tainted_inputs: frozenset[int], label_outputs: Sequence[int]) -> bool:
    """Whether values from `tainted_inputs` reach only comparisons, selections and the label outputs.

    No whole number is among them that 32 bits do not hold.
    """
    tainted = set[int]()
    for position, node in enumerate(graph.nodes):
        if node.op == "input":
            if node.value in tainted_inputs:
                tainted.add(position)
        elif any(a in tainted for a in node.args):
            if any(_is_long(graph.nodes[a]) for a in node.args):
                return False
            if values_of(node.op).takes:
                tainted.add(position)
            elif node.op not in COMPARISONS:
                return False
    return all(o not in tainted or i in label_outputs for i, o in enumerate(graph.outputs))


def _is_long(node: Node) -> bool:
    return node.op == "const" and isinstance(node.value, int) and not -(1 << 31) <= node.value < 1 << 31


def _labels(graph: Graph, label_inputs: frozenset[int]) -> list[bool]:
    """For each output, whether it is one of `label_inputs`, whichever is selected."""
    label: list[bool] = []
    for node in graph.nodes:
        moved = values_of(node.op).takes and all(label[a] for a in taken(node))
        label.append(node.value in label_inputs if node.op == "input" else moved)
    return [label[o] for o in graph.outputs]


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
        domain=algebra.domain,
    )
