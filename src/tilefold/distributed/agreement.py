"""Whether the ranks of a group make the same call: asked before an exchange where the environment says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from tilefold.errors import ArgumentError


def check_ranks(facts: Mapping[str, Any], group_of: Callable[[], Any], call: str) -> None:
    """Compare what each rank asks for, with TILEFOLD_CHECK_RANKS=1. Every rank raises the same error.

    Raises:
        ArgumentError: ranks disagree.
    """
    if os.environ.get("TILEFOLD_CHECK_RANKS") != "1":
        return
    group = group_of()
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, {"call": call, **facts}, group)
    members = dist.get_process_group_ranks(group)
    for name in found[0]:
        ranks = dict[str, list[int]]()
        for member, one in zip(members, found, strict=True):
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
