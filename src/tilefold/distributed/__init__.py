"""Folds of tensors that are spread over the ranks of torch.distributed: states are exchanged, never elements."""

from tilefold.distributed.reduce import reduce as reduce

__all__ = ["reduce"]
