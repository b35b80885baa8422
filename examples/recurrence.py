"""A gated linear recurrence, trained through a scan.

`h[t] = a[t] * h[t - 1] + b[t]` is a scan of the monoid AFFINE: the states (a, b) of two neighbouring stretches make the state
of both. So prefixes are computed in parallel, and so is the gradient, which is a scan of the same kind the other way. Beside
it is the loop over t that defines it.

The task: each step has a number and, now and then, a flag; the answer is the last flagged number. A gate that forgets at
flags and keeps the rest solves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from shown import label, say, show_table
from torch import Tensor, nn

import tilefold

Recurrence = Callable[[Tensor, Tensor], Tensor]


def scanned(a: Tensor, b: Tensor) -> Tensor:
    """All h of [B, T, C], from h[-1] = 0."""
    _, h = tilefold.scan((a, b), tilefold.monoids.AFFINE, dim=1)
    return h


def looped(a: Tensor, b: Tensor) -> Tensor:
    """The same, one step after the other."""
    h, made = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        made.append(h)
    return torch.stack(made, 1)


class Layer(nn.Module):
    """Gates and values from the input, a recurrence, and an answer of each step."""

    def __init__(self, inputs: int, width: int, recurrence: Recurrence = scanned) -> None:
        super().__init__()
        self.gate, self.value, self.answer = (
            nn.Linear(inputs, width),
            nn.Linear(inputs, width),
            nn.Linear(width, 1),
        )
        self.recurrence = recurrence

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, inputs] to [B, T]."""
        a = torch.sigmoid(4 * self.gate(x))
        answer: Tensor = self.answer(self.recurrence(a, (1 - a) * self.value(x)))
        return answer.squeeze(-1)


def flagged(rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers with flags, [rows, length, 2], and the last flagged number at each step."""
    numbers = torch.randn(rows, length, generator=generator)
    flags = torch.rand(rows, length, generator=generator) < 0.1
    flags[:, 0] = True
    last = torch.where(flags, torch.arange(length), 0).cummax(1).values
    return torch.stack([numbers, flags.float()], 2), numbers.gather(1, last)


def compare(shape: tuple[int, int, int] = (8, 512, 32)) -> float:
    """Values and gradients of the scan beside the loop's; the largest difference, of what each is at most."""
    torch.manual_seed(0)
    a, b, cotangent = torch.rand(shape), torch.randn(shape), torch.randn(shape)
    rows, found = [], {}
    for recurrence in (scanned, looped):
        inputs = [t.clone().requires_grad_() for t in (a, b)]
        for _ in range(2):  # the first call plans
            start = time.perf_counter()
            h = recurrence(*inputs)
            gradients = torch.autograd.grad(h, inputs, cotangent)
            seconds = time.perf_counter() - start
        found[recurrence] = [h.detach(), *gradients]
        rows.append([recurrence.__name__, f"{1e3 * seconds:.0f} ms"])
    parts = [
        float((got - want).abs().max() / want.abs().max()) for got, want in zip(*found.values(), strict=True)
    ]
    label(f"Forward and backward, {list(shape)}: the largest difference of h, of a's gradient, of b's")
    show_table(
        ["", "time", "h", "da", "db"], [[*rows[0], *(f"{p:.1e}" for p in parts)], [*rows[1], "-", "-", "-"]]
    )
    return max(parts)


def train(steps: int, length: int = 64) -> list[float]:
    """The mean squared error of each step."""
    torch.manual_seed(0)
    generator, layer = torch.Generator().manual_seed(1), Layer(2, 16)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        x, wanted = flagged(32, length, generator)
        loss = (layer(x) - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main(steps: int = 120) -> tuple[float, list[float]]:
    """The scan beside the loop, then some training by the scan."""
    largest = compare()
    losses = train(steps)
    label(
        f"The last flagged number of rows of 64, {steps} steps: the mean squared error (of a guess of 0: 1)"
    )
    shown = sorted({*range(0, steps, max(1, steps // 8)), steps - 1})
    show_table(["step", *map(str, shown)], [["", *(f"{losses[step]:.3f}" for step in shown)]])
    say("Longer rows go chunk by chunk: `return_state=True` gives the state that is the next chunk's `init`.")
    return largest, losses


if __name__ == "__main__":
    main()
