"""One instruction, or a few, run over a warp: values in, values out."""

from __future__ import annotations

import numpy as np

from tilefold.xray.machine import Memory, Outcome, load, run
from tilefold.xray.ptx import parse


def module(body: str, parameters: int, threads: int = 32, shared: int = 1024) -> str:
    """A kernel around a body; `%p0 %p1 %p2 %p3`, `%q0 ...` and `%at` (the thread's number) are declared."""
    listed = ", ".join(f".param .u64 k_{i}" for i in range(parameters))
    return f"""
.version 8.7
.target sm_90
.address_size 64
.shared .align 16 .b8 room[{shared}];
.visible .entry k({listed})
.reqntid {threads}
{{
.reg .pred %t<4>;
.reg .b16 %h<8>;
.reg .b32 %r<8>;
.reg .b64 %d<16>;
.reg .b64 %at;
.reg .b32 %tid_;
mov.u32 %tid_, %tid.x;
cvt.u64.u32 %at, %tid_;
{body}
ret;
}}
"""


def execute(text: str, memory: Memory, addresses: list[int]) -> Outcome:
    kernel = load(parse(text))
    names = [p.name for p in kernel.entry.parameters]
    return run(kernel, memory, dict(zip(names, addresses, strict=True)))


def apply(instruction: str, *sources: np.ndarray, result: str) -> np.ndarray:
    """`add.s32 {d}, {a}, {b};` over arrays of 32 values."""
    names, body, memory, addresses = {}, [], Memory(), []
    prefix = {1: "%h", 2: "%h", 4: "%r", 8: "%d"}
    for i, (letter, values) in enumerate(zip("abc", sources, strict=False)):
        size = values.dtype.itemsize
        names[letter] = f"{prefix[size]}{i}"
        body.append(
            f"ld.param.b64 %d8, [k_{i}]; mad.lo.s64 %d9, %at, {size}, %d8; ld.global.b{8 * size} {names[letter]}, [%d9];"
        )
        addresses.append(memory.place(letter, values))
    size = np.dtype(result).itemsize
    names["d"] = f"{prefix[size]}5"
    body.append(instruction.format(**names))
    body.append(
        f"ld.param.b64 %d8, [k_{len(sources)}]; mad.lo.s64 %d9, %at, {size}, %d8; st.global.b{8 * size} [%d9], {names['d']};"
    )
    addresses.append(memory.place("d", np.zeros(32, result)))
    execute(module("\n".join(body), len(addresses)), memory, addresses)
    return memory.read("d", result)
