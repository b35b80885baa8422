"""Every prefix: cumsum, cummax, logcumsumexp and a linear recurrence over rows, columns and one long row."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tilefold
from tilefold import monoids
from tilefold.bench import settings, traps
from tilefold.bench.cases import (
    DTYPES,
    EXACT,
    Case,
    Choice,
    Suite,
    Tolerance,
    Variant,
    headline_first,
    outputs_of,
)
from tilefold.bench.layout import Layout
from tilefold.bench.operations import along, logsumexp_tolerance, wider
from tilefold.bench.ours import last_plan_note
from tilefold.bench.peers import cub_call, imported

SHAPES = (
    (16384, 8192), (4096, 65536), (256, 1 << 20), (1, 1 << 28), (64, 1 << 20), (1 << 20, 64), (10000, 4099),
)  # fmt: skip
PAIRS = ((16384, 8192), (64, 1 << 20), (1, 1 << 27))  # half of them: a recurrence reads two tensors
SMALL_SHAPES = ((32, 256), (1, 1 << 14), (300, 7))
INDICES_UP_TO = 1 << 27  # elements: cummax writes ten bytes and more for each


def prefix_tolerance(length: int) -> Tolerance:
    """U 256 sqrt(n) beside the output's own rounding, of every prefix."""
    return Tolerance(
        "a prefix of n normal variates summed in float32 by chains of L additions errs by about u sqrt(n L), u = 2^-24; L <= "
        "2^16 is allowed; and eps |want| for the last rounding, where a lost tile shows in all later prefixes",
        lambda want, dtype: torch.finfo(dtype).eps * want.abs() + 2**-24 * 256 * math.sqrt(length),
    )


def recurrence_tolerance(length: int) -> Tolerance:
    """1e-4 of the answer and of the terms added to it."""
    return Tolerance(
        "an error of h shrinks as h does, a factor of 0.6 a step on average, so that few steps' roundings are left: 1e-4 "
        "(|want| + 10) lies above them and above cancelling terms of about 1",
        lambda want, dtype: (1e-4 + torch.finfo(dtype).eps) * (want.abs() + 10),
    )


