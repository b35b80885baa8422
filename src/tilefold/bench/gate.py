"""Correctness before time: no variant is timed whose answers were not compared, on two inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilefold.bench.cases import Call, Case, Outputs, outputs_of

DRAWS = 9  # of inputs at most, until two have different answers
HELD_UP_CYCLES = 2_000_000  # about a millisecond: longer than a host takes to launch a variant


@dataclass(frozen=True)
class Probe:
    """An input's elements and the answer that they must give."""

    x: torch.Tensor
    want: Outputs


def probes_of(case: Case, device: str) -> tuple[Probe, Probe]:
    """The input that is timed (seed 0), and one with another answer, against outputs that are cached.

    Few answers, such as one largest value in bfloat16, may be the same by chance: then it is drawn again.
    """
    first = _probe(case, device, 0)
    for seed in range(1, DRAWS):
        second = _probe(case, device, seed)
        if not all(map(torch.equal, first.want, second.want)):
            break
    return first, second


def _probe(case: Case, device: str, seed: int) -> Probe:
    x = case.draw(device, seed=seed)
    return Probe(x, case.reference(x))


def check(case: Case, call: Call, x: torch.Tensor, probes: Sequence[Probe]) -> str | None:
    """The fault of a variant's answers, or None.

    `x` is overwritten by each probe in turn, the last one first, and holds the first one's elements afterwards if nothing
    is wrong: an answer kept from an earlier call of the same tensor is found out. Memory that outputs may get is poisoned
    before.
    """
    for probe in reversed(probes):
        poison_cache(case, x.device)
        overwrite_late(x, probe.x)
        result = call(x)
        wrong = fault(case, x, result, probe.want)
        if wrong:
            kept = probe is not probes[-1] and fault(case, x, result, probes[-1].want) is None
            return f"{wrong}: the answer is that of an earlier call" if kept else wrong
    if not torch.equal(x, probes[0].x):
        return "the input was changed by the call"
    return None


def fault(case: Case, x: torch.Tensor, result: object, want: Outputs) -> str | None:
    """The fault of one result, or None: number, shapes, dtypes and strides of the outputs, then their elements."""
    try:
        got = outputs_of(result)
    except TypeError:
        return f"the result is a {type(result).__name__}, no tensors"
    if len(got) != len(case.result_dtypes):
        return f"there are {len(got)} outputs, not {len(case.result_dtypes)}"
    for number, (g, shape, dtype) in enumerate(zip(got, case.result_shapes, case.result_dtypes, strict=True)):
        if tuple(g.shape) != shape or g.dtype != dtype:
            return f"output {number} is {tuple(g.shape)} {g.dtype}, not {shape} {dtype}"
        if case.contiguous and not g.is_contiguous():
            return f"output {number} has the strides {g.stride()}, not those of a contiguous tensor"
    if case.has_index:
        return _index_fault(case, x, got, want)
    for g, w in zip(got, want, strict=True):
        wrong = _element_fault(case, g, w)
        if wrong:
            return wrong
    return None


def _element_fault(case: Case, got: torch.Tensor, want: torch.Tensor) -> str | None:
    if case.tolerance.bound is None:
        differ = int((got != want).sum())
        return f"{differ} of {want.numel()} elements differ" if differ else None
    excess = (got.double() - want).abs() / case.tolerance.bound(want, got.dtype)
    # What rounds to the result is no error: equal infinities, and answers beyond the result's range.
    worst = float(excess.masked_fill(got == want.to(got.dtype), 0).max())
    # `not <=` so that NaN fails.
    return None if worst <= 1 else f"the error is {worst:.3g} times the bound"


def _index_fault(case: Case, x: torch.Tensor, got: Outputs, want: Outputs) -> str | None:
    """Ties are many in bf16 and torch leaves their order open on a GPU: an index is right where the same element stands."""
    assert not isinstance(case.dim, tuple), "a position is along one dim"
    dim = 0 if case.dim is None else case.dim
    x = x.reshape(-1) if case.dim is None else x
    index, expected = got[-1], want[-1]
    if int(index.min()) < 0 or int(index.max()) >= x.shape[dim]:
        return "an index is out of range"
    # Several places along the dim, or one of each result.
    there, best = (x.gather(dim, i if i.ndim == x.ndim else i.unsqueeze(dim)) for i in (index, expected))
    if not torch.equal(there, best):
        return "an index points at another element"
    return None if len(got) == 1 or torch.equal(got[0], want[0]) else "a value is another element's"


def overwrite_late(x: torch.Tensor, elements: torch.Tensor) -> None:
    """Overwrite `x` so that only a variant that waits for it and reads it can tell.

    Its version stays (`.data` has one of its own), against answers kept by version. On a device the stream is held up first:
    a variant at work on another stream that does not wait for this one reads the elements before.
    """
    if x.is_cuda:
        torch.cuda._sleep(HELD_UP_CYCLES)  # type: ignore[no-untyped-call]  # torch's own, for tests of streams
    x.data.copy_(elements)


def poison_cache(case: Case, device: torch.device) -> None:
    """Leave poisoned blocks of the outputs' sizes in torch's allocator, so that an unwritten element shows."""
    sizes = zip(case.result_shapes, case.result_dtypes, strict=True)
    blocks = [torch.empty(shape, dtype=d, device=device) for shape, d in sizes]
    for block in blocks:
        # Not True for bool: True is the right answer of `all`.
        block.fill_(float("nan") if block.is_floating_point() else 0 if block.dtype == torch.bool else -1)
