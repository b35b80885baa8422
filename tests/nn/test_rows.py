"""`tilefold.nn`'s softmax and norms beside torch's: state, results, gradients, autocast, graphs."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold

Tensor = torch.Tensor
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "softmax": ("Softmax", (1,), {}, (5, 7)),
    "softmax of columns": ("Softmax", (), {"dim": -2}, (5, 7)),
    "log_softmax": ("LogSoftmax", (-1,), {}, (2, 5, 7)),
    "layer_norm": ("LayerNorm", (7,), {}, (5, 7)),
    "layer_norm of two dims": ("LayerNorm", ([5, 7],), {"eps": 1e-3}, (2, 5, 7)),
    "layer_norm without bias": ("LayerNorm", (7,), {"bias": False}, (5, 7)),
    "layer_norm without parameters": ("LayerNorm", (7, 0.1, False), {}, (5, 7)),
    "rms_norm": ("RMSNorm", (7,), {}, (5, 7)),
    "rms_norm of two dims": ("RMSNorm", ((5, 7),), {"eps": 1e-3}, (2, 5, 7)),
    "rms_norm without parameters": ("RMSNorm", (7,), {"elementwise_affine": False}, (5, 7)),
    "group_norm": ("GroupNorm", (2, 6), {}, (3, 6, 4)),
    "group_norm without parameters": ("GroupNorm", (3, 6, 1e-3, False), {}, (3, 6, 2, 2)),
}
KINDS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm")
every = pytest.mark.parametrize("name", list(CASES))


def pair(name: str, **more: Any) -> tuple[Any, Any, Tensor]:
    """Ours and torch's with the same random parameters, and an input."""
    kind, arguments, options, shape = CASES[name]
    dtype = more.get("dtype", torch.float64)
    more = more if kind.endswith("Norm") else {}
    ours, theirs = (getattr(n, kind)(*arguments, **options, **more) for n in (tilefold.nn, torch.nn))
    for p in theirs.parameters():
        torch.nn.init.normal_(p)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, torch.randn(shape, dtype=dtype, requires_grad=True)


@every
def test_the_state_and_the_text_are_torchs(name: str) -> None:
    ours, theirs, _ = pair(name)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, type(theirs))
    kind, arguments, options, _ = CASES[name]
    for ours, theirs in [
        (getattr(tilefold.nn, kind)(*arguments, **options), getattr(torch.nn, kind)(*arguments, **options))
    ]:
        for got, want in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(got, want)
            assert got.dtype == want.dtype


@every
def test_results_and_gradients(name: str) -> None:
    ours, theirs, x = pair(name, dtype=torch.float64)
    want, got = theirs(x), ours(x)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), want, rtol=1e-12, atol=1e-14)
    cotangent = torch.randn_like(want)
    for given, wanted in zip(
        torch.autograd.grad(got, [x, *ours.parameters()], cotangent),
        torch.autograd.grad(want, [x, *theirs.parameters()], cotangent),
        strict=True,
    ):
        torch.testing.assert_close(given, wanted, rtol=1e-10, atol=1e-13)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, of rms_norm
@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes_inside_and_outside_of_autocast(name: str, dtype: torch.dtype) -> None:
    for own in {dtype, torch.float32}:
        ours, theirs, _ = pair(name, dtype=own)
        x = torch.randn(CASES[name][3], dtype=dtype, requires_grad=True)
        for enabled in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                want, got = theirs(x), ours(x)
            assert got.dtype == want.dtype
            rounding = torch.finfo(dtype).eps
            torch.testing.assert_close(got, want, rtol=8 * rounding, atol=rounding)
            found = torch.autograd.grad(got.sum(), [x, *ours.parameters()])
            assert [g.dtype for g in found] == [x.dtype, *(p.dtype for p in ours.parameters())]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, of rms_norm
@every
def test_results_on_a_gpu(name: str) -> None:
    for dtype, own in itertools.product((torch.float32, torch.bfloat16), repeat=2):
        ours, theirs, _ = pair(name, dtype=own, device="cuda")
        x = torch.randn(CASES[name][3], dtype=dtype, device="cuda")
        for enabled in (False, True):
            if own != dtype and not enabled:  # torch refuses other parameters
                continue
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled), torch.no_grad():
                want, got = theirs(x), ours(x)
            assert got.dtype == want.dtype
            rounding = torch.finfo(dtype).eps
            apart = rounding if dtype == torch.bfloat16 else 4 * rounding  # terms of up to 4 may cancel
            torch.testing.assert_close(got, want, rtol=8 * rounding, atol=apart)


def test_compiled_as_one_graph() -> None:
    torch._dynamo.reset()
    modules, xs = zip(*[(ours, x) for ours, _, x in map(pair, KINDS)], strict=True)
    inputs = [*xs, *(p for module in modules for p in module.parameters())]

    def weighed(*xs: Tensor) -> Tensor:
        made = [module(x) for module, x in zip(modules, xs, strict=True)]
        return torch.stack([(y * y.detach().cos()).sum() for y in made])

    want, got = weighed(*xs), torch.compile(weighed, fullgraph=True, backend="aot_eager")(*xs)
    assert torch.equal(got, want)
    for one, other in zip(*(torch.autograd.grad(y.sum(), inputs) for y in (got, want)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_a_residual(kind: str) -> None:
    ours = getattr(tilefold.nn, kind)(7, dtype=torch.float64)
    theirs = getattr(torch.nn, kind)(7, dtype=torch.float64)
    x, residual = torch.randn(2, 5, 7, dtype=torch.float64)
    y, total = ours(x, residual=residual)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(y, theirs(x + residual), rtol=1e-12, atol=1e-14)


def test_arguments_of_torchs_and_the_guarantee() -> None:
    empty = tilefold.nn.LayerNorm((3, 2), 1e-3, True, False, device="meta", dtype=torch.bfloat16)
    assert empty.weight.is_meta
    assert (empty.weight.dtype, tuple(empty.weight.shape), empty.bias) == (torch.bfloat16, (3, 2), None)
    shift = tilefold.nn.GroupNorm(2, 4, bias=False)
    assert shift.bias is None
    assert list(shift.state_dict()) == ["weight"]
    made: list[tuple[Callable[..., Any], str]] = [
        (tilefold.nn.Softmax, "dim=1"), (tilefold.nn.LogSoftmax, "dim=1"),
        (tilefold.nn.RMSNorm, "(1,), eps=None, elementwise_affine=True"),
    ]  # fmt: skip
    for kind, text in made:
        module = kind(1, guarantee="batch_invariant")
        assert repr(module) == f"{kind.__name__}({text}, guarantee=batch_invariant)"
        for same in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert repr(same) == repr(module)


def test_a_row_does_not_know_its_batch() -> None:
    x = torch.randn(33, 300)
    for layer in (
        tilefold.nn.Softmax(1, guarantee="batch_invariant"),
        tilefold.nn.RMSNorm(300, guarantee="batch_invariant"),
    ):
        with torch.no_grad():
            assert torch.equal(layer(x[7:8]), layer(x)[7:8])
