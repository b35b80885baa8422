"""Samples that laws are checked on: states that elements can reach, ties, signs, infinities and huge values among them.

What a monoid does may turn at its own constants, far from every sample that suits all. So each constant of its graphs, with
its neighbours, is a sample too, in rows that hold little else (`near`), and in rows that mix several.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.domain import ends_of, within
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.evaluate import Operand, convert, evaluate, stored
from tilefold.algebra.numbers import Number
from tilefold.algebra.operations import values_of
from tilefold.algebra.proofs.exact import Exact
from tilefold.algebra.proofs.exact import State as ExactState
from tilefold.algebra.written import Program, as_written
from tilefold.runtime.caching import kept_outside_modes

INFINITY = float("inf")
State = tuple[torch.Tensor, ...]
ROWS, ELEMENTS = 256, 4
ROUNDINGS_PER_NODE = (
    64  # two combines of at most half an ulp a node, with room for exp and pow of arguments up to 8
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, -3.25, 3.0, 7.0, -8.0)
_INTS = (0, 1, -1, 2, 3, 5, -5, 7, -8)
SAMPLES: dict[torch.dtype, dict[str, tuple[float | int | bool, ...]]] = {
    torch.float64: {
        "moderate": _FLOATS,
        "infinite": (*_FLOATS[:6], *(INFINITY, -INFINITY) * 3),
        "huge": (*_FLOATS[:4], 1e30, -1e30, 1e4, -1e4),
    },
    torch.int64: {"moderate": _INTS, "huge": (*_INTS[:4], 1 << 40, -(1 << 40), (1 << 58) + 1, -(1 << 58))},
    torch.bool: {"moderate": (False, True)},
}
MORE_SAMPLES: dict[torch.dtype, dict[str, tuple[float, ...]]] = {  # only for block forms that are derived
    torch.float64: {"nan": (*_FLOATS[:6], *(float("nan"),) * 2)},
    torch.int64: {},
    torch.bool: {},
}
NEAR = "near constants"
_EVERYWHERE = (0, 1, -1)  # constants that the samples above are around
_MOST_CONSTANTS = 32
_LARGEST_INTEGER = (1 << 58) + 1  # a dozen of them sum to what int64 holds


@dataclass(frozen=True)
class Pool:
    """Lifted samples of one kind: `elements[j][k]` is row-wise the k-th element of the j-th state.

    `reach` is the largest float in a row's combines so far, where that says what rounding may do in a block. `exactly` makes
    the three states of a row of the same elements in exact arithmetic.
    """

    program: Program
    kind: str
    blocks: list[list[tuple[torch.Tensor, ...]]]
    lifted: list[list[State]]
    states: list[State]
    reach: torch.Tensor
    exactly: Callable[[Exact, int], list[ExactState]]

    @property
    def rows(self) -> int:
        """How many samples there are of each state."""
        return len(self.reach)

    @property
    def identity(self) -> State:
        """The identity, a row each."""
        return as_state(self.program.identity, self.program, self.rows)

    @property
    def cancels(self) -> bool:
        """Whether rounding may hide everything else."""
        return self.kind == "huge" and any(is_float(d) for d in self.program.state)

    @property
    def lenient(self) -> bool:
        """Whether values may be so far apart that overflow, or rounding between them, proves nothing."""
        return self.kind not in ("moderate", "infinite", "nan")

    @functools.cached_property
    def rounding(self) -> float:
        """What two combines may lose, relative to the numbers in them."""
        graphs = (self.program.lift, self.program.combine, self.program.absorb)
        floats = {d for graph in graphs if graph is not None for d in graph.dtypes if is_float(d)}
        floats |= {d for d in self.program.state if is_float(d)}
        nodes = len(self.program.combine.graph.nodes)
        return max((torch.finfo(d).eps for d in floats), default=0.0) * nodes * ROUNDINGS_PER_NODE

    def combine(self, a: State, b: State) -> State:
        """The states of two, row by row."""
        if self.kind in ("huge", NEAR):
            everything = self.program.every_node([*a, *b])
            sizes = [
                v.double().expand(self.rows)
                for v in everything
                if isinstance(v, torch.Tensor) and v.is_floating_point()
            ]
            if sizes:
                largest = torch.stack(sizes).abs_().nan_to_num_(0.0, 0.0, 0.0).amax(0)
                self.reach.copy_(self.reach.maximum(largest))
        return full(self.program.combined([*a, *b]), self.rows)

    def project(self, state: State) -> State:
        """The results of a state, a row each."""
        project = self.program.project
        results = zip(evaluate(project, [*state]), project.output_dtypes, strict=True)
        return tuple(torch.as_tensor(r, dtype=stored(d)).expand(self.rows) for r, d in results)


@kept_outside_modes(64)
def choices(rows: int, options: int, seed: int) -> torch.Tensor:
    """Fixed random picks that leave torch's own generator alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(options, (rows,), generator=generator)


