"""Cases of `segment_reduce`: one row of elements, the lengths that it is cut into, reference and tolerance."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from tilefold.bench.cases import DTYPES, Case, Outputs
from tilefold.bench.layout import whole_sectors
from tilefold.bench.operations import sum_tolerance

Tensor = torch.Tensor


@dataclass(frozen=True)
class SegmentCase(Case):
    """The sums of a row's segments: all of `each` elements, or (0) of lengths by a power law, least 16, exponent 1.2."""

    each: int = 0

    @property
    def result_shape(self) -> tuple[int, ...]:
        """[segments]."""
        return (len(offsets_of(self.elements, self.each)) - 1,)

    @property
    def input_bytes(self) -> int:
        """The elements and the offsets, each once."""
        elements = whole_sectors(self.elements * DTYPES[self.dtype].itemsize)
        return elements + whole_sectors(8 * (self.result_shape[0] + 1))

    def offsets(self, device: torch.device) -> Tensor:
        """Where segments begin, and the end of the last."""
        return _on_device(self.elements, self.each, device)

    def keys(self, device: torch.device) -> Tensor:
        """The number of each element's segment."""
        offsets = self.offsets(device)
        return torch.repeat_interleave(torch.arange(len(offsets) - 1, device=device), offsets.diff())


@functools.lru_cache(8)
def offsets_of(elements: int, each: int) -> Tensor:
    """Offsets of as many segments as `elements` hold; those by a power law in a drawn order, which repeats."""
    if each:
        return torch.arange(0, elements + 1, each)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(elements // 64, dtype=torch.float64, generator=generator)
    lengths = (16 * (1 - drawn) ** (-1 / 1.2)).clamp(max=elements // 64).long()
    ends = lengths.cumsum(0)
    ends = ends[ends < elements]
    return torch.cat([torch.zeros(1, dtype=torch.int64), ends, torch.tensor([elements])])


@functools.lru_cache(8)
def _on_device(elements: int, each: int, device: torch.device) -> Tensor:
    return offsets_of(elements, each).to(device)


def segment_case(elements: int, each: int, dtype: str) -> SegmentCase:
    """A case of these sizes. The reference is in float64."""

    def in_torch(x: Tensor) -> Tensor:
        found: Tensor = torch.segment_reduce(x, "sum", offsets=case.offsets(x.device), unsafe=True)
        return found

    def reference(x: Tensor) -> Outputs:
        # Torch folds a segment by one thread; differences of float64 prefixes lie far within the tolerance.
        prefixes = torch.nn.functional.pad(x.double().cumsum(0), (1, 0))
        return (prefixes[case.offsets(x.device)].diff(),)

    lengths = f"{each} each" if each else "power law"
    case = SegmentCase(
        operation=f"segment sum of {lengths}",
        dim=0,
        shape=(elements,),
        dtype=dtype,
        torch_call=in_torch,
        reference=reference,
        tolerance=sum_tolerance(each or elements // 64),
        result_dtypes=(DTYPES[dtype],),
        group=f"segments, {dtype}",
        each=each,
    )
    return case
