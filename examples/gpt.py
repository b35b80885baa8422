"""A small GPT learns text that ships with Python, twice from one seed: by torch's modules, and by tilefold's.

Two things differ. `tilefold.nn.swap(model)` makes norms, softmax and the loss tilefold's, with the same parameters, and
`tilefold.clip_grad_norm_` clips their gradients. Both take the same steps on the same batches, so their losses are equal but
for rounding, which training magnifies. How much is shown by a third run: torch's modules, with one weight changed in its last
bit.

    python examples/gpt.py --steps 200 --compile --plot gpt.png
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import torch
from shown import label, say, show_table
from torch import Tensor, nn

import tilefold

CONTEXT, BATCH = 32, 8


class Attention(nn.Module):
    """What each position reads of those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] to [B, T, C]."""
        q, k, v = self.into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        shares = self.softmax(scores.masked_fill(later, -float("inf")))
        return self.out((shares @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two products, each of normalized rows and added to them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] to [B, T, C]."""
        x = x + self.attention(self.norm1(x))
        return x + self.hidden(self.norm2(x))


class GPT(nn.Module):
    """The loss of the next characters."""

    def __init__(self, characters: int, width: int = 48, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, text: Tensor) -> Tensor:
        """Of [B, T + 1] characters."""
        x = self.tokens(text[:, :-1]) + self.places.weight
        logits = self.head(self.norm(self.blocks(x)))
        loss: Tensor = self.loss(logits.flatten(0, 1), text[:, 1:].flatten())
        return loss


def batches(steps: int, device: str) -> tuple[list[Tensor], int]:
    """Pieces of the language reference, as numbers of characters, and how many characters there are."""
    text = "".join(topics[name] for name in sorted(topics))
    known = {c: number for number, c in enumerate(sorted(set(text)))}
    numbers = torch.tensor([known[c] for c in text])
    starts = torch.randint(len(text) - CONTEXT, (steps, BATCH), generator=torch.Generator().manual_seed(0))
    pieces = numbers[starts[..., None] + torch.arange(CONTEXT + 1)]
    return list(pieces.to(device)), len(known)


def train(
    model: nn.Module, pieces: Sequence[Tensor], compiled: bool, clip: Callable[..., Tensor]
) -> tuple[list[float], float]:
    """The losses of all steps, and the median time of a step in ms."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    forward = torch.compile(model, fullgraph=True) if compiled else model
    losses, times = [], []
    for piece in pieces:
        start = time.perf_counter()
        loss = forward(piece)
        optimiser.zero_grad()
        loss.backward()
        clip(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        times.append(1e3 * (time.perf_counter() - start))
    return losses, statistics.median(times)


def differ(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two curves."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """The curves above, and their distances from torch's below."""
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, sharex=True, figsize=(8, 6))
    for (name, losses), style in zip(curves.items(), ("-", "--", ":"), strict=True):
        above.plot(losses, style, label=name)
        if name != "torch":
            distances = [abs(a - b) for a, b in zip(losses, curves["torch"], strict=True)]
            below.plot(distances, style, label=name)
    above.set(ylabel="loss")
    below.set(xlabel="step", ylabel="distance from torch's loss")
    above.legend()
    below.legend()
    figure.savefig(path)
    pyplot.close(figure)


def main(steps: int = 200, compiled: bool = False, plot: Path | None = None) -> tuple[float, float]:
    """Train three times; the largest differences of losses from torch's: tilefold's, and torch's own of a last bit."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pieces, characters = batches(steps, device)
    torch.manual_seed(0)
    models = {"torch": GPT(characters).to(device)}
    models["tilefold"] = copy.deepcopy(models["torch"])
    models["torch, a last bit"] = copy.deepcopy(models["torch"])
    with torch.no_grad():
        weight = models["torch, a last bit"].head.weight
        weight[0, 0] = torch.nextafter(weight[0, 0], weight.new_tensor(9.0))
    report = tilefold.nn.swap(models["tilefold"])
    label(f"tilefold.nn.swap(model): {len(report.swapped)} swapped, {len(report.left)} left")
    show_table(
        ["module", "is", ""], [[line.name, str(line.became), line.reason] for line in report.lines], texts=3
    )

    clips = dict.fromkeys(models, nn.utils.clip_grad_norm_) | {"tilefold": tilefold.clip_grad_norm_}
    found = {name: train(model, pieces, compiled, clips[name]) for name, model in models.items()}
    curves = {name: losses for name, (losses, _) in found.items()}
    label(
        f"Losses of {sum(p.numel() for p in models['torch'].parameters())} parameters{', compiled' * compiled}, on {device}"
    )
    shown = sorted({*range(0, steps, max(1, steps // 8)), steps - 1})
    rows = [[name, *(f"{losses[step]:.3f}" for step in shown)] for name, losses in curves.items()]
    show_table(["step", *map(str, shown)], rows)
    ours, theirs = (differ(curves[name], curves["torch"]) for name in ("tilefold", "torch, a last bit"))
    say(
        f"Largest difference from torch's loss: {ours:.1e}; of torch's modules with one last bit changed: {theirs:.1e}. A "
        f"step takes {found['tilefold'][1]:.1f} ms, with torch's modules {found['torch'][1]:.1f} ms."
    )
    if plot is not None:
        draw(curves, plot)
    return ours, theirs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compile", action="store_true", help="by torch.compile, each model as one graph")
    parser.add_argument("--plot", type=Path, help="draw the curves to this file")
    asked = parser.parse_args()
    main(asked.steps, asked.compile, asked.plot)
