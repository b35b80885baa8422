"""What Triton's library does for a kernel is shown at the kernel's line that called it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilefold import xray
from tilefold.xray.report.static import is_tritons

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def rank(x):
    return tl.argmax(x, 1)


@triton.jit
def rows(x_ptr, y_ptr, z_ptr, s_ptr, B: tl.constexpr):
    offs, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + offs * B + columns)
    tl.store(y_ptr + tl.arange(0, B), rank(x))
    total = tl.softmax(tl.sum(x, 0), 0)
    tl.store(z_ptr + tl.arange(0, B), tl.sort(total))
    tl.store(s_ptr + tl.arange(0, B), tl.rand(7, tl.arange(0, B)))
"""
ARGS = {"x_ptr": "*fp32", "y_ptr": "*i32", "z_ptr": "*fp32", "s_ptr": "*fp32"}


# Names of files of Triton's own: the PTX says no more than them. Letters that PTX, MLIR and the disassembler write as bytes.
@pytest.mark.parametrize(
    "name", ["standard.py", "random.py", "größe 量/k-1.py"], ids=["standard", "random", "letters"]
)
def test_lines_are_the_callers(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(KERNEL)
    report = xray.explain_file(f"{file}::rows", args=ARGS, constants={"B": 32})
    length = len(KERNEL.splitlines())
    assert {line.file for line in report.lines} <= {str(file), ""}
    assert all(line.line <= length for line in report.lines)
    for o in report.observations:
        assert not is_tritons(o.file), o
        assert o.line <= length, o
    at = [line.line for line in report.lines if line.file]
    assert len(at) == len(set(at))
    assert sum(line.sass for line in report.lines if line.file and line.ptx) > 0.9 * report.totals.sass
    called = {n for n, text in enumerate(KERNEL.splitlines(), 1) if "tl.argmax" in text or "tl.sort" in text}
    assert called <= {line.line for line in report.lines if line.work and line.work.shuffles}
