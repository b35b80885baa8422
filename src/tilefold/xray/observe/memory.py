"""Traffic that need not be: sectors beyond the bytes needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import element_bytes, tensors
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.machine.log import Access as Logged
from tilefold.xray.machine.types import Array
from tilefold.xray.observe.addresses import numbers_of, rounds_of, run_of
from tilefold.xray.observe.joined import ASTRAY, PIECES
from tilefold.xray.observe.promises import WHOLE
from tilefold.xray.observe.resources import MOST_WARPS
from tilefold.xray.observe.vectors import bytes_a_thread
from tilefold.xray.report.model import Access, Layout, Line, Observation, Report
from tilefold.xray.report.static import access_of, line_of

_WRITES = ("store", "atomic")
# Tiles whose lanes go along the last dim, of loads and of stores; and along the first.
_LAST = (
    "load with the array's contiguous dim last in the tile, and transpose it in registers (tl.trans)",
    "transpose the tile in registers (tl.trans) and store it with the array's contiguous dim last",
)
_FIRST = (
    "load the tile with its dims in the other order and transpose it in registers (tl.trans): lanes go along the first dim",
    "transpose the tile in registers (tl.trans) and store it so: lanes go along the first dim",
)
# Of tiles that hold nothing of what lies side by side.
_ALONG = (
    "give the tile a longer dim along what lies side by side in the array, of which it has one element now",
    "give the tile a longer dim along what lies side by side in the array, of which it has one element now, and store it so",
)
LONE = ", whatever the order of the tile's dims: it has no neighbours"
SHARED = "; other executed programs ask for most of these sectors, too"
_LONE = 0.8  # of a tile's requests' sectors, which the whole tile touches
_SECTOR = 32  # bytes
_UNLESS = "; nothing to do where the next request finds the rest in a cache"
_APART = "neighbouring lanes are "
_MOST = 0.5  # of the bytes of all requests, from which those that a cache may give are no small matter
_AGAIN = 0.7  # of all bytes that are asked of L2, that are asked for the first time
_SPARE = 1.2  # sectors over ideal from which it is said: a row that starts between two sectors costs 1 of 16


def wasted_sectors(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Accesses whose requests touch more sectors than hold the bytes needed."""
    for line in report.lines:
        for access in line.accesses:
            if access.sectors and access.ideal is not None and _touched(access) > _SPARE * access.ideal:
                yield _wasted(
                    line,
                    access,
                    _used(line, access, evidence),
                    _why_wasted(line, access, report, evidence),
                    shared=_shared(line, access, evidence),
                    due=_looked_up(line, access, evidence) or _short(access),
                    all_moved=report.totals.bytes_moved or 0,
                    again=report.roofline is not None
                    and report.roofline.bytes_once < _AGAIN * report.roofline.bytes_moved,
                )


def _touched(access: Access) -> int:
    """Sectors of all requests; of atomics without those that are sent again, since lanes meet at one place."""
    return (access.sectors or 0) - (access.again or 0)


