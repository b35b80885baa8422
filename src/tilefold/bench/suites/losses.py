"""Cross-entropy of rows of logits and classes, its mean: forward alone, and forward and backward in one call."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import tilefold
from tilefold.bench import traps
from tilefold.bench.cases import DTYPES, Case, Choice, Outputs, Suite, Tolerance, grid, maker
from tilefold.bench.layout import whole_sectors
from tilefold.bench.peers import COMPILE_MODE
from tilefold.bench.suites.gradients import HEADLINE, ROWS, SMALL_ROWS, variants_of

Tensor = torch.Tensor
FORWARD, BOTH = OPERATIONS = ("cross_entropy", "cross_entropy with backward")


@dataclass(frozen=True)
class LossCase(Case):
    """The mean loss of x[M, N] and M classes, and with backward x's gradient.

    What must be moved: x and the classes, then with backward x again and its gradient.
    """

    @property
    def goes_back(self) -> bool:
        """Whether x's gradient is asked."""
        return self.operation == BOTH

    @property
    def result_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the loss, of x's gradient."""
        return ((), self.shape) if self.goes_back else ((),)

    @property
    def input_bytes(self) -> int:
        """X, once or twice, and the classes."""
        x = self.elements * DTYPES[self.dtype].itemsize
        return (1 + self.goes_back) * whole_sectors(x) + whole_sectors(8 * self.shape[0])


@functools.cache
def classes_of(rows: int, classes: int, device: str) -> Tensor:
    """The targets of all cases of so many rows."""
    generator = torch.Generator(device).manual_seed(42)
    return torch.randint(0, classes, (rows,), device=device, generator=generator)


def called(case: LossCase, function: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Outputs:
    """The loss, and x's gradient where it is asked, of a function of x and the classes."""
    target = classes_of(*case.shape, str(x.device))
    if not case.goes_back:
        with torch.no_grad():
            return (function(x, target),)
    x = x.detach().requires_grad_()
    loss = function(x, target)
    return loss.detach(), *torch.autograd.grad(loss, x)


def loss_case(operation: str, shape: tuple[int, ...], dtype: str) -> LossCase:
    """A case of one of `OPERATIONS`, with torch's function in float64 for reference."""

    def in_torch(x: Tensor) -> Outputs:
        return called(case, torch.nn.functional.cross_entropy, x)

    case = LossCase(
        operation=operation,
        dim=1,
        shape=shape,
        dtype=dtype,
        torch_call=in_torch,
        reference=lambda x: in_torch(x.double()),
        tolerance=Tolerance(
            "(10 eps + 1e-4) |want|: a log-probability of 16 to 32, which torch rounds to the dtype, is off by up to 8 eps, "
            "and so is its exponential. Results are rounded on the way and at the end; float32's own chains",
            lambda want, dtype: want.abs() * (10 * torch.finfo(dtype).eps + 1e-4),
        ),
        result_dtypes=(DTYPES[dtype],) * (2 if operation == BOTH else 1),
        operations_each=4 if operation == FORWARD else 8,
        group=f"{operation}, {dtype}",
        headline=shape == HEADLINE and dtype == "bf16",
    )
    return case


def cases(size: str = "full") -> tuple[Case, ...]:
    """Both operations of every shape, in bf16 and fp32; headline cases first."""
    return grid(loss_case, OPERATIONS, ROWS if size == "full" else SMALL_ROWS, ("bf16", "fp32"))


def _choice(case: Case, label: str, function: Callable[[Tensor, Tensor], Tensor]) -> Choice:
    assert isinstance(case, LossCase)
    return Choice(label, functools.partial(called, case, function))


def build_ours(case: Case, x: Tensor) -> Sequence[Choice]:
    """Tilefold's function, and autograd."""
    return [_choice(case, "default", lambda x, target: tilefold.cross_entropy(x, target))]  # type: ignore[arg-type, return-value]


def build_compiled(case: Case, x: Tensor) -> Sequence[Choice]:
    """Torch's function compiled, and the backward that this makes."""
    function = traps.fresh_compile(
        lambda x, target: torch.nn.functional.cross_entropy(x, target), mode=COMPILE_MODE
    )
    return [_choice(case, COMPILE_MODE, function)]


def build_quack(case: Case, x: Tensor) -> Sequence[Choice]:
    """QuACK's cross_entropy, whose float32 loss becomes one of the logits' dtype."""
    function = importlib.import_module("quack.cross_entropy").cross_entropy
    return [_choice(case, "converted", lambda x, target: function(x, target, reduction="mean").to(x.dtype))]


def build_liger(case: Case, x: Tensor) -> Sequence[Choice]:
    """Liger's, of a copy: where a gradient is asked its forward writes this over the logits."""
    function = importlib.import_module("liger_kernel.transformers.functional").liger_cross_entropy
    return [_choice(case, "of a copy", lambda x, target: function(x.clone(), target))]


SUITE = Suite(
    "losses",
    str(__doc__).strip(),
    cases,
    variants_of(build_ours, build_compiled, build_quack, build_liger),
    against=("torch", "compile", "quack", "liger"),
    make=maker(loss_case, OPERATIONS, 2, (1, -1, None)),
)
