"""Forward and backward of softmax, norms with their parameters, logsumexp, var and std: results and gradients in one call."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tilefold
from tilefold.bench import settings, traps
from tilefold.bench.cases import DTYPES, Case, Choice, Outputs, Suite, Tolerance, Variant, grid, maker
from tilefold.bench.layout import whole_sectors
from tilefold.bench.ours import OURS
from tilefold.bench.peers import COMPILE_MODE

Tensor = torch.Tensor
Build = Callable[[Case, Tensor], Sequence[Choice]]
EPS = 1e-5
FOLDS = ("logsumexp", "var", "std")
OPERATIONS = ("softmax", "layer_norm", "rms_norm", *FOLDS)
ROWS = ((16384, 8192), (4096, 65536), (8192, 151936), (32768, 1024), (5000, 4104))
SMALL_ROWS = ((32, 256), (8, 4104))
HEADLINE = (16384, 8192)


@dataclass(frozen=True)
class GradientCase(Case):
    """Y of x[M, N], and the gradients of x and of the parameters. The one tensor that is drawn holds x, then y's cotangent.

    What must be moved: x and y, then x (of softmax y) again, y's cotangent and x's gradient.
    """

    @property
    def parameters(self) -> int:
        """How many there are: of layer_norm a weight and a bias."""
        return {"layer_norm": 2, "rms_norm": 1}.get(self.operation, 0)

    @property
    def folds(self) -> bool:
        """Whether y has one value a row."""
        return self.operation in FOLDS

    @property
    def result_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of y, of x's gradient, of the parameters'."""
        rows, length = self.shape
        return (rows,) if self.folds else self.shape, self.shape, *[(length,)] * self.parameters

    @property
    def input_bytes(self) -> int:
        """X twice, and y's cotangent."""
        size = DTYPES[self.dtype].itemsize
        return whole_sectors(2 * self.elements * size) + whole_sectors(
            (self.shape[0] if self.folds else self.elements) * size
        )

    @property
    def drawn_shape(self) -> tuple[int, ...]:
        """Of x and of y's cotangent."""
        return (2, *self.shape)


