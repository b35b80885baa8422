"""Files described by several ranks: each reads its part of the bytes, and one process makes the reports of all.

The bytes of all files stand one after another, and each rank has a part of them; a tensor belongs to the rank of its middle.
So a large file is read by several ranks and a rank reads several small files. What a rank finds is a message as soon as a
file is done, so that a rank that ends early takes only what it had not sent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

from tilefold.checkpoints.describe import FileReport, Outcome, described, report_of_file
from tilefold.checkpoints.memory import bounded_memory
from tilefold.checkpoints.streams import Load
from tilefold.errors import TilefoldError

TIMEOUT_S = 600  # for which rank 0 waits for one message of another rank; not measured
# Of a rank: a file's place, and its tensors by their places in the file, or why there are none; (-1, None) at the end.
Message = tuple[int, dict[int, Outcome] | str | None]


@dataclass(frozen=True)
class Division:
    """Which ranks read each file: those that have part of its `sizes` bytes among all files'."""

    sizes: tuple[int, ...]
    world: int

    def ranks(self, place: int) -> range:
        """The ranks that read a file."""
        before = sum(self.sizes[:place])
        return range(self._rank(before), self._rank(before + max(0, self.sizes[place] - 1)) + 1)

    def _rank(self, byte: float) -> int:
        return min(self.world - 1, int(byte * self.world / max(1, sum(self.sizes))))

    def owns(self, place: int, rank: int) -> Callable[[Load], bool]:
        """Whether a rank reads the next tensor of a file; tensors of one place are read by one rank."""
        ranks, done = self.ranks(place), sum(self.sizes[:place])
        known: dict[Hashable, int] = {}

        def owned(load: Load) -> bool:
            nonlocal done
            if len(ranks) == 1:
                return True
            owner = None if load.place is None else known.get(load.place)
            if owner is None:
                size = load.size()
                owner = min(max(self._rank(done + size / 2), ranks[0]), ranks[-1])
                done += size
                known[load.place] = owner
            return owner == rank

        return owned


def messages_of(rank: int, paths: Sequence[str | None], division: Division, device: str) -> Iterator[Message]:
    """What one rank finds. A path is None where there is no file."""
    for place, path in enumerate(paths):
        if path is None or rank not in division.ranks(place):
            continue
        found: dict[int, Outcome] | str
        try:
            with bounded_memory(division.sizes[place], device):
                found = described(path, device, division.owns(place, rank))
        except TilefoldError as error:
            found = str(error)
        yield place, found
    yield -1, None


@dataclass
class Gathered:
    """What ranks have sent of files."""

    paths: Sequence[str | None]
    division: Division
    found: dict[int, dict[int, Outcome]] = field(default_factory=dict)
    failures: dict[int, list[str]] = field(default_factory=dict)
    waiting: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank in range(self.division.world):
            self.waiting[rank] = [
                place
                for place, path in enumerate(self.paths)
                if path is not None and rank in self.division.ranks(place)
            ]

    def take(self, rank: int, message: Message) -> bool:
        """Note a message; whether it is the rank's last."""
        place, content = message
        if content is None:
            return True
        self.waiting[rank].remove(place)
        if isinstance(content, str):
            if content not in self.failures.setdefault(place, []):
                self.failures[place].append(content)
        else:
            self.found.setdefault(place, {}).update(content)
        return False

    def lose(self, rank: int, how: str) -> None:
        """Note that a rank ended before its last message."""
        for place in self.waiting[rank]:
            line = f"rank {rank} must read its part of the file to the end, got {how}; describe it again, by fewer ranks"
            self.failures.setdefault(place, []).append(line)

    def reports(self) -> Iterator[tuple[int, FileReport | None, list[str]]]:
        """Each file's report, if there is one, and what failed."""
        for place, path in enumerate(self.paths):
            if path is not None:
                found, failures = self.found.get(place, {}), self.failures.get(place, [])
                report = report_of_file(path, found) if found or not failures else None
                yield place, report, failures


def by_processes(paths: Sequence[str | None], sizes: Sequence[int], world: int, device: str) -> Gathered:
    """Files described by so many processes of this machine."""
    context = multiprocessing.get_context("spawn")
    division = Division(tuple(sizes), world)
    gathered = Gathered(paths, division)
    pipes: dict[Any, tuple[int, Any]] = {}
    for rank in range(world):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(theirs, rank, paths, division, device), daemon=True)
        process.start()
        theirs.close()
        pipes[ours] = (rank, process)
    while pipes:
        ready: list[Any] = wait(list(pipes))
        for pipe in ready:
            rank, process = pipes[pipe]
            try:
                ended = gathered.take(rank, pipe.recv())
            except (EOFError, OSError):
                process.join()
                gathered.lose(rank, f"its end with code {process.exitcode}")
                ended = True
            if ended:
                del pipes[pipe]
                process.join()
    return gathered


def _send(pipe: Connection, rank: int, paths: Sequence[str | None], division: Division, device: str) -> None:
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // division.world))
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        for message in messages_of(rank, paths, division, device):
            pipe.send(message)


def is_launched() -> bool:
    """Whether torchrun started this process as one rank of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_other() -> bool:
    """Whether another one of these speaks for this process."""
    return is_launched() and os.environ.get("RANK") != "0"


def by_launched(paths: Sequence[str | None], sizes: Sequence[int], device: str) -> Gathered | None:
    """Files described by the ranks that torchrun started, on one host or several: on rank 0 what all have found.

    Ranks send by torch.distributed's store.
    """
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(iter(rendezvous("env://", timeout=timedelta(seconds=TIMEOUT_S))))
    division = Division(tuple(sizes), world)
    messages = messages_of(rank, paths, division, device)
    if rank:
        for i, message in enumerate(messages):
            store.set(f"tilefold/{rank}/{i}", pickle.dumps(message))
        return None
    gathered, stops = Gathered(paths, division), list[int]()
    signal.signal(
        signal.SIGTERM, lambda number, frame: stops.append(number)
    )  # of torchrun, once a rank ended
    for message in messages:
        gathered.take(0, message)
    for other in range(1, world):
        _take_all(store, other, gathered, stops)
    return gathered


def _take_all(store: Any, rank: int, gathered: Gathered, stops: Sequence[int]) -> None:
    """Take a rank's messages until the last, or until none comes."""
    i, until = 0, time.monotonic() + TIMEOUT_S
    while True:
        key = f"tilefold/{rank}/{i}"
        if store.check([key]):
            if gathered.take(rank, pickle.loads(store.get(key))):  # noqa: S301  # of our own ranks
                return
            i, until = i + 1, time.monotonic() + TIMEOUT_S
        elif stops or time.monotonic() > until:
            gathered.lose(rank, "the end of all ranks" if stops else f"nothing within {TIMEOUT_S} s")
            return
        else:
            time.sleep(0.02)
