"""Five training scripts on a chip that is not there, beside the same steps by torch on the host."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from tilefold.xray import capture
from xray.capture import programs

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
}


class Plain(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.weight = scale.weight

    def forward(self, x):
        return x * self.weight


def _twins():
    torch.manual_seed(0)
    net = programs.model()
    twin = copy.deepcopy(net)
    twin[1] = Plain(twin[1])
    return net, twin, torch.randn(4, 8), torch.randn(4, 1)


def test_an_autograd_function_around_kernels_trains_as_on_the_host():
    net, twin, x, y = _twins()
    want = programs.train(twin, torch.optim.SGD(twin.parameters(), lr=0.1), x, y)
    with capture() as captured:
        net = net.cuda()
        got = programs.train(net, torch.optim.SGD(net.parameters(), lr=0.1), x.cuda(), y.cuda())
        assert all(p.is_cuda and p.grad.is_cuda for p in net.parameters())
    assert got == pytest.approx(want, rel=1e-5)
    names = [launch.kernel for launch in captured.launches]
    assert names == ["affine_kernel", "affine_backward_kernel"] * 2
    assert all(launch.executed for launch in captured.launches)
    assert [launch.times for launch in captured.distinct()] == [2, 2]
    assert not any(p.is_cuda for p in net.parameters()), "after the capture tensors are the host's again"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_parameters_of_the_device(name):
    net, twin, x, y = _twins()
    want = programs.train(twin, OPTIMIZERS[name](twin.parameters()), x, y)
    with capture():
        net = net.to("cuda:0")
        optimizer = OPTIMIZERS[name](net.parameters())
        got = programs.train(net, optimizer, x.to("cuda"), y.to(torch.device("cuda")))
        held = [
            v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v) and v.dim()
        ]
        assert [v.is_cuda for v in held] == [True] * len(held) != []
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_hands_kernels_the_low_precision(dtype):
    net, _, x, y = _twins()
    with capture() as captured:
        assert not torch.is_autocast_enabled("cpu")
        net = net.cuda()
        programs.train(net, torch.optim.SGD(net.parameters(), lr=0.1), x.cuda(), y.cuda(), 1, autocast=dtype)
        assert not torch.is_autocast_enabled("cpu")
    kind = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    forward, backward = captured.launches
    assert [a.type for a in forward.job.arguments[:3]] == [kind] * 3
    assert [a.type for a in backward.job.arguments[:5]] == [*[kind] * 4, "fp32"]


def test_a_grad_scaler_scales_unscales_and_skips():
    net, twin, x, y = _twins()
    want = programs.train(twin, torch.optim.SGD(twin.parameters(), lr=0.1), x, y, 1)
    with capture():
        net = net.cuda()
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        got = programs.train(net, optimizer, x.cuda(), y.cuda(), 1, scaler=scaler)
        before = net[0].weight.detach().clone()
        scaler.scale(net(x.cuda()).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, net[0].weight)
        assert scaler.get_scale() == 2.0**9
    assert got == pytest.approx(want, rel=1e-5)


def test_a_loader_with_pinned_memory_feeds_the_device():
    net, _, x, y = _twins()
    with capture() as captured:
        data = torch.utils.data.TensorDataset(x, y)
        loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
        net = net.cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for a, b in itertools.islice(loader, 2):
            assert a.is_pinned()
            assert not a.is_cuda
            programs.train(net, optimizer, a.to("cuda", non_blocking=True), b.cuda(non_blocking=True), 1)
        torch.cuda.synchronize()
    assert len(captured.launches) == 4
