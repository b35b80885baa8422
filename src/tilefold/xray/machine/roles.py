"""What an instruction is for, in one word, and the semantics of an atomic one."""

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


def role_of(instruction: Instruction) -> str:
    """The purpose of an instruction, in one word."""
    opcode, words = instruction.opcode, instruction.modifiers
    if opcode == "mma" or (opcode == "wgmma" and words[0] == "mma_async"):
        return "tensor"
    if opcode in ("bar", "barrier"):
        return "other" if instruction.has("warp") or instruction.has("arrive") else "barrier"
    if opcode in ("shfl", "redux"):
        return "shuffle"
    if opcode in ("atom", "red"):
        return "atomic"
    if opcode in ("ld", "ldu", "ldmatrix"):
        return "other" if instruction.has("param") else "load"
    if opcode in ("st", "stmatrix"):
        return "store"
    if opcode == "cp" and not {"commit_group", "wait_group", "wait_all"} & set(words):
        return "copy"
    return "branch" if opcode == "bra" else "other"


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
