"""A pass over Inductor's graphs: pointwise neighbours of our operations become part of them.

A fold or a map reads tensors once, whatever function of their elements it takes. So of a graph

    p = sigmoid(x * w);   s = tilefold::reduce([p], logsumexp, [1])

p need not be stored: the fold takes x and w, and its lift is the old one after sigmoid(x * w). In the same way a map's
function takes in what is computed of its results, with further tensors beside. Folds and maps over the same dims, of the same
tensors, become one, whose state is the states of all. What others need besides is stored on the way: the fold becomes a map.
What is computed of a fold's results alone becomes part of its projection.

Values between are not rounded to a half precision, as Inductor does not round between the operations that it fuses.
"""

from __future__ import annotations

import functools
import itertools
import math as numbers
import operator
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Node
from torch.fx.operator_schemas import normalize_function

from tilefold import math
from tilefold.algebra.algebra import Algebra, finished
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.monoid import monoid_of
from tilefold.api.ends import monoid_of_algebra
from tilefold.planner.problem.canonical import broadcast_shape
from tilefold.planner.products.functions import Traced, of_graph, of_text

aten, prims, ours = torch.ops.aten, torch.ops.prims, torch.ops.tilefold
MOST_STEPS, MOST_TENSORS = 64, 8  # operations and tensors of one function: beyond, registers run out
LONGEST, FEWEST = 1 << 16, 64  # of rows that a map holds on a GPU, a fold that becomes one has
UNTOLD = 8192  # a length that depends on elements, as Inductor has it where it must guess
_TAKEN = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool)
_GAP = object()


# ------------------------------------------------------------------------------------------------------- operations


def _power(x: Any, y: Any) -> Any:
    return x * x if isinstance(y, int | float) and y == 2 else math.pow(x, y)


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else math.maximum(x, low)
    return x if high is None else math.minimum(x, high)


def _added(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x + (y if alpha == 1 else y * alpha)


def _taken(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x - (y if alpha == 1 else y * alpha)


_SAME = "abs exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tanh erf sigmoid floor ceil isnan isinf maximum minimum where"
_OPERATIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, name): getattr(math, name) for name in _SAME.split()},
    **{getattr(aten, name): getattr(operator, name) for name in ("mul", "neg", "gt", "lt", "ge", "le", "eq", "ne")},
    aten.add: _added, aten.sub: _taken, aten.div: operator.truediv, aten.reciprocal: lambda x: 1.0 / x,
    aten.pow: _power, aten.square: lambda x: x * x, aten.relu: lambda x: math.maximum(x, 0.0),
    aten.clamp: _clamp, aten.clamp_min: _clamp, aten.clamp_max: lambda x, high: _clamp(x, None, high),
    aten.logical_and: lambda x, y: (x != 0) & (y != 0), aten.logical_or: lambda x, y: (x != 0) | (y != 0),
    aten.logical_not: lambda x: x == 0,
    aten.bitwise_and: operator.and_, aten.bitwise_or: operator.or_, aten.bitwise_not: operator.invert,
    aten.squeeze: lambda x, dims: x, prims.convert_element_type: lambda x, dtype: x,  # of floats; truth values become 0 and 1
}  # fmt: skip


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, Node) else None


def _number(argument: Any) -> Any:
    """The number that an argument is: written, or that of a tensor filled with it; `_GAP` for any other."""
    if isinstance(argument, bool | int | float):
        return argument
    if (
        isinstance(argument, Node)
        and argument.target is aten.full.default
        and isinstance(argument.args[1], bool | int | float)
    ):
        dtype = _value(argument).dtype
        return (bool if dtype == torch.bool else float if dtype.is_floating_point else int)(argument.args[1])
    return _GAP


def _is_pointwise(node: Any) -> bool:
    """Whether a node is one function of elements that graphs here can have: of floats and truth values, not of integers."""
    value = _value(node)
    if not isinstance(value, torch.Tensor) or node.op != "call_function":
        return False
    if (
        getattr(node.target, "overloadpacket", None) not in _OPERATIONS
        or node.kwargs.get("rounding_mode") is not None
    ):
        return False
    taken = _taken_by(node)
    parts = [value, *map(_value, taken)]
    if not taken or not all(isinstance(p, torch.Tensor) and p.device == value.device for p in parts):
        return False
    wide = {d == torch.float64 for p in parts if (d := p.dtype).is_floating_point}
    if len(wide) > 1 or not all(p.dtype in _TAKEN for p in parts):
        return False
    if value.dtype == torch.float64 and all(p.dtype != torch.float64 for p in parts[1:]):
        return False  # they say the precision
    if tuple(map(str, broadcast_shape(parts[1:], "fusion"))) != _shape(node):
        return False  # a tensor of one number is larger
    converts, is_truth = node.target is prims.convert_element_type.default, value.dtype == torch.bool
    if is_truth and node.target is aten.add.Tensor:  # an or
        return False
    fits = not is_truth if converts else is_truth or "bitwise" not in str(node.target)
    return fits and all(isinstance(a, bool | int | float | torch.dtype | Node | None) for a in node.args)