def recurrence(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The last of h[t] = a[t] h[t - 1] + b[t] at every t, level by level: a and b are x[0] and x[1]."""
    a, b = (t.movedim(dim - 1, -1).clone() for t in (x[0], x[1]))
    reach = 1
    while reach < a.shape[-1]:
        b[..., reach:] = a[..., reach:] * b[..., :-reach].clone() + b[..., reach:]
        a[..., reach:] = a[..., reach:] * a[..., :-reach].clone()
        reach *= 2
    return b.movedim(-1, dim - 1)


@functools.cache
def last_of_affine() -> tilefold.Monoid:
    """AFFINE that gives h alone."""
    return tilefold.Monoid(
        lambda f, g: (g.a * f.a, g.a * f.b + g.b),
        (1, 0),
        fields=("a", "b"),
        project=lambda a, b: b,
        commutative=False,
        check=False,
        name="recurrence",
    )


@dataclass(frozen=True)
class Scan:
    """One operation: torch's form (None: it has none), its answer in a wider dtype, arithmetic an element, tolerance."""

    in_torch: Callable[[torch.Tensor, int], Any] | None
    reference: Callable[[torch.Tensor, int], Any]
    operations_each: int
    tolerance: Callable[[int], Tolerance]
    inputs: int = 1


SCANS = {
    "cumsum": Scan(lambda x, d: x.cumsum(d), lambda x, d: x.double().cumsum(d), 1, prefix_tolerance),
    "cummax": Scan(lambda x, d: tuple(x.cummax(d)), lambda x, d: tuple(x.cummax(d)), 1, lambda length: EXACT),
    "logcumsumexp": Scan(
        lambda x, d: x.logcumsumexp(d), lambda x, d: x.double().logcumsumexp(d), 4, logsumexp_tolerance
    ),
    "affine": Scan(None, lambda x, d: recurrence(x.double(), d), 3, recurrence_tolerance, 2),
}


def scan_case(name: str, dim: int, shape: tuple[int, ...], dtype: str, layout: Layout | None = None) -> Case:
    """A case of one operation; of the recurrence `shape` is that of a and of b, which lie behind each other."""
    scan, length = SCANS[name], shape[dim]
    pair = scan.inputs > 1
    dtypes = (DTYPES[dtype], torch.int64) if name == "cummax" else (DTYPES[dtype],)
    axis = dim + 1 if pair else dim
    return Case(
        operation=name,
        dim=axis,
        shape=(2, *shape) if pair else shape,
        dtype=dtype,
        torch_call=None if scan.in_torch is None else functools.partial(along, scan.in_torch, axis),
        reference=lambda x: outputs_of(scan.reference(x, axis)),
        tolerance=scan.tolerance(length),
        result_dtypes=dtypes,
        operations_each=scan.operations_each,
        group=f"{name}, dim {dim}, {dtype}",
        headline=name in ("cumsum", "affine") and dtype == "fp32",
        has_index=name == "cummax",
        altered=None if pair else wider,  # twice the factors would grow without end
        layout=layout,
        results=shape,
    )


def cases(size: str = "full") -> tuple[Case, ...]:
    """Rows and columns of each shape in bf16 and fp32; a dim of length 1 is left out."""
    found = []
    for dtype in ("bf16", "fp32"):
        for name, scan in SCANS.items():
            shapes = SMALL_SHAPES if size != "full" else PAIRS if scan.inputs > 1 else SHAPES
            for shape in shapes:
                if name == "cummax" and math.prod(shape) > INDICES_UP_TO:
                    continue
                found += [scan_case(name, dim, shape, dtype) for dim in (1, 0) if shape[dim] > 1]
    return headline_first(found)


def make_scan(
    name: str,
    dim: int | tuple[int, ...] | None,
    shape: tuple[int, ...],
    dtype: str,
    layout: Layout | None = None,
) -> Case | None:
    """A case of any shape in floats; None for several dims, and for a recurrence in a layout of its own."""
    fits = isinstance(dim, int) and DTYPES[dtype].is_floating_point
    if not fits or (layout is not None and SCANS[name].inputs > 1):
        return None
    assert isinstance(dim, int)
    return scan_case(name, dim % len(shape), shape, dtype, layout)


def build_ours(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """Tilefold's function of the operation's name, or `scan` of the two tensors."""
    dim = case.dim
    assert isinstance(dim, int)
    if case.operation != "affine":
        return [Choice("default", functools.partial(getattr(tilefold, case.operation), dim=dim))]
    return [Choice("default", lambda x: tilefold.scan((x[0], x[1]), last_of_affine(), dim - 1))]


def build_three_launches(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """Parts folded, their states scanned, and each part scanned from the state before it: three passes over memory."""
    dim = case.dim
    assert isinstance(dim, int)
    length, parts = case.shape[dim], 256
    if case.operation != "cumsum" or length % parts or length < 64 * parts:
        return []

    def call(x: torch.Tensor) -> torch.Tensor:
        cut = x.unflatten(dim, (parts, length // parts))  # type: ignore[no-untyped-call]  # torch's own
        sums = tilefold.reduce(cut, monoids.SUM, dim + 1, dtype=torch.float32)
        before = tilefold.scan(sums, monoids.SUM, dim, exclusive=True)
        made: torch.Tensor = tilefold.scan(cut, monoids.SUM, dim + 1, init=before)
        return made.view(case.result_shape)

    return [Choice(f"{parts} parts", call)]


def build_associative_scan(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """Torch's own scan of any function, compiled; it runs on a GPU alone."""
    dim, name = case.dim, case.operation
    if name == "cummax":
        return []
    from torch._higher_order_ops.associative_scan import associative_scan

    def scan(x: torch.Tensor) -> Any:
        if name == "affine":
            assert isinstance(dim, int)
            both = associative_scan(lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]), (x[0], x[1]), dim - 1)
            return both[1]
        combine = torch.add if name == "cumsum" else torch.logaddexp
        assert isinstance(dim, int)
        return associative_scan(combine, x, dim)

    return [Choice("associative_scan", traps.fresh_compile(scan))]


def build_cub(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """CUB's scan of a whole array of float32 through cuda.compute; it has no rows or columns."""
    if case.operation != "cumsum" or case.dtype != "fp32" or case.shape[0] != 1 or case.layout is not None:
        return []
    compute = imported("cuda.compute")
    numpy = importlib.import_module("numpy")
    first = numpy.array([0], dtype=numpy.float32)
    given, count = {"op": compute.OpKind.PLUS, "init_value": first}, {"num_items": x.numel()}
    return [Choice("make_inclusive_scan", cub_call(compute.make_inclusive_scan, case, x, given, count))]


VARIANTS = (
    Variant("ours", build_ours, warms=True, graphs=True, plan=last_plan_note),
    Variant("three launches", build_three_launches, gpu_only=True, warms=True, graphs=True),
    Variant("associative_scan", build_associative_scan, gpu_only=True, warms=True, graphs=True),
    Variant("cuda.compute", build_cub, gpu_only=True, asked_only=True),
    *settings.variants_of(build_ours),
)
AGAINST = ("torch", "compile", "cuda.compute")
SUITE = Suite("scan", str(__doc__).strip(), cases, VARIANTS, against=AGAINST, make=make_scan)
