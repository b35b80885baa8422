"""What kernels are called with, by name: records that stand among a call's arguments and constants.

A kernel reads their fields (`sizes.output`, `TILE.RUN`). Steps and sizes are in elements; a tuple has one for each dim. Where
records are put together with `+`, Triton forgets the names of their fields: a comprehension keeps them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Numbers = tuple[int, ...]


class Operand(NamedTuple):
    """A tensor that is read: the first element is `shift` after the pointer."""

    pointer: Any
    shift: int
    outer: Numbers
    output: int
    deep: Numbers
    reduced: int


class Results(NamedTuple):
    """Results of which each row has one value, or a state's fields: pointers, and steps along the output dims."""

    pointers: tuple[Any, ...]
    outer: Numbers
    output: int


class Mapped(NamedTuple):
    """Results of which each element has one value: pointers, and steps along the output and the reduced dims."""

    pointers: tuple[Any, ...]
    outer: Numbers
    output: int
    deep: Numbers
    reduced: int


class Position(NamedTuple):
    """The steps of an element's position, for monoids that see it.

    `outer`: those of the outer dims, then sizes and steps of the dims that results along the last output dim are counted by.
    """

    outer: tuple[Numbers, ...]
    deep: Numbers
    reduced: int


class Sizes(NamedTuple):
    """Sizes of dims, and `length`: elements of one result.

    `outer`: output dims but the last, walked by whole programs; where results are walked as one, each with the number of
    results inside it. `deep`: reduced dims but the last, taken apart with div and mod (general strides).
    """

    outer: tuple[Any, ...]
    deep: Numbers
    output: int
    reduced: int
    length: int


class Walk(NamedTuple):
    """How rows are counted: `output` of them for each place along the `outer` dims."""

    outer: Numbers
    output: int


class Shares(NamedTuple):
    """How results, in `blocks`, and their elements are shared out: program `split` of `splits` takes `chunk` elements.

    `ragged`: results that have a last element, where not all have one. `step`: from one split's state to the next one's.
    """

    chunk: int
    splits: int
    blocks: int
    ragged: int
    step: int


class Tile(NamedTuple):
    """A tile of [RUN, LANES, BLOCK_OUTPUTS, UNROLL] elements."""

    BLOCK_OUTPUTS: int
    LANES: int
    RUN: int
    UNROLL: int


class Block(NamedTuple):
    """A program's part of BLOCK_OUTPUTS whole rows: TILES tiles of [RUN, LANES, BLOCK_OUTPUTS] elements.

    TOGETHER of them are one tensor, [RUN, LANES, BLOCK_OUTPUTS, TOGETHER], and those left over one each. BY_LANES: there is
    one tensor, which each lane folds by itself, as `fold_lanes` does; else all are one block.
    """

    BLOCK_OUTPUTS: int
    LANES: int
    RUN: int
    TILES: int
    TOGETHER: int
    BY_LANES: bool


class Extras(NamedTuple):
    """Which extra tensors have one value a row, and which one beside each element or one for all."""

    OF_ROWS: tuple[int, ...]
    BESIDE: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The order in which APPLY takes them."""
        return self.OF_ROWS + self.BESIDE


class Owned(NamedTuple):
    """Which results and elements a program has.

    SPLIT: others have elements of the same results; SPLITS_FIRST: neighbours in launch order do. FLAT: results of all output
    dims are counted as one. SHIFT: places begin so many elements before the first result, at a whole VECTOR.
    """

    SPLIT: bool
    SPLITS_FIRST: bool
    FLAT: bool
    SHIFT: int
    VECTOR: int


class Way(NamedTuple):
    """A program's way through its elements, as `fold_part` says it."""

    MASK_OUTPUTS: bool
    ALIGN: int
    HEAD: int
    HAS_FULL: int
    TAIL: int
    WIDE: bool
    EVICT: str
    LENGTH: int
    PREFETCH: bool = False
    STAGES: int = 1
    USE_ABSORB: bool = False
    IN_ORDER: bool = False
    TAIL_ONCE: bool = False
    RAGGED: int = 0
    DEEP: int = 0
    REDUCED: int = 0
    OVER: int = -1


class LineSteps(NamedTuple):
    """Steps from line to line of a scan's results, or of its states."""

    outer: Numbers
    line: int


class Lines(NamedTuple):
    """A tensor of lines: steps along the outer dims, from line to line, and along a line."""

    pointer: Any
    outer: Numbers
    line: int
    step: int


class LineStates(NamedTuple):
    """A field of lines' states: steps along the outer dims, and from line to line."""

    pointer: Any
    outer: Numbers
    line: int


class SegmentResults(NamedTuple):
    """Results of which each segment of a line has one: steps along the outer dims, from line to line, and along a line."""

    pointers: tuple[Any, ...]
    outer: Numbers
    line: int
    step: int


class Left(NamedTuple):
    """What a chunk leaves: states before its first border and behind its last one, a field each [2, chunks, outputs].

    `closing`: the segment that began before a chunk and ends in it, -1 where there is none, [chunks].
    """

    states: tuple[Any, ...]
    closing: tuple[Any, ...]


class SegmentSizes(NamedTuple):
    """Sizes of a ragged fold of `outputs` lines, of `length` elements, that are all cut into the same segments.

    `lines` of the last dim are shared by `blocks` programs. `lead`: elements of the first chunk that lie ahead of a line.
    """

    outer: Numbers
    lines: int
    length: int
    segments: int
    chunks: int
    outputs: int
    blocks: int
    lead: int


