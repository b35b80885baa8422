"""Files that several ranks describe: each tensor by one of them, and what is there of the others when one ends."""

from __future__ import annotations

import multiprocessing
import threading
import time

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tilefold.checkpoints import ranks
from tilefold.checkpoints.command import run
from tilefold.checkpoints.describe import describe_file
from tilefold.checkpoints.tensor_files import payload_bytes
from tilefold.errors import ArgumentError


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    save_file({f"w{i}": torch.randn(20, 100 + i) for i in range(9)}, tmp_path / "a.safetensors")
    x = torch.randn(30, 100)
    torch.save({"x": x, "again": x, "rest": [torch.arange(999), torch.zeros(3)]}, tmp_path / "b.pt")
    np.savez(tmp_path / "c.npz", u=np.ones((30, 30)), v=np.full(4, np.nan))
    np.save(tmp_path / "d.npy", np.arange(2000.0))
    (tmp_path / "e.pt").write_bytes(b"junk")
    return tmp_path


@pytest.mark.parametrize("world", [1, 2, 3, 7, 40])
def test_each_tensor_is_read_by_one_rank(folder, world):
    paths = [str(p) for p in sorted(folder.iterdir()) if p.name != "e.pt"]
    division = ranks.Division(tuple([payload_bytes(p) for p in paths]), world)
    found: dict[int, dict] = {place: {} for place in range(len(paths))}
    busy = set()
    for rank in range(world):
        *messages, last = ranks.messages_of(rank, paths, division, "cpu")
        assert last == (-1, None)
        for place, tensors in messages:
            assert not found[place].keys() & tensors.keys()
            found[place] |= tensors
            busy |= {rank} if tensors else set()
    for place, path in enumerate(paths):
        assert ranks.report_of_file(path, found[place]) == describe_file(path)
    assert len(busy) >= min(world, 3)


def test_parts_have_about_as_many_bytes(tmp_path):
    save_file({f"w{i:02}": torch.zeros(1000) for i in range(64)}, tmp_path / "a.safetensors")
    save_file({"w": torch.zeros(64000)}, tmp_path / "b.safetensors")
    paths = [str(p) for p in sorted(tmp_path.iterdir())]
    division = ranks.Division(tuple([payload_bytes(p) for p in paths]), 4)
    counts = [
        sum(len(tensors) for place, tensors in ranks.messages_of(rank, paths, division, "cpu") if place == 0)
        for rank in range(4)
    ]
    assert sum(counts) == 64
    assert all(abs(n - 32) <= 1 for n in counts[:2])


def test_processes_print_what_one_prints(folder, capsys):
    assert run([str(folder)]) == 2
    alone = capsys.readouterr()
    assert run([str(folder), "--world", "3"]) == 2
    assert capsys.readouterr() == alone


def test_a_rank_that_ends_names_itself_and_its_files(folder):
    paths = [str(p) for p in sorted(folder.iterdir()) if p.suffix in (".npy", ".npz")]
    sizes = [payload_bytes(p) for p in paths]

    def kill() -> None:
        while len(started := multiprocessing.active_children()) < 2:
            time.sleep(0.01)
        max(started, key=lambda p: int(p.name.rsplit("-", 1)[1])).kill()

    thread = threading.Thread(target=kill)
    thread.start()
    made = list(ranks.by_processes(paths, sizes, 2, "cpu").reports())
    thread.join()
    (_, first, _), (_, second, failures) = made
    assert first == describe_file(paths[0])
    assert second is None
    assert failures == [
        "rank 1 must read its part of the file to the end, got its end with code -9; describe it again, by fewer ranks"
    ]


def test_how_many_processes_is_a_whole_number(folder):
    with pytest.raises(ArgumentError, match="--world must be a whole number from 1 on, got '0'"):
        run([str(folder), "--world", "0"])
