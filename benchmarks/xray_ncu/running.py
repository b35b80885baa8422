"""The launches on a GPU: each once, in order, and no kernel else. Inputs are made on the host and copied."""

from __future__ import annotations

import torch
from launches import Fold, Launch, launches

import tilefold
from tilefold import monoids


def run(first: bool = False) -> None:
    """Launch all, or the first."""
    chosen = launches()[:1] if first else launches()
    for launch in chosen:
        if isinstance(launch, Fold):
            tilefold.reduce(launch.make().cuda(), getattr(monoids, launch.monoid), dim=launch.dim)
        else:
            _launch(launch)
    torch.cuda.synchronize()
    print(f"{len(chosen)} launched", flush=True)


def _launch(launch: Launch) -> None:
    given = {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in launch.make().items()}
    launch.kernel[launch.grid](
        **given, **launch.constants, num_warps=launch.num_warps, num_stages=launch.num_stages
    )
