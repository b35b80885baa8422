"""What the fuzzer leaves out: dtypes that a backend refuses, and what meets a known fault until that is mended.

An entry of `WAITING` goes when its fault does. `waits` names the first that a case meets, and the case is then not compared
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

ON_HOST = ("cpu", "auto", "reference", "torch")
LACKING = frozenset({torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})


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


def lacks(dtypes: Iterable[torch.dtype | None], backend: str, device: str = "cpu") -> bool:
    """Whether a backend refuses one of the dtypes: no NVIDIA GPU converts two of the float8 dtypes, nor does its compiler."""
    return (backend not in ON_HOST or device != "cpu") and not LACKING.isdisjoint(dtypes)
