"""One warp's addresses for each kind of access of a line: the warp that is served worst, as it is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tilefold.xray.evidence import Evidence
from tilefold.xray.execution import Execution
from tilefold.xray.machine.counts import SECTOR, global_cost, shared_cost
from tilefold.xray.machine.log import Access
from tilefold.xray.page.texts import Keys

_LOGGED = 4  # executions of an instruction that are looked at: of a loop's rounds the first
_ROW = 128  # bytes of all banks


def drawn_accesses(evidence: Evidence, keys: Keys) -> dict[int, list[dict[str, Any]]]:
    """By the number of the line; nothing where nothing was executed.

    `lanes` has the first byte of each lane, None where it is off: in global memory from the first sector on, in shared memory
    from a multiple of all banks' bytes on. `served` are sectors or passes, where `ideal` would do.
    """
    if evidence.execution is None:
        return {}
    found: dict[int, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for number, accesses in evidence.execution.accesses().items():
        instruction = evidence.entry.instructions[number]
        key = keys.of(evidence.places.line(instruction))
        for one in _drawn(evidence.execution, accesses[:_LOGGED]):
            held = found.setdefault(key, {})
            kind = one["kind"], one["space"], one["bytes"], one["name"]
            if kind not in held or _waste(one) > _waste(held[kind]):
                held[kind] = one | {"row": instruction.line}
    return {key: list(held.values()) for key, held in found.items()}


def _waste(one: dict[str, Any]) -> tuple[int, int]:
    return one["served"] - one["ideal"], one["served"]


def _drawn(execution: Execution, accesses: list[Access]) -> Iterator[dict[str, Any]]:
    for access in accesses:
        for warp in range(len(access.active) // 32 if access.space in ("global", "shared") else 0):
            lanes = slice(32 * warp, 32 * warp + 32)
            one = replace(access, addresses=access.addresses[lanes], active=access.active[lanes])
            if one.active.any():
                yield _warp(execution, one, warp)


def _warp(execution: Execution, access: Access, warp: int) -> dict[str, Any]:
    on = access.addresses[access.active]
    name, element = execution.named(int(on[0]))
    if access.space == "global":
        cost = global_cost([access])
        served, ideal, unit = cost.sectors, cost.ideal, SECTOR
    else:
        shared = shared_cost([access])
        served, ideal, unit, name = shared.passes, shared.ideal, _ROW, ""
    first = int(on.min()) // unit * unit
    return {
        "kind": access.kind, "space": access.space, "bytes": access.bytes, "name": name, "element": int(element),
        "warp": warp, "served": served, "ideal": ideal,
        "lanes": [int(a) - first if active else None for a, active in zip(access.addresses, access.active, strict=True)],
    }  # fmt: skip
