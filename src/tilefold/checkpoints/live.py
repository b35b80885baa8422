"""Statistics of a live model: every parameter and its gradient in one pass over all of them."""

from __future__ import annotations

import io
from collections.abc import Iterator

import torch
from torch import Tensor

from tilefold import monoids
from tilefold.algebra.typing import FOLDABLE
from tilefold.api.reduce_many import fold_many
from tilefold.checkpoints.describe import FileReport, Refusal, TensorReport, describe_tensor, report_of
from tilefold.checkpoints.summary import carried_dtype, is_lost, summary_of
from tilefold.errors import KindError, TilefoldError, printable


class ModelReport(FileReport):
    """The statistics of a model's tensors, as `tilefold describe` has a file's; `path` is the model's class.

    Printed, it is the table of `tilefold describe`, which needs rich.
    """

    def __str__(self) -> str:
        from rich.console import Console

        from tilefold.checkpoints.tables import render_report

        console = Console(width=100_000, file=io.StringIO(), record=True)
        console.print(render_report(self, None))
        return console.export_text().rstrip("\n")


def describe(model: torch.nn.Module) -> ModelReport:
    """Statistics of every parameter of a model and of its gradient: counts of NaN, inf and zeros, extremes, mean, std.

    The gradient of the parameter `name` is `name.grad`. Numbers are those of `tilefold describe` (docs/describe.md):
    accumulated in float32 for floats of 32 bits or fewer, else in float64. All tensors of a device are read in one pass
    (`reduce_many` of DESCRIBE), and again those alone whose squares leave that dtype. It waits for the device.

    Returns:
        A report whose `tensors` hold the numbers of each tensor and which prints as a table; `refused` names tensors
        without such statistics, complex or sparse ones, and says why.

    Raises:
        KindError: `model` is no torch.nn.Module.

    Example:
        >>> report = tilefold.describe(torch.nn.Linear(3, 2))
        >>> [(t.name, t.count, t.nans) for t in report.tensors]
        [('weight', 6, 0), ('bias', 2, 0)]
    """
    if not isinstance(model, torch.nn.Module):
        raise KindError(
            f"describe: `model` must be a torch.nn.Module, got {type(model).__name__}; of files use `tilefold describe`"
        )
    named = dict(_tensors_of(model))
    known = dict(_in_one_pass({n: t for n, t in named.items() if _is_plain(t)}))
    found = [known.get(name) or _alone(name, t) for name, t in named.items()]
    reports = tuple(r for r in found if isinstance(r, TensorReport))
    return ModelReport(type(model).__name__, reports, tuple(r for r in found if isinstance(r, Refusal)))


def _alone(name: str, t: Tensor) -> TensorReport | Refusal:
    """The report of one tensor, or why there is none."""
    try:
        return describe_tensor(name, t, t.device)
    except TilefoldError as error:
        return Refusal(name, str(error).removeprefix(f"describe: {printable(name)}: "))


def _tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad.detach()


def _is_plain(t: Tensor) -> bool:
    """Whether each of a tensor's elements stands at one place in memory, as it is."""
    dense = t.dtype in FOLDABLE and t.layout == torch.strided and not (t.is_meta or t.is_nested or t.is_neg())
    return dense and t.numel() > 0 and 0 not in t.stride() and not torch._debug_has_internal_overlap(t)


def _in_one_pass(named: dict[str, Tensor]) -> Iterator[tuple[str, TensorReport]]:
    """The reports of tensors whose squares the dtype holds in which they are accumulated."""
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, t in named.items():
        groups.setdefault((t.device, carried_dtype(t.dtype)), []).append(name)
    for (_, carried), chosen in groups.items():
        convert = carried if carried == torch.float64 else None
        made = fold_many([named[n] for n in chosen], monoids.DESCRIBE, carried, False, convert)
        for name, *fields in zip(chosen, *(field.tolist() for field in made), strict=True):
            found, t = summary_of(fields), named[name]
            if not is_lost(found, carried):
                yield name, report_of(name, t.dtype, tuple(t.shape), found)
