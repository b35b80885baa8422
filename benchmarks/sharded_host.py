"""What calls over ranks cost the host, beside the local call and one bare all-gather: microseconds of CPU time.

    PYTHONPATH=src python benchmarks/sharded_host.py [--whole] [--rounds N]

One process of a group of two by torch's fake backend, which moves nothing. On a CPU each fold gives what it gave first, so
that what is left is the host's part; with `--whole` folds are run. On a GPU they are launched. Small tensors, so that nobody
waits for the device. The least of rounds in which all calls take turns.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import tilefold
import tilefold.distributed as sharded
from tilefold import monoids
from tilefold.api import on_cpu


def without_folds() -> None:
    """Have a fold on a CPU give what it gave first."""
    begin: Any = on_cpu.Repeated.__init__

    def remembering(self: Any, plan: Any, call: Any, is_differentiable: bool = False) -> None:
        found: list[Tensor] = []

        def called(*tensors: Tensor) -> list[Tensor]:
            if not found:
                found.extend(call(*tensors))
            return list(found)

        begin(self, plan, called)

    on_cpu.Repeated.__init__ = remembering  # type: ignore[method-assign]  # of this process


def calls(device: str) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    one, mesh = dist.new_group([0]), DeviceMesh(device, [0, 1])
    x, g = (torch.randn(64, 64, device=device).requires_grad_(derives) for derives in (False, True))
    y, w, target = (
        torch.randn(64, 64, device=device),
        torch.randn(64, device=device),
        torch.randint(0, 64, (64,), device=device),
    )
    ends = torch.tensor([0, 40, 70, 128], device=device)
    states, every = (torch.empty(n * 128, device=device) for n in (1, 2))
    spread = DTensor.from_local(x, mesh, [Shard(1)], run_check=False)
    alone, targets = (
        DTensor.from_local(t, DeviceMesh(device, [0]), [p], run_check=False)
        for t, p in ((x, Shard(1)), (target, Replicate()))
    )

    def product() -> Tensor:
        made = x @ y
        dist.all_reduce(made)
        return made.relu_()

    return {
        "all-gather": lambda: dist.all_gather_into_tensor(every, states),
        "logsumexp, local": lambda: tilefold.logsumexp(x, 1),
        "logsumexp": lambda: sharded.logsumexp(x, 1, sharded_dim=1),
        "logsumexp of a DTensor": lambda: tilefold.logsumexp(spread, 1),
        "logsumexp, a gradient asked": lambda: sharded.logsumexp(g, 1, sharded_dim=1),
        "logsumexp and backward": lambda: sharded.logsumexp(g, 1, sharded_dim=1).sum().backward(),
        "argmax": lambda: sharded.argmax(x, 1, sharded_dim=1),
        "softmax, local": lambda: tilefold.softmax(x, 1),
        "softmax": lambda: sharded.softmax(x, 1, sharded_dim=1),
        "softmax of a DTensor": lambda: tilefold.softmax(spread, 1),
        "softmax and backward": lambda: sharded.softmax(g, 1, sharded_dim=1).sum().backward(),
        "rms_norm": lambda: sharded.rms_norm(x, (64,), w, sharded_dim=1),
        "cumsum": lambda: sharded.scan(x, monoids.SUM, 1, sharded_dim=1),
        "topk": lambda: sharded.topk(x, 4, 1, sharded_dim=1),
        "segment_reduce": lambda: sharded.segment_reduce(x, monoids.SUM, ends, dim=1, sharded_dim=1),
        "cross_entropy, local": lambda: tilefold.cross_entropy(x, target),
        "cross_entropy": lambda: sharded.cross_entropy(x, target, group=one),
        "cross_entropy of a DTensor": lambda: tilefold.cross_entropy(alone, targets),
        "cross_entropy and backward, local": lambda: tilefold.cross_entropy(g, target).backward(),
        "cross_entropy and backward": lambda: sharded.cross_entropy(g, target, group=one).backward(),
        "mm, all-reduce, relu": product,
        "matmul, local": lambda: tilefold.matmul(x, y, epilogue="relu"),
        "matmul": lambda: sharded.matmul(x, y, epilogue="relu"),
    }


def main() -> None:
    """Time all calls, and print a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--whole", action="store_true", help="on a CPU run the folds, too")
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")  # torch 2.13 calls its own all-gather deprecated
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    if device == "cpu" and not given.whole:
        without_folds()
    least, every = dict[str, float](), calls(device)
    for turn in range(given.rounds + 2):
        for name, call in every.items():
            began = time.process_time()
            for _ in range(20):
                call()
            us = (time.process_time() - began) / 20 * 1e6
            if device == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:
                least[name] = min(us, least.get(name, us))
    for name, us in least.items():
        print(f"{name:<36} {us:8.1f} us")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
