"""Cross-entropy on a device: beside float64, its launches and nothing else, without waiting, with the same bits."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import tilefold
from defined_losses import TOLERANCES, defined, near

pytestmark = pytest.mark.gpu
Tensor = torch.Tensor
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "none": {"reduction": "none"},
    "sum": {"reduction": "sum", "weight": True},
    "all": {"weight": True, "label_smoothing": 0.1, "z_loss": 1e-2, "softcap": 8.0, "return_lse": True},
}


def drawn(
    shape: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Logits, targets of which some are ignored, and the options with weights of classes."""
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    x = torch.randn(shape, device="cuda", generator=generator).to(dtype).requires_grad_()
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]), device="cuda", generator=generator)
    target[1::7] = -100
    if "weight" in options:
        options = options | {"weight": torch.rand(shape[1], device="cuda", generator=generator) + 0.5}
    return x, target, options


def with_gradient(x: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    loss = tilefold.cross_entropy(x, target, **options)
    loss = loss[0] if isinstance(loss, tuple) else loss
    return loss, torch.autograd.grad(loss, x, torch.ones_like(loss))[0]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("shape", [(300, 5003), (1, 1), (2048, 777), (64, 100, 33), (70000, 8)], ids=str)
def test_losses_and_gradients(shape: tuple[int, ...], name: str, dtype: torch.dtype) -> None:
    x, target, options = drawn(shape, dtype, OPTIONS[name])
    wide = x.detach().double().requires_grad_()
    named = {k: v.double() if isinstance(v, Tensor) else v for k, v in options.items() if k != "return_lse"}
    want, _ = defined(wide, target, **named)
    (of_wide,) = torch.autograd.grad(want, wide, torch.ones_like(want))
    for _ in range(3):  # as a first call, and as one like an earlier one
        loss, of_x = with_gradient(x, target, **options)
        near(loss, want.to(dtype), TOLERANCES[dtype])  # a sum may be infinite in float16
        if shape[1] == 1:  # of one class the shares cancel, in float32 at least
            bound = TOLERANCES[dtype]
            torch.testing.assert_close(
                of_x.double(), of_wide, rtol=bound, atol=min(bound, TOLERANCES[torch.float32])
            )
        else:
            near(of_x, of_wide, TOLERANCES[dtype])


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8], ids=str)
def test_targets_of_other_integers_in_any_strides(kind: torch.dtype) -> None:
    x, target, _ = drawn((130, 200, 6), torch.bfloat16, {})
    target = target.clamp(min=0)
    turned = x.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0).requires_grad_()
    strided = target.to(kind).T.contiguous().T
    for got, want in zip(with_gradient(turned, strided), with_gradient(x, target), strict=True):
        near(got, want, TOLERANCES[torch.bfloat16])


def test_targets_that_are_no_classes() -> None:
    x, target, _ = drawn((64, 503), torch.bfloat16, {})
    target[3], target[5], target[6], target[9] = 503, -100, -1, 1 << 40
    loss, of_x = with_gradient(x, target, reduction="none")
    nan = torch.tensor([i in (3, 6, 9) for i in range(64)], device="cuda")
    assert torch.equal(loss.isnan(), nan)
    assert torch.equal(of_x.isnan().all(1), nan)
    assert not of_x[5].any()
    with pytest.raises(IndexError, match="got 503"):
        tilefold.cross_entropy(x, target, validate=True)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_repeated_call_is_kernels_of_ours_alone(name: str) -> None:
    x, target, options = drawn((512, 1000), torch.bfloat16, OPTIONS[name])
    one = torch.ones_like(with_gradient(x, target, **options)[0])

    def run() -> None:
        loss = tilefold.cross_entropy(x, target, **options)
        torch.autograd.grad(loss[0] if isinstance(loss, tuple) else loss, x, one)

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        run()
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert names
    assert all(name.startswith(("fold_", "map_")) for name in names), names


def test_nothing_waits_for_the_device() -> None:
    x, target, _ = drawn((512, 1000), torch.bfloat16, {})
    with_gradient(x, target)
    try:
        with warnings.catch_warnings(action="ignore"):  # of a prototype
            torch.cuda.set_sync_debug_mode("error")
        with_gradient(x, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_same_bits_also_compiled_and_in_a_graph() -> None:
    x, target, _ = drawn((512, 3001), torch.bfloat16, {})
    first = with_gradient(x, target)
    assert all(map(torch.equal, first, with_gradient(x, target)))
    compiled = torch.compile(tilefold.cross_entropy, fullgraph=True)(x, target)
    assert torch.equal(compiled, first[0])
    assert torch.equal(torch.autograd.grad(compiled, x)[0], first[1])
    x = x.detach().requires_grad_()  # a leaf's gradient goes to the stream on which it was asked for first
    (stream := torch.cuda.Stream()).wait_stream(torch.cuda.current_stream())  # type: ignore[no-untyped-call]  # torch's own
    with torch.cuda.stream(stream):
        with_gradient(x, target)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = with_gradient(x, target)
    graph.replay()
    assert all(map(torch.equal, first, held))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_are_no_worse_than_torchs(dtype: torch.dtype) -> None:
    x, target, _ = drawn((1024, 32000), dtype, {})
    (_, own), wide = with_gradient(x, target), x.detach().double().requires_grad_()
    (other,) = torch.autograd.grad(F.cross_entropy(x, target), x)
    (exact,) = torch.autograd.grad(F.cross_entropy(wide, target), wide)
    assert (own - exact).norm() <= 1.02 * (other - exact).norm()
