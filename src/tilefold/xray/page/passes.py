"""The IR after each pass of Triton's compiler that changed something, with what changed."""

from __future__ import annotations

import re
from typing import Any

from tilefold.xray.compile import offline
from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import read
from tilefold.xray.page.texts import Keys, changed_rows, ir_colours, ir_rows, plain_ir

_NAMED = re.compile(r"\w+(?:: ([\w-]+)| \(([\w-]+)\) \()")
_MODULE = "builtin.module"


def compiler_passes(evidence: Evidence, keys: Keys) -> dict[str, Any]:
    """`passes`: names, counts of new and of gone rows, and rows as (mark, number among `rows`); `rows`: these, once each.

    Passes over one function alone are counted with the next one over all. After the last one the IR is the report's TTGIR.
    """
    dumped = [(_name(head), text) for head, text in offline.passes(evidence.compiled.job) if _MODULE in head]
    texts = [*(text for _, text in dumped[1:]), evidence.compiled.ttgir]
    numbers: dict[tuple[str, int], int] = {}
    found = []
    before = _rows(dumped[0][1], keys) if dumped else []
    for (name, _), text in zip(dumped, texts, strict=False):
        after = _rows(text, keys)
        marked = list(changed_rows(*(plain_ir([text for text, _ in rows]) for rows in (before, after))))
        counts = {mark: sum(m == mark for m, *_ in marked) for mark in "+-"}
        if any(counts.values()):
            shown = [
                (mark, numbers.setdefault(before[i] if mark == "-" else after[j], len(numbers))) for mark, i, j in marked
            ]  # fmt: skip
            found.append({"name": name, "added": counts["+"], "gone": counts["-"], "rows": shown})
        before = after
    rows = [[0, key, text, ir_colours(text)] for text, key in numbers]
    return {"passes": found, "rows": rows, "all": len(dumped)}


def _rows(text: str, keys: Keys) -> list[tuple[str, int]]:
    return [(row, key) for _, key, row, _ in ir_rows(text, read(text), keys)]


def _name(head: str) -> str:
    """What the compiler calls a pass: `tritongpu-coalesce`."""
    found = _NAMED.match(head)
    return head.partition(" (")[0] if found is None else found[1] or found[2]