def pools_of(algebra: Algebra) -> Iterator[Pool]:
    """The pools of every sampled dtype that the algebra folds."""
    for dtype, kinds in SAMPLES.items():
        for kind in kinds_of(algebra, dtype, kinds):
            pool = pool_of(algebra, (dtype,) * algebra.inputs, kind)
            if pool is None:
                break
            if kind in ("moderate", NEAR) or not _cuts_floats(pool.program):
                yield pool


def kinds_of(algebra: Algebra, dtype: torch.dtype, kinds: Iterable[str]) -> tuple[str, ...]:
    """These kinds of samples, and those near the algebra's constants where it has such."""
    return (*kinds, NEAR) if near(algebra, dtype) else tuple(kinds)


def _cuts_floats(program: Program) -> bool:
    """Whether lifted floats become whole numbers, which infinities and huge ones have no place among."""
    pairs = zip(program.lift.output_dtypes, program.state, strict=True)
    return any(is_float(given) and not is_float(carried) for given, carried in pairs)


def pool_of(algebra: Algebra, dtypes: tuple[torch.dtype, ...], kind: str) -> Pool | None:
    """The pool of inputs of these dtypes, or None where the algebra does not fold them."""
    samples = [_values(algebra, number, dtype, kind) for number, dtype in enumerate(dtypes)]
    if not all(values.numel() for values in samples):
        return None  # nothing of this dtype is in the domain
    try:
        return sampled(as_written(algebra, dtypes), kind, samples)
    except RuntimeError:  # a DtypeError of ours, or torch's own, as for an integer division by 0
        return None


def _values(algebra: Algebra, number: int, dtype: torch.dtype, kind: str) -> torch.Tensor:
    """The samples of one input, within its domain; those near constants in groups [groups, n]."""
    kinds = SAMPLES[dtype] | MORE_SAMPLES[dtype]
    groups = near(algebra, dtype) if kind == NEAR else ()
    given = kinds.get(kind) or kinds["moderate"]
    if algebra.domain is not None:
        one = algebra.domain[number]
        groups = tuple(within(group, one, dtype) for group in groups)
        given = (*within(given, one, dtype), *ends_of(one, dtype))
    return torch.tensor(groups or given, dtype=dtype)


def sampled(program: Program, kind: str, samples: Sequence[torch.Tensor]) -> Pool:
    """The pool of a program over these values of its elements."""
    blocks = [[element_of(program, samples, j * ELEMENTS + k) for k in range(ELEMENTS)] for j in range(3)]
    lifted = [[full(program.lifted(element), ROWS) for element in block] for block in blocks]
    last = [choices(ROWS, ELEMENTS, 1000 + number) for number in range(3)]

    def exactly(exact: Exact, row: int) -> list[ExactState]:
        made = []
        for block, lasts in zip(blocks, last, strict=True):
            states = [
                exact.lift([v[row].item() for v in element]) for element in block[: int(lasts[row]) + 1]
            ]
            made.append(functools.reduce(exact.combine, states))
        return made

    pool = Pool(program, kind, blocks, lifted, [], torch.zeros(ROWS, dtype=torch.float64), exactly)
    for number, block in enumerate(lifted):
        pool.states.append(folded(pool, block, last[number]))
    return pool


