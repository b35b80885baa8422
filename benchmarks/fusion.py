"""Compiled patterns beside the same graph of torch's own operations: python benchmarks/fusion.py [--shape 16384x8192]

Each pattern is written once, with the functions of a namespace: tilefold's or torch's. Both are compiled by Inductor; ours
with the pass of `tilefold.inductor.register()`. Answers are compared with float64 before anything is timed; then each is
timed in turns, as a CUDA graph, twice. A pattern that is slower by more than 5 % in both repeats is marked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch.nn import functional as F

import tilefold

Tensor = torch.Tensor


class Own:
    """tilefold's functions by the names of torch's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tilefold, name)


class Torch:
    """Torch's functions, and those of torch.nn.functional."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name) if hasattr(torch, name) else getattr(F, name)


def _rms(ns: Any, x: Tensor, w: Tensor) -> Tensor:
    return (
        ns.rms_norm(x, x.shape[1:], w, 1e-5) if isinstance(ns, Own) else F.rms_norm(x, x.shape[1:], w, 1e-5)
    )


def _layer(ns: Any, x: Tensor, w: Tensor) -> Tensor:
    return ns.layer_norm(x, x.shape[1:], w, w) if isinstance(ns, Own) else F.layer_norm(x, x.shape[1:], w, w)


def _entropy(ns: Any, x: Tensor) -> Tensor:
    p = ns.softmax(x, 1)
    return -ns.sum(p * (p + 1e-9).log(), 1)


def _block(ns: Any, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    return h, _rms(ns, h, w)


def _gated(ns: Any, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.silu(x) * _rms(ns, y, w)


def _both(ns: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return ns.softmax(x * 0.5, 1), ns.logsumexp(x * 0.5, 1)


def _kl(ns: Any, x: Tensor, y: Tensor) -> Tensor:
    p, q = ns.log_softmax(x, 1), ns.log_softmax(y, 1)
    return ns.sum(p.exp() * (p - q), 1)


# What each is of: x and y are rows of logits, w a weight of a row, m a mask.
PATTERNS: dict[str, tuple[Callable[..., Any], str]] = {
    "logsumexp of a gated sigmoid": (lambda ns, x, w: ns.logsumexp((x * w).sigmoid(), 1), "xw"),
    "masked mean": (lambda ns, x, m: ns.sum(torch.where(m, x, 0.0), 1) / ns.sum(m.float(), 1), "xm"),
    "cosine similarity": (
        lambda ns, x, y: ns.sum(x * y, 1) / (ns.sum(x * x, 1).sqrt() * ns.sum(y * y, 1).sqrt()), "xy",
    ),
    "squared distance": (lambda ns, x, y: ns.sum((x - y).float().square(), 1), "xy"),
    "largest magnitude of a scaled row": (lambda ns, x, w: ns.amax((x * w).abs(), 1), "xw"),
    "KL of two softmaxes": (_kl, "xy"),
    "entropy of a softmax": (_entropy, "x"),
    "softcap, then log_softmax": (lambda ns, x: ns.log_softmax(30.0 * torch.tanh(x / 30.0), 1), "x"),
    "softcap, then logsumexp": (lambda ns, x: ns.logsumexp(30.0 * torch.tanh(x / 30.0), 1), "x"),
    "attention row: scale, mask, softmax": (
        lambda ns, x, m: ns.softmax(torch.where(m, x * 0.125, float("-inf")), 1), "xm",
    ),
    "temperature and bias, then softmax": (lambda ns, x, w: ns.softmax(x / 0.7 + w, 1), "xw"),
    "softmax, then a gate": (lambda ns, x, y: ns.softmax(x, 1) * y, "xy"),
    "RMSNorm of a sum, the sum kept": (_block, "xyw"),
    "RMSNorm behind a SiLU gate": (_gated, "xyw"),
    "RMSNorm, then GELU": (lambda ns, x, w: F.gelu(_rms(ns, x, w), approximate="tanh"), "xw"),
    "LayerNorm of a GELU": (lambda ns, x, w: _layer(ns, F.gelu(x, approximate="tanh"), w), "xw"),
    "LayerNorm and what was added": (lambda ns, x, y, w: _layer(ns, x + y, w) + x, "xyw"),
    "variance of a ReLU": (lambda ns, x: ns.var(x.relu().float(), 1), "x"),
    "softmax and its logarithm's sum": (_both, "x"),
    "mean and mean of squares": (lambda ns, x: (ns.mean(x.float(), 1), ns.mean(x.float().square(), 1)), "x"),
    "logsumexp and a loss's logit": (lambda ns, x, y: ns.logsumexp(x, 1) - ns.sum(x * y, 1), "xy"),
    "softmax of a sum of logits": (lambda ns, x, y: ns.softmax(1.3 * x - 0.3 * y, 1), "xy"),
}  # fmt: skip


def given(kinds: str, rows: int, columns: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    """A pattern's tensors, drawn from one seed."""
    seeded = torch.Generator(device=device).manual_seed(11)
    made = []
    for kind in kinds:
        if kind == "m":
            made.append(torch.rand(rows, columns, generator=seeded, device=device) < 0.8)
        else:
            size = (columns,) if kind == "w" else (rows, columns)
            made.append(torch.randn(size, generator=seeded, device=device).to(dtype))
    return made


