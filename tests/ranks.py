"""Processes of one group, by gloo or each with a GPU by NCCL, which run the same function by turns."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

LATER_S = 20  # that ranks have once one of them has failed: they may wait for it


def _serve(rank: int, size: int, store: str, timeout_s: float, engine: str, pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if engine == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        engine,
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


class Ranks:
    """So many processes, each a rank: `run` calls a function of a module in all of them."""

    def __init__(self, size: int, folder: Path, timeout_s: float = 120, engine: str = "gloo") -> None:
        self._size, self._folder, self._timeout_s, self._engine, self._groups = (
            size,
            folder,
            timeout_s,
            engine,
            0,
        )
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tilefold.distributed"])  # one import of torch for all
        self.pipes, self.processes = [], []
        store, self._groups = str(self._folder / f"store{self._groups}"), self._groups + 1
        for rank in range(self._size):
            ours, theirs = context.Pipe()
            arguments = (rank, self._size, store, self._timeout_s, self._engine, theirs)
            self.processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self.processes[-1].start()
            self.pipes.append(ours)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the function gives on each rank.

        Where one has failed and others wait for it, a group of new processes runs what comes next.
        """
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers: dict[int, tuple[bool, Any]] = {}
        until = None
        while waiting := {pipe: rank for rank, pipe in enumerate(self.pipes) if rank not in answers}:
            ready = wait(list(waiting), None if until is None else max(0.0, until - time.monotonic()))
            if not ready:
                self._end()
                self._begin()
                break
            answers |= {waiting[pipe]: pipe.recv() for pipe in ready}
            if until is None and not all(is_good for is_good, _ in answers.values()):
                until = time.monotonic() + LATER_S
        failed = [
            f"rank {rank}:\n{found}" for rank, (is_good, found) in sorted(answers.items()) if not is_good
        ]
        assert not failed, "\n".join(failed)
        return [found for _, (_, found) in sorted(answers.items())]

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(5)
            process.kill()