def element_of(program: Program, samples: Sequence[torch.Tensor], position: int) -> tuple[torch.Tensor, ...]:
    """One element of each input in every row, the same in a state's first rows; positions rise with the order.

    Of samples [groups, n] a row draws from one group.
    """
    algebra = program.algebra
    drawn = []
    for number, values in enumerate(samples):
        picks = choices(ROWS, values.shape[-1], position * 8 + number).clone()
        if values.dim() == 2:
            drawn.append(values[torch.arange(ROWS, device="cpu") % len(values), picks])
            continue
        picks[: len(values)] = torch.arange(len(values), device="cpu")
        drawn.append(values[picks])
    return (*drawn, torch.full((ROWS,), position, device="cpu")) if algebra.index else tuple(drawn)


@kept_outside_modes(64)
def near(algebra: Algebra, dtype: torch.dtype) -> tuple[tuple[Number, ...], ...]:
    """Groups of samples of a dtype, as long as each other: around each constant of the algebra, and as many that mix them."""
    groups = [_around(number, dtype) for number in constants(algebra)] if dtype != torch.bool else []
    groups = list(dict.fromkeys(group for group in groups if group))
    everything = [number for group in groups for number in group]
    picks = [choices(len(group), len(everything), 2000 + k) for k, group in enumerate(groups)]
    return (
        (*groups, *(tuple(everything[i] for i in pick) for pick in picks)) if len(groups) > 1 else (*groups,)
    )


def constants(algebra: Algebra) -> list[Number]:
    """The finite numbers of an algebra that its values may turn at, those that it compares with first."""
    graphs = [algebra.combine, algebra.lift, algebra.project, algebra.absorb, algebra.begin]
    compared, others = list[Number](), [*(algebra.identity_numbers or ())]
    for nodes in (graph.nodes for graph in graphs if graph is not None):
        for node in nodes:
            given = [nodes[a].value for a in node.args if nodes[a].op == "const"]
            (compared if values_of(node.op).turns == "compares" else others).extend(given)
    numbers = (n for n in (*compared, *others) if not isinstance(n, bool) and math.isfinite(n))
    return list(dict.fromkeys(n for n in numbers if n not in _EVERYWHERE))[:_MOST_CONSTANTS]


def _around(number: Number, dtype: torch.dtype) -> tuple[Number, ...]:
    """A number and its neighbours as values of a dtype, its opposite, 0 and 1; none where a sum would leave the dtype."""
    if not is_float(dtype):
        if abs(number) > _LARGEST_INTEGER:
            return ()
        low, high = math.floor(number), math.ceil(number)
        return (low - 1, low, high, high + 1, high + 2, -low, 0, 1)
    value = float(number)
    single = (
        2.0**-100 < abs(value) < 2.0**100
    )  # then the neighbours are those of float32, which no field rounds away
    wide = torch.tensor(value, dtype=torch.float32 if single else torch.float64)
    ends = torch.tensor([-INFINITY, INFINITY], dtype=wide.dtype)
    before, after = (float(v) for v in torch.nextafter(wide, ends).double())
    return (value - 1, min(before, value), value, max(after, value), value + 1, -value, 0.0, 1.0)


def folded(pool: Pool, block: Sequence[State], last: torch.Tensor) -> State:
    """In each row the combination of the block's elements 0 to `last`."""
    state = block[0]
    for k, element in enumerate(block[1:], 1):
        grown = pool.combine(state, element)
        state = tuple(torch.where(last >= k, new, old) for new, old in zip(grown, state, strict=True))
    return state


def full(values: Sequence[torch.Tensor], rows: int) -> State:
    """A full row of every field."""
    return tuple(v.expand(rows) for v in values)


def as_state(values: Sequence[Operand], program: Program, rows: int = ROWS) -> State:
    """Every field a full row of its carried dtype."""
    fields = []
    for value, dtype in zip(values, program.state, strict=True):
        converted = convert(value, dtype)
        if not isinstance(converted, torch.Tensor):
            converted = torch.tensor(converted, dtype=stored(dtype), device="cpu")
        fields.append(converted.expand(rows))
    return tuple(fields)
