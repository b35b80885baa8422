"""One cause, one entry: observations that say the same of several lines, or of one line by two codes, become one, which tells
each line's numbers beside the line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilefold.xray.report.model import Observation

ASTRAY = "the first lane's address is no multiple of 32 bytes"
BACKWARDS = "a thread's neighbouring elements lie together in the opposite order"
NARROWED = "narrow accesses have a layout of their own:"
PIECES = "each thread holds "  # neighbouring bytes, which it takes in pieces
TURNED = "the tile is turned on its way into shared memory"
UNPROVEN = "the compiler cannot prove from the pointer's arithmetic"
_UNALIGNED = "the pointer may not be aligned"
_WIDENED = "divisibility: "
_FROM_L2 = ("from", "L2")
_TOLD = 6  # of one cause, whose numbers are told line by line


def joined(found: Sequence[Observation]) -> list[Observation]:
    """Observations of one code, reason and change as one: at the place where most is at stake, with all that is at stake."""
    groups: dict[tuple[str, str, str, str], list[Observation]] = {}
    for o in _absorbed(found):
        groups.setdefault((o.code, o.severity, o.reason, o.change), []).append(o)
    return [_one(group) for group in groups.values()]


def _one(group: Sequence[Observation]) -> Observation:
    ordered = sorted(group, key=lambda o: (-o.bytes_at_stake - o.cycles_at_stake, o.file, o.line))
    first = ordered[0]
    also = sorted({place for o in ordered for place in o.places} - {(first.file, first.line)})
    return replace(
        first,
        evidence=_told(first, [*ordered]),
        bytes_at_stake=sum(o.bytes_at_stake for o in group),
        cycles_at_stake=sum(o.cycles_at_stake for o in group),
        also=tuple(also),
    )


def _told(home: Observation, parts: Sequence[Observation]) -> str:
    """The evidence of parts: that of the home's own line as it is, that of others behind their lines."""
    by_text: dict[str, list[Observation]] = {}
    for o in parts:
        by_text.setdefault(o.evidence, []).append(o)
    own = {(home.file, home.line)}
    said = []
    for text, alike in by_text.items():
        places = sorted({(o.file, o.line) for o in alike} - own)
        named = _named(places, home.file)
        if len(places) == len({(o.file, o.line) for o in alike}):
            said.append(f"{named}: {text}")
        else:
            said.append(text + (f" (the same in {named})" if places else ""))
    more = len(said) - _TOLD
    return "; ".join(said[:_TOLD]) + (f"; and {more} more like these" if more > 0 else "")


def _named(places: Sequence[tuple[str, int]], home: str) -> str:
    """Lines in words; with their file where that is another."""
    names = [str(line) if file == home else f"{line} of {Path(file).name}" for file, line in places]
    return (
        f"line{'s' * (len(names) > 1)} {', '.join(names[:-1])}{' and ' * (len(names) > 1)}{names[-1]}"
        if names
        else ""
    )


def _absorbed(found: Sequence[Observation]) -> list[Observation]:
    """Narrow accesses cost sectors, and so do rows whose length nothing divides: the sectors are told with the accesses. So
    are the conflicts of copies that turn a tile, and changes of layout that narrow accesses ask for. An offset that wraps is
    why its accesses reach outside of their arrays."""
    wrapped = {
        place for o in found if (o.code, o.severity) == ("offset-overflow", "error") for place in o.places
    }
    found = [o for o in found if o.code != "out-of-bounds" or not _places(o) <= wrapped]
    narrow = [o for o in found if o.code in ("scalar-access", "narrow-copy")]
    kept = []
    for o in found:
        homes = [n for n in narrow if _places(o) & _places(n)]
        homes = homes if _places(o) <= {place for n in homes for place in n.places} else []
        astray = o.reason.startswith(ASTRAY) and any(
            n.reason.startswith(_WIDENED) and _UNALIGNED in n.reason for n in homes
        )
        sectors = o.code == "wasted-sectors" and (astray or (homes and o.reason.startswith(PIECES)))
        turned = o.code == "bank-conflict" and any(n.reason.startswith(TURNED) for n in homes)
        layout = o.code == "layout-in-loop" and o.reason.startswith(NARROWED) and homes
        if not (sectors or turned or layout):
            kept.append(o)
    gone = [o for o in found if o not in kept]
    # What several of its line could tell is counted with the first of them.
    told = {id(g): next(n for n in narrow if _places(g) & _places(n)) for g in gone}
    return [_with_costs(o, [g for g in gone if told[id(g)] is o]) if o in narrow else o for o in kept]


def _with_costs(narrow: Observation, costs: Sequence[Observation]) -> Observation:
    if not costs:
        return narrow
    priced = [o for o in costs if o.bytes_at_stake]
    return replace(
        narrow,
        evidence="; ".join([narrow.evidence, *(o.evidence for o in costs)]),
        bytes_at_stake=narrow.bytes_at_stake + sum(_saved(narrow, o) for o in costs),
        cycles_at_stake=narrow.cycles_at_stake + sum(o.cycles_at_stake for o in costs),
        # The rest of these sectors is asked for as well, so it is L2 that delivers them once more.
        numbers=narrow.numbers
        + ((_FROM_L2,) if all(_FROM_L2 in o.numbers for o in priced) and priced else ()),
    )


def _saved(narrow: Observation, cost: Observation) -> int:
    """Bytes of sectors that wider accesses save, where they are for whole tiles only those of these: rows that begin between
    two sectors still cost one more of each request, of which there are fewer then; and accesses that leave a thread's bytes
    in pieces (`dense`: as many bytes as lie together) save a part."""
    numbers = dict(narrow.numbers)

    def saved(width: str) -> float:
        return 1 - float(numbers["bytes"]) / float(numbers[width])

    part = 1.0
    if cost.reason.startswith(ASTRAY):
        part = saved("possible")
    elif "dense" in numbers:
        part = saved("possible") / saved("dense")
    return round(cost.bytes_at_stake * part * float(numbers.get("whole", 1)))


def _places(o: Observation) -> set[tuple[str, int]]:
    return set(o.places)
