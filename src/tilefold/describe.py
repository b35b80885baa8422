"""What is in a checkpoint: one pass over each tensor of a file with the DESCRIBE monoid.

Files: .safetensors, .npy, .npz, and .pt / .pth read with `weights_only`. Nothing is unpickled, no code in a file runs.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tilefold import monoids
from tilefold.errors import FileError, TilefoldError
from tilefold.fold import reduce

SCHEMA = 1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class TensorReport:
    """One tensor's statistics: counts over all elements, the rest over the finite ones (None where there are none)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    count: int
    nans: int
    infs: int
    zeros: int
    min: float | None
    max: float | None
    absmax: float | None
    mean: float | None
    std: float | None

    @property
    def finite(self) -> bool:
        """Whether no element is NaN or infinite."""
        return self.nans == 0 and self.infs == 0


@dataclass(frozen=True)
class FileReport:
    """All tensors of one file, and one line for each tensor that has no fold."""

    path: str
    tensors: tuple[TensorReport, ...]
    refused: tuple[str, ...] = ()

    @property
    def finite(self) -> bool:
        """Whether no tensor holds NaN or an infinity."""
        return all(t.finite for t in self.tensors)

    def as_json(self) -> dict[str, Any]:
        """The report as plain data, with the schema's version."""
        totals = {
            key: sum(getattr(t, key) for t in self.tensors)
            for key in ("bytes", "count", "nans", "infs", "zeros")
        }
        tensors = [asdict(t) for t in self.tensors]
        return {
            "schema": SCHEMA,
            "path": self.path,
            "tensors": tensors,
            "totals": totals,
            "refused": list(self.refused),
        }


def describe_tensor(name: str, tensor: torch.Tensor, device: torch.device | str = "cpu") -> TensorReport:
    """Fold one tensor with DESCRIBE, statistics in float32 (float64 for float64).

    Raises:
        DtypeError: the tensor's dtype has no fold (complex, say).
    """
    moved = tensor.detach().to(device)
    statistics = monoids.DESCRIBE if moved.numel() else None
    values: dict[str, Any] = dict.fromkeys(("min", "max", "absmax", "mean", "std"))
    counts = dict.fromkeys(("count", "nans", "infs", "zeros"), 0)
    if statistics is not None:
        wide = torch.float64 if moved.dtype == torch.float64 else torch.float32
        result = reduce(moved, statistics, dtype=wide)._asdict()
        counts = {key: int(result[key]) for key in counts}
        finite = counts["count"] > counts["nans"] + counts["infs"]
        values = {key: _finite(float(result[key])) if finite else None for key in values}
    return TensorReport(
        name,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tensor.numel() * tensor.element_size(),
        **counts,
        **values,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def describe_file(
    path: str | Path, device: torch.device | str = "cpu", progress: Progress | None = None
) -> FileReport:
    """Describe every tensor of a file, in the file's order; `progress` is told each tensor's name before it is folded.

    Raises:
        FileError: the file is missing, truncated, of another format, or needs code to be read.
    """
    reports, refused = [], []
    for name, tensor in read_tensors(path):
        if progress is not None:
            progress(name)
        try:
            reports.append(describe_tensor(name, tensor, device))
        except TilefoldError as error:
            refused.append(f"{name}: {error}")
    return FileReport(str(path), tuple(reports), tuple(refused))


def read_tensors(path: str | Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The named tensors of a file, one at a time where the format allows it.

    Raises:
        FileError: see `describe_file`.
    """
    path = Path(path)
    readers = {".safetensors": _safetensors, ".npy": _npy, ".npz": _npz, ".pt": _torch, ".pth": _torch}
    if path.suffix not in readers:
        raise FileError(
            f"describe: a file must end in {', '.join(readers)}, got {path.name!r}; convert it first"
        )
    if not path.is_file():
        raise FileError(f"describe: the file must exist, got {str(path)!r}; check the path")
    try:
        yield from readers[path.suffix](path)
    except FileError:
        raise
    except Exception as error:  # every reader has its own kinds; one line for all
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise FileError(
            f"describe: {path.name!r} must be a whole {path.suffix} file, got one that cannot be read ({reason}); "
            "download or save it again"
        ) from error


def _safetensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # not a dict: keys() is its only listing
            yield name, file.get_tensor(name)


def _npy(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import numpy as np

    yield path.stem, _from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))


def _npz(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import numpy as np

    if not zipfile.is_zipfile(path):
        raise ValueError("not a zip archive")
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            yield name, _from_numpy(archive[name])


def _from_numpy(array: Any) -> torch.Tensor:
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(native)


def _torch(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    yield from _flatten("", content)


def _flatten(prefix: str, content: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        yield prefix or "tensor", content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), value)
    elif isinstance(content, list | tuple):
        for position, value in enumerate(content):
            yield from _flatten(f"{prefix}.{position}" if prefix else str(position), value)
