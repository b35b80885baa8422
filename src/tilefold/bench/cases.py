"""Declarations of a benchmark: cases with their reference, tolerance and least costs; variants; suites."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from tilefold.algebra.monoid import Monoid
from tilefold.bench.layout import Layout, unique_bytes, whole_sectors

Call = Callable[[torch.Tensor], Any]
Outputs = tuple[torch.Tensor, ...]

DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64,
    "int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
}  # fmt: skip


@dataclass(frozen=True)
class Tolerance:
    """How far a float output may lie from the reference, elementwise, and why so far.

    `bound(want, dtype)` gives the distance allowed at each element, for an output that comes back in `dtype`. `exact`
    outputs must be equal, bit for bit in value.
    """

    why: str
    bound: Callable[[torch.Tensor, torch.dtype], torch.Tensor] | None = None

    @property
    def exact(self) -> bool:
        """Whether nothing but equality passes."""
        return self.bound is None


EXACT = Tolerance("no rounding happens: the answer is an element, a position or bits")


@dataclass(frozen=True)
class Case:
    """One problem to time: an operation over one or several dims of one tensor of `shape`, drawn from a seed.

    The tensor is contiguous, or lies in memory as `layout` says.
    `torch_call(x)` is torch's own call, None if there is none. `monoid` is the measured one where it is no
    operation of the suites' table. `reference(x)` gives the outputs to compare with, in a wider dtype
    where the operation rounds; `result_dtypes` and `result_shape` are a variant's results. `operations_each` is the
    least arithmetic an element needs. `group` names the plot that the case belongs to. With
    `has_index` the last output is a position, and any position of the same element is right. `altered`: see `draw`.
    `results`: the outputs' shape, where it is not that of the output dims. `contiguous`: outputs must lie so in memory, where
    that is what the operation is for.
    """

    operation: str
    dim: int | tuple[int, ...] | None
    shape: tuple[int, ...]
    dtype: str
    torch_call: Call | None = field(repr=False, compare=False)
    reference: Callable[[torch.Tensor], Outputs] = field(repr=False, compare=False)
    tolerance: Tolerance = field(repr=False, compare=False)
    result_dtypes: tuple[torch.dtype, ...] = field(repr=False)
    operations_each: int = 1
    group: str = ""
    headline: bool = False
    has_index: bool = False
    altered: Callable[[torch.Tensor], torch.Tensor] | None = field(default=None, repr=False, compare=False)
    layout: Layout | None = None
    monoid: Monoid | None = field(default=None, repr=False, compare=False)
    results: tuple[int, ...] | None = None
    contiguous: bool = False

    @property
    def name(self) -> str:
        """Unique within a suite: "sum dim1 16384x8192 bf16"."""
        place = "" if self.dim is None else f" dim{','.join(map(str, self.dims))}"
        lies = f" ({self.layout.text(self.shape)})" if self.layout and self.layout.text(self.shape) else ""
        return f"{self.operation}{place} {self.shape_text} {self.dtype}{lies}"

    @property
    def dims(self) -> tuple[int, ...]:
        """The reduced dims, counted from 0."""
        given = (
            range(len(self.shape))
            if self.dim is None
            else (self.dim,)
            if isinstance(self.dim, int)
            else self.dim
        )
        return tuple(d % len(self.shape) for d in given)

    @property
    def shape_text(self) -> str:
        """The sizes joined by x."""
        return "x".join(map(str, self.shape))

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The output dims; of a scan, all."""
        if self.results is not None:
            return self.results
        return tuple(n for d, n in enumerate(self.shape) if d not in self.dims)

    @property
    def result_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each output."""
        return (self.result_shape,) * len(self.result_dtypes)

    @property
    def drawn_shape(self) -> tuple[int, ...]:
        """The shape of the tensor that is drawn: the case's, or of several of it."""
        return self.shape

    @property
    def elements(self) -> int:
        """Elements of the input."""
        return prod(self.shape)

    @functools.cached_property
    def input_bytes(self) -> int:
        """What must be read: the 32-byte sectors that hold an element."""
        itemsize = DTYPES[self.dtype].itemsize
        if self.layout is None:
            return whole_sectors(self.elements * itemsize)
        return unique_bytes(self.shape, self.layout.strides, self.layout.begin, itemsize)

    @property
    def compulsory_bytes(self) -> int:
        """What must be read and written, whatever the algorithm: each sector of the input and of each output once."""
        results = zip(self.result_shapes, self.result_dtypes, strict=True)
        return self.input_bytes + sum(whole_sectors(prod(shape) * d.itemsize) for shape, d in results)

    @property
    def operations(self) -> int:
        """The least arithmetic."""
        return self.elements * self.operations_each

    def draw(self, device: str, seed: int = 0) -> torch.Tensor:
        """The input of `seed`: random, no element of it zero (zeros end an `all` early and cost less power).

        Any other seed than 0 gives an input with another answer, also where random inputs would agree (`altered`).
        """
        generator = torch.Generator(device).manual_seed(seed)
        x = self._drawn(device, generator)
        x = self.altered(x) if seed and self.altered else x
        return self.like(x).copy_(x) if self.layout else x

    def like(self, x: torch.Tensor) -> torch.Tensor:
        """Memory for another such input, in the case's layout."""
        return self.layout.view(self.shape, x.dtype, x.device) if self.layout else torch.empty_like(x)

    def _drawn(self, device: str, generator: torch.Generator) -> torch.Tensor:
        dtype = DTYPES[self.dtype]
        if not dtype.is_floating_point:
            return self._draw_bits(device, dtype, generator)
        # Torch 2.11 draws bfloat16 on a CPU from 256 numbers: the largest of many would always be the same.
        drawn = torch.float64 if dtype == torch.float64 else torch.float32
        x = torch.randn(self.drawn_shape, device=device, dtype=drawn, generator=generator).to(dtype)
        return x.masked_fill_(x == 0, 1)

    def _draw_bits(self, device: str, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        """Words with one bit in eight set: the OR of sixteen words of evenly drawn bits says nothing any more."""
        most = torch.iinfo(dtype).max
        x = torch.full(self.shape, most, device=device, dtype=dtype)
        for _ in range(3):
            x &= torch.randint(most, self.shape, device=device, dtype=dtype, generator=generator)
        return x.masked_fill_(x == 0, 1)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Choice:
    """One way to run a variant: its name ("block 64, 4 warps"), and the call."""

    label: str
    call: Call


@dataclass(frozen=True)
class Variant:
    """One competitor. `build(case, x)` gives its choices (the fastest right one is timed), or none where it has no such fold.

    `gpu_only` variants are named as needing a GPU where there is none. `warms`: what it compiles is kept on disk, so workers
    may compile it before: they call each choice once, those of `compiles` where `build` times some of them itself. `graphs`:
    it runs on torch's stream alone, so that a CUDA graph can hold it. `plan` says how the latest call ran, and with how many
    launches. `check` looks, after the first call, whether what ran is what was asked for. `asked_only`: it
    runs where `--variant` names it and nowhere else.
    """

    name: str
    build: Callable[[Case, torch.Tensor], Sequence[Choice]]
    gpu_only: bool = False
    warms: bool = False
    compiles: Callable[[Case, torch.Tensor], Sequence[Choice]] | None = None
    graphs: bool = False
    plan: Callable[[], PlanNote | None] | None = None
    check: Callable[[Call, torch.Tensor], None] | None = None
    note: str | None = None
    asked_only: bool = False


@dataclass(frozen=True)
class PlanNote:
    """How a call ran: in one word a stage, its launches, and whether later launches overlap the ones before."""

    text: str
    launches: int = 1
    overlap: bool = False


Make = Callable[[str, "int | tuple[int, ...] | None", tuple[int, ...], str, "Layout | None"], "Case | None"]


@dataclass(frozen=True)
class Suite:
    """A named set of cases and the variants that are always run.

    `cases(size)` is pure and cheap (it draws nothing): "full" for a GPU, "small" for a look on a CPU. `drawn` makes the cases
    of a suite of random problems, from the size, a seed and their number. `against` are the peers when the command names
    none. `host` suites are timed by the host's cost of a call, not by the device. `make` makes a case of any operation of the
    suite, dims, shape, dtype and layout, None where there is no such: what `--shapes` of a reader's own are made into. The
    cases of a suite of `products` reduce no dims; their shapes are MxNxK.
    """

    name: str
    about: str
    cases: Callable[[str], tuple[Case, ...]]
    variants: tuple[Variant, ...]
    against: tuple[str, ...] = ("torch", "compile")
    needs_gpu: bool = False
    cpu_only: bool = False
    host: bool = False
    drawn: Callable[[str, int, int], tuple[Case, ...]] | None = None
    make: Make | None = None
    products: bool = False

    def select(self, size: str, seed: int, count: int) -> tuple[Case, ...]:
        """The cases of a run; only random problems depend on `seed` and `count`."""
        return self.drawn(size, seed, count) if self.drawn else self.cases(size)


def headline_first(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Cases in their order, but for the headline ones, which come first."""
    return tuple(sorted(cases, key=lambda case: not case.headline))


CaseOf = Callable[[str, tuple[int, ...], str], Case]  # of an operation, a shape and a dtype


def grid(
    case_of: CaseOf, operations: Sequence[str], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> tuple[Case, ...]:
    """Every operation of every shape in every dtype; headline cases first."""
    return headline_first(case_of(name, shape, d) for d in dtypes for shape in shapes for name in operations)


def maker(
    case_of: CaseOf, operations: Sequence[str], rank: int, dims: Sequence[int | None] | None = None
) -> Make:
    """What makes cases of floats in a contiguous tensor of so many dims, along one of `dims`, None for any."""

    def make(
        operation: str, dim: Any, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
    ) -> Case | None:
        fits = operation in operations and len(shape) == rank and layout is None
        fits = fits and DTYPES[dtype].is_floating_point and (dims is None or dim in dims)
        return case_of(operation, shape, dtype) if fits else None

    return make


def outputs_of(result: Any) -> Outputs:
    """The outputs of a call, one or several, as a tuple."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def result_dtypes(function: Callable[[torch.Tensor], Any], ndim: int, dtype: str) -> tuple[torch.dtype, ...]:
    """A function's output dtypes, found on a tiny tensor: a question of types, answered by torch itself."""
    tiny = torch.ones((2,) * ndim, dtype=DTYPES[dtype])
    return tuple(t.dtype for t in outputs_of(function(tiny)))
