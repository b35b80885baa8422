"""A file may ask for any amount of memory: it gets a few times its own size."""

from __future__ import annotations

import sys

import pytest

from tilefold.memory import bounded_memory

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
