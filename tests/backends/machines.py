"""A stand-in for a device: executables run on a CPU's memory, each launch executed from its PTX by the X-ray's machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tilefold.backends.triton import executable as executables
from tilefold.backends.triton.call import Call
from tilefold.planner.problem.canonical import contiguous_strides
from xray.running import run_call

Tensor = torch.Tensor


class Machine:
    """Stands for a device: memory by its addresses, and launches in the order in which they came."""

    def __init__(self) -> None:
        self.held: dict[int, Tensor] = {}
        self.launched: list[str] = []

    def hold(self, tensor: Tensor) -> Tensor:
        self.held[tensor.data_ptr()] = tensor
        return tensor

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        assert tuple(strides) == contiguous_strides(shape)
        return self.hold(torch.empty(tuple(shape), dtype=dtype))

    def launcher(self, call: Call, index: int) -> Callable[..., None]:
        def launch(stream: int, *addresses: int) -> None:
            assert stream == 7
            self.launched.append(call.kernel)
            run_call(call, [], [self.held[address] for address in addresses], 90)

        return launch


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(executables, "_empty", made.empty)
    monkeypatch.setattr(executables, "launcher", made.launcher)
    return made
