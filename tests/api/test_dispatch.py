"""The path of a call: how many functions a first fold on a GPU passes, and requests lowered without being run.

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
from tilefold.api.reduce import requested
from tilefold.api.requests import Reduction
from tilefold.backends.triton import executable as executables
from tilefold.backends.triton import launch
from tilefold.planner.device import H200

SRC = Path(tilefold.__file__).parent
PATH = (
    "api/reduce.py",
    "api/dispatch.py",
    "api/requests/",
    "backends/triton/executable.py",
    "backends/triton/launch.py",
)
MOST = 18


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


def functions_of(call: Callable[[], object]) -> list[str]:
    """The path's functions that a call enters, each once, in the order in which it does."""
    attributes = {
        vars(owner)[name].fget.__code__
        for owner in Reduction.__mro__
        for name in vars(owner)
        if isinstance(vars(owner)[name], property)
    }
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<") or code in attributes:
            return
        file = code.co_filename
        place = Path(file).relative_to(SRC).as_posix() if file.startswith(str(SRC)) else ""
        if place.startswith(PATH):
            found[f"{place}: {code.co_name}"] = None
        elif file == "<string>" and frame.f_globals.get("empty") is executables._empty:
            found[f"the plan's function: {code.co_name}"] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def test_a_first_fold_passes_eighteen_functions(launched: list[tuple[Any, ...]]) -> None:
    """From `reduce` to the launch of the one kernel of a fold that nothing was compiled for yet.

    Counted are the functions and methods of the modules that hand a call on: the public function's, `dispatch`,
    `requests`, `backends.triton.executable` and `launch`, each once; and the function that is written for the plan. A
    comprehension or a lambda is part of the function that it stands in, and a property of a request is an attribute. Not
    counted is what these ask on the way: checks (`validate`, `modes`, `switch`), the problem, the planner and its model, and
    how kernels are written and compiled (`lower` and what stands below it).
    """
    x = torch.randn(64, 300)
    found = functions_of(lambda: tilefold.reduce(x, monoids.SUM, 1))
    assert [(stream, address) for _, stream, address in launched] == [(7, x.data_ptr())]
    assert len(found) <= MOST, "\n".join(found)
    # The counter sees both ends and every module between.
    assert found[0] == "api/reduce.py: reduce"
    assert found[-1] == "the plan's function: call"
    assert all(any(name.startswith(place) for name in found) for place in PATH)


def test_a_repeated_fold_passes_four(launched: list[tuple[Any, ...]]) -> None:
    x = torch.randn(64, 300)
    for _ in range(2):
        found = functions_of(lambda: tilefold.reduce(x, monoids.SUM, 1))
    assert len(launched) == 2
    assert [name.split(": ")[1] for name in found] == ["reduce", "fold_tensors", "repeated", "call"]


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