class SegmentTile(NamedTuple):
    """A tile of a ragged fold in one of four forms, of which a chunk has CHUNK elements of a line.

    FORM: "runs" and "windows" of rows, LANES = 2 ** LANES_DEPTH windows of STEPS = 2 ** DEPTH runs of RUN = 2 ** LEVELS
    neighbours; "columns", LANES * STEPS rows of COLUMNS columns; "whole" segments, LANES runs. WHOLE_RUNS: a run is a vector
    that is aligned in memory, and read whole where the row ends in it. LOOKED: offsets that a search looks at at a time.
    SHORT_RUNS: segments of so many runs at most are read once more. NARROW: rows of columns begin between vectors. ACROSS: a
    lane's rows are LANES apart.
    """

    FORM: str
    LANES: int
    LANES_DEPTH: int
    CHUNK: int = 0
    RUN: int = 0
    LEVELS: int = 0
    STEPS: int = 1
    DEPTH: int = 0
    WHOLE_RUNS: bool = False
    LOOKED: int = 0
    SHORT_RUNS: int = 0
    COLUMNS: int = 1
    NARROW: bool = False
    ACROSS: bool = False


class Plane(NamedTuple):
    """A tensor of rows and columns: steps along the outer dims, from row to row, and from column to column."""

    pointer: Any
    outer: Numbers
    row: int
    column: int


class Scan(NamedTuple):
    """A tile of a scan: LINES lines of NUMBER chunks of CHUNK elements, of which COUNT are stored at a time.

    BY_ROWS: elements of a line are neighbours, read in vectors of RUN. SHIFT: places of each input begin so many elements
    behind a vector. HAS_INIT: states before the lines are given. MASK_LINES: some tile has fewer lines. SUMS: chunks' sums
    are scanned, and elements added anew.
    """

    LINES: int
    NUMBER: int
    CHUNK: int
    COUNT: int
    BY_ROWS: bool
    RUN: int
    SHIFT: Numbers
    REVERSE: bool
    EXCLUSIVE: bool
    HAS_INIT: bool
    MASK_LINES: bool
    SUMS: bool


class Look(NamedTuple):
    """How a share of a line looks back: at GROUP shares, and GROUPS groups; a state has WORD_COUNT words, a program WARPS."""

    GROUP: int
    GROUPS: int
    WORD_COUNT: int
    WARPS: int


class Ring(NamedTuple):
    """A ring of DEPTH turns, through which a program's SHARE elements of ROWS rows come in TURNS turns.

    A row has LANES threads, and a turn UNROLL vectors of RUN elements a thread. ALIGN: rows begin at any multiple of so many
    elements. MASKED as `map_rings` says.
    """

    LANES: int
    ROWS: int
    RUN: int
    UNROLL: int
    TURNS: int
    DEPTH: int
    ALIGN: int
    MASKED: int
    SHARE: int


class ProductTile(NamedTuple):
    """A tile of results of a product, [BLOCK_M, BLOCK_N], BLOCK_K elements at a time.

    ACROSS, DOWN: tiles beside and below each other (0: any number). BATCHED: there are several matrices. STEP_B: b's step
    along K. MASK_M, MASK_N, MASK_K: tiles end behind the sizes. WIDE: offsets need 64 bits. PACKED_A, PACKED_B: the operand
    lies in blocks, 1 or 2 by its order.
    """

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    ACROSS: int
    DOWN: int
    BATCHED: bool
    STEP_B: int
    MASK_M: bool
    MASK_N: bool
    MASK_K: bool
    WIDE: bool
    PRECISION: str
    PACKED_A: int
    PACKED_B: int


class PackedLines(NamedTuple):
    """An operand of a product that is copied in `lines` rows of `length` elements: steps from row to row, and along a row.

    `blocks`: programs that share a row.
    """

    pointer: Any
    line: int
    step: int
    lines: int
    length: int
    blocks: int


class ClassValues(NamedTuple):
    """A tensor that has an element for each class of a row, or one a row: steps along the rows' dims, and along classes.

    Or several results that lie alike.
    """

    pointers: tuple[Any, ...]
    rows: Numbers
    step: int


class Strided(NamedTuple):
    """How a number gives a place: sizes of all dims but the first, and steps of all."""

    sizes: Numbers
    steps: Numbers


class SelectionTile(NamedTuple):
    """A tile of a selection: ROWS rows, each by LANES threads in TURNS turns of UNROLL runs of RUN elements.

    TURNS_PADDED: the power of two above. CANDIDATES: groups whose best elements a thread has. ALIGN, VECTORS, EDGES: rows
    begin anywhere, are read in vectors, and have some that are not whole.
    """

    ROWS: int
    LANES: int
    UNROLL: int
    RUN: int
    TURNS: int
    TURNS_PADDED: int
    CANDIDATES: int
    ALIGN: bool
    VECTORS: bool
    EDGES: bool


class MoveTile(NamedTuple):
    """A tile of a copy: [BLOCK_M, BLOCK_N] runs of RUN elements, SLOTS being the power of two above.

    MASK_M, MASK_N: tiles end behind the sizes.
    """

    BLOCK_M: int
    BLOCK_N: int
    MASK_M: bool
    MASK_N: bool
    RUN: int
    SLOTS: int


class Span(NamedTuple):
    """A program's span: TAKEN rows, ROWS being the power of two above, INNER of which lie beside each other.

    A row has LANES threads, which take EACH of its elements; a program has THREADS.
    """

    ROWS: int
    TAKEN: int
    INNER: int
    LANES: int
    EACH: int
    THREADS: int
