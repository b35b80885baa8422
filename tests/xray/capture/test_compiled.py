"""The kernels that torch.compile makes for the chip, launched by its own wrapper code."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.device_interface  # which holds functions of torch.cuda as they are now

from tilefold.xray import capture


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_a_compiled_function_launches_its_kernels_and_one_with_a_gradient_runs_as_without(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with capture() as captured:

        def function(x, w):
            return torch.softmax(torch.nn.functional.gelu(x[1:] @ w), -1)

        compiled = torch.compile(function, fullgraph=True)
        x, w = torch.randn(9, 16, device="cuda"), torch.randn(16, 24, device="cuda")
        got = compiled(x, w)
        assert got.is_cuda
        torch.testing.assert_close(got, function(x, w), atol=0, rtol=1e-4)
        count = len(captured.launches)
        assert count >= 1
        assert all(launch.executed and "softmax" in launch.kernel for launch in captured.launches)
        assert {launch.place.partition(":")[0] for launch in captured.launches} == {__file__}
        assert captured.launches[0].report(trials=False).executed
        w.requires_grad_()
        compiled(x, w).square().sum().backward()
        assert w.grad.is_cuda
    assert len(captured.launches) == count
    assert any(
        "torch.compile of what needs a gradient cannot be pretended" in note for note in captured.notes
    )
