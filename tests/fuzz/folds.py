"""Random folds: a monoid, inputs of any dtype and layout, and how `reduce` is called. Compared with the definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

import tilefold
from fuzz.exclusions import lacks, waits
from fuzz.expressions import Span
from fuzz.monoids import KINDS, Made, monoids
from layouts import Layout, dims_of, layouts
from tilefold.algebra import program as programs
from tilefold.algebra.operations import OPS
from tilefold.algebra.program import Program
from tilefold.algebra.typing import FLOAT8, FOLDABLE, TypedGraph, is_float
from tilefold.backends.cpu import loops
from tilefold.errors import DtypeError, EmptyError
from tilefold.planner import cpu
from tilefold.planner.stages import cpu as stages

Tensor = torch.Tensor
INF, NAN = float("inf"), float("nan")
FLOATS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -1.5, 3.0)
INTEGERS = (0, 1, -1, 2, -3, 5, 100, -100)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
GUARANTEES = ("run_to_run", "batch_invariant", "none")
SHORT, LONG = (0, 1, 2, 3, 5, 8), (31, 64, 65, 100, 127, 130, 257, 300)
MIDDLE = (1000, 1024, 2049, 5000)  # on a GPU: several tiles and splits
# Constants so small that a short fold is cut as a long one is on the CPU.
TINY = {"LANES": 8, "BLOCK": 16, "RUN": 2, "STEPS": 2, "ORDERED_ALONE": 4, "PARTS": 4, "PART": 6}


@dataclass(frozen=True)
class Input:
    """One input: its dtype and layout, what its elements are drawn from, and whether it is a view that negates."""

    dtype: torch.dtype
    layout: Layout
    seed: int
    negated: bool

    def make(self, shape: Sequence[int], kind: str) -> Tensor:
        """The tensor, of `shape` or one that broadcasts to it."""
        choices: Sequence[float] = FLOATS if self.dtype.is_floating_point else INTEGERS
        if self.dtype.is_floating_point and kind != "finite":
            choices = (*FLOATS, INF, -INF, *([NAN] if kind == "nan" else []))
        if self.dtype in UNSIGNED:
            choices = [abs(c) for c in choices]
        values = torch.tensor(choices, dtype=torch.float64)
        if kind != "nan":  # as an infinity becomes in a dtype without one
            values = values[~values.to(self.dtype).double().isnan()]
        generator = torch.Generator().manual_seed(self.seed)

        def fill(size: Sequence[int]) -> Tensor:
            return values[torch.randint(len(values), list(size), generator=generator)].to(self.dtype)

        made = self.layout.place(shape, fill)
        return torch._neg_view(made) if self.negated else made

    @property
    def span(self) -> Span:
        if self.dtype.is_floating_point:
            return Span(3.0, 0.5)
        return Span(1.0 if self.dtype == torch.bool else 100.0, 1.0, True, self.dtype == torch.uint64)


@dataclass(frozen=True)
class Fold:
    """A call of `reduce`."""

    made: Made
    shape: tuple[int, ...]
    inputs: tuple[Input, ...]
    kind: str
    dim: Any
    keepdim: bool
    dtype: torch.dtype | None
    out: bool
    guarantee: str
    tiny: bool

    @property
    def ops(self) -> frozenset[str]:
        """The operations of its functions' terms."""
        terms = [t for h in self.made.held for t in h.terms] + list(self.made.project or ())
        return frozenset[str]().union(*(t.ops for t in terms))

    @property
    def dims(self) -> tuple[int, ...]:
        if self.dim is None:
            return tuple(range(len(self.shape)))
        dims = (self.dim,) if isinstance(self.dim, int) else self.dim
        return tuple(sorted(d % max(len(self.shape), 1) for d in dims)) if self.shape else ()

    @property
    def length(self) -> int:
        return math.prod(self.shape[d] for d in self.dims)

    def tensors(self) -> list[Tensor]:
        """The inputs; the first has the whole shape."""
        return [i.make(self.shape, self.kind) for i in self.inputs]


