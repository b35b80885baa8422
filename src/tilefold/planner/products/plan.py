"""The sizes of a product and the candidates that the planner compares: tiles, splits, a second launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tilefold.planner.plan import count


@dataclass(frozen=True)
class Sizes:
    """M, N, K and how many such products, with the bytes of an operand's element.

    `loose`: of a, of b, whether its elements are loaded one by one, since no four bytes of it are known to be aligned.
    `across`: of a, of b, whether neighbours in memory lie along its rows (of results: M, N), not along K.
    `narrow`: of a, of b, whether fewer than 16 bytes of it are known to be aligned.
    """

    rows: int
    columns: int
    depth: int
    batches: int
    itemsize: int
    loose: tuple[bool, bool] = (False, False)
    across: tuple[bool, bool] = (False, True)
    narrow: tuple[bool, bool] = (False, False)

    @property
    def outputs(self) -> int:
        """How many results there are."""
        return self.rows * self.columns * self.batches

    @property
    def operand_bytes(self) -> int:
        """Bytes that must be read."""
        return (self.rows + self.columns) * self.depth * self.batches * self.itemsize


@dataclass(frozen=True)
class Asked:
    """What a call demands of a product's plan besides its sizes.

    `cublas`: torch multiplies this dtype as precisely as we promise; `finished`: and leaves nothing to do after it.
    `row`: a program has whole rows of results. `in_order`: the splits of a result are summed one after another.
    """

    dtype: torch.dtype
    precision: str = "ieee"
    cublas: bool = True
    finished: bool = False
    row: bool = False
    in_order: bool = False

    @property
    def true_float32(self) -> bool:
        """Whether float32 operands are multiplied without rounding them first. No tensor core does this."""
        return self.dtype == torch.float32 and self.precision == "ieee"


@dataclass(frozen=True)
class Tile:
    """One program multiplies [block_m, block_k] by [block_k, block_n], with `num_stages` steps of K in flight."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    def loose_elements(self, sizes: Sizes) -> int:
        """The elements of a step that a program loads one by one."""
        loose_a, loose_b = sizes.loose
        return (self.block_m * loose_a + self.block_n * loose_b) * self.block_k

    def step_bytes(self, itemsize: int) -> int:
        """Bytes that a program reads in a step of K."""
        return (self.block_m + self.block_n) * self.block_k * itemsize


@dataclass(frozen=True)
class Tiling:
    """The decisions of the launch that multiplies: its tile, how many programs share K, float32's precision.

    `reserved_bytes` is the shared memory that a program asks for at least: so much that no SM holds more than its share, so
    that programs that begin early spread over all of them.
    """

    tile: Tile
    splits: int = 1
    reserved_bytes: int = 0
    precision: str = "ieee"
    packed: tuple[bool, bool] = (False, False)

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        t = self.tile
        sizes = f"m{t.block_m},n{t.block_n},k{t.block_k},w{t.num_warps},p{t.num_stages}"
        return f"tiles:{sizes},s{self.splits}"

    def __str__(self) -> str:
        t = self.tile
        share = ", no SM to more than its share" if self.reserved_bytes else ""
        return (
            f"tiles of {t.block_m} x {t.block_n} results, {t.block_k} of K a step, "
            f"{count(self.splits, 'split')}, {count(t.num_warps, 'warp')}, {t.num_stages} steps on their way{share}"
        )


@dataclass(frozen=True)
class Packing:
    """The launch that copies operands into rows of whole vectors, with zeros behind their elements.

    `packed` says which. A program copies `elements` of one: neighbours of as many rows as hold so many.
    """

    packed: tuple[bool, bool]
    blocks: tuple[int, int]
    elements: int
    num_warps: int

    def lines(self, operand: int) -> int:
        """How many rows of an operand a program copies."""
        return self.elements // self.blocks[operand]

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"pack:{'a' * self.packed[0]}{'b' * self.packed[1]},{self._sizes('')},w{self.num_warps}"

    def __str__(self) -> str:
        which = " and ".join(name for name, is_packed in zip("ab", self.packed, strict=True) if is_packed)
        return f"{which} copied into rows of whole vectors, {self._sizes(' ')} elements a program"

    def _sizes(self, space: str) -> str:
        """Rows and neighbours of a program, of each operand."""
        which = [operand for operand in (0, 1) if self.packed[operand]]
        return "+".join(f"{self.lines(n)}{space}x{space}{self.blocks[n]}" for n in which)


@dataclass(frozen=True)
class Finish:
    """The second launch: a program folds `block` neighbouring results, `lanes` partial products of each at a time.

    One lane loads all splits at once and sums them one after another, in an order that no layout of registers can change.
    `row`: the columns of a whole row in this block, padded to a power of two; 0 where rows mean nothing.
    """

    block: int
    lanes: int
    num_warps: int
    row: int = 0

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"finish:x{self.block},l{self.lanes},w{self.num_warps}"

    def __str__(self) -> str:
        what = (
            f"{count(self.block // self.row, 'row')} of {self.row}"
            if self.row
            else count(self.block, "result")
        )
        return f"{what} x {count(self.lanes, 'lane')} a program, {count(self.num_warps, 'warp')}"


@dataclass(frozen=True)
class Candidate:
    """One way to multiply, which the cost model weighs: `contract.steps` makes a plan of the one that is chosen.

    `packed` says which operands are copied into rows of whole vectors first, in a launch of its own (`contract.packing`).
    `splits` programs share the K of a tile. `finish` is the launch that ends a "split" product, or a "cublas" one that torch
    does not end itself; `overlap` begins it early (programmatic dependent launch); `chained` begins the first launch early
    too, beside the end of whatever ran before, and has it wait there before it reads. `time_us` is what the cost model
    expects (or a search measured), `reason` its words.
    """

    strategy: str
    tile: Tile | None = None
    splits: int = 1
    finish: Finish | None = None
    overlap: bool = False
    chained: bool = False
    reserved_bytes: int = 0
    packed: tuple[bool, bool] = (False, False)
    precision: str = "ieee"
    guarantee: str = "run_to_run"
    time_us: float = 0.0
    reason: str = ""

    @property
    def decisions(self) -> Candidate:
        """The candidate without its descriptions (time, reason)."""
        return replace(self, time_us=0.0, reason="")