@functools.cache
def parameters_of(length: int, number: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """A weight and a bias of all norms of rows so long."""
    made = (
        torch.linspace(0.5, 1.5, length, dtype=torch.float64),
        torch.linspace(-1, 1, length, dtype=torch.float64),
    )
    return tuple(t.to(dtype=dtype, device=device).requires_grad_() for t in made[:number])


def with_gradients(case: GradientCase, function: Callable[..., Tensor], both: Tensor) -> Outputs:
    """Y and the gradients, of a function of x and the parameters."""
    x, gy = both[0].detach().requires_grad_(), both[1]
    parameters = parameters_of(case.shape[-1], case.parameters, DTYPES[case.dtype], str(x.device))
    wide = x.dtype != DTYPES[case.dtype]  # the reference has the same numbers
    given = (x, *(p.detach().to(x.dtype).requires_grad_() if wide else p for p in parameters))
    y = function(*given)
    gradients = torch.autograd.grad(y, given, gy[:, 0] if case.folds else gy)
    return (y.detach(), *gradients)


def function_of(case: GradientCase, module: Any) -> Callable[..., Tensor]:
    """Torch's or tilefold's function."""
    if case.folds or case.operation == "softmax":
        function = getattr(tilefold if module is tilefold else torch, case.operation)
        return lambda x: function(x, 1)
    norm = getattr(module, case.operation)
    return lambda x, *parameters: norm(x, (case.shape[-1],), *parameters, eps=EPS)


def gradient_case(operation: str, shape: tuple[int, ...], dtype: str) -> GradientCase:
    """A case of one of `OPERATIONS`, with torch's function in float64 for reference."""

    def in_torch(x: Tensor) -> Outputs:
        return with_gradients(case, function_of(case, torch.nn.functional), x)

    results = 2 + {"layer_norm": 2, "rms_norm": 1}.get(operation, 0)
    case = GradientCase(
        operation=operation,
        dim=1,
        shape=shape,
        dtype=dtype,
        torch_call=in_torch,
        reference=lambda x: in_torch(x.double()),
        tolerance=Tolerance(
            "(4 eps + 1e-4) (1 + |want|): a saved result, a cotangent's terms and the gradient are rounded to the dtype, of "
            "numbers about 1; of sums over rows the root of their number times as much, and float32's own chains",
            functools.partial(_bound, shape),
        ),
        result_dtypes=(DTYPES[dtype],) * results,
        operations_each=10,
        group=f"{operation}, forward and backward, {dtype}",
        headline=shape == HEADLINE and dtype == "bf16",
    )
    return case


def _bound(shape: tuple[int, ...], want: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance allowed: of sums over rows, as many rows' errors as add up at random."""
    rows = shape[0] if tuple(want.shape) == shape[1:] and want.ndim == 1 else 1
    eps = torch.finfo(dtype).eps
    return want.abs().add(rows**0.5).mul(4 * eps + 1e-4)


def cases(size: str = "full") -> tuple[Case, ...]:
    """Every operation of every shape, in bf16 and fp32; headline cases first."""
    return grid(gradient_case, OPERATIONS, ROWS if size == "full" else SMALL_ROWS, ("bf16", "fp32"))


def _differentiated(case: Case, function: Callable[..., Tensor]) -> Callable[[Tensor], Any]:
    assert isinstance(case, GradientCase)
    return functools.partial(with_gradients, case, function)


def build_ours(case: Case, x: Tensor) -> Sequence[Choice]:
    """Tilefold's function, and autograd."""
    assert isinstance(case, GradientCase)
    return [Choice("default", _differentiated(case, function_of(case, tilefold)))]


def build_compiled(case: Case, x: Tensor) -> Sequence[Choice]:
    """Torch's function compiled, and the backward that this makes."""
    assert isinstance(case, GradientCase)
    function = traps.fresh_compile(function_of(case, torch.nn.functional), mode=COMPILE_MODE)
    return [Choice(COMPILE_MODE, _differentiated(case, function))]


def check_compiled(call: Any, x: Tensor) -> None:
    """That the forward runs compiled: the function that `_differentiated` was given."""
    traps.check_compiled(call, x, call.args[1])


def build_quack(case: Case, x: Tensor) -> Sequence[Choice]:
    """QuACK's softmax and rms_norm; its layer_norm has no backward."""
    if case.operation == "softmax":
        return [Choice("softmax", _differentiated(case, importlib.import_module("quack.softmax").softmax))]
    if case.operation == "rms_norm":
        norm = importlib.import_module("quack.rmsnorm").rmsnorm
        return [Choice("rmsnorm", _differentiated(case, lambda x, weight: norm(x, weight, eps=EPS)))]
    return []


def build_liger(case: Case, x: Tensor) -> Sequence[Choice]:
    """Liger's functions, which are not to write over the cotangent."""
    functions = importlib.import_module("liger_kernel.transformers.functional")
    made: dict[str, Callable[..., Tensor]] = {
        "softmax": lambda x: functions.liger_softmax(x),
        "layer_norm": lambda x, w, b: functions.liger_layer_norm(x, w, b, EPS),
        "rms_norm": lambda x, w: functions.liger_rms_norm(x, w, EPS, in_place=False),
    }
    return [Choice("liger", _differentiated(case, made[case.operation]))] if case.operation in made else []


def variants_of(ours: Build, compiled: Build, quack: Build, liger: Build) -> tuple[Variant, ...]:
    """The variants of a suite of forward and backward together."""
    return (
        replace(OURS, build=ours, graphs=False),
        Variant("compile", compiled, warms=True, check=check_compiled),
        Variant("quack", quack, gpu_only=True, warms=True, asked_only=True),
        Variant("liger", liger, gpu_only=True, warms=True, asked_only=True),
        *settings.variants_of(ours),
    )


SUITE = Suite(
    "gradients",
    str(__doc__).strip(),
    cases,
    variants_of(build_ours, build_compiled, build_quack, build_liger),
    against=("torch", "compile", "quack", "liger"),
    make=maker(gradient_case, OPERATIONS, 2, (1, -1, None)),
)
