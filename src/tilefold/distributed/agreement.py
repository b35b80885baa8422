"""Whether the ranks of a group make the same call: asked before an exchange where the environment says so."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tilefold.errors import ArgumentError


def compares() -> bool:
    """Whether ranks compare their calls: TILEFOLD_CHECK_RANKS=1."""
    return os.environ.get("TILEFOLD_CHECK_RANKS") == "1"


def asks_gradients(tensors: Sequence[Tensor]) -> list[bool]:
    """Of which tensors a call is to be differentiated."""
    return [t.requires_grad and torch.is_grad_enabled() for t in tensors]


def check_ranks(facts: Mapping[str, Any], groups: Sequence[Any], call: str) -> None:
    """Compare what each rank of a group, or of a mesh's groups, asks for, with TILEFOLD_CHECK_RANKS=1.

    All facts come to every rank before the first is compared, so that every rank raises the same error.

    Raises:
        ArgumentError: ranks disagree.
    """
    if not compares():
        return
    numbers = {name: f.tolist() if isinstance(f, Tensor) else f for name, f in facts.items()}
    found = [(dist.get_rank(), {"call": call, **numbers})]
    for group in groups:
        parts: list[Any] = [None] * group.size()
        dist.all_gather_object(parts, found, group)
        found = [one for part in parts for one in part]
    found.sort(key=lambda one: one[0])
    for name in found[0][1]:
        ranks = dict[str, list[int]]()
        for member, one in found:
            ranks.setdefault(str(one.get(name)), []).append(member)
        if len(ranks) > 1:
            got = " and ".join(f"{_short(value)} on {_named(who)}" for value, who in ranks.items())
            raise ArgumentError(
                f"{call}: ranks must agree on {name}, got {got}; make the same call on every rank"
            )


def _short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:60]}..."


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
