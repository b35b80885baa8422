"""Statistics of a checkpoint: one pass over each tensor of a file with the DESCRIBE monoid."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tilefold.algebra.typing import check_foldable
from tilefold.checkpoints.file_kinds import reason_of
from tilefold.checkpoints.memory import is_out_of_memory
from tilefold.checkpoints.streams import Load, Loaded, Stream
from tilefold.checkpoints.summary import Summary, summarize, summarize_chunks
from tilefold.checkpoints.tensor_files import tensors_of
from tilefold.errors import DtypeError, FileError, TilefoldError, printable

SCHEMA = 1
COUNTS = ("count", "nans", "infs", "zeros")
Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class TensorReport:
    """One tensor's statistics: counts over all elements, the rest over the finite ones (None where there are none).

    `dtype` is torch's name of it, without "torch."; `bytes` is the size of the elements. `min`, `max` and `absmax` of
    integers are integers, exact up to 2^53 in magnitude. `std` divides by the count less one; it is 0 for one element.
    """

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
class Refusal:
    """A tensor without statistics, and why in one line."""

    name: str
    reason: str


Outcome = TensorReport | Refusal


@dataclass(frozen=True)
class FileReport:
    """All tensors of one file, in its order, and the tensors without statistics."""

    path: str
    tensors: tuple[TensorReport, ...]
    refused: tuple[Refusal, ...] = ()

    @property
    def finite(self) -> bool:
        """Whether no tensor holds NaN or an infinity."""
        return all(t.finite for t in self.tensors)

    def above(self, limit: float) -> list[TensorReport]:
        """The tensors with a finite element that is greater than `limit` in magnitude."""
        return [t for t in self.tensors if t.absmax is not None and t.absmax > limit]

    @property
    def names(self) -> set[str]:
        """The names of all tensors, described or not."""
        return {t.name for t in self.tensors} | {r.name for r in self.refused}

    def as_json(self) -> dict[str, Any]:
        """The report as plain data; docs/describe.md has its schema."""
        return {**asdict(self), "totals": totals(self.tensors)}


def totals(tensors: Iterable[TensorReport]) -> dict[str, int]:
    """How many tensors there are, and the sums of their bytes and counts."""
    rows = list(tensors)
    return {"tensors": len(rows)} | {key: sum(getattr(t, key) for t in rows) for key in ("bytes", *COUNTS)}


def describe_tensor(name: str, tensor: torch.Tensor, device: torch.device | str = "cpu") -> TensorReport:
    """Fold one tensor of any shape, strides and foldable dtype with DESCRIBE, on `device`.

    Statistics are accumulated in float32 for floats of 32 bits or fewer and integers of 16 or fewer, in float64 for others
    and where squares leave float32; where they leave float64, of the elements scaled. The counts are exact; mean and std
    err by a few units in the last place of what carries them. Elements that stand at many places of a view are looked at
    once. The same tensor gives the same bits on the same device ("run_to_run").

    Raises:
        DtypeError: the dtype or layout has no fold (complex or sparse, say), or dims overlap too far.

    Example:
        >>> describe_tensor("x", torch.tensor([1.0, 3.0, float("nan")])).mean
        2.0
    """
    what = f"describe: {printable(name)}"
    if tensor.is_complex():
        raise DtypeError(
            f"{what}: elements must be real numbers or bool, got {tensor.dtype}; save real and imaginary parts as "
            "two tensors"
        )
    check_foldable(tensor.dtype, what)
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested:
        strided = "no data (meta)" if tensor.layout == torch.strided else f"layout {tensor.layout}"
        kind = "a nested tensor" if tensor.is_nested else strided
        raise DtypeError(f"{what}: elements must be dense (strided), got {kind}; save it dense")
    try:
        found = summarize(tensor, device)
    except DtypeError as error:
        raise DtypeError(f"{what}: {error}") from error
    return report_of(name, tensor.dtype, tuple(tensor.shape), found)


def report_of(name: str, dtype: torch.dtype, shape: tuple[int, ...], found: Summary) -> TensorReport:
    """A tensor's report of its statistics."""
    values: dict[str, Any] = dict.fromkeys(("min", "max", "absmax", "mean", "std"))
    if found.finite:
        absmax = max(abs(found.least), abs(found.most))
        numbers = (found.least, found.most, absmax, found.mean, found.std)
        values = {key: _number(v, dtype, key) for key, v in zip(values, numbers, strict=True)}
    return TensorReport(
        name,
        str(dtype).removeprefix("torch."),
        shape,
        math.prod(shape) * dtype.itemsize,
        *(getattr(found, key) for key in COUNTS),
        **values,
    )


