"""Processes of one group, by gloo or each with a GPU by NCCL, which run the same function by turns."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any


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
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tilefold.distributed"])  # one import of torch for all
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (rank, size, str(folder / "store"), timeout_s, engine, theirs)
            self.processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self.processes[-1].start()
            self.pipes.append(ours)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the function gives on each rank."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = [pipe.recv() for pipe in self.pipes]
        failed = [f"rank {rank}:\n{found}" for rank, (is_good, found) in enumerate(answers) if not is_good]
        assert not failed, "\n".join(failed)
        return [found for _, found in answers]

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(5)
            process.kill()
