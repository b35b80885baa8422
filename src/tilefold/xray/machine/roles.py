"""The semantics of an atomic instruction."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.xray.ptx.syntax import Instruction

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True)
class Atomic:
    """How an atomic operation is ordered (`relaxed` where it does not say), for whom, and what it does."""

    order: str
    scope: str
    operation: str


def atomic_of(instruction: Instruction) -> Atomic:
    """The semantics of `atom` or `red`; PTX takes `relaxed` and `gpu` where nothing is said."""
    words = instruction.modifiers
    order = next((w for w in words if w in _ORDERS), "relaxed")
    scope = next((w for w in words if w in _SCOPES), "gpu")
    rest = [
        w
        for w in words[:-1]
        if w not in (*_ORDERS, *_SCOPES, "global", "shared", "shared::cta", "shared::cluster", "noftz")
    ]
    return Atomic(order, scope, rest[0])