@st.composite
def folds(
    draw: st.DrawFn, long: Sequence[int] = LONG, most: int = 4000, dtypes: Sequence[torch.dtype] = FOLDABLE
) -> Fold:
    """Any fold of up to `most` elements; of long dims at most one."""
    shape = draw(st.lists(st.sampled_from(SHORT), max_size=4))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(shape)))
        shape.insert(at, draw(st.sampled_from(long)))
    while math.prod(shape) > most:
        shape.remove(min(n for n in shape if n > 1))
    own = [d for d in dtypes if d not in FLOAT8] * 3 + [d for d in dtypes if d in FLOAT8]
    kind = draw(st.sampled_from(("finite", *KINDS)))
    made = draw(st.integers(1, 2))
    inputs = tuple(
        Input(
            dtype := draw(st.sampled_from(own)),
            draw(layouts(len(shape), may_broadcast=n > 0)),
            draw(st.integers(0, 99)),
            dtype.is_floating_point
            and dtype not in FLOAT8
            and draw(st.sampled_from((False, False, False, True))),
        )
        for n in range(made)
    )
    dims = draw(dims_of(len(shape)))
    dim: Any = draw(st.sampled_from((None, dims, tuple(d - len(shape) for d in dims[::-1]))))
    length = math.prod(shape if dim is None else (shape[d] for d in dims))
    monoid = draw(monoids(tuple(i.dtype for i in inputs), tuple(i.span for i in inputs), length, kind))
    return Fold(
        monoid, tuple(shape), inputs, kind, dim, draw(st.booleans()),
        draw(st.sampled_from((None, None, None, torch.float32, torch.float64, torch.bfloat16))),
        draw(st.booleans()), draw(st.sampled_from(GUARANTEES)), draw(st.booleans()),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ comparing


def check(fold: Fold, backends: Sequence[str], device: str = "cpu") -> None:
    """Fold on each backend and compare with the definition: its dtypes, shapes and values.

    Exact folds have one answer, of equal zeros either. Where a field rounds, twice its bound lies between two answers.
    """
    if waits(fold, "any"):
        return
    tensors = fold.tensors()
    if loses_bits(replace(fold.made, check=False).monoid(), tensors, fold.dtype):
        return
    monoid = fold.made.monoid()
    options = {"dim": fold.dim, "keepdim": fold.keepdim, "dtype": fold.dtype}
    if not fold.made.identity and fold.length == 0:
        _is_refused(monoid, tensors, options, backends)
        return
    with tilefold.backend("reference" if fold.length <= 1000 else "cpu"):
        want = list(tilefold.reduce(tensors, monoid, **options))
    wraps = any(i.dtype == torch.uint64 for i in fold.inputs)  # negative constants become huge ones
    if fold.kind == "finite" and not wraps and fold.length <= 100 and math.prod(fold.shape) <= 300:
        compare(fold, _by_numbers(fold, monoid, tensors), want, "Python's numbers")
    for backend in backends:
        if waits(fold, backend) is None and _runs(fold, backend, want, device):
            compare(fold, _run(fold, backend, monoid, tensors, options, want, device), want, backend)


def _runs(fold: Fold, backend: str, want: Sequence[Tensor], device: str) -> bool:
    """Whether a backend has this fold: its dtypes, and for a kernel an element."""
    dtypes = {fold.dtype, *(i.dtype for i in fold.inputs), *(w.dtype for w in want)}
    return not lacks(dtypes, backend, device) and not (backend == "ptx" and 0 in fold.shape)


def loses_bits(monoid: Any, tensors: Sequence[Tensor], dtype: torch.dtype | None) -> bool:
    """Whether the fold is refused before any backend is asked: whole numbers would be rounded in a field of floats.

    Its laws are then not checked with floats either.
    """
    try:
        programs.specialize(monoid.total, tuple(t.dtype for t in tensors), dtype)
    except DtypeError as error:
        if "whole numbers must fit the dtype" not in str(error):
            raise
        return True
    return False


def _is_refused(monoid: Any, tensors: Any, options: Any, backends: Sequence[str]) -> None:
    for backend in backends:
        if backend != "ptx":
            with tilefold.backend(backend):
                try:
                    tilefold.reduce(tensors, monoid, **options)
                except EmptyError:
                    continue
            raise AssertionError(f"{backend}: nothing was folded without an identity")


def _run(
    fold: Fold,
    backend: str,
    monoid: Any,
    tensors: Sequence[Tensor],
    options: dict[str, Any],
    want: Sequence[Tensor],
    device: str,
) -> list[Tensor]:
    if backend == "ptx":
        return by_ptx(fold, monoid, tensors)
    with ExitStack() as stack:
        stack.enter_context(tilefold.backend("auto" if device != "cpu" else backend))
        if fold.tiny and backend == "cpu":
            stack.enter_context(mock.patch.multiple(cpu, **TINY))
            stack.enter_context(mock.patch.object(stages, "SHORT", 3))
            stack.enter_context(mock.patch.object(loops, "LEVEL", 2))
        given = [t if device == "cpu" else on_device(t, device) for t in tensors]
        out = [torch.empty(w.shape, dtype=w.dtype, device=device) for w in want] if fold.out else None
        before = [t.clone() for t in given]
        got = tilefold.reduce(given, monoid, guarantee=fold.guarantee, out=out, **options)
        if out is not None:
            assert all(g is o for g, o in zip(got, out, strict=True)), "the result is not `out`"
        assert all(map(same_bytes, given, before)), f"{backend} changed an input"
        if backend == "interpret":  # slow, and deterministic
            return list(got)
        again = tilefold.reduce(given, monoid, guarantee=fold.guarantee, **options)
        assert all(map(same_bytes, got, again)), f"{backend}: other bits the second time"
    return [g.cpu() for g in got]


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits, zeros' signs and NaN's among them."""
    x, y = (t.resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1) for t in (a, b))
    return x.shape == y.shape and (not x.numel() or torch.equal(x.view(torch.uint8), y.view(torch.uint8)))


def on_device(t: Tensor, device: str) -> Tensor:
    """The same layout on another device: strides, offset, and whether it negates."""
    negated, plain = t.is_neg(), torch._neg_view(t) if t.is_neg() else t
    held = torch.empty(0, dtype=plain.dtype).set_(plain.untyped_storage()).to(device)
    moved = held.as_strided(plain.shape, plain.stride(), plain.storage_offset())
    return torch._neg_view(moved) if negated else moved


def by_ptx(fold: Fold, monoid: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Compiled for sm_90 and executed by the X-ray's machine."""
    from xray import running

    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    seen = [t.expand(shape).resolve_neg() for t in tensors]
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors), fold.dtype)
    results, _ = running.fold(seen, program, fold.dims, 90, ordered=not monoid.commutative)
    kept = [1 if d in fold.dims else n for d, n in enumerate(shape) if fold.keepdim or d not in fold.dims]
    return [r.reshape(kept) for r in results]


