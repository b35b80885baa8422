"""The CUDA C++ that a PTX amounts to, one statement an instruction, and nvcc to check it."""

from tilefold.xray.cuda.nvcc import compile_ptx, find_nvcc
from tilefold.xray.cuda.translate import translate

__all__ = ["compile_ptx", "find_nvcc", "translate"]
