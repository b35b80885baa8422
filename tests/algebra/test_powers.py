"""Sums of squares and powers whose elements leave the range of squares, on the backends that a CPU has."""

from __future__ import annotations

import math

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.algebra.evaluate import evaluate_as
from tilefold.algebra.program import specialize
from tilefold.backends import reference

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # numpy's, under Triton's interpreter
BACKENDS = ["auto", "cpu", "reference", "interpret"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_of_unlike_units(backend: str) -> None:
    """Neighbours on both sides of where units change, and of magnitudes that are far apart."""
    edge = torch.tensor([2.0 - 2.0**-23, 2.0, 2.0 + 2.0**-22] * 12)
    far = torch.cat([torch.full((12,), 1e-30), torch.full((12,), 3e20), torch.full((12,), 1e5)])
    steps = torch.cat(
        [torch.linspace(0.5, 1.75, 12), torch.linspace(2.5, 3.5, 12)]
    )  # many of a unit, then many of the next
    for x in (edge, far, edge * 2.0**64, far.flip(0), steps):
        with tilefold.backend(backend):
            got, norm = tilefold.std(x), tilefold.vector_norm(x)
            moments = tilefold.reduce(x, monoids.WELFORD, 0)
        torch.testing.assert_close(got, x.double().std().float(), rtol=1e-5, atol=0.0)
        torch.testing.assert_close(norm, torch.linalg.vector_norm(x.double()).float(), rtol=1e-6, atol=0.0)
        assert moments.count == len(x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("power", [-146, -100, 0, 60, 100, 126])
def test_rows_that_leave_the_range(power: int, backend: str) -> None:
    x = torch.randint(-9, 10, (2, 40), generator=torch.Generator().manual_seed(1)).float()
    x = torch.ldexp(x / 8 if power > 120 else x, torch.tensor(power))
    wide = x.double()
    with tilefold.backend(backend):
        layer, root = tilefold.layer_norm(x, (40,), eps=0.0), tilefold.rms_norm(x, (40,), eps=0.0)
        shares = [tilefold.normalize(x, p, eps=0.0) for p in (2.0, 1.0, 3.0)]
    norms = torch.nn.functional
    scaled = wide * 2.0**-power
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(layer, norms.layer_norm(scaled, (40,), eps=0.0).float(), **close)
    torch.testing.assert_close(root, norms.rms_norm(scaled, (40,), eps=1e-300).float(), **close)
    for share, p in zip(shares, (2.0, 1.0, 3.0), strict=True):
        torch.testing.assert_close(share, norms.normalize(scaled, p, eps=0.0).float(), **close)


@pytest.mark.parametrize("p", [3.0, 0.5, -2.0, 50.0, 200.0])
def test_powers_of_any_order(p: float) -> None:
    x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 1.0, 2.0], [math.inf, 1.0, 2.0], [math.nan, 1.0, 0.0]])
    for scale in (1e-30, 1.0, 1e30):
        want = torch.linalg.vector_norm(x.double(), p, 1) * scale
        for backend in BACKENDS:
            with tilefold.backend(backend):
                got = tilefold.vector_norm(x * scale, p, 1)
            torch.testing.assert_close(got, want.float(), rtol=2e-5, atol=0.0, equal_nan=True)


BLOCKS = {
    "welford": monoids.WELFORD, "describe": monoids.DESCRIBE, "norm2": monoids.NORM(2.0), "norm3": monoids.NORM(3.0),
    "norm-1": monoids.NORM(-1.0),
}  # fmt: skip


ORDERS = (math.inf, -math.inf, 0.0, 1.0, 2.0, 3.0, 0.5, -1.5)


@pytest.mark.parametrize("p", ORDERS)
def test_a_norms_identity_adds_nothing(p: float) -> None:
    """To magnitudes below 1 and above: a fold that begins with it has the definition's result."""
    x = torch.tensor([[0.25, -0.5, 0.125], [-3.0, 2.0, 5.0], [1e-30, 2e-30, -3e-30]])
    for backend in BACKENDS:
        with tilefold.backend(backend):
            got = tilefold.reduce(x, monoids.NORM(p), 1)
        torch.testing.assert_close(
            got, torch.linalg.vector_norm(x.double(), p, 1).float(), rtol=2e-6, atol=0.0
        )
    program = specialize(monoids.NORM(p).total, (torch.float32,))
    lifted = [torch.as_tensor(v) for v in evaluate_as(program.lift, [x[:, :1]], program.state, ())]
    identity = [
        torch.tensor(v, dtype=d).expand(3, 1) for v, d in zip(program.identity, program.state, strict=True)
    ]
    for states in ([*identity, *lifted], [*lifted, *identity]):
        for made, alone in zip(evaluate_as(program.combine, states, program.state, ()), lifted, strict=True):
            assert torch.equal(torch.as_tensor(made), alone)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 3e30])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_its_elements(name: str, scale: float) -> None:
    """A state begun with a block, and one that absorbs another, give the results of the elements one after another."""
    program = specialize(BLOCKS[name].total, (torch.float32,))
    assert program.begin is not None
    assert program.absorb is not None
    x = torch.tensor([3.0, -1.0, 2.5, 0.0, -7.0, 4.0, 0.5, 1.0, -2.0, 9.0, 6.0, -0.25]).repeat(2, 1)
    x[1] = x[1].flip(0) * 4 + 1
    x = x * scale
    if name == "norm-1":
        x = x + scale / 8  # none of them 0
    parts, index = x.split([5, 7], 1), torch.zeros(1, dtype=torch.int64)
    state = evaluate_as(program.begin, [parts[0], index], program.state, (1,))
    state = [torch.as_tensor(field).expand(2, 1) for field in state]
    state = evaluate_as(program.absorb, [*state, parts[1], index], program.state, (1,))
    results = evaluate_as(program.project, state, program.outputs)
    for got, want in zip(results, reference.fold([x], program, (1,)), strict=True):
        torch.testing.assert_close(
            torch.as_tensor(got).expand(2, 1)[:, 0], want, rtol=2e-6, atol=0.0, equal_nan=True
        )


@pytest.mark.parametrize("scale", [2.0**-330, 2.0**-100, 1.0, 2.0**330])
@pytest.mark.parametrize("p", [3.0, 2.5, 0.7, -3.0])
def test_a_root_of_a_float64_far_from_1_keeps_its_digits(p: float, scale: float) -> None:
    """1 / p is rounded, and a power of it is off by that times the logarithm: 120 ulp without more."""
    x = torch.tensor([[3.0, 1.0, 2.0, 0.3]], dtype=torch.float64)
    want = torch.linalg.vector_norm(x, p, 1) * scale  # exact: a power of two
    for backend in ("cpu", "reference"):
        with tilefold.backend(backend):
            got = tilefold.vector_norm(x * scale, p, 1)
        torch.testing.assert_close(got, want, rtol=3e-15, atol=0.0)


@pytest.mark.parametrize("p", [math.nan, 5e-324])
def test_orders_without_a_share_are_orders_too(p: float) -> None:
    x = torch.tensor([3.0, 1.0])
    got, want = tilefold.vector_norm(x, p), torch.linalg.vector_norm(x, p)
    torch.testing.assert_close(got, want, equal_nan=True)
