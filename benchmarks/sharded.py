"""Sharded calls beside the whole tensor's, and their time beside what they are made of.

    PYTHONPATH=src torchrun --nproc-per-node 2 benchmarks/sharded.py [--tiny] [--rounds N] [--parts folds products ...]

On GPUs by NCCL, elsewhere by gloo, with tiny shapes. First each call and its gradient are compared with those of the whole
tensor, in each dtype that is among the parts: "pass" or "FAIL" a line, and exit code 1. Then times, in microseconds, of the
slowest rank: medians of rounds in which all candidates take turns, each a batch of calls between two device events; "graph"
is the same in a CUDA graph. The columns are named; the last one is the first candidate's time over each of the others'.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

import tilefold
import tilefold.distributed as sharded
from tilefold import monoids
from tilefold.distributed.exchange import COLLECTIVES

Call = Callable[[], Any]


def parts(whole: Tensor) -> tuple[list[int], Tensor]:
    """Uneven lengths of all ranks' shards along the last dim, and this rank's shard."""
    size, n = dist.get_world_size(), whole.shape[-1]
    lengths = [n // size + (rank == 0) * (n % size) for rank in range(size)]
    if size > 1:
        lengths[0], lengths[1] = lengths[0] + 3, lengths[1] - 3
    return lengths, whole.split(lengths, -1)[dist.get_rank()].clone()


def cases(
    x: Tensor, w: Tensor, target: Tensor
) -> Iterator[tuple[str, Callable[[Tensor], Any], Callable[..., Any], bool]]:
    """Name, the whole tensor's call, the shard's of (shard, weight, lengths), and whether its result is sharded too."""
    for name in ("sum", "mean", "amax", "logsumexp", "var", "vector_norm", "argmax"):
        order = (2.0,) if name == "vector_norm" else ()
        local, own = getattr(tilefold, name), getattr(sharded, name)
        yield (
            name,
            lambda x, f=local, o=order: f(x, *o, dim=1),
            lambda s, w, n, f=own, o=order: f(s, *o, dim=1, sharded_dim=1),
            False,
        )
    yield (
        "scan",
        lambda x: tilefold.cumsum(x, 1),
        lambda s, w, n: sharded.scan(s, monoids.SUM, 1, sharded_dim=1),
        True,
    )
    for name in ("softmax", "log_softmax"):
        local, own = getattr(tilefold, name), getattr(sharded, name)
        yield name, lambda x, f=local: f(x, 1), lambda s, w, n, f=own: f(s, 1, sharded_dim=1), True
    for name in ("layer_norm", "rms_norm"):
        local, own = getattr(tilefold, name), getattr(sharded, name)
        yield (
            name,
            lambda x, f=local: f(x, x.shape[1:], w),
            lambda s, w, n, f=own: f(s, s.shape[1:], w, sharded_dim=1),
            True,
        )
    cuts = torch.tensor([0, 1, 1, 2000, 2100, 4099], device=x.device)
    yield (
        "segment_reduce",
        lambda x: tilefold.segment_reduce(x, monoids.LOGSUMEXP, cuts, dim=1),
        lambda s, w, n: sharded.segment_reduce(s, monoids.LOGSUMEXP, cuts, dim=1, sharded_dim=1),
        False,
    )
    yield (
        "topk",
        lambda x: tilefold.topk(x, 5)[0],
        lambda s, w, n: sharded.topk(s, 5, sharded_dim=1)[0],
        False,
    )
    yield (
        "cross_entropy",
        lambda x: tilefold.cross_entropy(x, target, label_smoothing=0.1),
        lambda s, w, n: sharded.cross_entropy(s, target, sizes=n, label_smoothing=0.1),
        False,
    )


TOLERANCES = {"float64": 1e-11, "float32": 1e-5, "bfloat16": 2e-2}


def check(device: str, dtypes: list[str]) -> bool:
    """Compare all cases; one line each."""
    good, lines = True, list[str]()
    for dtype, tolerance in ((getattr(torch, name), TOLERANCES[name]) for name in dtypes):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(64, 4099, generator=generator, dtype=torch.float64).to(device, dtype)
        w = torch.randn(4099, generator=generator, dtype=torch.float64).to(device, dtype)
        target = torch.randint(0, 4099, (64,), generator=generator).to(device)
        for name, of_whole, of_shard, is_sharded in cases(x, w, target):
            lengths, own = parts(x)
            weight = parts(w)[1]
            derives = name not in ("scan", "argmax")
            whole, shard = x.clone().requires_grad_(derives), own.requires_grad_(derives)
            error = ""
            try:
                wanted, got = of_whole(whole), of_shard(shard, weight, lengths)
                pairs = [(part(wanted, lengths) if is_sharded else wanted, got)]
                if derives:
                    seed = torch.randn(wanted.shape, generator=generator, dtype=torch.float64).to(
                        device, dtype
                    )
                    of_own = part(seed, lengths) if is_sharded else seed
                    (gw,) = torch.autograd.grad(wanted, whole, seed)
                    (gs,) = torch.autograd.grad(got, shard, of_own)
                    pairs.append((part(gw, lengths), gs))
                for a, b in pairs:  # of the largest element: sums of all signs have no better bound
                    largest = float(a.detach().abs().max()) if a.numel() else 0.0
                    torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance * largest)
            except Exception as found:
                error = f"{type(found).__name__}: {str(found).splitlines()[0]}"
            errors: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(errors, error)
            failed = [f"rank {rank}: {e}" for rank, e in enumerate(errors) if e]
            good &= not failed
            lines.append(f"{'FAIL' if failed else 'pass'} {name} {str(dtype)[6:]} {'; '.join(failed)}")
    if dist.get_rank() == 0:
        print("\n".join(lines), flush=True)
    return good


def part(whole: Tensor, lengths: list[int]) -> Tensor:
    """This rank's part of a tensor that has all columns."""
    return whole.split(lengths, -1)[dist.get_rank()]


