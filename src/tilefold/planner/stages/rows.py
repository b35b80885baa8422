"""The decisions of launches that fold rows and map them at once: blocks, rings, spans, offset rows, stripes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilefold.planner.plan import count
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.sizes import VECTOR_BYTES, WARP

# Definitions and limits of the hardware:
RESERVED_BYTES = 2048  # of a program's dynamic shared memory, for what Triton uses of it
LINE_VECTORS = 8  # of 128 bytes
BANKS, BANK_BYTES = 32, 4  # of shared memory

# docs/experiments/rings.md#stripes:
EARLY_TURNS = 8  # of a stripe, at most, that are folded one by one as they come


@dataclass(frozen=True)
class Blocks:
    """The decisions of a launch of `map_blocks`: a program or each of `splits` has `tiles` of [run, lanes, block_outputs].

    Only the tiles whose bits are in `masks` have elements beyond a row's ends. A thread has `neighbours` columns (0: a
    vector of 16 bytes), and `registers` at most (0: as the compiler has it).
    """

    family: str
    block_outputs: int
    lanes: int
    run: int
    tiles: int
    splits: int
    num_warps: int
    masks: int = 0
    align: int = 1
    evict_first: bool = True
    neighbours: int = 0
    registers: int = 0

    @property
    def step(self) -> int:
        """Elements of one row that a program holds."""
        return self.run * self.lanes * self.tiles

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"k{self.block_outputs},l{self.lanes},r{self.run}x{self.tiles}"
        return f"{self.family}:{tile},s{self.splits},w{self.num_warps}"

    def __str__(self) -> str:
        tile = f"{count(self.block_outputs, 'result')} x {count(self.lanes, 'lane')} x "
        tile += count(self.run * self.tiles, "element")
        words = [tile, count(self.splits, "split"), count(self.num_warps, "warp"), "one block"]
        words += ["aligned"] * (self.align > 1)
        words += [f"{count(self.neighbours, 'column')} a thread"] * (self.neighbours > 0)
        return f"{self.family}: {', '.join(words)}"


@dataclass(frozen=True)
class OffsetRows:
    """The decisions of a launch of `map_offset`: each of `splits` programs holds `share` elements of a row, in `turns` turns.

    A turn is `unroll` times `run` neighbours a thread. `areas` and `result_areas` are where in shared memory each input and
    each result lies. A thread has `registers` at most.
    """

    lanes: int
    run: int
    unroll: int
    turns: int
    splits: int
    share: int
    areas: tuple[int, ...]
    result_areas: tuple[int, ...]
    shared_bytes: int
    registers: int
    block_outputs: int = 1

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return self.lanes // WARP

    @property
    def step(self) -> int:
        """Elements of one row that a program holds."""
        return self.run * self.lanes * self.unroll * self.turns

    def vectors(self, itemsize: int) -> int:
        """Vectors that a thread copies of a tensor."""
        return math.ceil(span(self.share, itemsize) / (VECTOR_BYTES * self.lanes))

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"offset:l{self.lanes},r{self.run}x{self.unroll},t{self.turns},s{self.splits}"

    def __str__(self) -> str:
        words = [
            f"{count(self.lanes, 'lane')} x {count(self.run * self.unroll, 'element')}",
            count(self.turns, "turn"),
        ]
        words += [count(self.splits, "split"), count(self.num_warps, "warp")]
        return f"offset rows: {', '.join(words)}"


def span(elements: int, itemsize: int) -> int:
    """Bytes of the whole vectors that hold so many elements, wherever they begin."""
    return (math.ceil(elements * itemsize / VECTOR_BYTES) + 1) * VECTOR_BYTES


@dataclass(frozen=True)
class Rings:
    """The decisions of a launch of `map_rings`: each of `splits` programs holds `turns` of [unroll, lanes, run] of each row.

    Or a program holds `block_outputs` rows. Its ring has room for `depth` turns, of `inputs` inputs; `held`: and for its
    share of `extras` extra tensors. `clusters` walk over the rows; where it is 0, there are as many as rows. With `parted`
    turns are folded as they come, and the last one alone may be short. A thread has `registers` at most (0: as the compiler
    has it). Words of extra tensors are read so many turns `ahead`; all of them: once, for all rows. A ring of fewer turns
    than a row has takes the first of them twice.
    """

    family: str
    lanes: int
    run: int
    unroll: int
    turns: int
    depth: int
    splits: int
    clusters: int = 0
    align: int = 1
    held: bool = False
    inputs: int = 1
    extras: int = 0
    block_outputs: int = 1
    parted: bool = False
    registers: int = 0
    ahead: int = 1

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return self.lanes * self.block_outputs // WARP

    @property
    def step(self) -> int:
        """Elements of one row that a program holds."""
        return self.run * self.lanes * self.unroll * self.turns

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring, and of the extra tensors behind it."""
        turns = self.depth * self.inputs * self.block_outputs + self.turns * self.extras * self.held
        return turns * self.unroll * self.lanes * VECTOR_BYTES

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"k{self.block_outputs},l{self.lanes},r{self.run}x{self.unroll},t{self.turns}/{self.depth}"
        return (
            f"{self.family}:{tile},s{self.splits},c{self.clusters}"
            + ",held" * self.held
            + f",a{self.ahead}" * (self.ahead > 1)
        )

    def __str__(self) -> str:
        elements = count(self.run * self.unroll, "element")
        tile = f"{count(self.block_outputs, 'result')} x {count(self.lanes, 'lane')} x {elements}"
        words = [tile, f"{self.turns} of {count(self.depth, 'turn')} a row", count(self.splits, "split")]
        words += [count(self.num_warps, "warp")]
        words += [f"{count(self.clusters, 'cluster')} for all rows"] * (self.clusters > 0)
        words += ["extra tensors held"] * self.held + ["aligned"] * (self.align > 1)
        return f"{self.family}: {', '.join(words)}"


