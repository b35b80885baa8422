"""What is asked of a product and the frozen answer to "how": one or two launches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tilefold.planner.plan import count


@dataclass(frozen=True)
class Sizes:
    """M, N, K and how many such products, with the bytes of an operand's element."""

    rows: int
    columns: int
    depth: int
    batches: int
    itemsize: int

    @property
    def outputs(self) -> int:
        """How many results there are."""
        return self.rows * self.columns * self.batches

    @property
    def operand_bytes(self) -> int:
        """What must be read."""
        return (self.rows + self.columns) * self.depth * self.batches * self.itemsize


@dataclass(frozen=True)
class Asked:
    """What a plan must serve besides its sizes.

    `cublas`: torch multiplies this dtype as precisely as we promise; `finished`: and leaves nothing to do after it.
    `row`: whole rows of results meet in one program. `in_order`: the splits of a result are summed one after another.
    """

    dtype: torch.dtype
    precision: str = "ieee"
    cublas: bool = True
    finished: bool = False
    row: bool = False
    in_order: bool = False

    @property
    def true_float32(self) -> bool:
        """Whether float32 operands are multiplied as such, which no tensor core does."""
        return self.dtype == torch.float32 and self.precision == "ieee"


@dataclass(frozen=True)
class Tile:
    """What one program multiplies: [block_m, block_k] by [block_k, block_n], `num_stages` steps of K on their way."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    def step_bytes(self, itemsize: int) -> int:
        """What a program reads a step of K."""
        return (self.block_m + self.block_n) * self.block_k * itemsize


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


@dataclass(frozen=True)
class ContractPlan:
    """How one product runs. Equal plans for equal shapes, dtypes and chips.

    `splits` programs share the K of a tile. `finish` is the launch that ends a "split" product, or a "cublas" one that torch
    does not end itself; `overlap` begins it early (programmatic dependent launch); `chained` begins the first launch early
    too, beside the end of whatever ran before, and has it wait there before it reads. `reserved_bytes` is the shared memory
    that a program of the first launch asks for at least: so much that no core holds more than its share, so that those begun
    early spread over all cores. `time_us` is what the cost model expects (or a search measured), `reason` its words.
    """

    backend: str
    strategy: str
    tile: Tile | None = None
    splits: int = 1
    finish: Finish | None = None
    overlap: bool = False
    chained: bool = False
    reserved_bytes: int = 0
    precision: str = "ieee"
    guarantee: str = "run_to_run"
    time_us: float = 0.0
    reason: str = ""

    @property
    def decisions(self) -> ContractPlan:
        """The plan without what is only said of it."""
        return replace(self, time_us=0.0, reason="")

    @property
    def launches(self) -> int:
        """How many kernels one call launches."""
        return {"cublas": 1, "split": 1, "whole": 1}.get(self.strategy, 0) + (self.finish is not None)

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.strategy}{f', {self.reason}' if self.reason else ''}"]
        if self.tile is not None:
            t = self.tile
            lines.append(
                f"  1. tiles of {t.block_m} x {t.block_n} results, {t.block_k} of K a step, "
                f"{count(self.splits, 'split')}, {count(t.num_warps, 'warp')}, {t.num_stages} steps on their way"
            )
        if self.finish is not None:
            f = self.finish
            what = f"{count(f.block // f.row, 'row')} of {f.row}" if f.row else count(f.block, "result")
            lines.append(f"  2. {what} x {count(f.lanes, 'lane')} a program, {count(f.num_warps, 'warp')}")
        early = [str(i) for i, starts in ((1, self.chained), (2, self.overlap)) if starts]
        if early:
            alone = ", no core to more than its share of launch 1" if self.reserved_bytes else ""
            which = f"launch{'es' * (len(early) > 1)} {' and '.join(early)} start{'s' * (len(early) == 1)}"
            lines.append(f"  {which} early (programmatic dependent launch){alone}")
        return "\n".join(lines)


def nothing(guarantee: str) -> ContractPlan:
    """The plan of a product without results."""
    return ContractPlan("triton", "nothing", guarantee=guarantee, reason="no results")
