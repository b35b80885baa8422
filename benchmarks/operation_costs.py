"""What an operation of the table costs, counted without a GPU: python benchmarks/operation_costs.py [NAME ...]

A kernel applies one operation to float32 elements, 8 a thread, and once more 16 a thread. Both are compiled for sm_90 and
executed on the X-ray's machine for elements between 0.25 and 4; the machine's instructions that are issued are sorted into
pipes. The difference, of 8 elements a thread, is what an element costs: addresses, constants and what is done once cancel,
and loads and stores belong to no pipe here. Where the way through the code is not decided, every instruction of the code
counts, a loop's once and a slow case's too, and a * says so; what is called as a function cancels.

A comparison is measured with the `where` that makes a number of it, and that one's instruction is taken off.

Results go into the rows of `tilefold/algebra/operations.py`, rounded to halves.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from tilefold.algebra import typing
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.operations import OPS
from tilefold.backends.triton import instantiate
from tilefold.backends.triton.emit import emit_epilogue
from tilefold.xray.compile.offline import assemble, compile_job
from tilefold.xray.explain import explain, make_job

WARPS, FEW, MANY = 4, 8, 16
# Opcodes by the pipe that issues them on sm_90; what is in none is control, memory or uniform.
PIPES = {
    "fp32": ("FADD", "FMUL", "FFMA", "FADD32I", "FMUL32I", "FFMA32I", "IMAD"),
    "alu": (
        "FMNMX", "FSEL", "FSET", "FSETP", "FCHK", "IADD3", "ISETP", "LEA", "LOP3", "PLOP3", "SEL", "SHF", "IMNMX", "IABS",
        "VIADD", "VIMNMX", "PRMT", "BMSK", "SGXT", "LOP32I", "IADD", "MOV", "MOV32I", "FLO", "P2R", "R2P",
    ),
    "sfu": ("MUFU",),
    "fp64": ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"),
    "convert": ("F2F", "F2I", "I2F", "FRND", "F2FP", "I2FP"),
}  # fmt: skip
INTEGERS = ("and", "or", "xor", "lshift", "rshift", "invert")
_OPCODE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)", re.MULTILINE)
BLOCKS = {"block_sum": "add", "block_max": "maximum", "block_min": "minimum"}


@triton.jit
def apply_kernel(x_ptr, y_ptr, z_ptr, BLOCK: tl.constexpr):
    """One program: `z = EPILOGUE(x, y)` of BLOCK elements; EPILOGUE is put into its globals."""
    offs = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    tl.store(z_ptr + offs, EPILOGUE(x, y)[0])  # noqa: F821  # as above


def function_of(op: str) -> Any:
    """The operation of two values, as something that can be stored."""
    row = OPS[op]

    def function(x: Any, y: Any) -> Any:
        if row.kind == "select":
            return apply(op, x < y, x, y)
        if row.kind == "cast":
            return apply(op, x, value=torch.int32)
        result = apply(op, *(x, y)[: row.arity])
        return apply("where", result, x, y) if row.gives == torch.bool else result

    return function


def counted(op: str, elements: int) -> tuple[Counter[str], bool]:
    """Instructions of the machine that are issued, by opcode, and whether the way through the code was decided."""
    dtype = torch.int32 if op in INTEGERS else torch.float32
    typed = typing.infer(trace(function_of(op), 2), [dtype, dtype])
    source = emit_epilogue(typed, [dtype], typed.output_dtypes[0], interpret=False)
    scope = {**globals(), **instantiate.device_functions(source, False)}
    kernel = instantiate._rebound(apply_kernel.fn, scope, False)
    size = elements * 32 * WARPS
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.25, 4, size).astype(np.float32) for _ in range(2))
    if dtype == torch.int32:
        x, y = ((v * 4).astype(np.int32) for v in (x, y))
    stored = "*i32" if typed.output_dtypes[0] == torch.int32 else "*fp32"
    arguments = {"x_ptr": x, "y_ptr": y, "z_ptr": f"{stored}[{size}]"}
    report = explain(kernel, arguments, {"BLOCK": size}, num_warps=WARPS)
    if report.totals.machine is not None:
        return Counter({opcode: n / WARPS for opcode, n in report.totals.machine}), True
    compiled = compile_job(make_job(kernel, arguments, {"BLOCK": size}, num_warps=WARPS))
    return Counter(_OPCODE.findall(assemble(compiled).code)), False


def cost(op: str) -> tuple[dict[str, float], bool]:
    """Instructions of one element by pipe."""
    op = BLOCKS.get(op, op)
    many, sure = counted(op, MANY)
    few, also = counted(op, FEW)
    many.subtract(few)
    found = {pipe: sum(many[o] for o in opcodes) / (MANY - FEW) for pipe, opcodes in PIPES.items()}
    if OPS[op].gives == torch.bool or op == "where":
        found["alu"] -= 1
    return found, sure and also


def halves(found: Mapping[str, float]) -> dict[str, float]:
    """Rounded, without what is nothing."""
    return {pipe: round(2 * n) / 2 for pipe, n in found.items() if round(2 * n)}


def main() -> None:
    """A line for each operation: what was counted, and what the table has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=None, help="operations; all of them without")
    for op in parser.parse_args().names or OPS:
        if op in ("block_first", "block_count"):
            continue
        found, sure = cost(op)
        has = {pipe: n for pipe, n in vars(OPS[op].cost).items() if n}
        print(
            f"{op:12} {halves(found)}{'' if sure else ' *'}{'' if halves(found) == has else f'   the table has {has}'}"
        )


if __name__ == "__main__":
    main()