def _bytes(nodes: Iterable[Node]) -> int:
    """The memory of tensors; of lengths that vary, of those that the graph was traced with."""
    return sum(_hint(v.numel()) * v.itemsize for v in map(_value, nodes))


def _hint(size: Any) -> int:
    if not isinstance(size, torch.SymInt) or size.node.hint is not None:
        return int(size.node.hint if isinstance(size, torch.SymInt) else size)
    expression = size.node.expr  # of lengths that only a call tells
    return int(expression.subs(dict.fromkeys(expression.free_symbols, UNTOLD)))


def _shape(node: Node) -> tuple[str, ...]:
    """A tensor's sizes, to be compared without a guard."""
    return tuple(map(str, _value(node).shape))


# --------------------------------------------------------------------------------------------------------- functions


@dataclass
class Function:
    """A function of elements: what it computes (`steps`), and the tensors that it takes."""

    outputs: list[Node]
    steps: set[Node]
    leaves: list[Node]

    def __call__(self, known: dict[Node, Any]) -> list[Any]:
        """Its values, of those of its leaves."""
        known = dict(known)

        def of(argument: Any) -> Any:
            if not isinstance(argument, Node):
                return argument
            if argument not in known:
                number = _number(argument)
                known[argument] = number if number is not _GAP else step(argument)
            return known[argument]

        def step(node: Node) -> Any:
            if node.target is prims.convert_element_type.default and _value(node.args[0]).dtype == torch.bool:
                return math.where(of(node.args[0]), 1.0, 0.0)
            named = {k: of(v) for k, v in node.kwargs.items() if v is not None}
            return _OPERATIONS[node.target.overloadpacket](*map(of, node.args), **named)  # type: ignore[union-attr]

        return [of(o) for o in self.outputs]


def _producers(outputs: Sequence[Node], readers: Container[Node], stored: Container[Node] = ()) -> Function:
    """What makes some tensors of readers, as far back as fewer bytes are read so.

    A step that others need, too, is left to them, unless it may be `stored` by the readers, or what it takes is no larger.
    """
    steps: set[Node] = set()
    pending = list(outputs)
    while pending and len(steps) < MOST_STEPS:
        node = pending.pop()
        if node in steps or not _is_pointwise(node) or _value(node).ndim == 0:
            continue
        alone = all(u in readers or u in steps for u in node.users)
        if alone or node in stored or _bytes(_taken_by(node)) <= _bytes([node]):
            steps.add(node)
            pending += _taken_by(node)
    return Function(list(outputs), steps, _leaves(outputs, steps))


def _taken_by(node: Node) -> list[Node]:
    """The tensors that a step takes, without numbers."""
    return [a for a in node.all_input_nodes if _number(a) is _GAP]