def _number(value: float, dtype: torch.dtype, key: str) -> float | None:
    if not math.isfinite(value):
        return None  # a std beyond all float64
    whole = not dtype.is_floating_point and key in ("min", "max", "absmax")
    return int(value) if whole else value


def describe_file(
    path: str | Path, device: torch.device | str = "cpu", progress: Progress | None = None
) -> FileReport:
    """Describe every tensor of a file, reading one at a time, in the file's order.

    `progress` is told each tensor's name before it is folded, and the bytes of the tensors before it.

    Raises:
        FileError: the file is missing, unreadable, truncated, of another format, or needs code to be read.
    """
    return report_of_file(path, described(path, device, lambda load: True, progress))


def report_of_file(path: str | Path, found: Mapping[int, Outcome]) -> FileReport:
    """The report of tensors by their places in the file."""
    ordered = [found[i] for i in sorted(found)]
    reports = tuple([o for o in ordered if isinstance(o, TensorReport)])
    return FileReport(str(path), reports, tuple([o for o in ordered if isinstance(o, Refusal)]))


def described(
    path: str | Path,
    device: torch.device | str,
    owns: Callable[[Load], bool],
    progress: Progress | None = None,
) -> dict[int, Outcome]:
    """The tensors of a file that `owns` says to read, by their places in the file.

    Raises:
        FileError: as of `describe_file`.
    """
    found, done = dict[int, Outcome](), 0
    known: dict[Hashable, Outcome] = {}  # tensors that occur again under another name
    try:
        for i, (name, load) in enumerate(tensors_of(path)):
            if not owns(load):
                continue
            if progress is not None:
                progress(name, done)
            outcome = known.get(load.place) or _describe_one(name, load, device)
            if load.place is not None:
                known[load.place] = outcome
            found[i] = replace(outcome, name=name)
            done += outcome.bytes if isinstance(outcome, TensorReport) else 0
    except FileError as error:
        raise FileError(f"describe: {path}: {error}") from error
    return found


def _describe_one(name: str, load: Load, device: torch.device | str) -> TensorReport | Refusal:
    """A report, or why there is none: one tensor's trouble does not keep the others from being described."""
    try:
        return _described(name, load(), device)
    except TilefoldError as error:
        reason = str(error).removeprefix(f"describe: {printable(name)}: ")
    except (MemoryError, OSError, RuntimeError) as error:  # of the device, its driver or the system
        elsewhere = "use a machine with more" if str(device) == "cpu" else "try --device cpu"
        if is_out_of_memory(error):
            reason = f"the tensor must fit into the memory of {device}, got one too large; {elsewhere}"
        else:
            reason = f"{device} must be able to fold the tensor, got {reason_of(error)}; {elsewhere}"
    return Refusal(name, reason)


def _described(name: str, loaded: Loaded, device: torch.device | str) -> TensorReport:
    if isinstance(loaded, torch.Tensor):
        return describe_tensor(name, loaded, device)
    if isinstance(loaded, Stream):
        check_foldable(loaded.dtype, f"describe: {printable(name)}")
        return report_of(name, loaded.dtype, loaded.shape, summarize_chunks(loaded.chunks, device))
    view = loaded.view
    check_foldable(view.dtype, f"describe: {printable(name)}")
    return report_of(name, view.dtype, tuple(view.shape), summarize(view, device, loaded.decode))
