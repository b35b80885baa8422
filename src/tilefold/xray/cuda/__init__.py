"""The CUDA C++ that a PTX amounts to, one statement an instruction, and nvcc to check it.

Registers are integers, and arithmetic uses intrinsics that name their rounding, so nvcc keeps every bit. Inline PTX stands
where C++ has no expression. The tests execute nvcc's PTX beside Triton's and compare memory byte by byte. Printing is left
out.
"""

from tilefold.xray.cuda.nvcc import compile_ptx, find_nvcc
from tilefold.xray.cuda.translate import translate

__all__ = ["compile_ptx", "find_nvcc", "translate"]
