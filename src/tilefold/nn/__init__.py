"""Modules with torch's names and parameters, and `swap`, which puts them into a model."""

from tilefold.errors import hint_at_names
from tilefold.nn.layers import CrossEntropyLoss, Linear, LinearCrossEntropyLoss
from tilefold.nn.rows import GroupNorm, LayerNorm, LogSoftmax, RMSNorm, Softmax
from tilefold.nn.swapping import swap

__all__ = [
    "CrossEntropyLoss",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "RMSNorm",
    "Softmax",
    "swap",
]

hint_at_names(__name__, __all__)
