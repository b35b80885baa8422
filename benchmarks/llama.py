"""A model of Llama's shape trained 50 steps from random weights: by transformers alone, with our norms and loss, by Liger.

    python benchmarks/llama.py [--steps 50] [--variants torch,tilefold] [--out results.json]

Needs transformers, and a GPU for the shape of Llama-3.2-1B (--small: a toy on a CPU); Liger is tried where it is installed.
Every variant starts from the same weights and reads the same tokens. The report: a step's median time, the peak of memory
beyond what model and optimizer hold before the first step, and how far losses are from those of transformers alone.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tilefold

ONE_BILLION = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
SMALL = ONE_BILLION | {"vocab_size": 999, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
Loss = Callable[[Any, Tensor], Tensor]


def own_loss(model: Any, tokens: Tensor) -> Tensor:
    """The model's own."""
    loss: Tensor = model(tokens, labels=tokens, use_cache=False).loss
    return loss


def our_loss(model: Any, tokens: Tensor) -> Tensor:
    """Cross-entropy of the logits."""
    logits = model(tokens, use_cache=False).logits
    return tilefold.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def linear_loss(model: Any, tokens: Tensor) -> Tensor:
    """Cross-entropy of the head's product, without logits."""
    hidden = model.model(tokens, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
    return tilefold.linear_cross_entropy(hidden, model.lm_head.weight, tokens[:, 1:].flatten())


def with_ours(model: Any) -> None:
    """Norms are ours."""
    print(str(tilefold.nn.swap(model)).splitlines()[-1])


def with_ligers(model: Any) -> None:
    """Norms, rotation, gates and the head with its loss are Liger's."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(model=model)


VARIANTS: dict[str, tuple[Callable[[Any], None] | None, Loss]] = {
    "torch": (None, own_loss),
    "torch again": (None, own_loss),
    "tilefold": (with_ours, our_loss),
    "tilefold linear": (with_ours, linear_loss),
    "liger": (with_ligers, own_loss),
}


def tokens_of(steps: int, batch: int, length: int, vocabulary: int, device: str) -> Tensor:
    """[steps, batch, length] tokens that can be learnt: of a few thousand words, which follow one another by a rule."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(vocabulary, (4096,), generator=generator)
    start = torch.randint(4096, (steps, batch, 1), generator=generator)
    jumps = torch.randint(1, 4, (steps, batch, length), generator=generator).cumsum(-1)
    return words[(start + jumps) % 4096].to(device)


def trained(name: str, config: dict[str, Any], pieces: Tensor, device: str) -> dict[str, Any]:
    """Losses, the median time of a step in ms and the peak of memory beside the model's in MiB."""
    from transformers import LlamaConfig, LlamaForCausalLM

    change, loss_of = VARIANTS[name]
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**config)).to(dtype)
    if change is not None:
        change(model)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes its state
    held = torch.cuda.memory_allocated() if device == "cuda" else 0
    losses, times = [], []
    for piece in pieces:
        if device == "cuda":
            torch.cuda.synchronize()
        if len(losses) == 2 and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        loss = loss_of(model, piece)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.item())
        times.append(1e3 * (time.perf_counter() - start))
    peak = torch.cuda.max_memory_allocated() - held if device == "cuda" else 0
    return {"losses": losses, "step_ms": statistics.median(times), "peak_mib": peak / 2**20}


def main() -> None:
    """Train each variant; a table, and a file of results where it is asked."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = SMALL if asked.small else ONE_BILLION
    pieces = tokens_of(asked.steps, asked.batch, asked.length, config["vocab_size"], device)
    found: dict[str, dict[str, Any]] = {}
    for name in asked.variants.split(","):
        if name == "liger" and importlib.util.find_spec("liger_kernel") is None:
            print("liger: not installed")
            continue
        found[name] = trained(name, config, pieces, device)
        gc.collect()
        one, first = found[name], next(iter(found.values()))
        apart = max(abs(a - b) for a, b in zip(one["losses"], first["losses"], strict=True))
        ends = f"loss {one['losses'][0]:.4f} to {one['losses'][-1]:.4f}, at most {apart:.4f} apart"
        print(f"{name:22} {one['step_ms']:8.1f} ms a step  {one['peak_mib']:8.0f} MiB  {ends}", flush=True)
    if asked.out is not None:
        chip = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        about = {"chip": chip, "date": datetime.date.today().isoformat(), "torch": torch.__version__}
        asked.out.write_text(json.dumps({**about, "config": config, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
