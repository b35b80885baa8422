"""Modules: `Linear`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilefold.api.matmul import matmul
from tilefold.errors import ArgumentError, DtypeError, KindError, hint_at_names, is_one_of, shown
from tilefold.planner.products.epilogue import NAMED
from tilefold.planner.products.operands import as_autocast
from tilefold.problem.canonical import whole_number
from tilefold.problem.validate import as_dtype
from tilefold.runtime.modes import is_transformed

__all__ = ["Linear"]

Tensor = torch.Tensor


_aten = torch.ops.aten
# The gradient of an activation's argument, from the gradient of its result.
_DERIVED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda gradient, x: torch.where(x <= 0, 0, gradient),
    "gelu": _aten.gelu_backward,
    "silu": lambda gradient, x: gradient * (torch.sigmoid(x) * (1 + x * torch.sigmoid(-x))),
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
        torch.autocast x and the parameters are converted to its dtype first, as torch.nn.Linear does, whatever `precision`.

    Where a gradient is asked for, it is that of torch's own operations: backward multiplies by torch.matmul, and computes
    the activation's argument again. It can be differentiated further, forward too, and by torch.func (grad, jvp,
    vmap over rows or over stacked parameters, nested too).

    Raises:
        ArgumentError: another activation.
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
        if activation is not None and not is_one_of(activation, NAMED):
            raise ArgumentError(
                f"Linear: `activation` must be one of {', '.join(NAMED)} or None, got {shown(activation)}; take one of "
                "these, or apply another one to the result"
            )
        _check_parameters(bias, device, dtype, in_features=in_features, out_features=out_features)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.precision, self.guarantee = activation, precision, guarantee

    def forward(self, input: Tensor) -> Tensor:
        """The layer's result for rows of features."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        input, weight, bias, precision = as_autocast(input, weight, bias, self.precision)
        options = (self.activation, precision, self.guarantee)
        needed = [t for t in (input, weight, bias) if isinstance(t, Tensor) and t.requires_grad]
        if (torch.is_grad_enabled() and needed) or is_transformed():
            return _layer(input, weight, bias, *options)
        return _multiply(input, weight, bias, *options)

    def extra_repr(self) -> str:
        """Torch's text, and the activation."""
        options = {"activation": self.activation, "precision": self.precision}
        said = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
        promised = "" if self.guarantee == "run_to_run" else f", guarantee={self.guarantee}"
        return f"{super().extra_repr()}{said}{promised}"


def _check_parameters(bias: Any, device: Any, dtype: Any, **features: Any) -> None:
    """Refuse wrong numbers of features, truth values, devices and dtypes of a parameter."""
    for name, value in features.items():
        number = whole_number(value)
        if number is None or not 0 <= number < 2**31:
            kind = KindError if number is None else ArgumentError
            raise kind(
                f"Linear: `{name}` must be an int from 0 to 2**31 - 1, got {shown(value)}; say how many there are"
            )
    if bias is not None and not isinstance(bias, int):  # torch takes these
        raise KindError(f"Linear: `bias` must be True or False, got {shown(bias)}; write bool(...)")
    if device is not None and (isinstance(device, bool) or not isinstance(device, str | int | torch.device)):
        raise KindError(
            f'Linear: `device` must be a torch.device, its name or None, got {shown(device)}; pass "cuda", say'
        )
    if (made := as_dtype(dtype, "Linear")) is not None and not made.is_floating_point:
        raise DtypeError(f"Linear: `dtype` must be of floats, got {made}; parameters are trained")


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
    """The layer's result with torch's own derivative, of x [.., in], weight [out, in] and bias [out].

    Or of several layers, each with rows of its own: x [*layers, rows, in], weight [*layers, out, in], bias [*layers, 1, out],
    as torch.vmap over parameters makes them, with one more dim each time.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, *options: Any
    ) -> Tensor:
        """The layer's result."""
        return _multiply(x, weight, bias, activation, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """What backward needs is kept."""
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        ctx.activation = inputs[3]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Rows of a batch are more rows; parameters of a batch are a batch of products."""
        (x, weight, bias), options = inputs[:3], inputs[3:]
        of_x, *of_parameters = in_dims[:3]
        several = weight.ndim - (of_parameters[0] is not None) > 2
        x, size = _in_front(x, of_x, info.batch_size), info.batch_size
        if of_parameters == [None, None]:
            if not several:
                return _layer(x, weight, bias, *options), 0
            rows = x.movedim(0, -3)
            joined = rows.reshape(*rows.shape[:-3], rows.shape[-3] * rows.shape[-2], rows.shape[-1])
            made = _layer(joined, weight, bias, *options)
            return made.reshape(*rows.shape[:-1], made.shape[-1]), made.ndim - 2
        weight = _in_front(weight, of_parameters[0], size)
        bias = None if bias is None else _in_front(bias, of_parameters[1], size)
        if several:
            return _layer(x, weight, bias, *options), 0
        rows = x.reshape(size, x.shape[1:-1].numel(), x.shape[-1])
        made = _layer(rows, weight, None if bias is None else bias[:, None], *options)
        return made.reshape(*x.shape[:-1], made.shape[-1]), 0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias, where they are asked for."""
        x, weight, bias = ctx.saved_tensors
        gradient = _before_activation(ctx.activation, gradient, x, weight, bias)
        apart = (gradient, x) if weight.ndim > 2 else (_as_rows(gradient), _as_rows(x))
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        return (
            gradient @ weight if of_x else None,
            apart[0].mT @ apart[1] if of_weight else None,
            gradient.sum_to_size(bias.shape) if of_bias else None,
            None,
            None,
            None,
        )


class _Transformed(_Differentiable):
    """The same with a forward derivative, which Dynamo cannot trace."""

    @staticmethod
    def jvp(
        ctx: Any, of_x: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None, *_: Any
    ) -> Tensor:
        """The result's tangent from those of x, weight and bias."""
        x, weight, bias = ctx.saved_tensors
        tangent = torch.zeros((), dtype=x.dtype, device=x.device)
        tangent = tangent if of_x is None else tangent + torch.matmul(of_x, weight.mT)
        tangent = tangent if of_weight is None else tangent + torch.matmul(x, of_weight.mT)
        tangent = tangent if of_bias is None else tangent + of_bias
        shape = [*x.shape[:-1], weight.shape[-2]]
        return _before_activation(ctx.activation, tangent.expand(shape), x, weight, bias)


def _in_front(t: Tensor, dim: int | None, size: int) -> Tensor:
    """A tensor with a batch's dim before its own; a tensor without one is expanded."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


def _as_rows(t: Tensor) -> Tensor:
    return t.reshape(t.shape[:-1].numel(), t.shape[-1])


def _before_activation(
    activation: str | None, change: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """A change of the activation's result as a change of its argument, and the other way round: it is elementwise."""
    if activation is None:
        return change
    if weight.ndim == 2:
        return _DERIVED[activation](change, torch.nn.functional.linear(x, weight, bias))
    value = torch.matmul(x, weight.mT)
    return _DERIVED[activation](change, value if bias is None else value + bias)


def _layer(x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    function = _Transformed if is_transformed() else _Differentiable
    made: Tensor = function.apply(x, weight, bias, *options)  # type: ignore[no-untyped-call]  # torch's own
    return made


hint_at_names(__name__, __all__)
