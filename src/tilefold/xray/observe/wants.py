"""Which operations want a tile in which layout: what a change of layout stands between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import Operation, tensors
from tilefold.xray.ir.syntax import Tensor
from tilefold.xray.layouts import holding
from tilefold.xray.report.static import line_of

# Operations that have a layout of their own: what stands between takes that of its neighbours.
_DECIDE = {
    "tt.load": "the load", "tt.store": "the store", "tt.dot": "the product", "ttng.warp_group_dot": "the product",
    "tt.trans": "the transpose", "tt.reduce": "the reduction", "tt.scan": "the scan", "tt.reshape": "the reshape",
    "tt.join": "tl.join", "tt.split": "tl.split", "tt.cat": "tl.cat", "tt.gather": "tl.gather",
    "tt.atomic_rmw": "the atomic", "tt.histogram": "tl.histogram", "ttg.local_load": "the load from shared memory",
    "ttg.local_alloc": "the store to shared memory", "ttng.warp_group_dot_wait": "the product",
}  # fmt: skip
_FAR = 64  # operations that are asked on the way


def wants(change: Operation, evidence: Evidence) -> str:
    """The two layouts of a change, each with the operation, and its line, that it comes from or is for."""
    before, after = (
        (tensors(change.types) + tensors(change.types))[:2] if tensors(change.types) else (None, None)
    )
    if before is None or after is None:
        return "of a layout that is not known here"
    made = evidence.ttgir.made_by()
    users: dict[str, list[Operation]] = {}
    for operation in evidence.ttgir.walk():
        for name in operation.operands:
            users.setdefault(name, []).append(operation)
    source = _first(change, lambda o: [made[n] for n in o.operands if n in made])
    target = _first(change, lambda o: [u for n in o.results for u in users.get(n, ())]) or _beside(
        change, made, users
    )
    return (
        f"{_named(source, 'what stands before')} has it as {_held(before, evidence)}; "
        f"{_named(target, 'what stands behind')} wants {_held(after, evidence)}"
    )


def _beside(
    change: Operation, made: Mapping[str, Operation], users: Mapping[str, list[Operation]]
) -> Operation | None:
    """What the tile is used with behind the change: an operation on two tiles takes the layout of the other one."""
    for user in (u for n in change.results for u in users.get(n, ())):
        others = [made[n] for n in user.operands if n in made and n not in change.results]
        found = next((o for o in others if o.name in _DECIDE), None)
        if found is not None:
            return found
    return None


def _first(start: Operation, near: Callable[[Operation], Iterable[Operation]]) -> Operation | None:
    """The nearest operation with a layout of its own, in one direction."""
    pending, seen = list(near(start)), {id(start)}
    for operation in pending:
        if id(operation) in seen or len(seen) > _FAR:
            continue
        seen.add(id(operation))
        if operation.name in _DECIDE:
            return operation
        pending += near(operation)
    return None


def _named(operation: Operation | None, otherwise: str) -> str:
    if operation is None:
        return otherwise
    place = line_of(operation.place)
    return _DECIDE[operation.name] + (f" in line {place[1]}" if place else "")


def _held(tile: Tensor, evidence: Evidence) -> str:
    """A layout in words: what a thread holds, and how lanes and warps stand."""
    held = holding(tile, evidence.ttgir.aliases, evidence.compiled.num_warps)
    if held is None:
        return (
            evidence.ttgir.aliases.get(tile.encoding, tile.encoding).partition("<")[0].removeprefix("#ttg.")
        )
    sizes = ("x".join(map(str, n)) for n in (held.elements, held.lanes, held.warps))
    return "{} a thread, {} lanes, {} warps".format(*sizes)