def _used(line: Line, access: Access, evidence: Evidence) -> float:
    """Of the sectors that a line's accesses touch, the part that the program asks for by any access in the same direction."""
    assert evidence.execution is not None
    here, writes = numbers_of(line, access, evidence), access.kind in _WRITES
    kinds = enumerate(map(access_of, evidence.entry.instructions))
    alike = {n for n, found in kinds if found is not None and (found[0] in _WRITES) == writes}
    moved = used = 0
    for outcome in evidence.execution.outcomes:
        accesses = [a for a in outcome.accesses if a.space == "global"]
        sectors = np.unique(_bytes_of([a for a in accesses if a.instruction in here]) // 32)
        moved += 32 * len(sectors)
        used += len(_bytes_of([a for a in accesses if a.instruction in alike], sectors))
    return used / max(moved, 1)


def _shared(line: Line, access: Access, evidence: Evidence) -> bool:
    """Whether another executed program asks for half of a program's sectors of a line, or more."""
    assert evidence.execution is not None
    here = numbers_of(line, access, evidence)
    each = [
        np.unique(
            _bytes_of([a for a in o.accesses if a.space == "global" and a.instruction in here]) // _SECTOR
        )
        for o in evidence.execution.outcomes
    ]
    alike = [len(np.intersect1d(a, b)) for n, a in enumerate(each) for b in each[:n]]
    return bool(alike) and 2 * max(alike) >= max(map(len, each)) > 0


def _bytes_of(accesses: Sequence[Logged], within: Array | None = None) -> Array:
    """Different bytes of accesses, those in some sectors at most."""
    parts = []
    for access in accesses:
        at = np.unique(access.addresses[access.active].astype(np.int64))
        at = at if within is None else at[np.isin(at // 32, within)]
        parts.append((at[:, None] + np.arange(access.bytes)).ravel())
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _short(access: Access) -> bool:
    """Whether each request is for a few neighbouring bytes: where these lie across two sectors, no layout helps."""
    return access.ideal == access.requests and abs(access.stride or 0) <= access.bytes


def _wasted(
    line: Line,
    access: Access,
    used: float,
    why: tuple[str, str],
    *,
    shared: bool,
    due: bool,
    all_moved: int,
    again: bool,
) -> Observation:
    """`used`: what the program takes of the sectors. `again`: programs mostly ask for what others have asked for. `due`: they
    belong to what is computed, as those of a gather. Where a cache gives the rest, L2 may be asked for them all the same: a
    warning where it is most of all that is asked of it, and no two lanes share a sector."""
    assert access.ideal is not None
    requests, sectors = access.requests or 1, _touched(access)
    wasted = 32 * (sectors - access.ideal)
    reason, change = why
    cached = _SPARE * used >= 1
    apart = abs(access.stride or 0) >= _SECTOR or access.stride is None
    due = due or change.startswith("nothing to do")
    quiet = due or (cached and not (apart and wasted >= _MOST * all_moved))
    if cached:
        source = "L2" if access.kind in ("copy", *_WRITES) else "L1 if they are still there"
        reason += f"; the program's other requests take most of the rest of these sectors, from {source}"
    elif shared:
        reason += SHARED
    if cached and not due and reason.startswith(_APART):
        change = _joined_up(access, quiet=quiet)
    return Observation(
        "wasted-sectors",
        "note" if quiet else "warning",
        line.file,
        line.line,
        f"{'an' if access.kind == 'atomic' else 'a'} {access.kind} touches {sectors / requests:.1f} sectors a request "
        f"where {access.ideal / requests:.1f} would hold its bytes",
        reason,
        change,
        bytes_at_stake=wasted,
        numbers=(
            ("sectors", sectors),
            ("ideal", access.ideal),
            ("requests", requests),
            ("from", "L2" if cached or shared or again else "memory"),
        ),
    )


def _joined_up(access: Access, *, quiet: bool) -> str:
    """What to do where neighbouring requests share their sectors."""
    if access.kind in _WRITES:
        return "join what is stored side by side in registers (tl.join, tl.reshape) and store it as one tile"
    if quiet:
        return (
            "load what lies side by side as one tile and take it apart in registers (tl.reshape, tl.split: 2 or 4 of them)"
            + _UNLESS
        )
    return (
        "give the tile a second dim along what lies side by side, as many elements as a sector holds or more, and "
        "fold or walk it in registers"
    )


def _why_wasted(line: Line, access: Access, report: Report, evidence: Evidence) -> tuple[str, str]:
    stride = (
        abs(access.stride) if access.stride is not None and not _looked_up(line, access, evidence) else None
    )
    if (
        stride is not None
        and stride == access.bytes
        and _touched(access) > (access.ideal or 0) + (access.requests or 0)
    ):
        return (
            "the line has several accesses, or a request several rows, which begin and end between two sectors",
            "nothing to do by itself: make each access whole (see scalar-access, where it is said), or rows longer",
        )
    if stride is not None and stride == access.bytes:
        return (
            f"{ASTRAY}, so each request reaches into one sector more",
            "let rows start at multiples of 32 bytes (pad their length), or begin at the multiple before and mask; nothing "
            "to do where they are shifted on purpose",
        )
    if stride is not None and stride > access.bytes and _holds(line, access, stride, evidence):
        return _in_pieces(line, access, stride, report)
    if stride is not None and stride >= 32:
        reason = f"{_APART}{stride} bytes apart, and every one touches a sector of its own"
        if _dims(line, access) < 2:
            return (
                reason,
                "keep what is stored together side by side (an array of its own); nothing to do where the stride is the "
                "caller's"
                if access.kind in _WRITES
                else "keep what is read together side by side (an array of its own), or load whole rows and pick from them; "
                "nothing to do where the stride is the caller's",
            )
        if lone(line, access, evidence):
            return f"{reason}{LONE}", _ALONG[access.kind in _WRITES]
        return reason, transposing((line.file, line.line), evidence, writes=access.kind in _WRITES)
    if stride is not None and stride > access.bytes:
        return (
            f"{_APART}{stride} bytes apart and take {access.bytes} of them at a time",
            "store a denser tile: a sector is moved for the few bytes of it that a request writes"
            if access.kind in _WRITES
            else "read a denser tile: what lies between is moved and not used",
        )
    return (
        "lanes of a warp reach places that do not lie together",
        "sort or group the indices so that neighbouring lanes reach neighbouring places; nothing to do for a true gather",
    )


def transposing(place: tuple[str, int], evidence: Evidence, *, writes: bool) -> str:
    """What to do about a tile whose lanes go along the wrong dim: of the first, which they take where nothing is known to be
    contiguous, the array's contiguous dim is the last already."""
    kinds = ("tt.store", "tt.atomic_rmw") if writes else ("tt.load", "ttg.async_copy_global_to_local")
    for operation in evidence.ttgir.walk():
        if operation.name in kinds and line_of(operation.place) == place and tensors(operation.types):
            order = re.search(r"order = \[(\d)", evidence.ttgir.layout(tensors(operation.types)[0]))
            if order is not None and order[1] == "0":
                return _FIRST[writes]
    return _LAST[writes]


def _looked_up(line: Line, access: Access, evidence: Evidence) -> bool:
    """Whether the addresses come out of memory."""
    made, kind = evidence.ttir.made_by(), {"copy": "load"}.get(access.kind, access.kind)
    addresses = [
        o.operands[0]
        for o in evidence.ttir.walk()
        if o.name in (f"tt.{kind}", f"tt.{kind}_rmw") and line_of(o.place) == (line.file, line.line)
    ]
    reached = evidence.ttir.reached_from(addresses)
    return any(
        name in made and made[name].name in ("tt.load", "tt.gather") and tensors(made[name].types)
        for name in reached
    )


def _holds(line: Line, access: Access, stride: int, evidence: Evidence) -> bool:
    """Whether a thread's own bytes lie together up to the next lane's. Those of other loads, as a loop that was unrolled
    makes them at one line, are not its own."""
    if access.kind != "atomic" and bytes_a_thread(line, access, evidence) < stride:
        return False
    return run_of(line, access, evidence) >= stride


def _in_pieces(line: Line, access: Access, stride: int, report: Report) -> tuple[str, str]:
    """A thread's own bytes lie together and go in several requests: the layout gives it more than one access moves."""
    reason = f"{PIECES}{stride} neighbouring bytes and takes {access.bytes} of them at a time"
    if access.kind == "atomic":
        # A layout of one element a lane would send neighbours together.
        each = max(
            (x.bytes_a_thread // element_bytes(x.element) for x in line.layouts if "atomic" in x.operation),
            default=0,
        )
        warps = report.num_warps * each
        launch = f"num_warps={warps}, or " if each > 1 and warps <= MOST_WARPS else ""
        return reason, (
            f"let a lane hold one element, so that neighbouring lanes send neighbouring elements ({launch}a tile of "
            f"{32 * report.num_warps} elements)"
        )
    if access.bytes < WHOLE:
        return reason, "let a thread move its neighbouring elements at once: see why under scalar-access"
    other = _narrower(line, access, stride, report)
    named = (
        "" if other is None else f", which is the layout of the {other[1].element} tile in line {other[0]}"
    )
    return (
        f"{reason}, the most that one access moves{named}",
        "give each thread fewer elements (more warps, or a smaller tile), so that each type's load is whole; nothing to do "
        "where the next request finds the rest in a cache",
    )


def _narrower(line: Line, access: Access, held: int, report: Report) -> tuple[int, Layout] | None:
    """The load or store of a narrower type of which a thread's elements, as many as here, are just one access."""
    size = max((element_bytes(x.element) for x in line.layouts if x.operation == access.kind), default=0)
    found = (
        (other.line, layout)
        for other in report.lines
        for layout in other.layouts
        if layout.operation in ("load", "store")
        and size
        and element_bytes(layout.element) * held == WHOLE * size
    )
    return next(found, None)


def lone(line: Line, access: Access, evidence: Evidence) -> bool:
    """Whether the elements of a line's tiles have sectors of their own, so that no order of a tile's dims saves any."""
    touched = sectors = 0
    for parts in rounds_of(line, access, evidence):
        sectors += global_cost(parts).sectors
        touched += len(
            np.unique(np.concatenate([a.addresses[a.active].astype(np.int64) // _SECTOR for a in parts]))
        )
    return touched > _LONE * sectors > 0


def _dims(line: Line, access: Access) -> int:
    """Dims longer than 1 of the largest tile that a line loads or stores."""
    kinds = {"copy": "load"}.get(access.kind, access.kind)
    return max((sum(n > 1 for n in x.shape) for x in line.layouts if kinds in x.operation), default=2)