def _leaves(outputs: Sequence[Node], steps: set[Node]) -> list[Node]:
    """The tensors that are read, in the order in which they are met."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()

    def visit(node: Node) -> None:
        if node in seen:
            return
        seen.add(node)
        if node not in steps:
            found[node] = None
            return
        for a in _taken_by(node):
            visit(a)

    for o in outputs:
        visit(o)
    return list(found)


def before(algebra: Algebra, function: Callable[..., Sequence[Any]], inputs: int) -> Algebra:
    """The algebra whose elements are made by a function of `inputs` others."""
    n, more = len(algebra.fields), int(algebra.index)

    def made(graph: Graph | None, states: int) -> Graph | None:
        if graph is None:
            return None

        def run(*v: Any) -> Any:
            elements = v[states : states + inputs]
            return graph(*v[:states], *function(*elements), *v[states + inputs :])

        return trace(run, states + inputs + more)

    quick = algebra.quick
    if quick is not None:
        inner = before(quick.algebra, function, inputs)
        quick = replace(quick, algebra=inner, project=None, following=None, narrow=False)
    lift = made(algebra.lift, 0)
    assert lift is not None
    return replace(
        algebra, inputs=inputs, lift=lift, absorb=made(algebra.absorb, n), begin=made(algebra.begin, 0), quick=quick,
        domain=None, sums=None,
    )  # fmt: skip


def together(algebras: Sequence[Algebra]) -> Algebra | None:
    """The algebra of all their states, each of the same elements; None where one has no identity."""
    if any(a.identity is None for a in algebras):
        return None
    inputs, index = algebras[0].inputs, any(a.index for a in algebras)
    cuts = [0, *itertools.accumulate(len(a.fields) for a in algebras)]

    def parts(v: Sequence[Any]) -> list[tuple[Algebra, Sequence[Any]]]:
        return [(a, v[cuts[k] : cuts[k + 1]]) for k, a in enumerate(algebras)]

    def elements(a: Algebra, v: Sequence[Any]) -> Sequence[Any]:
        return v if a.index else v[:inputs]

    def lift(*v: Any) -> list[Any]:
        return [x for a in algebras for x in a.lift(*elements(a, v))]

    def combine(*v: Any) -> list[Any]:
        both = zip(parts(v[: cuts[-1]]), parts(v[cuts[-1] :]), strict=True)
        return [x for (a, left), (_, right) in both for x in a.combine(*left, *right)]

    def project(*v: Any) -> list[Any]:
        return [x for a, state in parts(v) for x in (state if a.project is None else a.project(*state))]

    def absorb(*v: Any) -> list[Any]:
        blocks = v[cuts[-1] :]
        return [
            x for a, state in parts(v) if a.absorb is not None for x in a.absorb(*state, *elements(a, blocks))
        ]

    arity = inputs + index
    return Algebra(
        fields=tuple(f"{f}{k}" for k, a in enumerate(algebras) for f in a.fields),
        identity=tuple(text for a in algebras for text in a.identity or ()),
        dtypes=tuple(d for a in algebras for d in a.dtypes),
        inputs=inputs,
        index=index,
        commutative=all(a.commutative for a in algebras),
        lift=trace(lift, arity),
        combine=trace(combine, 2 * cuts[-1]),
        project=trace(project, cuts[-1]),
        absorb=trace(absorb, cuts[-1] + arity) if all(a.absorb is not None for a in algebras) else None,
        derives=all(a.derives for a in algebras),
        folds_integers=all(a.folds_integers for a in algebras),
    )


# ------------------------------------------------------------------------------------------------------------ the pass


_OURS = (ours.reduce.default, ours.reduce_map.default)


class Call:
    """A fold or a map of a graph, whose results are all taken one by one.

    `algebra` folds the tensors `inputs`. `made` are nodes of the elements' shape that are functions of `inputs`, of the
    fold's results and of `extras` (`values` of their elements: the nodes' values). `rows`: nodes, and the values of the
    fold's results that they are. `sums`: the last of `values`, which are summed over rows.
    """

    def __init__(self, node: Node, given: dict[str, Any]) -> None:
        self.node, self.given = node, given
        self.algebra = monoid_of(given["monoid"]).algebra
        self.inputs, self.extras = list(given["inputs"]), list(given.get("extras", ()))
        project = self.algebra.project
        self.folded = len(self.algebra.fields) if project is None else len(project.outputs)
        results = {u.args[1]: u for u in node.users}
        whole = of_text(given["apply"]) if self.is_map else None
        rows = self.folded if whole is None else 0 if whole.rows is None else len(whole.rows.outputs)
        self.sums = 0 if whole is None else whole.sums
        stored = 0 if whole is None else len(whole.graph.outputs) - self.sums
        self.made: list[Node] = [results[i] for i in range(stored) if i in results]
        self.rows = {results[stored + i]: i for i in range(rows) if stored + i in results}
        self.summed = {
            results[stored + rows + i]: i for i in range(self.sums) if stored + rows + i in results
        }
        shown = [i for i in range(stored) if i in results]

        def values(known: dict[Node, Any], of_row: Sequence[Any]) -> tuple[dict[Node, Any], Sequence[Any]]:
            if whole is None:
                return {}, []
            made = whole.graph(*(known[t] for t in self.inputs), *of_row, *(known[t] for t in self.extras))
            return dict(zip(self.made, (made[i] for i in shown), strict=True)), made[stored:]

        def of_rows(of_row: Sequence[Any]) -> Sequence[Any]:
            return of_row if whole is None else () if whole.rows is None else whole.rows(*of_row)

        self.values, self.of_rows = values, of_rows

    @property
    def is_map(self) -> bool:
        """Whether it makes something of elements."""
        return self.node.target is ours.reduce_map.default

    @property
    def shape(self) -> tuple[str, ...]:
        """The elements' sizes."""
        if self.is_map:
            return tuple(map(str, _value(self.node)[0].shape))
        return tuple(map(str, broadcast_shape([_value(t) for t in self.inputs], "reduce")))

    @property
    def place(self) -> tuple[Any, ...]:
        """What folds have in common that may be one."""
        return self.shape, tuple(self.given["dims"]), self.given["guarantee"]


