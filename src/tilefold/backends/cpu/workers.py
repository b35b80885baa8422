"""Threads that each run torch operations alone: a fold's parts, side by side, with no barrier after every operation.

Torch shares out one operation among its threads and waits for the last of them, operation by operation: where other
processes use the cores, a time slice each. Threads of Python's wake each other at every operation, which many of them
cannot afford. So few cores are given parts, and many share operations (`planner.cpu.FEW`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def each(
    function: Callable[[Part], Result], parts: Sequence[Part], threads: int, *, even_one: bool = False
) -> list[Result]:
    """`[function(part) for part in parts]` on so many threads, each operation on one.

    A single part runs on the caller's thread, where torch shares out large operations; with `even_one` as each of several.

    Without gradients, and with inference mode as the caller has it. An exception of a part is raised here.
    """
    inference = torch.is_inference_mode_enabled()

    def run(part: Part) -> Result:
        with torch.inference_mode(inference), torch.no_grad():
            return function(part)

    if threads == 1 or (len(parts) == 1 and not even_one):
        return [run(part) for part in parts]
    given = _given(run, parts, threads)
    try:
        return [*(future.result() for future in given), *map(run, parts[len(given) :])]
    finally:
        for future in given:
            future.cancel()


def shared_out(
    function: Callable[[Sequence[Part]], Result], parts: Sequence[Part], threads: int
) -> list[Result]:
    """`each` of shares of neighbouring parts, two for each thread; one of all on one thread."""
    count = -(-len(parts) // (2 * threads)) if threads > 1 else len(parts)
    return each(function, [parts[i : i + count] for i in range(0, len(parts), count)], threads)


def _given(
    run: Callable[[Part], Result], parts: Sequence[Part], threads: int
) -> list[concurrent.futures.Future[Result]]:
    """The first parts, given to threads: all, but where Python ends and starts no more threads (at exit, and in threads that
    outlive the main one). The caller's thread takes the rest."""
    given: list[concurrent.futures.Future[Result]] = []
    with contextlib.suppress(RuntimeError):
        pool = _pool(threads)
        for part in parts:
            given.append(pool.submit(run, part))  # noqa: PERF401  # parts given before an error stay
    return given


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = _started(threads)
        return _pools[threads]


def _started(threads: int) -> ThreadPoolExecutor:
    """A pool whose threads have all begun: a setting that a thread makes for itself also changes how later threads begin."""
    callers = torch.get_num_threads()  # of which `threads` may be a few
    begun = threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, "tilefold", _work_alone)
    try:
        for _ in range(threads):
            pool.submit(begun.wait)
    except RuntimeError:
        begun.abort()  # who waits already is let go
        raise
    begun.wait()
    torch.set_num_threads(callers)  # so this puts it back; the caller's own number never changed
    return pool


def _work_alone() -> None:
    torch.get_num_threads()  # a thread's first question resets its number: ask before setting it
    torch.set_num_threads(1)


def _forget_pools() -> None:
    """A forked process has the pools but none of their threads."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
