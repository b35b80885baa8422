"""What is launched, in order: kernels of the tutorials' manner, of the case book, and of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import ragged
import torch
import tutorials
from scattered import sends

from tilefold.xray.compile.source import load_file

ROOT = Path(__file__).parent.parent.parent
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32}


@dataclass(frozen=True)
class Launch:
    """A kernel and what it is launched with; `make` gives its arguments, the same each time."""

    name: str
    kernel: Any
    make: Callable[[], dict[str, Any]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, ...] = (1,)
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class Fold:
    """A fold of the library, as `tilefold xray --fold` takes it: one launch or two."""

    name: str

    @property
    def monoid(self) -> str:
        """The monoid's name in `tilefold.monoids`."""
        return self.name.split()[0].upper()

    @property
    def dim(self) -> int:
        """The dim that is folded."""
        return int(self.name.split()[1].removeprefix("dim="))

    def make(self) -> torch.Tensor:
        """The tensor to fold."""
        _, _, shape, dtype = self.name.split()
        return random(*map(int, shape.split("x")), dtype=_DTYPES[dtype])


def random(*shape: int, dtype: torch.dtype = torch.float32, below: int = 16) -> torch.Tensor:
    """Normal random numbers; integers from 0 to `below`."""
    generator = torch.Generator().manual_seed(0)
    if not dtype.is_floating_point:
        return torch.randint(0, below, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros that are to be overwritten."""
    return torch.zeros(shape, dtype=dtype)


@cache
def case_book() -> ModuleType:
    """The kernels of the case book."""
    return load_file(ROOT / "examples" / "casebook" / "kernels.py")


def _of_the_book(name: str, size: int = 2048) -> Launch:
    """A case of the book; pointers that it leaves open get memory of `size` elements."""
    case = dict(case_book().xray_cases()[name])

    def make() -> dict[str, Any]:
        return {n: _value(text, size) for n, text in case["args"].items()}

    grid = case.get("grid", 1)
    return Launch(
        f"case book: {name}", case["kernel"], make, case["constants"],
        (grid,) if isinstance(grid, int) else tuple(grid), case.get("num_warps", 4), case.get("num_stages", 3),
    )  # fmt: skip


def _value(given: Any, size: int) -> Any:
    if not isinstance(given, str):
        return given
    kind, _, count = given.removeprefix("*").removesuffix("]").partition("[")
    return random(int(count or size), dtype=_DTYPES[kind])


def _matmul(name: str, dtype: torch.dtype, tile: tuple[int, int, int], sizes: tuple[int, int, int], warps: int,
            stages: int, precision: str = "tf32") -> Launch:  # fmt: skip
    m, n, k = sizes

    def make() -> dict[str, Any]:
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
        return {"a_ptr": a, "b_ptr": b, "c_ptr": empty(m, n, dtype=dtype), "k": k, "n": n}

    constants = {"M": tile[0], "N": tile[1], "K": tile[2], "PRECISION": precision}
    return Launch(name, tutorials.matmul, make, constants, (m // tile[0], n // tile[1]), warps, stages)


def _through(dtype: torch.dtype, *shape: int, **others: Any) -> Callable[[], dict[str, Any]]:
    """Arguments of a kernel that reads x and writes y of the same shape."""
    return lambda: {"x_ptr": random(*shape, dtype=dtype), "y_ptr": empty(*shape, dtype=dtype), **others}


def _sums(n: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"x_ptr": random(n), "y_ptr": random(n), "z_ptr": empty(n), "n": n}


def _norm() -> dict[str, Any]:
    return {
        "x_ptr": random(4, 1000), "w_ptr": random(1000), "b_ptr": random(1000), "y_ptr": empty(4, 1000),
        "mean_ptr": empty(4), "scale_ptr": empty(4), "columns": 1000,
    }  # fmt: skip


def _attention() -> dict[str, Any]:
    half = torch.float16
    return {
        "q_ptr": random(128, 64, dtype=half), "k_ptr": random(256, 64, dtype=half), "v_ptr": random(256, 64, dtype=half),
        "o_ptr": empty(128, 64), "n": 256,
    }  # fmt: skip


def _ragged() -> list[Launch]:
    """Kernels whose loops and jumps depend on data."""
    r, i32 = ragged, torch.int32
    begins = torch.tensor([0, 5, 5, 300, 437, 1000, 1001, 1500, 1999], dtype=i32)
    return [
        Launch("recurrence", r.recurrence,
               lambda: {"a_ptr": random(8, 1024), "b_ptr": random(8, 1024), "y_ptr": empty(8, 1024)}, {"N": 1024}, (8,)),
        Launch("ragged sums", r.ragged_sums, lambda: {"x_ptr": random(1999), "begins_ptr": begins, "y_ptr": empty(8)},
               {"BLOCK": 128}, (8,)),
        Launch("buckets", r.buckets,
               lambda: {"x_ptr": random(4000, dtype=i32, below=100_000), "counts_ptr": empty(61, dtype=i32), "n": 4000},
               {"BLOCK": 512, "K": 61}, (8,)),
        Launch("rows of lengths", r.rows_of_lengths,
               lambda: {"x_ptr": random(6, 1000), "lengths_ptr": begins[:6], "y_ptr": empty(6), "stride": 1000},
               {"BLOCK": 256}, (6,)),
        Launch("bisected", r.bisected,
               lambda: {"x_ptr": random(512), "sorted_ptr": random(1000).sort().values, "y_ptr": empty(512, dtype=i32),
                        "n": 1000}, {"BLOCK": 256, "STEPS": 10}, (2,)),
        Launch("persistent", r.persistent, _through(torch.float32, 5000, n=5000), {"BLOCK": 256}, (6,)),
        Launch("collatz", r.collatz,
               lambda: {"x_ptr": random(512, dtype=i32, below=1000), "y_ptr": empty(512, dtype=i32)}, {"BLOCK": 128}, (4,)),
        Launch("newton", r.newton, _through(torch.float32, 1000, n=1000, steps=7), {"BLOCK": 256}, (4,)),
        Launch("chosen", r.chosen,
               lambda: {"x_ptr": random(8, 512), "flags_ptr": random(8, dtype=i32), "y_ptr": empty(8, 512)},
               {"N": 512}, (8,)),
        Launch("nearest", r.nearest,
               lambda: {"x_ptr": random(1000), "centres_ptr": random(16), "at_ptr": empty(1000, dtype=i32),
                        "sums_ptr": empty(16), "n": 1000}, {"K": 16, "BLOCK": 128}, (8,)),
        Launch("segment adds", r.segment_adds,
               lambda: {"x_ptr": random(100, 60), "ids_ptr": random(100, dtype=i32, below=9).sort().values.to(i32),
                        "y_ptr": empty(9, 60), "n": 100, "columns": 60}, {"ROWS": 16, "COLUMNS": 64}, (7,)),
        Launch("jagged softmax", r.jagged_softmax,
               lambda: {"x_ptr": random(1999), "begins_ptr": begins, "y_ptr": empty(1999)}, {"BLOCK": 256}, (8,)),
        Launch("sums since", r.sums_since,
               lambda: {"x_ptr": random(16, 256), "flags_ptr": random(16, 256, dtype=i32), "y_ptr": empty(16, 256)},
               {"M": 4, "N": 256}, (4,)),
        Launch("sparse rows", r.sparse_rows,
               lambda: {"values_ptr": random(1999), "columns_ptr": random(1999, dtype=i32, below=300), "begins_ptr": begins,
                        "v_ptr": random(300), "y_ptr": empty(8)}, {"BLOCK": 64}, (8,), 2),
        Launch("until enough", r.until_enough, lambda: {"x_ptr": random(5, 3000), "y_ptr": empty(5, dtype=i32), "n": 3000,
                                                        "limit": 900.0}, {"BLOCK": 512}, (5,)),
        Launch("by turns", r.by_turns, _through(torch.float32, 2500, n=2500), {"BLOCK": 512}, (5,), 2),
        Launch("tickets", r.tickets,
               lambda: {"keys_ptr": random(1500, dtype=i32, below=400), "counts_ptr": empty(64, dtype=i32),
                        "old_ptr": empty(1500, dtype=i32), "n": 1500}, {"BLOCK": 256, "K": 7}, (6,)),
        Launch("halves added", r.halves_added,
               lambda: {"x_ptr": random(32, dtype=torch.float16), "at_ptr": random(32, dtype=i32, below=40),
                        "y_ptr": empty(40, dtype=torch.float16), "n": 30}, {"BLOCK": 32}, (1,), 1),
    ]  # fmt: skip


def launches() -> list[Launch | Fold]:
    """All, in the order in which they are launched."""
    t, bf16, fp16, i32, i8 = tutorials, torch.bfloat16, torch.float16, torch.int32, torch.int8
    f32 = torch.float32
    return [
        Launch("vector add", t.vector_add, _sums(4096), {"BLOCK": 1024}, (4,)),
        Launch("vector add, odd length", t.vector_add, _sums(2999), {"BLOCK": 256}, (12,)),
        Launch("strided copy", t.strided_copy, lambda: {"x_ptr": random(8192), "y_ptr": empty(1024), "step": 8},
               {"BLOCK": 256}, (4,)),
        Launch("softmax", t.fused_softmax, _through(f32, 8, 781, columns=781), {"BLOCK": 1024}, (8,)),
        Launch("softmax, 8 warps", t.fused_softmax, _through(fp16, 4, 4096, columns=4096), {"BLOCK": 4096}, (4,), 8),
        Launch("layer norm", t.layer_norm, _norm, {"BLOCK": 256}, (4,)),
        Launch("rms norm", t.rms_norm,
               lambda: {"x_ptr": random(8, 1024, dtype=bf16), "w_ptr": random(1024), "y_ptr": empty(8, 1024, dtype=bf16)},
               {"N": 1024}, (8,)),
        Launch("dropout", t.dropout, _through(f32, 3000, n=3000, p=0.25, seed=123), {"BLOCK": 1024}, (3,)),
        Launch("swiglu", t.swiglu,
               lambda: {"gate_ptr": random(4096, dtype=bf16), "up_ptr": random(4096, dtype=bf16),
                        "y_ptr": empty(4096, dtype=bf16)}, {"BLOCK": 1024}, (4,)),
        Launch("transpose", t.transposed, _through(f32, 128, 64, rows=128, columns=64), {"M": 64, "N": 32}, (2, 2)),
        Launch("transpose of halves", t.transposed, _through(fp16, 64, 64, rows=64, columns=64), {"M": 32, "N": 32}, (2, 2)),
        Launch("transpose of bytes", t.transposed, _through(i8, 64, 64, rows=64, columns=64), {"M": 64, "N": 64}, (1, 1)),
        Launch("column sums", t.column_sums,
               lambda: {"x_ptr": random(300, 100), "y_ptr": empty(100), "rows": 300, "columns": 100},
               {"M": 64, "N": 32}, (4,)),
        Launch("row extremes", t.row_extremes,
               lambda: {"x_ptr": random(64, 512), "y_ptr": empty(64), "at_ptr": empty(64, dtype=i32)},
               {"M": 16, "N": 512}, (4,), 8),
        Launch("running sums", t.running_sums, _through(f32, 4, 1024), {"N": 1024}, (4,)),
        Launch("sort", t.sorted_rows, _through(f32, 2, 512), {"N": 512}, (2,)),
        Launch("histogram by atomics", t.counted,
               lambda: {"x_ptr": random(1000, dtype=i32, below=97), "counts_ptr": empty(97, dtype=i32), "n": 1000},
               {"BLOCK": 256}, (4,)),
        Launch("embedding", t.embedding,
               lambda: {"indices_ptr": random(32, dtype=i32, below=200), "table_ptr": random(200, 128),
                        "y_ptr": empty(32, 128)},
               {"N": 128, "ROWS": 8}, (4,)),
        Launch("quantized rows", t.quantized,
               lambda: {"x_ptr": random(4, 2048, dtype=bf16), "y_ptr": empty(4, 2048, dtype=i8), "scale_ptr": empty(4)},
               {"N": 2048}, (4,)),
        _matmul("matmul, wgmma", fp16, (64, 64, 64), (128, 128, 256), 4, 3),
        _matmul("matmul, wgmma, 8 warps", bf16, (128, 128, 64), (128, 128, 256), 8, 3),
        _matmul("matmul, mma.sync", bf16, (32, 32, 32), (64, 64, 128), 4, 2),
        _matmul("matmul, mma.sync of tf32", f32, (32, 32, 32), (32, 32, 128), 2, 3),
        _matmul("matmul off the tensor cores", f32, (32, 32, 32), (32, 32, 64), 4, 1, "ieee"),
        Launch("attention", t.attention, _attention, {"D": 64, "M": 64, "N": 64}, (2,)),
        *map(_of_the_book, ("copy", "copy, 1 warp", "copy, 16 warps", "loop", "static 1001", "split", "sum", "atomic sum",
                            "transpose", "sigmoid", "dot")),
        _of_the_book("matrix", 32 * 1024),
        *map(Fold, ("sum dim=1 32x1024 fp32", "logsumexp dim=1 16x8192 bf16", "argmax dim=1 16x1000 fp32",
                    "max dim=1 1024x8 fp32", "sum dim=0 256x64 fp32", "sum dim=1 1x65536 fp32", "welford dim=1 8x3000 fp32",
                    "minmax dim=1 16x777 fp16")),
        *_ragged(),
        *(Launch(*given) for given in sends()),
    ]  # fmt: skip
