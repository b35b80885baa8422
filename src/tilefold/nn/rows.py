"""Modules of rows: softmax and the norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold.errors import ArgumentError, KindError, shown
from tilefold.functional.arguments import as_number
from tilefold.functional.normalized import group_norm, layer_norm, log_softmax, rms_norm, softmax
from tilefold.nn.parameters import check_parameters, check_sizes
from tilefold.planner.problem.canonical import is_listed, whole_number


class _Guaranteed(torch.nn.Module):
    """A module with a guarantee, which its text shows unless it is the usual one."""

    guarantee: str

    def extra_repr(self) -> str:
        """Torch's text, and the guarantee."""
        promised = "" if self.guarantee == "run_to_run" else f", guarantee={self.guarantee}"
        return super().extra_repr() + promised


class Softmax(_Guaranteed, torch.nn.Softmax):
    """torch.nn.Softmax by `tilefold.softmax`.

    Args:
        dim: the dim whose elements sum to 1, or several such dims. It must be given.
        guarantee: as in `tilefold.reduce`.

    Shapes, dtypes, gradients, what is guaranteed and errors of calls are those of `tilefold.softmax`.

    Raises:
        KindError: `dim` is no int and no sequence of ints.

    Example:
        >>> tilefold.nn.Softmax(dim=1)(torch.tensor([[0.0, 0.0], [1.0, -float("inf")]]))
        tensor([[0.5000, 0.5000],
                [1.0000, 0.0000]])
    """

    def __init__(self, dim: int | Sequence[int], *, guarantee: str = "run_to_run") -> None:
        """Keep the dim."""
        super().__init__(_checked_dim("Softmax", dim))
        self.guarantee = guarantee

    def forward(self, input: Tensor) -> Tensor:
        """Each element's share of its row's exponentials."""
        return softmax(input, _dim_of(self), guarantee=self.guarantee)


class LogSoftmax(_Guaranteed, torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax by `tilefold.log_softmax`.

    Arguments and errors are those of `Softmax`; shapes, dtypes, gradients and what is guaranteed those of
    `tilefold.log_softmax`.

    Example:
        >>> tilefold.nn.LogSoftmax(dim=0)(torch.tensor([0.0, 0.0]))
        tensor([-0.6931, -0.6931])
    """

    def __init__(self, dim: int | Sequence[int], *, guarantee: str = "run_to_run") -> None:
        """Keep the dim."""
        super().__init__(_checked_dim("LogSoftmax", dim))
        self.guarantee = guarantee

    def forward(self, input: Tensor) -> Tensor:
        """The logarithm of each element's share of its row's exponentials."""
        return log_softmax(input, _dim_of(self), guarantee=self.guarantee)


class LayerNorm(_Guaranteed, torch.nn.LayerNorm):
    """torch.nn.LayerNorm by `tilefold.layer_norm`.

    Args:
        normalized_shape, eps, elementwise_affine, bias, device, dtype: as in torch.nn.LayerNorm; so are the parameters, their
            first values and the state dict.
        guarantee: as in `tilefold.reduce`.

    A call may have `residual=`, of the input's shape: then the sum of both is normalized, and the call gives a pair of the
    result and that sum. Shapes, dtypes, gradients, what is guaranteed and errors of calls are those of `tilefold.layer_norm`.

    Raises:
        KindError, ArgumentError, DtypeError: an argument is wrong.

    Example:
        >>> with torch.no_grad():
        ...     tilefold.nn.LayerNorm(2)(torch.tensor([[1.0, 3.0]]))
        tensor([[-1.0000,  1.0000]])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        guarantee: str = "run_to_run",
    ) -> None:
        """Make the parameters as torch.nn.LayerNorm does."""
        check_parameters("LayerNorm", device, dtype, elementwise_affine=elementwise_affine, bias=bias)
        shape = _checked_shape("LayerNorm", normalized_shape)
        _check_eps("LayerNorm", eps)
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)
        self.guarantee = guarantee

    def forward(self, input: Tensor, *, residual: Tensor | None = None) -> Any:
        """The normalized rows; with a residual a pair of them and the sum."""
        return layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps, residual=residual, guarantee=self.guarantee
        )  # fmt: skip


