"""A file may ask for any amount of memory: it gets a few times its own size."""

from __future__ import annotations

import sys

import pytest
import torch

from tilefold.checkpoints.memory import bounded_memory, is_out_of_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def limit() -> tuple[int, int]:
    import resource

    return resource.getrlimit(resource.RLIMIT_AS)


def test_more_is_refused_and_the_limit_is_lifted_again() -> None:
    before = limit()
    with pytest.raises(MemoryError), bounded_memory(0, "cpu"):
        bytearray(1 << 42)
    assert limit() == before


def test_a_file_s_own_size_is_there() -> None:
    with bounded_memory(1 << 20, "cpu"):
        assert len(bytearray(8 << 20)) == 8 << 20


def test_a_gpu_s_driver_maps_what_it_likes() -> None:
    before = limit()
    with bounded_memory(0, "cuda"):
        assert limit() == before


@pytest.mark.parametrize(
    ("error", "scarce"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("unable to mmap 9 bytes from file <x>: Cannot allocate memory (12)"), True),
        (Exception("I/O error: Cannot allocate memory (os error 12)"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB"), True),
        (OSError(5, "Input/output error"), False),
        (RuntimeError("CUDA error: no kernel image"), False),
        (ValueError("the header is too large"), False),
    ],
    ids=lambda v: str(v)[:30],
)
def test_whose_error_it_is_does_not_matter(error: Exception, scarce: bool) -> None:
    assert is_out_of_memory(error) == scarce


def test_what_torch_says_where_no_memory_is() -> None:
    with pytest.raises(RuntimeError) as caught, bounded_memory(0, "cpu"):
        torch.empty(1 << 42)
    assert is_out_of_memory(caught.value)
