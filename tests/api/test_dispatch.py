"""The path of a call: what a repeated fold costs its host, and requests lowered without being run.

There is no GPU here: the kernel is not compiled, and its launch is noted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.api.explain import request_of
from tilefold.api.reduce import requested
from tilefold.api.requests import Reduction
from tilefold.backends.triton import executable as executables
from tilefold.backends.triton import launch
from tilefold.errors import BackendError, DtypeError
from tilefold.planner.chips import NAMED
from tilefold.planner.device import H200, of_chip
from tilefold.runtime.overrides import listed

SRC = Path(tilefold.__file__).parent
A100 = of_chip(NAMED["a100"])


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was launched on an H200 that stands beside the CPU's tensors: (grid, stream, address) of each launch."""
    found: list[tuple[Any, ...]] = []

    def run(x: int, y: int, z: int, stream: int, function: object, metadata: object, *rest: Any) -> None:
        found.append(((x, y, z), stream, rest[3][0][0]))  # of the first input

    def compile_for(call: object, architecture: int) -> Any:
        metadata = SimpleNamespace(shared=0)
        return SimpleNamespace(
            run=run, function=1, packed_metadata=(), metadata=metadata, _init_handles=lambda: None
        )

    def backend_of(request: Reduction, tensors: Sequence[torch.Tensor]) -> str:
        assert chosen(request, tensors) == "auto"
        return "triton"

    chosen = dispatch._backend_of
    monkeypatch.setattr(dispatch, "_backend_of", backend_of)
    monkeypatch.setattr(dispatch, "_executables", {})
    for module in (dispatch, launch):
        monkeypatch.setattr(module, "device_of", lambda index: H200)
    for cache in ("_compiled", "_loaded"):
        monkeypatch.setattr(launch, cache, {})
    monkeypatch.setattr(launch.calls, "compile_for", compile_for)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(executables, "_empty", lambda shape, strides, dtype: torch.empty(shape, dtype=dtype))
    return found


def calls_of(call: Callable[[], object]) -> int:
    """How many Python functions of the library and of the plan a call enters, each as often as it does."""
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and (file.startswith(str(SRC)) or file == "<string>"):
            found.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found)


def test_a_repeated_fold_is_launched_without_the_work_of_the_first(launched: list[tuple[Any, ...]]) -> None:
    """On the tensor and the stream of each call; the calls of Python functions are what a repeated one costs its host."""
    first, second = torch.randn(64, 300), torch.randn(64, 300)
    given = [first, second, first, second]
    unseen = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x: 41 * x)
    once, *_, again = [calls_of(lambda x=x: tilefold.reduce(x, unseen, 1)) for x in given]
    assert [(stream, address) for _, stream, address in launched] == [(7, x.data_ptr()) for x in given]
    assert again <= 12 < once / 100


def test_a_request_is_lowered_without_being_run() -> None:
    x = torch.empty(1, 1 << 20, device="meta")
    request, tensors = requested(x, monoids.SUM, 1, "run_to_run", "mine")
    before = tilefold.last_plan()
    plan, calls = dispatch.lowered(request, tensors, H200)
    assert plan == tilefold.explain_plan(x, monoids.SUM, 1)
    assert [call.kernel for call in calls] == [step.kernel for step in plan.launched]
    assert len(calls) == 2
    assert request.call == "mine"
    assert tilefold.last_plan() is before


def test_a_product_is_lowered_to_torch_s_own_kernel_where_that_is_planned() -> None:
    """Under Triton's interpreter by the library's kernel: there is no other."""
    inputs = [torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    found = request_of(inputs, tilefold.matmul, None, "run_to_run", {})
    assert found is not None
    assert not dispatch.lowered(*found, H200)[1]
    assert [call.kernel for call in dispatch.lowered(*found, H200, interpret=True)[1]] != []


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16], ids=str)
def test_a_chip_that_cannot_convert_a_dtype_refuses_it_before_anything_is_written(dtype: torch.dtype) -> None:
    x = torch.empty(64, 4096, dtype=dtype, device="meta")
    request, tensors = requested(x, monoids.MAX, 1, "run_to_run", "mine")
    assert dispatch.lowered(request, tensors, H200)[1]
    if dtype != torch.float8_e4m3fn:
        assert dispatch.lowered(request, tensors, A100)[1]
        return
    with pytest.raises(
        DtypeError, match=r"mine: a GPU of compute capability 8\.0 must be able to convert the dtype"
    ):
        dispatch.lowered(request, tensors, A100)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "fold": lambda x: tilefold.argmax(x, dim=1),
    "map": lambda x: tilefold.reduce_map(x, monoids.MAX, lambda x, largest: x - largest, dim=1),
    "scan": lambda x: tilefold.cummax(x, dim=1),
    "segments": lambda x: tilefold.segment_reduce(x, monoids.MAX, torch.tensor([0, 2, 3])),
    "selection": lambda x: tilefold.topk(x, 2, dim=1),
    "transpose": lambda x: tilefold.transpose(x, 0, 1),
    "product": lambda x: tilefold.matmul(x, x.t()),
}


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
def test_every_backend_of_an_operation_answers_alike(name: str) -> None:
    """Each is taken by its name; what there is not, and a GPU's for tensors that are on none, are refused by theirs."""
    x = torch.tensor([[3.0, -1.0, 4.0, 1.5], [0.5, 9.0, -2.0, 6.0], [5.0, 3.5, 8.0, -7.0]])
    want = listed(CALLS[name](x))
    for backend in ("torch", "cpu", "reference", "interpret"):
        with tilefold.backend(backend):
            if backend == "torch" and name in ("map", "segments"):
                with pytest.raises(BackendError, match="torch"):
                    CALLS[name](x)
                continue
            found = listed(CALLS[name](x))
        assert len(found) == len(want)
        assert all(torch.equal(f, w) for f, w in zip(found, want, strict=True)), backend
    with tilefold.backend("triton"), pytest.raises(BackendError, match=r"CUDA tensors, got cpu"):
        CALLS[name](x)
