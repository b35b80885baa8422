"""What the fuzzer leaves out until a known fault is mended: one list, each entry with the fault's name.

An entry goes when its fault does. `waits` names the first that a case meets, and the case is then not compared there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Waiting:
    """A fault that is known: its name, and which cases of which backends meet it."""

    fault: str
    meets: Callable[[Any, str], bool]


def _lifts_a_constant_truth(case: Any) -> bool:
    if not hasattr(case, "made"):
        return False
    terms = [t for h in case.made.held if set(h.piece.fields) & {"b"} for t in h.terms]
    return any(
        not t.args or (len(t.args) == 2 and t.args[0] == t.args[1]) for t in terms if t.op != "argument"
    )


WAITING: tuple[Waiting, ...] = (
    Waiting(
        "Triton 3.6 does not compile some reductions of a constant beside 64-bit integers (triton#11662)",
        lambda case, backend: backend in ("ptx", "triton") and _lifts_a_constant_truth(case),
    ),
)


def waits(case: Any, backend: str) -> str | None:
    """The known fault that keeps a case from being compared on a backend, or None."""
    return next((w.fault for w in WAITING if w.meets(case, backend)), None)
