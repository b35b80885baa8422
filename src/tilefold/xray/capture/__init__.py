"""A script's Triton launches, captured and executed on a machine with no GPU.

| module | what it knows |
|---|---|
| `session`, `launches` | `capture`; the launches of a script, which are alike, their reports |
| `tensors`, `marks`, `cuda` | tensors of the host that answer as the device's; torch.cuda; autocast |
| `driver`, `arguments` | Triton's driver: what it launches, with flat arguments; autotuners |
| `inductor` | torch.compile; operations with a kernel for the device alone |
| `running`, `memory` | programs executed on the tensors themselves, within a budget |
| `script`, `command`, `summary`, `saving` | `tilefold xray run`: scripts, tables, reproducers |
| `patches` | attributes replaced and restored; what cannot be pretended |
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilefold.xray.capture.launches import Captured as Captured


def capture(target: str = "sm_90", **options: Any) -> contextlib.AbstractContextManager[Captured]:
    """`session.capture`, which imports torch and Triton."""
    from tilefold.xray.capture.session import capture as begin

    return begin(target, **options)
