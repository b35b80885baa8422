"""The kernels that torch.compile makes for the chip, launched by its own wrapper code."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.device_interface  # which holds functions of torch.cuda as they are now

from answers import floor
from tilefold.xray import capture


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_a_compiled_function_launches_its_kernels_forth_and_back(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with capture() as captured:

        def function(x, w):
            return torch.softmax(torch.nn.functional.gelu(x[1:] @ w), -1)

        compiled = torch.compile(function, fullgraph=True)
        x, w = torch.randn(9, 16, device="cuda"), torch.randn(16, 24, device="cuda")
        got = compiled(x, w)
        assert got.is_cuda
        torch.testing.assert_close(got, function(x, w), atol=0, rtol=1e-4)
        forth = list(captured.launches)
        assert forth
        assert all(launch.executed and "softmax" in launch.kernel for launch in forth)
        assert {launch.place.partition(":")[0] for launch in forth} == {__file__}
        assert forth[0].report(trials=False).executed
        v = w.detach().clone().requires_grad_()
        w.requires_grad_()
        function(x, v).square().sum().backward()
        compiled(x, w).square().sum().backward()
        assert w.grad.is_cuda
        torch.testing.assert_close(w.grad, v.grad, atol=floor(v.grad, torch.float32, 1e-4), rtol=1e-4)
    back = captured.launches[len(forth) :]
    assert any("softmax_backward" in launch.kernel for launch in back)
    assert all(launch.executed for launch in back)
    assert captured.notes == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("loss", "dtype"),
    [
        (
            lambda x: torch.nn.functional.cross_entropy(x, torch.tensor([1, 0], device=x.device)),
            torch.float32,
        ),
        (lambda x: (x.std(1) * x.new_ones(2)).sum(), torch.float32),
        (lambda x: (x @ torch.ones_like(x).T)[0, 0], torch.bfloat16),
    ],
    ids=["cross_entropy", "std", "autocast"],
)
def test_gradients_of_compiled_graphs_are_those_of_torch(loss, dtype):
    """Of operations that torch makes of others, and under autocast; no kernels are made."""
    with capture() as captured, torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
        x = torch.randn(2, 5, device="cuda", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        made = torch.compile(loss, backend="aot_eager")(x)
        assert made.dtype == dtype
        made.backward()
        loss(y).backward()
        torch.testing.assert_close(x.grad, y.grad, atol=floor(y.grad, torch.float32, 1e-5), rtol=1e-5)
    assert captured.notes == []


@pytest.mark.filterwarnings("ignore")
def test_what_does_not_compile_runs_as_without_and_is_told():
    def refuse(graph, inputs):
        raise ValueError("no such kernel")

    with capture() as captured:
        x = torch.ones(3, device="cuda", requires_grad=True)
        torch.compile(lambda x: x.exp().sum(), backend=refuse, fullgraph=True)(x).backward()
        assert x.grad.is_cuda
    (note,) = captured.notes
    assert __file__ in note
    assert "torch.compile does not compile here, and it runs as without" in note
    assert "no such kernel" in note
