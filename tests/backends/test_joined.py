"""Several executables' launches as one function of addresses, beside the same calls one by one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from backends.machines import Machine, stand_in
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.api.replays import Made, Replay, Tape
from tilefold.api.requests import Reduction
from tilefold.backends.triton.executable import Executable
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.device import H200
from tilefold.planner.problem.canonical import contiguous_strides

Tensor = torch.Tensor


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return stand_in(monkeypatch)


def fold(tape: Tape, machine: Machine, x: Tensor, monoid: Any) -> list[Tensor]:
    """A fold along dim 1, noted."""
    program = programs.specialize(monoid.total, (x.dtype,))
    request = Reduction(program, (1,), "run_to_run", (x.shape[0],))
    problem, plan = request.plan([x], H200, library=False)
    calls = calls_of(plan, problem, request.computation)
    machine.hold(x)
    return tape.call(Executable(plan, calls, request.computation, 1, request.results, 0), [x]) or []


def again(
    replay: Replay | None, machine: Machine, given: Sequence[Tensor | None], *views: Tensor
) -> list[Any]:
    assert replay is not None
    assert replay.joined is not None
    for t in (*given, *views):
        if t is not None:
            machine.hold(t)
    machine.launched.clear()
    return replay(given) or []


@pytest.mark.parametrize(
    "view",
    [lambda t: t, lambda t: t[2:], lambda t: t.T, lambda t: t[:, 4:8], lambda t: t[3:4].expand(5, -1)],
    ids=["itself", "rows", "transposed", "columns", "one row"],
)
def test_launches_read_views_by_their_addresses(machine: Machine, view: Callable[[Tensor], Tensor]) -> None:
    x, g = torch.randn(8, 8), torch.randn(3)
    tape = Tape((x, None, g))
    (sums,) = fold(tape, machine, view(x), monoids.SUM)
    (most,) = fold(tape, machine, sums.expand(2, -1), monoids.MAX)
    replay = tape.replay([most, None, g, sums.view(1, -1), x[1:, ::2]])
    memory = torch.randn(100)
    other, cotangent = memory[16:80].view(8, 8), torch.randn(3)
    made, none, same, seen, part = again(replay, machine, (other, None, cotangent), view(other))
    want = view(other).sum(1)
    torch.testing.assert_close(made, want.max().expand(2))
    torch.testing.assert_close(seen, want.view(1, -1))
    assert torch.equal(part, other[1:, ::2])
    assert none is None
    assert same is cotangent
    assert machine.launched == ["fold_lanes"] * 2


def test_a_result_seen_in_one_shape_is_made_so_and_others_are_views(machine: Machine) -> None:
    x = torch.randn(6, 8)
    tape = Tape((x,))
    (first,), (second,), (third,) = (fold(tape, machine, x[i:], monoids.SUM) for i in (0, 0, 2))
    replay = tape.replay([first.view(2, 3), second, second.view(3, 2), third[1:]])
    made = again(replay, machine, (x,), x[2:])
    torch.testing.assert_close(made[0], x.sum(1).view(2, 3))
    torch.testing.assert_close(made[2], x.sum(1).view(3, 2))
    torch.testing.assert_close(made[3], x[3:].sum(1))
    assert [t._is_view() for t in made] == [False, False, True, True]
    assert made[1].data_ptr() == made[2].data_ptr()


def test_workspaces_and_constants(machine: Machine) -> None:
    x, most = torch.randn(1, 1 << 17), torch.randn(4, 8)
    tape = Tape((x,))
    tape.constants.append(most)
    values = fold(tape, machine, x, monoids.MAX_WITH_INDEX)
    (of_constant,) = fold(tape, machine, most, monoids.SUM)
    made = again(tape.replay([*values, of_constant]), machine, (x,))
    want = x.max(1)
    assert torch.equal(made[0], want.values)
    assert torch.equal(made[1], want.indices)
    torch.testing.assert_close(made[2], most.sum(1))
    assert machine.launched == ["fold_lanes"] * 3


def test_memory_that_nothing_reads_is_given_back_before_the_next_call(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 8)
    tape = Tape((x,))
    first = fold(tape, machine, x, monoids.SUM)
    last = fold(tape, machine, x, monoids.MAX)
    del first
    replay = tape.replay(last)
    alive: list[Any] = []
    held = []

    def empty(shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
        held.append(sum(made() is not None for made in alive))
        assert tuple(strides) == contiguous_strides(shape)
        made = torch.empty(tuple(shape), dtype=dtype)
        alive.append(weakref.ref(made))
        return made

    assert replay is not None
    assert replay.joined is not None
    monkeypatch.setitem(replay.joined.__globals__, "empty", empty)
    launches = [name for name in replay.joined.__globals__ if name.startswith("step")]
    for name in launches:
        monkeypatch.setitem(replay.joined.__globals__, name, lambda *addresses: None)
    replay((x,))
    assert held == [0, 0]


def test_steps_that_are_no_launches_and_two_devices_are_called_one_by_one(machine: Machine) -> None:
    x = torch.randn(4, 8)
    nothing = torch.empty(4, 0)
    for calls in (
        lambda tape: fold(tape, machine, nothing, monoids.SUM),
        lambda tape: [tape.note(Made(lambda t: [t]), [x], [x]), fold(tape, machine, x, monoids.MAX)][1],
    ):
        tape = Tape((x, nothing))
        replay = tape.replay(calls(tape))
        assert replay is not None
        assert replay.joined is None
    tape = Tape((x,))
    made = [*fold(tape, machine, x, monoids.SUM), *fold(tape, machine, x, monoids.MAX)]
    tape.calls[1][0].index = 1
    replay = tape.replay(made)
    assert replay is not None
    assert replay.joined is None