def _call(node: Node, devices: Container[str]) -> Call | None:
    """A fold or a map of floats, without a state before it; None for any other node."""
    if node.op != "call_function" or node.target not in _OURS:
        return None
    found = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)
    if found is None or not node.users or any(u.target is not operator.getitem for u in node.users):
        return None
    given = found.kwargs
    values = [_value(t) for t in (*given["inputs"], *given.get("extras", ()))]
    for v in values:
        if not isinstance(v, torch.Tensor) or v.device.type not in devices:
            return None
        if not (v.dtype.is_floating_point or v.dtype == torch.bool):
            return None
    if given.get("dtype") == torch.float64 and all(v.dtype != torch.float64 for v in values):  # computed so
        return None
    if given["convert"] is not None or given.get("init") or given.get("return_state"):
        return None
    call = Call(node, dict(given))
    return call if call.made or not call.is_map else None  # sums alone have no elements' shape


def fuse(graph: torch.fx.Graph, devices: Container[str] = ("cuda",)) -> int:
    """Fuse what can be of the tensors on such devices; how many nodes are gone."""
    count = len(graph.nodes)
    for node in [n for n in graph.nodes if n.target in _OURS]:
        if node in graph.nodes and (call := _call(node, devices)) is not None:
            _join(graph, [call])
    while _join_two(graph, devices):
        pass
    for node in [n for n in graph.nodes if n.target is ours.reduce.default]:
        if (call := _call(node, devices)) is not None:
            _finish(graph, call)
    return count - len(graph.nodes)


def _join_two(graph: torch.fx.Graph, devices: Container[str]) -> bool:
    """Make two calls one that read a tensor in common; whether there were such."""
    calls = [call for node in graph.nodes if (call := _call(node, devices)) is not None]
    return any(
        a.place == b.place and _shares(a, b) and not _depend(a, b) and _join(graph, [a, b])
        for a, b in itertools.combinations(calls, 2)
    )


def _shares(call: Call, other: Call) -> bool:
    """Whether two calls read a whole tensor in common."""
    return any(t in call.inputs and _shape(t) == other.shape for t in other.inputs)


def _behind(nodes: Iterable[Node]) -> set[Node]:
    """All that comes of some nodes, and they."""
    seen, pending = set(nodes), list(nodes)
    while pending:
        for user in pending.pop().users:
            if user not in seen:
                seen.add(user)
                pending.append(user)
    return seen


def _depend(call: Call, other: Call) -> bool:
    """Whether one of two calls comes of the other."""
    return other.node in _behind([call.node]) or call.node in _behind([other.node])


def _is_held(call: Call) -> bool:
    """Whether a fold's rows are such that a map of them reads them once: neighbours, many, and not too long."""
    sizes = [_hint(n) for n in broadcast_shape([_value(t) for t in call.inputs], "reduce")]
    dims = call.given["dims"]
    count = numbers.prod(sizes[d] for d in dims)
    last = sorted(dims) == list(range(len(sizes) - len(dims), len(sizes)))
    return last and count <= LONGEST and numbers.prod(sizes) >= count * FEWEST