def both(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A pattern of ours and of torch's, compiled."""
    function, _ = PATTERNS[name]
    return tuple(  # type: ignore[return-value]  # two
        torch.compile(lambda *t, ns=ns: function(ns, *t), fullgraph=True, dynamic=False)
        for ns in (Own(), Torch())
    )


def listed(made: Any) -> list[Tensor]:
    """A call's results."""
    return list(made) if isinstance(made, tuple) else [made]


def errors(name: str, tensors: list[Tensor], made: Any, rows: int = 256) -> float:
    """How far the first rows are from float64, beside the largest value there."""
    few = [t[:rows] if t.ndim == 2 else t for t in tensors]
    wanted = listed(PATTERNS[name][0](Torch(), *(t.double() if t.is_floating_point() else t for t in few)))
    found = [r[:rows].double() for r in listed(made)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True))


def prepared(task: tuple[str, int, int, str]) -> None:
    """Compile a pattern in a process of its own, so that Inductor and Triton find it on disk."""
    name, rows, columns, dtype = task
    tilefold.inductor.register()
    tensors = given(PATTERNS[name][1], rows, columns, "cuda", getattr(torch, dtype))
    for call in both(name):
        call(*tensors)
    torch.cuda.synchronize()


def timed(calls: list[torch.cuda.CUDAGraph], times: int = 20) -> list[float]:
    """The median time of each replay, us, in turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(times):
        for k, graph in enumerate(calls):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[k].append(1000 * start.elapsed_time(end))
    return [statistics.median(f) for f in found]


def recorded(call: Callable[..., Any], tensors: list[Tensor]) -> torch.cuda.CUDAGraph:
    """A call as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(*tensors)
    return graph


def main() -> int:
    """Exit status 1 where an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="16384x8192")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default="", help="patterns whose name holds this")
    parser.add_argument("--processes", type=int, default=0, help="compile beforehand, in so many processes")
    parser.add_argument("--json", default="", help="write the figures to this file")
    asked = parser.parse_args()
    rows, columns = map(int, asked.shape.split("x"))
    names = [name for name in PATTERNS if asked.only in name]
    if asked.processes:
        import multiprocessing

        began = time.time()
        with ProcessPoolExecutor(asked.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(prepared, [(name, rows, columns, asked.dtype) for name in names]))
        print(f"compiled in {time.time() - began:.0f} s", flush=True)
    tilefold.inductor.register()
    found, wrong = [], 0
    for name in names:
        tensors = given(PATTERNS[name][1], rows, columns, "cuda", getattr(torch, asked.dtype))
        torch._dynamo.reset()
        calls = both(name)
        far = [errors(name, tensors, call(*tensors)) for call in calls]
        graphs = [recorded(call, tensors) for call in calls]
        repeats = [timed(graphs) for _ in range(2)]
        ratios = [ours / torchs for ours, torchs in repeats]
        wrong += far[0] > max(2 * far[1], 2**-7)
        mark = "SLOWER" if min(ratios) > 1.05 else ""
        print(
            f"{name:36s} {repeats[0][0]:8.1f} {repeats[0][1]:8.1f} us  {ratios[0]:.3f} {ratios[1]:.3f}  "
            f"error {far[0]:.1e} {far[1]:.1e} {mark}", flush=True,
        )  # fmt: skip
        found.append({"pattern": name, "us": repeats, "ratios": ratios, "errors": far})
    mean = statistics.geometric_mean(min(f["ratios"]) for f in found)
    faster = sum(max(f["ratios"]) < 1 for f in found)
    print(
        f"geometric mean {mean:.3f}; faster in {faster} of {len(found)}; {torch.cuda.get_device_name()}, {asked.shape}"
    )
    if asked.json:
        card = {
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "shape": asked.shape,
            "dtype": asked.dtype,
        }
        with open(asked.json, "w") as file:
            json.dump({**card, "patterns": found}, file, indent=1)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