def compare(fold: Fold, got: Sequence[Tensor], want: Sequence[Tensor], by: str) -> None:
    for k, (g, w, room) in enumerate(zip(got, want, rooms(fold), strict=True)):
        assert g.dtype == w.dtype, f"{by}: result {k} is {g.dtype}, not {w.dtype}"
        assert g.shape == w.shape, f"{by}: result {k} has shape {list(g.shape)}, not {list(w.shape)}"
        wide = (t.double() if is_float(t.dtype) else t for t in (g, w))
        a, b = (t.view(torch.int64) if t.dtype == torch.uint64 else t for t in wide)
        fine = a == b
        if is_float(g.dtype):
            fine |= a.isnan() & b.isnan()
            if room:
                stored = torch.finfo(w.dtype).eps
                fine |= (a - b).abs() <= (room + stored) * b.abs()
        assert bool(fine.all()), f"{by}: result {k} is\n{g}, not\n{w}"


def rooms(fold: Fold) -> list[float]:
    """How far apart two answers may be, relative to the result: 0 where arithmetic is exact.

    A sum of n positive terms, each of which is rescaled at each of at most n steps by an exponential that errs by 4 ulp
    and by the rounding of its argument, which is at most 16.
    """
    unit = 2.0**-53 if any(i.dtype == torch.float64 for i in fold.inputs) else 2.0**-24
    room = 2 * (fold.length + 2) * (4 + 16 + 2) * unit
    rounds = fold.made.rounds
    if fold.made.project is None:
        return [room if r else 0.0 for r in rounds]
    return [room if any(rounds[k] for k in p.reads) else 0.0 for p in fold.made.project]


# ------------------------------------------------------------------------------------------------ an oracle of its own


def _by_numbers(fold: Fold, monoid: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same fold of Python's numbers, whole ones without limits: no evaluator, no tensors, no dtypes but the results'."""
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors), fold.dtype)
    kept = [d for d in range(len(shape)) if d not in fold.dims]
    columns = [
        t.expand(shape).permute([*kept, *fold.dims]).reshape(-1).tolist() for t in map(_readable, tensors)
    ]
    elements = list(zip(*columns, strict=True))
    results = math.prod(shape[d] for d in kept)
    rows = [_folded(program, elements[r * fold.length : (r + 1) * fold.length]) for r in range(results)]
    full = [1 if d in fold.dims else n for d, n in enumerate(shape) if fold.keepdim or d not in fold.dims]
    made = []
    for k, dtype in enumerate(program.outputs):
        values = [row[k] for row in rows]
        made.append(_stored(values, dtype).reshape(full))
    return made


def _readable(t: Tensor) -> Tensor:
    return t.double() if t.dtype in FLOAT8 else t


def _stored(values: Sequence[Any], dtype: torch.dtype) -> Tensor:
    if is_float(dtype):
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([bool(v) for v in values], dtype=dtype)
    info = torch.iinfo(dtype)
    wrapped = [(int(v) - info.min) % (info.max - info.min + 1) + info.min for v in values]
    return torch.tensor(wrapped, dtype=dtype)


def _folded(program: Program, elements: Sequence[tuple[Any, ...]]) -> list[Any]:
    limits = program.state
    state = list(program.identity)
    for position, element in enumerate(elements):
        given = (*element, position) if program.algebra.index else element
        lifted = _replayed(program.lift, given, limits)
        state = _replayed(program.combine, [*state, *lifted], limits)
    return _replayed(program.project, state, program.outputs)


def _replayed(typed: TypedGraph, arguments: Sequence[Any], dtypes: Sequence[torch.dtype]) -> list[Any]:
    def step(op: str, operands: Sequence[Any], value: Any) -> Any:
        return OPS[op].python(*operands, *(() if value is None else (value,)))

    return [_kept(v, d) for v, d in zip(typed.graph.replay(list(arguments), step), dtypes, strict=True)]


def _kept(value: Any, dtype: torch.dtype) -> Any:
    """A value as a field of a dtype takes it: the dtype's kind, and its range where that wraps."""
    if is_float(dtype):
        return float(value)
    if dtype == torch.bool:
        return bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        return value
    info = torch.iinfo(dtype)
    return (int(value) - info.min) % (info.max - info.min + 1) + info.min
