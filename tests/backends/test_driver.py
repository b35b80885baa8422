"""Launches past Triton's launcher: what the driver is given, and what is left to Triton's."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.api.requests import Reduction
from tilefold.backends.triton import call as calls
from tilefold.backends.triton import driver, launch
from tilefold.backends.triton.call import Call, Pointer
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.device import H200


@pytest.fixture(scope="module")
def call() -> Call:
    """A fold of rows that are no multiple of a vector, so that there are masks, and numbers of many kinds."""
    x = torch.empty(5, 300)[:, 1:]
    request = Reduction(programs.specialize(monoids.SUM.total, (x.dtype,)), (1,), "run_to_run", (5,))
    problem, plan = request.plan([x], H200, library=False)
    return calls_of(plan, problem, request.computation)[0]


class Driver:
    """Stands for the driver's library: notes launches, and refuses them if told to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.refusal = 0

    def cuLaunchKernelEx(self, at: Any, function: Any, parameters: Any, extra: Any) -> int:  # noqa: N802  # its name
        config = at._obj
        words = [ctypes.c_uint64.from_address(p).value for p in parameters]
        self.seen.append(
            (tuple(config.grid), tuple(config.block), config.shared, config.stream, config.count, words)
        )
        assert function.value == 77
        assert extra is None
        return self.refusal


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: made)
    return made


def kernel(**changes: Any) -> Any:
    runner = {
        "global_scratch_size": 0,
        "profile_scratch_size": 0,
        "launch_cooperative_grid": False,
        "launch_pdl": False,
    }
    return SimpleNamespace(
        run=SimpleNamespace(**runner | changes),
        function=77,
        metadata=SimpleNamespace(shared=640, num_warps=4),
    )


def test_the_driver_gets_every_argument_in_the_order_of_the_kernel(call: Call, library: Driver) -> None:
    passed = [leaf for leaf in calls.leaves(call.arguments) if calls.signature_of(leaf) != "constexpr"]
    compiled = calls.compile_for(call, 90)
    assert compiled.asm["ptx"].split(".entry")[1].split(")")[0].count(".param") - len(passed) <= driver.HIDDEN
    begin = driver.direct(
        call, kernel(launch_pdl=True), call.grid, lambda *given: pytest.fail("left to Triton")
    )
    for stream, first in ((7, 4096), (0, 8192)):
        begin(stream, first, 1 << 40)
        grid, block, shared, where, attributes, words = library.seen[-1]
        addresses = iter((first, 1 << 40))
        want = [next(addresses) - leaf.before if isinstance(leaf, Pointer) else leaf for leaf in passed]
        assert [w if w < 1 << 63 else w - (1 << 64) for w in words] == [*want, *[0] * driver.HIDDEN]
        assert (grid, block, shared, attributes) == ((call.grid, *call.across), (128, 1, 1), 640, 1)
        assert where == (stream or None)


def test_what_the_driver_refuses_is_left_to_triton_which_says_why(call: Call, library: Driver) -> None:
    left: list[Any] = []
    begin = driver.direct(call, kernel(), call.grid, lambda *given: left.append(given))
    library.refusal = 201
    begin(7, 16, 32)
    assert left == [(7, 16, 32)]
    library.refusal = 0
    begin(7, 16, 32)
    assert len(left) == 1


def test_a_launch_inside_of_a_launch_is_left_to_triton(
    call: Call, library: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread's would be, which finds the arguments' memory in use."""
    left: list[Any] = []
    begin: Any = None
    ours = library.cuLaunchKernelEx

    def nested(*given: Any) -> int:
        if not left:
            begin(8, 1, 2)
        return ours(*given)

    monkeypatch.setattr(library, "cuLaunchKernelEx", nested, raising=False)
    begin = driver.direct(call, kernel(), call.grid, lambda *given: left.append(given))
    begin(7, 16, 32)
    assert left == [(8, 1, 2)]
    assert len(library.seen) == 1
    assert library.seen[0][3] == 7


@pytest.mark.parametrize(
    "changes",
    [{"global_scratch_size": 8}, {"profile_scratch_size": 8}, {"launch_cooperative_grid": True}],
    ids=str,
)
def test_kernels_with_more_to_them_are_left_to_triton(
    call: Call, library: Driver, changes: dict[str, Any]
) -> None:
    other: Any = object()
    assert driver.direct(call, kernel(**changes), call.grid, other) is other


def test_clusters_and_machines_without_the_driver_are_left_to_triton(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: Any = object()
    assert driver.direct(replace(call, cluster=2), kernel(), call.grid, other) is other

    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver.direct(call, kernel(), call.grid, other) is other


@pytest.mark.parametrize(("grid", "launched"), [(2048, 528), (100, 100)])
def test_no_more_persistent_programs_are_launched_than_run_at_once(
    call: Call, library: Driver, monkeypatch: pytest.MonkeyPatch, grid: int, launched: int
) -> None:
    utils = SimpleNamespace(cuOccupancyMaxActiveClusters=lambda *_: 528)
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=SimpleNamespace(utils=utils)))
    made = kernel()
    made.packed_metadata = ()
    monkeypatch.setattr(launch, "compiled", lambda *_: made)
    addresses = [16] * sum(isinstance(leaf, Pointer) for leaf in calls.leaves(call.arguments))
    for persistent, want in ((True, launched), (False, grid)):
        launch.launcher(replace(call, grid=grid, persistent=persistent), 0)(7, *addresses)
        assert library.seen[-1][0] == (want, 1, 1)