class RMSNorm(_Guaranteed, torch.nn.RMSNorm):
    """torch.nn.RMSNorm by `tilefold.rms_norm`.

    Args:
        normalized_shape, eps, elementwise_affine, device, dtype: as in torch.nn.RMSNorm; so are the parameters, their first
            values and the state dict.
        guarantee: as in `tilefold.reduce`.

    A call may have `residual=`, of the input's shape: then the sum of both is normalized, and the call gives a pair of the
    result and that sum. Shapes, dtypes, gradients, what is guaranteed and errors of calls are those of `tilefold.rms_norm`.

    Raises:
        KindError, ArgumentError, DtypeError: an argument is wrong.

    Example:
        >>> with torch.no_grad():
        ...     tilefold.nn.RMSNorm(2, eps=0.0)(torch.tensor([[3.0, 4.0]])) * 12.5**0.5
        tensor([[3., 4.]])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        guarantee: str = "run_to_run",
    ) -> None:
        """Make the parameters as torch.nn.RMSNorm does."""
        check_parameters("RMSNorm", device, dtype, elementwise_affine=elementwise_affine)
        shape = _checked_shape("RMSNorm", normalized_shape)
        if eps is not None:
            _check_eps("RMSNorm", eps)
        super().__init__(shape, eps, elementwise_affine, device, dtype)
        self.guarantee = guarantee

    def forward(self, x: Tensor, *, residual: Tensor | None = None) -> Any:
        """The normalized rows; with a residual a pair of them and the sum."""
        return rms_norm(
            x, self.normalized_shape, self.weight, self.eps, residual=residual, guarantee=self.guarantee
        )


class GroupNorm(_Guaranteed, torch.nn.GroupNorm):
    """torch.nn.GroupNorm by `tilefold.group_norm`.

    Args:
        num_groups, num_channels, eps, affine, device, dtype, bias: as in torch.nn.GroupNorm; so are the parameters, their
            first values and the state dict.
        guarantee: as in `tilefold.reduce`.

    Shapes, dtypes, gradients, what is guaranteed and errors of calls are those of `tilefold.group_norm`.

    Raises:
        KindError, ArgumentError, DtypeError: an argument is wrong.

    Example:
        >>> with torch.no_grad():
        ...     tilefold.nn.GroupNorm(2, 2)(torch.tensor([[[1.0, 3.0], [5.0, 9.0]]]))
        tensor([[[-1.0000,  1.0000],
                 [-1.0000,  1.0000]]])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        guarantee: str = "run_to_run",
    ) -> None:
        """Make the parameters as torch.nn.GroupNorm does."""
        check_parameters("GroupNorm", device, dtype, affine=affine, bias=bias)
        check_sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_groups == 0 or num_channels % num_groups:
            raise ArgumentError(
                f"GroupNorm: `num_groups` must divide `num_channels`, {num_channels}, got {num_groups}; take a divisor"
            )
        _check_eps("GroupNorm", eps)
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        if not bias:  # torch 2.11 has no such argument
            self.register_parameter("bias", None)
        self.guarantee = guarantee

    def forward(self, input: Tensor) -> Tensor:
        """The channels, each group of them normalized."""
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps, guarantee=self.guarantee)


def _dim_of(module: Any) -> Any:
    """A softmax's dim. torch's stub says that it may be None."""
    return module.dim


def _checked_dim(call: str, dim: Any) -> Any:
    dims = dim if is_listed(dim) else (dim,)
    if any(whole_number(d) is None for d in dims):
        raise KindError(
            f"{call}: `dim` must be an int or a sequence of ints, got {shown(dim)}; name the dim whose sum is 1"
        )
    return dim


def _checked_shape(call: str, shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if is_listed(shape) else (shape,)
    for size in sizes:
        check_sizes(call, normalized_shape=size)
    return tuple(map(int, sizes))


def _check_eps(call: str, eps: Any) -> None:
    if as_number(eps) is None:
        raise KindError(f"{call}: `eps` must be a real number, got {shown(eps)}; 1e-5 is usual")
