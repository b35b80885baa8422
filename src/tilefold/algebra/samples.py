"""Samples that laws are checked on: states that elements can reach, ties, signs, infinities and huge values among them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.evaluate import Operand, convert, evaluate, evaluate_as
from tilefold.algebra.program import Program, as_written
from tilefold.algebra.typing import is_float

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


@dataclass(frozen=True)
class Pool:
    """Lifted samples of one kind: `elements[j][k]` is row-wise the k-th element of the j-th state."""

    program: Program
    kind: str
    blocks: list[list[tuple[torch.Tensor, ...]]]
    lifted: list[list[State]]
    states: list[State]

    @property
    def identity(self) -> State:
        """The identity, a row each."""
        return as_state(self.program.identity, self.program)

    @property
    def cancels(self) -> bool:
        """Whether rounding may hide everything else."""
        return self.kind == "huge" and any(is_float(d) for d in self.program.state)

    @property
    def rounding(self) -> float:
        """What two combines may lose, relative to the numbers in them."""
        graphs = (self.program.lift, self.program.combine, self.program.absorb)
        floats = {d for graph in graphs if graph is not None for d in graph.dtypes if is_float(d)}
        floats |= {d for d in self.program.state if is_float(d)}
        nodes = len(self.program.combine.graph.nodes)
        return max((torch.finfo(d).eps for d in floats), default=0.0) * nodes * ROUNDINGS_PER_NODE

    def combine(self, a: State, b: State) -> State:
        """The states of two, row by row."""
        return as_state(evaluate_as(self.program.combine, [*a, *b], self.program.state), self.program)

    def project(self, state: State) -> State:
        """The results of a state, a row each."""
        results = evaluate(self.program.project, [*state])
        return tuple(torch.as_tensor(r).expand(ROWS) for r in results)


@contextlib.contextmanager
def real_samples() -> Iterator[None]:
    """Samples are made on the CPU and with values, whatever device or mode the caller has set: they are kept."""
    with _disable_current_modes(), torch.device("cpu"):
        yield


@functools.lru_cache(maxsize=64)
def choices(rows: int, options: int, seed: int) -> torch.Tensor:
    """Fixed random picks that leave torch's own generator alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(options, (rows,), generator=generator)


def pools_of(algebra: Algebra) -> Iterator[Pool]:
    """The pools of every sampled dtype that the algebra folds."""
    for dtype, kinds in SAMPLES.items():
        for kind in kinds:
            pool = pool_of(algebra, (dtype,) * algebra.inputs, kind)
            if pool is None:
                break
            if kind == "moderate" or not _cuts_floats(pool.program):
                yield pool


def _cuts_floats(program: Program) -> bool:
    """Whether lifted floats become whole numbers, which infinities and huge ones have no place among."""
    pairs = zip(program.lift.output_dtypes, program.state, strict=True)
    return any(is_float(given) and not is_float(carried) for given, carried in pairs)


def pool_of(algebra: Algebra, dtypes: tuple[torch.dtype, ...], kind: str) -> Pool | None:
    """The pool of inputs of these dtypes, or None where the algebra does not fold them."""
    samples = [
        torch.tensor((SAMPLES[d] | MORE_SAMPLES[d]).get(kind, SAMPLES[d]["moderate"]), dtype=d)
        for d in dtypes
    ]
    try:
        return sampled(as_written(algebra, dtypes), kind, samples)
    except RuntimeError:  # a DtypeError of ours, or torch's own, as for an integer division by 0
        return None


def sampled(program: Program, kind: str, samples: Sequence[torch.Tensor]) -> Pool:
    """The pool of a program over these values of its elements."""
    blocks = [[element_of(program, samples, j * ELEMENTS + k) for k in range(ELEMENTS)] for j in range(3)]
    lifted = [
        [as_state(evaluate_as(program.lift, element, program.state), program) for element in block]
        for block in blocks
    ]
    pool = Pool(program, kind, blocks, lifted, [])
    for number, block in enumerate(lifted):
        pool.states.append(folded(pool, block, choices(ROWS, ELEMENTS, 1000 + number)))
    return pool


def element_of(program: Program, samples: Sequence[torch.Tensor], position: int) -> tuple[torch.Tensor, ...]:
    """One element of each input in every row, the same in a state's first rows; positions rise with the order."""
    algebra = program.algebra
    drawn = []
    for number, values in enumerate(samples):
        picks = choices(ROWS, len(values), position * 8 + number).clone()
        picks[: len(values)] = torch.arange(len(values))
        drawn.append(values[picks])
    return (*drawn, torch.full((ROWS,), position)) if algebra.index else tuple(drawn)


def folded(pool: Pool, block: Sequence[State], last: torch.Tensor) -> State:
    """In each row the combination of the block's elements 0 to `last`."""
    state = block[0]
    for k, element in enumerate(block[1:], 1):
        grown = pool.combine(state, element)
        state = tuple(torch.where(last >= k, new, old) for new, old in zip(grown, state, strict=True))
    return state


def as_state(values: Sequence[Operand], program: Program) -> State:
    """Every field a full row of its carried dtype."""
    fields = []
    for value, dtype in zip(values, program.state, strict=True):
        converted = convert(value, dtype)
        stored = torch.int64 if dtype == torch.uint64 else dtype
        tensor = converted if isinstance(converted, torch.Tensor) else torch.tensor(converted, dtype=stored)
        fields.append(tensor.expand(ROWS))
    return tuple(fields)
