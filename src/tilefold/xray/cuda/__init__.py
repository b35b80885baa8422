"""The CUDA C++ that a PTX amounts to: readable, or plain with one statement an instruction; and nvcc to prove it.


`forms` writes a file, `readable/` has the passes of the readable form, `translate` and the modules beside it the plain one,
`proof` executes what nvcc makes of either beside Triton's PTX.
"""

from tilefold.xray.cuda.forms import FORMS, Form, Written, write_form
from tilefold.xray.cuda.nvcc import compile_ptx, find_nvcc
from tilefold.xray.cuda.translate import translate

__all__ = ["FORMS", "Form", "Written", "compile_ptx", "find_nvcc", "translate", "write_form"]
