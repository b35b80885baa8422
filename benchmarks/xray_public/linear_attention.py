"""Flash Linear Attention's operators, chunk by chunk on tensor cores, beside the recurrences that they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from compared import Case, normal

PACKAGE = "fla-core"
Checked = Iterator[tuple[Any, Any]]
_SCALE = 0.125


def _heads(length: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys, values [1, length, 2, width] in float16."""
    return tuple(normal(1, length, 2, width, dtype=torch.float16) for _ in range(3))  # type: ignore[return-value]


def _recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor | None = None
) -> torch.Tensor:
    """S = decay S + k (v - k S if a delta rule) beta, o = q S: a step a time in float64; `decay` has the shape of k."""
    q, k, v, decay = (x.double() for x in (q, k, v, decay))
    state = torch.zeros(*k.shape[0:1], *k.shape[2:], v.shape[-1], dtype=torch.float64)
    found = []
    for t in range(k.shape[1]):
        state = state * decay[:, t, :, :, None]
        added = v[:, t]
        if beta is not None:
            added = (added - torch.einsum("bhk,bhkv->bhv", k[:, t], state)) * beta.double()[:, t, :, None]
        state = state + k[:, t, :, :, None] * added[:, :, None, :]
        found.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * _SCALE, state))
    return torch.stack(found, 1)


def _linear_attention() -> Checked:
    from fla.ops.linear_attn import chunk_linear_attn

    q, k, v = _heads(128, 64)
    yield (
        chunk_linear_attn(q, k, v, scale=_SCALE, normalize=False)[0],
        _recurrence(q, k, v, torch.ones_like(k)),
    )


def _gated_linear_attention() -> Checked:
    from fla.ops.gla import chunk_gla

    q, k, v = _heads(64, 64)
    gate = F.logsigmoid(normal(1, 64, 2, 64) + 2)
    yield chunk_gla(q, k, v, gate, scale=_SCALE)[0], _recurrence(q, k, v, gate.exp())


def _recurrent_gated_linear_attention() -> Checked:
    from fla.ops.gla import fused_recurrent_gla

    q, k, v = _heads(32, 64)
    gate = F.logsigmoid(normal(1, 32, 2, 64) + 2)
    yield fused_recurrent_gla(q, k, v, gate, scale=_SCALE)[0], _recurrence(q, k, v, gate.exp())


def _simple_gated_linear_attention() -> Checked:
    from fla.ops.simple_gla import chunk_simple_gla

    q, k, v = _heads(128, 64)
    gate = F.logsigmoid(normal(1, 128, 2) + 2)
    want = _recurrence(q, k, v, gate.exp()[..., None].expand(k.shape))
    yield chunk_simple_gla(q, k, v, g=gate, scale=_SCALE)[0], want


def _delta_rule() -> Checked:
    from fla.ops.delta_rule import chunk_delta_rule

    q, k, v = _heads(64, 32)
    k, beta = F.normalize(k.float(), dim=-1).half(), normal(1, 64, 2).sigmoid().half()
    yield chunk_delta_rule(q, k, v, beta, scale=_SCALE)[0], _recurrence(q, k, v, torch.ones_like(k), beta)


def _cumulative_sum() -> Checked:
    from fla.ops.utils.cumsum import chunk_global_cumsum

    x = normal(2, 100, 3)
    yield chunk_global_cumsum(x), x.double().cumsum(1)


def _softmax() -> Checked:
    from fla.ops.utils.softmax import softmax_fwd

    x = normal(6, 300)
    yield softmax_fwd(x), x.double().softmax(-1)


WRAPPERS: list[Callable[[], Checked]] = [
    _linear_attention, _gated_linear_attention, _recurrent_gated_linear_attention, _simple_gated_linear_attention,
    _delta_rule, _cumulative_sum, _softmax,
]  # fmt: skip


def cases() -> list[Case]:
    """A case for each operator."""
    return [Case(PACKAGE, each.__name__[1:], each) for each in WRAPPERS]
