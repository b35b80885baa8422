"""Folds of a tensor that four processes share: `torchrun --nproc-per-node 4 examples/sharded.py`, on a CPU.

Each rank holds some columns of one matrix. Every result below equals that of the whole matrix, which no rank needs.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

import tilefold
import tilefold.distributed
from tilefold import monoids


def main() -> None:
    """Fold, scan and differentiate the shards of one matrix, and compare with the matrix."""
    if "RANK" not in os.environ:  # without torchrun: one rank
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29523"}
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))
    widths = [1000 // size + (1000 % size if r == 0 else 0) for r in range(size)]  # shards may be uneven
    shard = whole.split(widths, 1)[rank].clone().requires_grad_()

    lse = tilefold.distributed.logsumexp(shard, 1, sharded_dim=1)
    torch.testing.assert_close(lse, whole.logsumexp(1))
    lse.sum().backward()
    torch.testing.assert_close(shard.grad, whole.softmax(1).split(widths, 1)[rank])

    shard = shard.detach()
    where = tilefold.distributed.argmax(shard, 1, sharded_dim=1)
    assert torch.equal(where, whole.argmax(1))

    prefixes = tilefold.distributed.scan(shard, monoids.MAX, 1, sharded_dim=1)
    assert torch.equal(prefixes, whole.cummax(1).values.split(widths, 1)[rank])

    lines = [None] * size
    dist.all_gather_object(
        lines, f"rank {rank}: {widths[rank]} columns, the maximum of row 0 is in column {where[0]}"
    )
    if rank == 0:
        print(*lines, sep="\n")
        print("logsumexp, its gradient, argmax and a running maximum are those of the whole matrix")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
