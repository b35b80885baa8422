"""A function of rows and of the element of each that its index chooses: on every backend, and its kernel from PTX."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

import tilefold
from asked import asked, by_ptx
from backends.machines import Machine, stand_in
from defined_losses import TOLERANCES, near
from tilefold.algebra.expression import trace
from tilefold.api import dispatch, losses
from tilefold.api.chosen import map_chosen, put_chosen, same
from tilefold.api.differentiated import Differentiated
from tilefold.api.ends import function_of
from tilefold.planner.device import H200

Tensor = torch.Tensor
FUNCTION = function_of(trace(lambda value, index, x, weight: (value + x * 2.0, index + 1, weight * x), 4))
NAMED = {"guarantee": "run_to_run", "call": "cross_entropy"}
SHAPES = [(300, 77), (5, 9, 3), (1, 4), (7, 1), (130, 3, 2, 2)]
INDICES = (torch.int64, torch.int32, torch.int16, torch.uint8)


def drawn(
    shape: tuple[int, ...], dtype: torch.dtype, kind: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A table of any strides, weights of its classes, values, indices of which some are no class, and what they count as."""
    torch.manual_seed(len(shape))
    rows = (shape[0], 1, *shape[2:])
    x = torch.randn(shape[::-1]).to(dtype).permute(*reversed(range(len(shape))))
    weight = torch.rand(shape[1]).reshape(shape[1], *[1] * (len(shape) - 2)).expand(shape)
    index = torch.randint(0 if kind == torch.uint8 else -2, shape[1] + 2, rows).to(kind)
    place = torch.where((index >= 0) & (index < shape[1]), index, 0).to(torch.int64)
    return x, weight, torch.randn(rows), index, place


def ways() -> dict[str, Callable[[Callable[[], list[Tensor]]], list[Tensor]]]:
    def forced(name: str) -> Callable[[Callable[[], list[Tensor]]], list[Tensor]]:
        def run(call: Callable[[], list[Tensor]]) -> list[Tensor]:
            with tilefold.backend(name):
                return call()

        return run

    return {
        "PTX": by_ptx,
        **{name: forced(name) for name in ("auto", "cpu", "torch", "reference", "interpret")},
    }


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("kind", INDICES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_index_chooses_elements(
    shape: tuple[int, ...], dtype: torch.dtype, kind: torch.dtype, way: str
) -> None:
    x, weight, value, index, place = drawn(shape, dtype, kind)

    def call() -> list[Tensor]:
        return map_chosen(FUNCTION, [value], index, [x, weight], 1, dtype=torch.float32, **NAMED)

    for _ in range(2):  # a call like an earlier one is answered by its executable
        made = ways()[way](call)
        taken, weights = x.gather(1, place).float(), weight.gather(1, place)
        torch.testing.assert_close(made[0], value + taken * 2)
        assert torch.equal(made[1].to(torch.int64), index.to(torch.int64) + 1)
        torch.testing.assert_close(made[2], weights * taken)


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_become_the_chosen_elements(shape: tuple[int, ...], dtype: torch.dtype, way: str) -> None:
    x, _, value, index, place = drawn(shape, dtype, torch.int64)
    want = x.clone().scatter_(1, place, value.to(dtype))
    for _ in range(2):
        own = x.clone()
        ways()[way](functools.partial(put, own, index, value))
        assert torch.equal(own, want)


def put(x: Tensor, index: Tensor, value: Tensor) -> list[Tensor]:
    assert put_chosen(x, same(), [value], index, 1, **NAMED) is x
    return [x]


def test_one_launch_that_reads_a_sector_of_each_row() -> None:
    x = torch.empty(16384, 8192, dtype=torch.bfloat16, device="meta")
    value = torch.empty(16384, 1, device="meta")
    index = torch.empty(16384, 1, dtype=torch.int64, device="meta")
    tables = [x, torch.empty(1, 8192, device="meta").expand(x.shape)]
    request, tensors, plan = asked(
        lambda: map_chosen(FUNCTION, [value], index, tables, 1, dtype=torch.float32, **NAMED)
    )
    assert [step.kernel for step in plan.launched] == ["map_chosen"]
    moved = dispatch.plan_for(request, tensors, H200).moved_bytes
    assert moved == 16384 * (4 + 8 + 32 + 3 * 4) + 4 * 8192


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Calls of tensors on a CPU run as on a GPU, from their PTX."""
    machine, called = stand_in(monkeypatch), dispatch._called

    def held(executable: object, tensors: list[Tensor]) -> list[Tensor] | None:
        for t in tensors:
            machine.hold(t)
        return called(executable, tensors)

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(dispatch, "_called", held)
    monkeypatch.setattr(dispatch, "_backend_of", lambda request, tensors: "triton")
    monkeypatch.setattr(dispatch, "device_of", lambda index: H200)
    monkeypatch.setattr(losses, "check_targets", lambda *_: None)  # as on a GPU
    dispatch._executables.clear()
    yield machine
    dispatch._executables.clear()


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({}, ["fold_lanes", "map_chosen", "fold_lanes"], ["map_elements", "map_chosen"]),
        ({"reduction": "none"}, ["fold_lanes", "map_chosen"], ["map_elements", "map_chosen"]),
        ({"weight": True}, ["fold_lanes", "map_chosen", "fold_lanes"], ["map_elements", "map_chosen"]),
    ],
    ids=["mean", "none", "weighted"],
)  # fmt: skip
def test_a_loss_and_its_gradient_are_launches_joined(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    first: list[str],
    second: list[str],
) -> None:
    """On a GPU a repeated call is its launches alone: no operation of torch's stands between them."""
    made = list[Differentiated]()
    known = Differentiated.__init__

    def noted(self: Differentiated, *arguments: object, **named: object) -> None:
        known(self, *arguments, **named)
        made.append(self)

    monkeypatch.setattr(Differentiated, "__init__", noted)
    x, target = torch.randn(37, 40).to(torch.bfloat16).requires_grad_(), torch.randint(0, 40, (37,))
    target[3] = -100
    if "weight" in options:
        options = {"weight": machine.hold(torch.rand(40) + 0.5)}
    machine.hold(x.detach())
    machine.hold(target)
    wide = x.detach().double().requires_grad_()
    named = {name: t.double() if isinstance(t, Tensor) else t for name, t in options.items()}
    want = torch.nn.functional.cross_entropy(wide, target, **named)
    (of_wide,) = torch.autograd.grad(want.sum(), wide)
    for _ in range(3):
        machine.launched.clear()
        loss = tilefold.cross_entropy(x, target, **options)
        forward = machine.launched[:]
        machine.launched.clear()
        (of_x,) = torch.autograd.grad(loss, x, machine.hold(torch.ones_like(loss)))
        near(loss, want, TOLERANCES[x.dtype])
        near(of_x, of_wide, TOLERANCES[x.dtype])
    (call,) = made
    backward = next(iter(call._backwards.values())).replay
    assert call._forward is not None
    assert call._forward.joined is not None
    assert backward is not None
    assert backward.joined is not None
    assert (forward, machine.launched) == (first, second)
