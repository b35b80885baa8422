"""Modules: `Linear`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilefold.contract.epilogue import NAMED
from tilefold.contract.matmul import matmul
from tilefold.errors import ArgumentError

Tensor = torch.Tensor


_aten = torch.ops.aten
# The gradient of what an activation was given, from that of its result.
_DERIVED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda gradient, x: torch.where(x <= 0, 0, gradient),
    "gelu": _aten.gelu_backward,
    "silu": _aten.silu_backward,
    "sigmoid": lambda gradient, x: _aten.sigmoid_backward(gradient, torch.sigmoid(x)),
    "tanh": lambda gradient, x: _aten.tanh_backward(gradient, torch.tanh(x)),
}


class Linear(torch.nn.Linear):
    """torch.nn.Linear by `tilefold.matmul`, with the bias and an activation in the store that makes each result final.

        y = activation(x @ weight.T + bias)

    Args:
        in_features, out_features, bias, device, dtype: as in torch.nn.Linear; so are the parameters, their first values
            and the state dict.
        activation: None, "relu", "gelu" (by erf), "silu", "sigmoid" or "tanh".
        precision: of float32 products: None and "ieee" are true float32, "tf32" is as in `tilefold.matmul`. torch's setting
            for its own products is not asked.
        guarantee: as in `tilefold.matmul`; "batch_invariant" makes a row's result independent of the rows beside it.

    Shapes:
        x [.., in_features], any strides, read in place -> y [.., out_features], contiguous, in x's dtype. Inside
        torch.autocast x and the parameters are converted to its dtype first, as torch.nn.Linear does.

    Where a gradient is asked for, it is that of torch's own operations: backward multiplies by torch.matmul, and computes
    what comes before the activation again. It cannot be differentiated twice.

    Raises:
        ArgumentError: an activation that is none of these.
        DtypeError, ShapeError: from calls, as in `tilefold.matmul`.

    Example:
        >>> layer = tilefold.nn.Linear(3, 2, activation="relu")
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        precision: str | None = None,
        guarantee: str = "run_to_run",
    ) -> None:
        """Make the parameters as torch.nn.Linear does."""
        if activation is not None and activation not in NAMED:
            raise ArgumentError(
                f"Linear: `activation` must be one of {', '.join(NAMED)} or None, got {activation!r}; take one of these, or "
                "apply another one to the result"
            )
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.precision, self.guarantee = activation, precision, guarantee

    def forward(self, input: Tensor) -> Tensor:
        """The layer's result for rows of features."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(input.device.type):
            input, weight = _autocast(input), _autocast(weight)
            bias = None if bias is None else _autocast(bias)
        options = (self.activation, self.precision, self.guarantee)
        needed = [t for t in (input, weight, bias) if t is not None and t.requires_grad]
        if torch.is_grad_enabled() and needed:
            result: Tensor = _Differentiable.apply(input, weight, bias, *options)  # type: ignore[no-untyped-call]  # torch's own
            return result
        return _multiply(input, weight, bias, *options)

    def extra_repr(self) -> str:
        """torch's, and what is asked for besides."""
        options = {"activation": self.activation, "precision": self.precision}
        said = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
        promised = "" if self.guarantee == "run_to_run" else f", guarantee={self.guarantee}"
        return f"{super().extra_repr()}{said}{promised}"


def _autocast(t: Tensor) -> Tensor:
    """A tensor as torch.autocast gives it to a product: float64 and integers stay."""
    stays = t.dtype == torch.float64 or not t.is_floating_point()
    return t if stays else t.to(torch.get_autocast_dtype(t.device.type))


def _multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    precision: str | None,
    guarantee: str,
) -> Tensor:
    made: Tensor = matmul(
        x, weight.mT, bias=bias, epilogue=activation, precision=precision, guarantee=guarantee
    )
    return made


class _Differentiable(torch.autograd.Function):
    """The layer's result with torch's own derivative."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, *options: Any
    ) -> Tensor:
        """The layer's result; what backward needs is kept."""
        ctx.save_for_backward(x, weight, bias)
        ctx.activation = activation
        return _multiply(x, weight, bias, activation, *options)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias, where they are asked for."""
        x, weight, bias = ctx.saved_tensors
        if ctx.activation is not None:
            value = torch.nn.functional.linear(x, weight, bias)
            gradient = _DERIVED[ctx.activation](gradient, value)
        rows = x.shape[:-1].numel()
        by_rows = gradient.reshape(rows, weight.shape[0])
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        return (
            gradient @ weight if of_x else None,
            by_rows.mT @ x.reshape(rows, weight.shape[1]) if of_weight else None,
            by_rows.sum(0) if of_bias else None,
            None,
            None,
            None,
        )