def _join(graph: torch.fx.Graph, calls: Sequence[Call]) -> bool:
    """One call in place of some that depend on none of each other, with their pointwise neighbours; whether it was made."""
    nodes, shape = {c.node for c in calls}, calls[0].shape
    inputs = list(dict.fromkeys(t for c in calls for t in c.inputs))
    extras = list(dict.fromkeys(t for c in calls for t in c.extras))
    alone = len(calls) == 1
    maps = any(c.is_map for c in calls) or _is_held(calls[0])
    whole = {t for t in inputs if _shape(t) == shape} if maps else set[Node]()
    earlier = _producers(inputs, nodes, whole) if alone else Function(inputs, set(), inputs)
    made = {n for c in calls for n in c.made}
    begun = made | {s for s in earlier.steps if _shape(s) == shape} if maps else set[Node]()
    after = _consumers(graph, begun, _behind(nodes), shape)
    region = earlier.steps | after.steps | made
    others = list(dict.fromkeys([*extras, *(t for t in after.leaves if t not in region)]))
    beside = _producers(others, nodes | after.steps) if alone else Function(others, set(), others)
    # Others make these of no more bytes.
    left = {s for s in earlier.steps if _bytes(_taken_by(s)) <= _bytes([s])}
    exits = [
        n
        for n in graph.nodes
        if n in region - left and any(u not in region and u not in nodes for u in n.users)
    ]
    leaves = earlier.leaves
    tensors = [t for t in beside.leaves if t not in leaves]
    changes = not alone or earlier.steps or beside.steps or after.steps
    if not changes or len(leaves) + len(tensors) > MOST_TENSORS or any(_shape(n) != shape for n in exits):
        return False

    def known_of(given: Sequence[Any]) -> dict[Node, Any]:
        known = dict(zip(leaves, given, strict=False))
        return known | dict(zip(inputs, earlier(known), strict=True))

    parts = [
        before(c.algebra, lambda *v, c=c: [known_of(v)[t] for t in c.inputs], len(leaves)) for c in calls
    ]
    algebra = parts[0] if len(parts) == 1 else together(parts)
    if algebra is None:
        return False
    cuts = [0, *itertools.accumulate(c.folded for c in calls)]
    rows = [n for c in calls for n in c.rows]
    written, given = monoid_of_algebra(algebra).text, calls[0].given
    if not exits and not any(c.is_map for c in calls):
        arguments = {**given, "inputs": leaves, "monoid": written, **_one_dtype(rows)}
        taken = {n: cuts[k] + i for k, c in enumerate(calls) for n, i in c.rows.items()}
        return _replace(graph, calls, ours.reduce.default, arguments, taken)
    if not exits or (not alone and any(c.summed for c in calls)):
        return False

    def apply(*v: Any) -> list[Any]:
        of_row, rest = v[len(leaves) : len(leaves) + cuts[-1]], v[len(leaves) + cuts[-1] :]
        known = known_of(v[: len(leaves)]) | dict(zip(tensors, rest, strict=True))
        known |= dict(zip(others, beside(known), strict=True))
        summed: list[Any] = []
        for k, c in enumerate(calls):
            made, more = c.values(known, of_row[cuts[k] : cuts[k + 1]])
            known |= made
            summed += more
        return [*Function(exits, region, [])(known), *summed]

    def of_rows(*of_row: Any) -> list[Any]:
        return [
            c.of_rows(of_row[cuts[k] : cuts[k + 1]])[i] for k, c in enumerate(calls) for i in c.rows.values()
        ]

    function: Traced = of_graph(
        trace(apply, len(leaves) + cuts[-1] + len(tensors)),
        rows=trace(of_rows, cuts[-1]) if rows else None,
        sums=sum(c.sums for c in calls),
        dtypes=tuple(_value(n).dtype for n in exits),
    )
    first = len(exits)
    taken = {n: i for i, n in enumerate((*exits, *rows))}
    taken |= {n: first + len(rows) + i for c in calls for n, i in c.summed.items()}
    arguments = {
        "inputs": leaves, "extras": tensors, "monoid": written, "apply": function.text, "dims": given["dims"],
        "convert": None, "guarantee": given["guarantee"], "library": "",
    }  # fmt: skip
    return _replace(graph, calls, ours.reduce_map.default, arguments, taken)


def _one_dtype(rows: Iterable[Node]) -> dict[str, Any]:
    """Arguments of a fold whose results are some nodes: those of floats come in the widest of their dtypes."""
    floats = {d for n in rows if (d := _value(n).dtype).is_floating_point}
    return {"keepdim": True, "dtype": functools.reduce(torch.promote_types, floats) if floats else None}


def _finish(graph: torch.fx.Graph, call: Call) -> bool:
    """Make what is computed of a fold's results alone part of it; whether there was such, and results were no more then."""
    dims, steps = list(call.given["dims"]), set[Node]()
    for node in graph.nodes:
        taken = _taken_by(node)
        if len(steps) == MOST_STEPS or not taken or not all(t in call.rows or t in steps for t in taken):
            continue
        drops = node.target is aten.squeeze.dims and node.args[1] == dims
        if (drops and _value(taken[0]).ndim == len(call.shape)) or (
            _is_pointwise(node) and all(_shape(t) == _shape(node) for t in taken)
        ):
            steps.add(node)
    exits = [n for n in (*call.rows, *steps) if any(u not in steps for u in n.users)]
    if len(exits) > len(call.rows) or all(n.target is aten.squeeze.dims for n in steps):
        return False

    def results(*of_row: Any) -> list[Any]:
        return Function(exits, steps, [])({n: of_row[i] for n, i in call.rows.items()})

    algebra = finished(call.algebra, trace(results, call.folded))
    arguments = {**call.given, "monoid": monoid_of_algebra(algebra).text, **_one_dtype(exits)}
    return _replace(graph, [call], ours.reduce.default, arguments, {n: i for i, n in enumerate(exits)})


