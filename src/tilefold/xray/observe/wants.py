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
    "ttg.local_alloc": "the store to shared memory", "ttg.async_copy_global_to_local": "the copy to shared memory",
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
    source = _first(change, lambda o: _makers(o, made))
    target = _first(change, lambda o: [u for n in o.results for u in users.get(n, ())]) or _beside(
        change, made, users
    )
    held = [_held(tile, evidence) for tile in (before, after)]
    if held[0] == held[1]:
        # They hold as many, and not the same: how many lie beside each other.
        held = [
            f"{text}, {_together(t, evidence)} beside each other"
            for text, t in zip(held, (before, after), strict=True)
        ]
    return (
        f"{_named(source, 'what stands before')} has it as {held[0]}; "
        f"{_named(target, 'what stands behind')} wants {held[1]}"
    )


def _makers(operation: Operation, made: Mapping[str, Operation]) -> list[Operation]:
    """The sources of an operation's operands; of a loop also the values that a round hands on."""
    handed = [o for block in operation.blocks for o in block.operations if o.name == "scf.yield"]
    return [*handed, *(made[n] for n in operation.operands if n in made)]


def _together(tile: Tensor, evidence: Evidence) -> int:
    """Elements of a thread that lie beside each other."""
    held = holding(tile, evidence.ttgir.aliases, evidence.compiled.num_warps)
    return 1 if held is None else held.together


def _beside(
    change: Operation, made: Mapping[str, Operation], users: Mapping[str, list[Operation]]
) -> Operation | None:
    """What the tile is used with behind the change: an operation on two tiles takes the layout of the other one."""
    for user in (u for n in change.results for u in users.get(n, ())):
        for other in (made[n] for n in user.operands if n in made and n not in change.results):
            found = other if other.name in _DECIDE else _first(other, lambda o: _makers(o, made))
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
        # Beyond another change of layout stands what wants that one.
        pending += [] if operation.name == "ttg.convert_layout" else near(operation)
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
        return evidence.ttgir.layout(tile).partition("<")[0].removeprefix("#ttg.")
    sizes = ("x".join(map(str, n)) for n in (held.elements, held.lanes, held.warps))
    return "{} a thread, {} lanes, {} warps".format(*sizes)
