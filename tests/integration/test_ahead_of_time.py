"""A model of all public operations that is compiled ahead of time (AOTInductor) has the bits of eager calls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import support

Tensor = torch.Tensor
ROWS = torch.export.Dim("rows", min=2, max=64)


class Model(torch.nn.Module):
    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        each: Iterator[Tensor] = iter(tensors)
        made = [row.call(*[next(each) for _ in row.shapes]) for row in support.ROWS.values()]
        return tuple(support.flat(made))


def given(rows: int) -> tuple[Tensor, ...]:
    return tuple(t for row in support.ROWS.values() for t in support.given(row, rows=rows))


def check(package: str) -> None:
    """The results of a package beside those of eager calls, of two lengths, also below autograd."""
    loaded = torch._inductor.aoti_load_package(package)
    for rows, mode in ((4, torch.no_grad), (9, torch.inference_mode)):
        tensors = given(rows)
        with mode():
            made, wanted = loaded(*tensors), Model()(*tensors)
        for a, b in zip(made, wanted, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)  # Inductor's own
def test_a_package_has_the_bits_of_eager_calls_here_and_in_a_fresh_process(tmp_path: Path) -> None:
    lengths = [
        {i: ROWS for i, n in enumerate(shape) if n == 4}
        for row in support.ROWS.values()
        for shape in row.shapes
    ]
    program = torch.export.export(Model(), given(4), dynamic_shapes=(tuple(lengths),))
    # The wrapper of torch's calls is half of the compiler's time, and any code of it makes the same calls.
    quickly = {"aot_inductor.compile_wrapper_opt_level": "O0"}
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "model.pt2"), inductor_configs=quickly
    )
    check(package)
    fresh = f"import sys; sys.path[:0] = {sys.path!r}; import test_ahead_of_time; test_ahead_of_time.check({package!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", fresh], cwd=Path(__file__).parent, check=True)
