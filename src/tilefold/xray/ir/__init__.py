"""Triton's two texts before PTX (TTIR, TTGIR), read to frozen values."""

from tilefold.xray.ir.reader import read
from tilefold.xray.ir.scopes import spelled
from tilefold.xray.ir.syntax import Block, Function, Operation, Tensor
from tilefold.xray.ir.types import element_bytes, tensor_type, tensors

__all__ = [
    "Block",
    "Function",
    "Operation",
    "Tensor",
    "element_bytes",
    "read",
    "spelled",
    "tensor_type",
    "tensors",
]
