"""A bound on the memory that a process may ask for while it reads an untrusted file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

PAYLOADS = 8  # times a file's tensors
SPARE = 4 << 30  # bytes besides, for torch, its threads and their arenas
SPARE_PER_CORE = 256 << 20
# Messages of libraries without MemoryError: torch's, C++'s and Rust's.
_WORDS = (
    "not enough memory", "defaultcpuallocator", "cannot allocate memory", "out of memory", "outofmemory", "bad_alloc",
)  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, whichever library says it: that tells nothing of the file at hand."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or any(word in str(error).lower() for word in _WORDS)
    )


@contextlib.contextmanager
def bounded_memory(payload: int, device: str) -> Iterator[None]:
    """Refuse to map more than a few times the payload, where the system can: larger requests get a MemoryError.

    A pickle of a hundred bytes may ask for any number of zeros. Only on a CPU: a GPU's driver maps any amount.
    """
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError, ValueError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if device != "cpu" or soft != resource.RLIM_INFINITY:
        yield
        return
    spare = SPARE + SPARE_PER_CORE * (os.cpu_count() or 1)
    limit = pages * resource.getpagesize() + PAYLOADS * payload + spare
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