@dataclass(frozen=True)
class Spans:
    """Decisions of a launch of `map_spans`: a program has `block_outputs` rows, each by `lanes` threads of `each` elements.

    `areas` are where in its shared memory each tensor's span begins that is copied there (-1: one that is not),
    `result_areas` where each result's does, `shared_bytes` what all take. `aligned`: every program's span begins at a
    multiple of 16 bytes. `across`: a row is absorbed as one block by all its threads, else each folds its own elements.
    `inner`: rows that lie beside each other, 1 where one lies after the other; a program has whole groups of them, or with
    `pieces` some columns of one, a piece of memory for each of their elements.
    """

    block_outputs: int
    lanes: int
    each: int
    num_warps: int
    aligned: bool
    areas: tuple[int, ...]
    result_areas: tuple[int, ...]
    shared_bytes: int
    across: bool = False
    inner: int = 1
    pieces: bool = False
    splits: int = 1

    @property
    def step(self) -> int:
        """Elements of one row that a program holds."""
        return self.lanes * self.each

    def vectors(self, length: int, itemsize: int) -> int:
        """Vectors that hold a program's span of elements of so many bytes, in rows of so many: those at its ends too."""
        if self.pieces:
            return length * self.piece(itemsize)
        return span_vectors(self.block_outputs * length * itemsize, self.aligned)

    def piece(self, itemsize: int) -> int:
        """Vectors from one of its pieces to the next; 0 where its span is one."""
        if not self.pieces:
            return 0
        return piece_vectors(self.block_outputs * itemsize, self.lanes, self.aligned)

    def programs(self, outputs: int) -> int:
        """How many programs so many rows take."""
        if self.pieces:
            return outputs // self.inner * math.ceil(self.inner / self.block_outputs)
        return math.ceil(outputs / self.block_outputs)

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        groups = ",p" if self.pieces else f",i{self.inner}" if self.inner > 1 else ""
        return f"spans:k{self.block_outputs},l{self.lanes}x{self.each},w{self.num_warps}{groups}"

    def __str__(self) -> str:
        words = [
            f"{count(self.block_outputs, 'result')} x {count(self.lanes, 'lane')} x {count(self.each, 'element')}",
            count(self.num_warps, "warp"),
            f"{self.shared_bytes} bytes of shared memory",
        ]
        groups = "pieces" if self.pieces else f"groups of {count(self.inner, 'column')}"
        words += [groups] * (self.inner > 1)
        words += ["one block"] * self.across + ["aligned"] * self.aligned
        return f"spans: {', '.join(words)}"


def dense_tensors(problem: Problem) -> tuple[bool, ...]:
    """Which tensors' rows lie one after the other, as the results' do."""
    inner, steps = problem.reduced_dims[-1], [d.output for d in problem.output_dims]
    return tuple(
        inner.strides[i] == inner.output and [d.strides[i] for d in problem.output_dims] == steps
        for i in range(len(problem.dtypes))
    )


def span_vectors(size: int, aligned: bool) -> int:
    """Vectors that hold so many bytes: one more where they may begin between two."""
    return math.ceil(size / VECTOR_BYTES) + (not aligned)


def piece_vectors(size: int, lanes: int, aligned: bool) -> int:
    """Vectors from one piece of so many bytes to the next: a column's elements lie banks apart where threads share it."""
    vectors, all_banks = span_vectors(size, aligned), BANKS * BANK_BYTES // VECTOR_BYTES
    return vectors if lanes == 1 else vectors + (all_banks // lanes - vectors) % all_banks


@dataclass(frozen=True)
class Stripes:
    """Decisions of a launch of `map_stripes`: each of `splits` programs holds `turns` of [unroll, lanes] rows of a stripe.

    A stripe is `vectors` vectors of `run` columns wide. A program's ring holds `depth` turns. `clusters` persistent clusters
    take stripes; where it is 0, there are as many as stripes. A thread has `registers` at most (0: as the compiler has it).
    """

    lanes: int
    vectors: int
    run: int
    unroll: int
    turns: int
    depth: int
    splits: int
    clusters: int = 0
    registers: int = 0

    @property
    def early(self) -> bool:
        """Whether turns are folded one by one, as they come."""
        return self.turns <= EARLY_TURNS

    @property
    def block_outputs(self) -> int:
        """Columns of a stripe."""
        return self.vectors * self.run

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return self.lanes * self.vectors // WARP

    @property
    def step(self) -> int:
        """Elements of a column that a program holds."""
        return self.lanes * self.unroll * self.turns

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring."""
        return self.depth * self.unroll * self.lanes * self.vectors * VECTOR_BYTES

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"k{self.block_outputs},l{self.lanes},r{self.unroll},t{self.turns}/{self.depth}"
        return f"stripe_columns:{tile},s{self.splits},c{self.clusters}"

    def __str__(self) -> str:
        tile = f"{count(self.block_outputs, 'result')} x {count(self.lanes, 'lane')} x {count(self.unroll, 'element')}"
        words = [tile, f"{self.turns} of {count(self.depth, 'turn')} a stripe", count(self.splits, "split")]
        words += [count(self.num_warps, "warp")]
        words += [f"{count(self.clusters, 'cluster')} for all stripes"] * (self.clusters > 0)
        return f"stripe_columns: {', '.join(words)}"