def _consumers(
    graph: torch.fx.Graph, begun: set[Node], behind: set[Node], shape: tuple[str, ...]
) -> Function:
    """What is computed of such nodes, element by element, and of tensors that come of no call's results otherwise."""
    steps: set[Node] = set()
    for node in graph.nodes:
        given = _taken_by(node)
        if node in begun or not any(a in begun or a in steps for a in given) or len(steps) == MOST_STEPS:
            continue
        if (
            all(a in begun or a in steps or a not in behind for a in given)
            and _is_pointwise(node)
            and _shape(node) == shape
        ):
            steps.add(node)
    return Function(list(steps), steps, _leaves(list(steps), steps))


def _replace(
    graph: torch.fx.Graph,
    calls: Sequence[Call],
    target: Any,
    arguments: dict[str, Any],
    taken: dict[Node, int],
) -> bool:
    """Put one call in the place of some. `taken`: nodes, and which of its results they become.

    Whether it was: not where it would make other shapes or dtypes, or would need what comes of it.
    """
    mode = detect_fake_mode([_value(t) for t in arguments["inputs"]])
    if mode is None or _needs_itself(arguments, calls, taken):
        return False
    values = {
        k: [_value(n) for n in v] if k in ("inputs", "extras", "init") else v for k, v in arguments.items()
    }
    with mode:
        made = target(**values)
    if any(made[i].dtype != _value(n).dtype and not _value(n).is_floating_point() for n, i in taken.items()):
        return False
    old = calls[0].node
    with graph.inserting_before(old), mode:
        new = _node(graph, target, tuple(arguments.values()), made)
        new.meta = {**old.meta, "val": made}
        if "eager_input_vals" in old.meta:  # whose strides Inductor keeps
            new.meta["eager_input_vals"] = (tuple(values.values()), {})
        for node, place in taken.items():
            value, like = made[place], _value(node)
            got = _node(graph, operator.getitem, (new, place), value)
            if value.ndim != like.ndim:
                value = value.squeeze(list(arguments["dims"]))
                got = _node(graph, aten.squeeze.dims, (got, list(arguments["dims"])), value)
            if value.dtype != like.dtype:
                got = _node(
                    graph, prims.convert_element_type.default, (got, like.dtype), value.to(like.dtype)
                )
            node.replace_all_uses_with(got)
    stable_topological_sort(graph)
    graph.eliminate_dead_code()
    return True


def _node(graph: torch.fx.Graph, target: Any, given: tuple[Any, ...], value: Any) -> Node:
    made = graph.create_node("call_function", target, given)
    made.meta["val"] = value
    return made


def _needs_itself(arguments: dict[str, Any], calls: Sequence[Call], taken: dict[Node, int]) -> bool:
    """Whether a tensor comes of what a call will make."""
    behind = _behind([*(c.node for c in calls), *taken])
    return any(t in behind for k in ("inputs", "extras") for t in arguments.get(k, ()))


class Fusion(CustomGraphPass):
    """The pass, with what torch's cache on disk must know of it, and the one that was there before."""

    def __init__(self, devices: Sequence[str] = ("cuda",), earlier: Any = None) -> None:
        self.devices, self.earlier = tuple(devices), earlier

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Change a graph in place."""
        if self.earlier is not None:
            self.earlier(graph)
        fuse(graph, self.devices)

    def uuid(self) -> Any:
        """What it does; its source is in torch's key of every graph already (`runtime.caching.source_tag`)."""
        return "tilefold fusion", self.devices, None if self.earlier is None else self.earlier.uuid()


def switch(on: bool, devices: Sequence[str] = ("cuda",)) -> None:
    """Have Inductor run the pass over each graph that it compiles from now on, or no longer."""
    there = config.post_grad_custom_pre_pass
    earlier = there.earlier if isinstance(there, Fusion) else there
    config.post_grad_custom_pre_pass = Fusion(devices, earlier) if on else earlier