# ------------------------------------------------------------------------------------------------------------------ time


def batch_us(call: Call, count: int, cuda: bool) -> float:
    """Microseconds of a call, of `count` one after the other."""
    dist.barrier()
    if not cuda:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begin) / count * 1e6
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / count * 1e3


def graph_of(call: Call, count: int) -> Call | None:
    """So many calls in a CUDA graph, as one; None where it cannot be captured."""
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
    except RuntimeError as error:
        print(f"rank {dist.get_rank()}: no graph: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    return graph.replay  # type: ignore[no-any-return]  # torch's own


def report(title: str, calls: dict[str, Call], rounds: int, cuda: bool, count: int, graphs: bool) -> None:
    """Times of all candidates, in turns, and the first one's over each other's."""
    for kind in ("calls", "graph") if cuda and graphs else ("calls",):
        if kind == "graph":
            made = {name: graph_of(call, count) for name, call in calls.items()}
            runs = {name: call for name, call in made.items() if call is not None}
            each = 1
        else:
            runs, each = calls, count
        found: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds + 2):
            for name, call in runs.items():
                us = batch_us(call, each, cuda) / (count if kind == "graph" else 1)
                if turn >= 2:
                    found[name].append(us)
        medians = torch.tensor([statistics.median(times) for times in found.values()], dtype=torch.float64)
        medians = medians.to("cuda" if cuda else "cpu")
        dist.all_reduce(medians, dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            first = float(medians[0])
            for name, us in zip(found, medians.tolist(), strict=True):
                print(f"{title:<44} {kind:<6} {name:<28} {us:10.1f} us   {first / us:5.2f}", flush=True)


def pulled(states: Tensor, every: Tensor) -> Call:
    """An all-gather without NCCL: each rank writes to symmetric memory, and reads the others' there once all have come."""
    import torch.distributed._symmetric_memory as symmetric

    group = dist.group.WORLD
    symmetric.enable_symm_mem_for_group(group.group_name)
    own = symmetric.empty(states.shape, dtype=states.dtype, device=states.device)
    handle = symmetric.rendezvous(own, group.group_name)
    peers = [handle.get_buffer(rank, states.shape, states.dtype) for rank in range(dist.get_world_size())]

    def exchange() -> None:
        own.copy_(states)
        handle.barrier(channel=0)
        torch.cat(peers, out=every)
        handle.barrier(channel=1)  # nobody writes again before all have read

    exchange()
    wanted = torch.empty_like(every)
    dist.all_gather_into_tensor(wanted, states)
    assert torch.equal(every, wanted)
    return exchange


def of_exchanges(device: str, rows: int, fields: int, rounds: int) -> None:
    """The exchange of small states alone: by NCCL and by symmetric memory."""
    size, cuda = dist.get_world_size(), device != "cpu"
    states = torch.rand(rows * fields, device=device) + dist.get_rank()
    every = torch.empty(size * rows * fields, device=device)
    calls: dict[str, Call] = {"all-gather": lambda: dist.all_gather_into_tensor(every, states)}
    if cuda:
        calls["by symmetric memory"] = pulled(states, torch.empty_like(every))
    report(f"states of {rows} rows, {fields} float32", calls, rounds, cuda, 20, True)


def of_folds(device: str, rows: int, columns: int, rounds: int) -> None:
    """A fold over a sharded dim beside its local fold and one bare all-gather of as many bytes as its states."""
    size, cuda = dist.get_world_size(), device != "cpu"
    x = torch.randn(rows, columns, device=device).bfloat16()
    states = torch.zeros(rows * 2, device=device)
    every = torch.empty(size * rows * 2, device=device)

    def bare() -> None:
        tilefold.logsumexp(x, 1)
        dist.all_gather_into_tensor(every, states)

    calls: dict[str, Call] = {
        "distributed.logsumexp": lambda: sharded.logsumexp(x, 1, sharded_dim=1),
        "local fold + all-gather": bare,
        "local fold": lambda: tilefold.logsumexp(x, 1),
        "all-gather": lambda: dist.all_gather_into_tensor(every, states),
    }
    report(f"logsumexp {rows}x({columns}x{size}) bf16", calls, rounds, cuda, 20, True)


def of_rows(device: str, rows: int, columns: int, rounds: int) -> None:
    """Softmax and norms over a sharded dim beside those of a shard alone: forward, then both."""
    size, cuda = dist.get_world_size(), device != "cpu"
    x = torch.randn(rows, columns, device=device).bfloat16().requires_grad_()
    w = torch.randn(columns, device=device).bfloat16().requires_grad_()
    g = torch.randn_like(x)
    for name in ("softmax", "layer_norm", "rms_norm"):
        given = (1,) if name == "softmax" else ((columns,), w)
        wrt = (x,) if name == "softmax" else (x, w)

        def own(name: str = name, given: Any = given) -> Tensor:
            return getattr(sharded, name)(x, *given, sharded_dim=1)  # type: ignore[no-any-return]  # a tensor

        def local(name: str = name, given: Any = given) -> Tensor:
            return getattr(tilefold, name)(x, *given)  # type: ignore[no-any-return]  # a tensor

        def both(call: Callable[[], Tensor], wrt: Any = wrt) -> Call:
            return lambda: torch.autograd.grad(call(), wrt, g)

        title = f"{name} {rows}x({columns}x{size}) bf16"
        with torch.no_grad():
            report(title, {f"distributed.{name}": own, f"local {name}": local}, rounds, cuda, 20, True)
        runs = {f"distributed.{name}": both(own), f"local {name}": both(local)}
        report(f"{title}, both", runs, rounds, cuda, 10, True)


def of_products(device: str, m: int, k: int, n: int, rounds: int) -> None:
    """A product of parts of K with a ReLU beside torch's product, all-reduce and ReLU, rounded before the sum; and what
    blocks of columns would gain."""
    size, cuda, group = dist.get_world_size(), device != "cpu", dist.group.WORLD.group_name
    a = torch.randn(m, k // size, device=device).bfloat16()
    b = torch.randn(k // size, n, device=device).bfloat16()

    def torchs() -> Tensor:
        made = a @ b
        dist.all_reduce(made)
        return made.relu_()

    def in_blocks(count: int) -> Tensor:
        """Blocks of columns: the sum of one is exchanged while the next is multiplied."""
        blocks, made = b.chunk(count, 1), a.new_empty(m, n)
        parts = (tilefold.matmul(a, block, out_dtype=torch.float32) for block in blocks)
        sums = [COLLECTIVES.all_reduce(part, "sum", group) for part in parts]
        for total, out in zip(sums, made.chunk(count, 1), strict=True):
            out.copy_(COLLECTIVES.wait_tensor(total).relu_())
        return made

    calls: dict[str, Call] = {
        "distributed.matmul": lambda: sharded.matmul(a, b, epilogue="relu"),
        "mm, all-reduce, relu": torchs,
        "local matmul": lambda: tilefold.matmul(a, b, epilogue="relu"),
        **{f"in {count} blocks of columns": lambda c=count: in_blocks(c) for count in (1, 2, 4)},
    }
    whole = sharded.matmul(a, b, epilogue="relu").float()
    for count in (1, 2, 4):
        torch.testing.assert_close(in_blocks(count).float(), whole, rtol=1e-2, atol=1e-2 * float(whole.max()))
    report(f"matmul {m}x({k // size}x{size}) @ {n} bf16", calls, rounds, cuda, 20, True)


def of_segments(device: str, rows: int, columns: int, count: int, rounds: int) -> None:
    """Segments that cross ranks beside the same number on one rank, and one bare all-gather of the edges' states."""
    size, cuda = dist.get_world_size(), device != "cpu"
    x = torch.randn(rows, columns, device=device).bfloat16()
    own = torch.arange(count + 1, device=device) * rows // count
    cuts = torch.arange(count + 1, device=device) * (rows * size) // count
    edges = torch.zeros(2 * 2 * columns, device=device)
    every = torch.empty(size * len(edges), device=device)
    calls: dict[str, Call] = {
        "distributed.segment_reduce": lambda: sharded.segment_reduce(
            x, monoids.LOGSUMEXP, cuts, sharded_dim=0
        ),
        "local segment_reduce": lambda: tilefold.segment_reduce(x, monoids.LOGSUMEXP, own),
        "all-gather": lambda: dist.all_gather_into_tensor(every, edges),
    }
    report(f"segment_reduce ({rows}x{size})x{columns} to {count} bf16", calls, rounds, cuda, 20, False)


def of_losses(device: str, rows: int, classes: int, rounds: int) -> None:
    """Cross-entropy of sharded classes, forward and backward, beside the local one of a shard and torch's loss_parallel."""
    size, cuda = dist.get_world_size(), device != "cpu"
    own = classes // size
    x = torch.randn(rows, own, device=device).bfloat16().requires_grad_()
    target = torch.randint(0, own, (rows,), device=device)  # a class of every shard
    dist.broadcast(target, 0)
    mesh = init_device_mesh("cuda" if cuda else "cpu", (size,))

    def torchs() -> None:
        with loss_parallel():
            logits = DTensor.from_local(x, mesh, [Shard(1)], run_check=False)
            F.cross_entropy(logits, target).backward()
        x.grad = None

    def grad(loss: Tensor) -> None:
        torch.autograd.grad(loss, x)

    calls: dict[str, Call] = {
        "distributed.cross_entropy": lambda: grad(sharded.cross_entropy(x, target)),  # type: ignore[arg-type]
        "local cross_entropy": lambda: grad(tilefold.cross_entropy(x, target)),
        "torch's loss_parallel": torchs,
    }
    report(f"cross_entropy {rows}x{classes} bf16, both", calls, rounds, cuda, 5, False)
    del calls["torch's loss_parallel"]
    report(f"cross_entropy {rows}x{classes} bf16, both", calls, rounds, cuda, 3, True)


# Of each part what measures it, and the arguments it has on a CPU and on GPUs.
MEASURES: dict[str, tuple[Callable[..., None], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "folds": (of_folds, [(64, 256)], [(16384, 8192), (16384, 512)]),
    "exchanges": (of_exchanges, [(64, 2)], [(16384, 2), (16384, 1)]),
    "products": (of_products, [(8, 64, 32)], [(16, 16384, 8192), (64, 16384, 8192), (2048, 16384, 4096)]),
    "segments": (of_segments, [(64, 32, 5)], [(65536, 1024, 333)]),
    "rows": (of_rows, [(64, 256)], [(16384, 8192)]),
    "losses": (of_losses, [(32, 512)], [(8192, 131072)]),
}
PARTS = [*TOLERANCES, *MEASURES]


def main() -> int:
    """Checks, then times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="small shapes, which a CPU has always")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    asked = parser.parse_args()
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(
        os.environ.get("LOCAL_WORLD_SIZE", "1")
    )
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=torch.device(device) if cuda else None)
    good = check(device, [part for part in asked.parts if part in TOLERANCES])
    tiny = asked.tiny or not cuda
    if dist.get_rank() == 0:
        name = torch.cuda.get_device_name() if cuda else "CPU, gloo"
        print(f"{dist.get_world_size()} ranks, {name}, torch {torch.__version__}", flush=True)
    for part, (measure, small, full) in MEASURES.items():
        for shape in (small if tiny else full) if part in asked.parts else ():
            measure(device, *shape, asked.rounds)
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
