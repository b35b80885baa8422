"""What is measured: the cells of the grid, what each operation is in torch, its answer in float64, and who competes."""

from __future__ import annotations

import functools
import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

OPS = ("sum", "amax", "argmax", "max", "logsumexp", "var", "all", "aminmax", "vector_norm")
SHAPES = (
    (32768, 256), (32768, 1024), (16384, 8192), (4096, 65536), (256, 1 << 20),
    (1, 1 << 28), (8, 1 << 25), (1 << 24, 8), (1 << 20, 64), (64, 1 << 20),
)  # fmt: skip
OR_SHAPES = (
    (64, 128, 4), (128, 256, 8), (256, 512, 16), (512, 1024, 4), (1024, 2048, 8), (2048, 4096, 16),
)  # fmt: skip
SMOKE_SHAPES = ((32, 16), (8, 256), (1, 4096), (1024, 8))
SMOKE_OR_SHAPES = ((4, 8, 4), (8, 16, 8))
HEADLINE_OPS = ("sum", "argmax", "logsumexp", "var")
HEADLINE_AXES = (((16384, 8192), 1), ((16384, 8192), 0), ((1, 1 << 28), 1), ((1 << 24, 8), 1))
DTYPES = {
    "bf16": torch.bfloat16, "fp32": torch.float32, "int32": torch.int32, "int64": torch.int64,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One fold to time: an operation over one dim of one shape."""

    op: str
    dim: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def headline(self) -> bool:
        """Whether it is one of the 16 cells that are judged by the worst."""
        axis = (self.shape, self.dim)
        return self.dtype == "bf16" and self.op in HEADLINE_OPS and axis in HEADLINE_AXES

    def __str__(self) -> str:
        return f"{self.op} dim{self.dim} {'x'.join(map(str, self.shape))} {self.dtype}"


def all_cells(smoke: bool = False) -> list[Cell]:
    """The whole grid, headline cells first, then shape by shape so that an input is drawn once."""
    cells = [
        Cell(op, dim, shape, dtype)
        for dtype in ("bf16", "fp32")
        for shape in (SMOKE_SHAPES if smoke else SHAPES)
        for dim in (1, 0)
        if shape[dim] != 1
        for op in OPS
    ]
    cells += [
        Cell("bitwise_or", 2, shape, dtype)
        for dtype in ("int32", "int64")
        for shape in (SMOKE_OR_SHAPES if smoke else OR_SHAPES)
    ]
    return sorted(cells, key=lambda cell: not cell.headline)


def draw_input(shape: tuple[int, ...], dtype: str, device: str, seed: int = 0) -> torch.Tensor:
    """Fresh random elements, none of them zero: zeros would let `all` stop early, and run faster than data does."""
    generator = torch.Generator(device).manual_seed(seed)
    if dtype.startswith("int"):
        return torch.randint(1, 2**31 - 1, shape, device=device, dtype=DTYPES[dtype], generator=generator)
    x = torch.randn(shape, device=device, dtype=DTYPES[dtype], generator=generator)
    return x.masked_fill_(x == 0, 1)


TORCH_OPS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "sum": lambda x, dim: x.sum(dim),
    "amax": lambda x, dim: x.amax(dim),
    "argmax": lambda x, dim: x.argmax(dim),
    "max": lambda x, dim: x.max(dim),
    "logsumexp": lambda x, dim: torch.logsumexp(x, dim),
    "var": lambda x, dim: x.var(dim),
    "all": lambda x, dim: x.all(dim),
    "aminmax": lambda x, dim: torch.aminmax(x, dim=dim),
    "vector_norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    # torch has no such fold; this is the form its compiler fuses into one kernel.
    "bitwise_or": lambda x, dim: functools.reduce(torch.bitwise_or, x.unbind(dim)),
}


def ours(cell: Cell) -> Callable[[torch.Tensor], Any]:
    """The operation by tilefold."""
    import tilefold

    fold = getattr(tilefold, cell.op, None)
    if fold is None:
        fold = getattr(importlib.import_module("tilefold.functional"), cell.op)
    return functools.partial(fold, dim=cell.dim)


def eager(cell: Cell) -> Callable[[torch.Tensor], Any]:
    """The operation by torch, eager."""
    operation, dim = TORCH_OPS[cell.op], cell.dim
    return lambda x: operation(x, dim)


def compiled(cell: Cell) -> Callable[[torch.Tensor], Any]:
    """The operation by torch.compile, tuned for this one shape."""
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 10_000
    return torch.compile(eager(cell), mode="max-autotune-no-cudagraphs", dynamic=False)


VARIANTS = {"ours": ours, "torch": eager, "compile": compiled}


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of a fold, one or several."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def answer(cell: Cell, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs to compare with: float64 for what rounds, torch's own for what is exact."""
    exact = cell.op in ("amax", "argmax", "max", "all", "aminmax", "bitwise_or")
    return tensors(TORCH_OPS[cell.op](x if exact else x.double(), cell.dim))


def expected_dtypes(cell: Cell) -> tuple[torch.dtype, ...]:
    """The outputs' dtypes, as torch has them."""
    # aminmax, max and the rest on a tiny tensor: a question of types, answered by torch itself.
    tiny = torch.ones((2,) * len(cell.shape), dtype=DTYPES[cell.dtype])
    return tuple(t.dtype for t in tensors(TORCH_OPS[cell.op](tiny, cell.dim)))


def fault(cell: Cell, x: torch.Tensor, result: Any, want: tuple[torch.Tensor, ...]) -> str | None:
    """What is wrong with a result, or None."""
    got = tensors(result)
    for number, (g, w, dtype) in enumerate(zip(got, want, expected_dtypes(cell), strict=True)):
        if g.shape != w.shape or g.dtype != dtype:
            return f"output {number} is {tuple(g.shape)} {g.dtype}, not {tuple(w.shape)} {dtype}"
    if cell.op in ("argmax", "max"):
        return index_fault(x, cell.dim, got, want)
    for g, w in zip(got, want, strict=True):
        if not w.dtype.is_floating_point or cell.op in ("amax", "aminmax"):
            if not torch.equal(g, w):
                return f"{int((g != w).sum())} of {w.numel()} elements differ"
            continue
        excess = (g.double() - w).abs() / tolerance(cell, x.shape[cell.dim], g.dtype, w)
        # `not <=` so that NaN fails.
        if not float(excess.max()) <= 1:
            return f"the error is {float(excess.max()):.3g} times the bound"
    return None


def index_fault(
    x: torch.Tensor, dim: int, got: tuple[torch.Tensor, ...], want: tuple[torch.Tensor, ...]
) -> str | None:
    """Ties are many in bf16 and torch leaves their order open on a GPU: an index is right if a maximum stands there."""
    index, maximum = got[-1], x.amax(dim)
    if int(index.min()) < 0 or int(index.max()) >= x.shape[dim]:
        return "an index is out of range"
    if not torch.equal(x.gather(dim, index.unsqueeze(dim)).squeeze(dim), maximum):
        return "an index points at no maximum"
    return None if len(got) == 1 or torch.equal(got[0], want[0]) else "a value is no maximum"


def tolerance(cell: Cell, length: int, dtype: torch.dtype, want: torch.Tensor) -> torch.Tensor:
    """How far a float32 accumulation of normal variates, rounded to `dtype`, may lie from the float64 answer.

    The output's own rounding is eps/2 |want|; eps is allowed. The rest, by operation:
    sum: a chain of L additions has partial sums near sqrt(L), so n/L chains err by about u sqrt(n L); L <= 2^16 is
      allowed (u 256 sqrt(n)), which is 0.25 at n = 2^28, still less than a typical element: a lost tile shows.
    var, vector_norm: relative, 5e-5, above the chains of a float32 Welford over 2^28 elements.
    logsumexp: the log turns the relative error of the sum into an absolute one; 5e-5 likewise.
    """
    rounding = torch.finfo(dtype).eps * want.abs()
    if cell.op == "sum":
        return rounding + 2**-24 * 256 * math.sqrt(length)
    return rounding + (5e-5 if cell.op == "logsumexp" else 5e-5 * want.abs())


def poison_cache(like: tuple[torch.Tensor, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    """Leave poisoned blocks of the outputs' sizes in torch's allocator, so that an element nobody wrote shows."""
    blocks = [torch.empty(t.shape, dtype=d, device=t.device) for t, d in zip(like, dtypes, strict=True)]
    for block in blocks:
        # Not True for bool: True is the right answer of `all`.
        block.fill_(float("nan") if block.is_floating_point() else 0 if block.dtype == torch.bool else -1)


def warm(job: tuple[str, Cell, str, float]) -> tuple[str, str, str | None]:
    """In a worker: compile one variant of one cell into the caches on disk. Gives its key and what went wrong."""
    variant, cell, device, deadline = job
    if time.time() > deadline:
        return variant, str(cell), "no time left"
    try:
        VARIANTS[variant](cell)(draw_input(cell.shape, cell.dtype, device))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:  # any failure of one cell must leave the others running
        return variant, str(cell), f"{type(error).__name__}: {str(error)[:200]}"
    return variant, str(cell), None
