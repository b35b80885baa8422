"""`Linear`, `CrossEntropyLoss` and `LinearCrossEntropyLoss`."""

from __future__ import annotations

from typing import Any

import torch

from tilefold.api.matmul import matmul
from tilefold.errors import ArgumentError, is_one_of, shown
from tilefold.functional.linear_losses import linear_cross_entropy
from tilefold.functional.losses import cross_entropy
from tilefold.nn.parameters import check_parameters, check_sizes
from tilefold.planner.products.epilogue import NAMED
from tilefold.planner.products.operands import as_autocast

Tensor = torch.Tensor


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

    Gradients are those of `tilefold.matmul`: backward computes the activation's argument again where it is read. They can be
    differentiated further, forward too, and by torch.func (grad, jvp, vmap over rows or over stacked parameters, nested too).

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
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        check_parameters("Linear", device, dtype, bias=bias)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.precision, self.guarantee = activation, precision, guarantee

    def forward(self, input: Tensor) -> Tensor:
        """The layer's result for rows of features."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        input, weight, bias, precision = as_autocast(input, weight, bias, self.precision)
        made: Tensor = matmul(
            input,
            weight.mT,
            bias=bias,
            epilogue=self.activation,
            precision=precision,
            guarantee=self.guarantee,
        )
        return made

    def extra_repr(self) -> str:
        """Torch's text, and the activation."""
        options = {"activation": self.activation, "precision": self.precision}
        said = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
        promised = "" if self.guarantee == "run_to_run" else f", guarantee={self.guarantee}"
        return f"{super().extra_repr()}{said}{promised}"


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss by `tilefold.cross_entropy`: the logits are read once, and once more backwards.

    Args:
        weight, ignore_index, reduction, label_smoothing: as in torch.nn.CrossEntropyLoss; so is the state dict.
        z_loss, softcap, return_lse, inplace_backward, validate, guarantee: as in `tilefold.cross_entropy`.

    Shapes, dtypes, gradients, what is guaranteed and errors are those of `tilefold.cross_entropy`.

    Example:
        >>> tilefold.nn.CrossEntropyLoss(softcap=30.0)(torch.zeros(3, 4), torch.tensor([0, 1, 3]))
        tensor(1.3863)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        return_lse: bool = False,
        inplace_backward: bool = False,
        validate: bool = False,
        guarantee: str = "run_to_run",
    ) -> None:
        """Keep the options, the weight as a buffer."""
        super().__init__(
            weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
        self.z_loss, self.softcap, self.return_lse = z_loss, softcap, return_lse
        self.inplace_backward, self.validate, self.guarantee = inplace_backward, validate, guarantee

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of logits and targets; with `return_lse` a pair of it and the rows' log-sum-exp."""
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
            return_lse=self.return_lse,
            inplace_backward=self.inplace_backward,
            validate=self.validate,
            guarantee=self.guarantee,
        )


class LinearCrossEntropyLoss(torch.nn.Module):
    """torch.nn.LinearCrossEntropyLoss (torch 2.13) by `tilefold.linear_cross_entropy`: the logits are never held.

    Args:
        in_features, num_classes, bias, device, dtype, reduction, weight, ignore_index, label_smoothing: as in torch's; so are
            the parameters of `linear`, their first values and the state dict.
        z_loss, softcap, return_lse, validate: as in `tilefold.linear_cross_entropy`.

    Shapes:
        input [N, in_features], [.., in_features] or [in_features]; target, classes, [N], [..] or [].

    To share the weights of a model's embedding, call the function with them, or set `loss.linear.weight = embedding.weight`.

    Dtypes, gradients, memory, what is guaranteed and errors are those of `tilefold.linear_cross_entropy`.

    Example:
        >>> loss = tilefold.nn.LinearCrossEntropyLoss(3, 1000)
        >>> loss(torch.zeros(5, 3), torch.arange(5))
        tensor(6.9078, grad_fn=<_FunctionBackward>)
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        return_lse: bool = False,
        validate: bool = False,
    ) -> None:
        """Make the parameters as torch.nn.Linear does; keep the options, the classes' weight as a buffer."""
        check_sizes("LinearCrossEntropyLoss", in_features=in_features, num_classes=num_classes)
        check_parameters("LinearCrossEntropyLoss", device, dtype, bias=bias)
        super().__init__()
        self.linear = torch.nn.Linear(in_features, num_classes, bias, device, dtype)
        self.register_buffer("weight", weight)
        self.num_classes, self.reduction, self.ignore_index = num_classes, reduction, ignore_index
        self.label_smoothing, self.z_loss, self.softcap = label_smoothing, z_loss, softcap
        self.return_lse, self.validate = return_lse, validate

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of rows and their classes; with `return_lse` a pair of it and the rows' log-sum-exp."""
        bias: Tensor | None = self.linear.bias
        return linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            linear_bias=bias,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
            return_lse=self.return_lse,
            validate=self.validate,
        )
