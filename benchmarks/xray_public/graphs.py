"""Twenty small graphs, compiled by Inductor for the chip that stands in, and its kernels launched by its own wrapper code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from compared import Case, normal

Function = Callable[..., Any]
GRAPHS: dict[str, tuple[Function, Callable[[], list[torch.Tensor]]]] = {
    "gelu": (lambda x: F.gelu(x), lambda: [normal(8, 1000)]),
    "bias_silu_mul": (
        lambda x, b, y: F.silu(x + b) * y,
        lambda: [normal(16, 384), normal(384), normal(16, 384)],
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (512,), w, b),
        lambda: [normal(16, 512), normal(512), normal(512)],
    ),
    "rms_norm_bf16": (
        lambda x, w: (x.float() * torch.rsqrt(x.float().square().mean(-1, True) + 1e-6)).to(x.dtype) * w,
        lambda: [normal(16, 1024, dtype=torch.bfloat16), normal(1024, dtype=torch.bfloat16)],
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: [normal(16, 700)]),
    "log_softmax_fp16": (
        lambda x: torch.log_softmax(x.float(), -1),
        lambda: [normal(16, 700, dtype=torch.float16)],
    ),
    "long_row_softmax": (lambda x: torch.softmax(x, -1), lambda: [normal(2, 20000)]),
    "column_sum": (lambda x: x.sum(0), lambda: [normal(700, 96)]),
    "whole_sum": (lambda x: x.sum(), lambda: [normal(300, 300)]),
    "argmax": (lambda x: x.argmax(-1), lambda: [normal(16, 900)]),
    "variance": (lambda x: torch.var_mean(x, 1), lambda: [normal(24, 600)]),
    "amax_and_amin": (lambda x: (x.amax(1), x.amin(1)), lambda: [normal(24, 600)]),
    "cumsum": (lambda x: x.cumsum(-1), lambda: [normal(8, 500)]),
    "embedding": (
        lambda i, w: F.embedding(i, w) * 2,
        lambda: [torch.randint(0, 50, (8, 16)), normal(50, 128)],
    ),
    "cross_entropy": (
        lambda x, t: F.cross_entropy(x, t),
        lambda: [normal(32, 500), torch.randint(0, 500, (32,))],
    ),
    "transposed_add": (lambda x, y: x + y, lambda: [normal(96, 200).t(), normal(200, 96)]),
    "cat": (lambda x, y: torch.cat([x.relu(), y * 2], 1), lambda: [normal(16, 100), normal(16, 60)]),
    "average_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: [normal(2, 4, 20, 20)]),
    "index_add": (
        lambda x, i, y: x.index_add(0, i, y),
        lambda: [normal(40, 64), torch.randint(0, 40, (100,)), normal(100, 64)],
    ),
    "bit_tricks": (
        lambda a, b: ((a ^ b) << 3) + (a // b.abs().clamp(min=1)) + (a & 0xFF),
        lambda: [torch.randint(-999, 999, (3000,)), torch.randint(-99, 99, (3000,))],
    ),
}


def cases() -> list[Case]:
    """A case for each graph."""
    return [Case("torch (Inductor)", name, lambda name=name: _run(name)) for name in GRAPHS]


def _run(name: str) -> Iterator[tuple[Any, Any]]:
    function, make = GRAPHS[name]
    inputs = make()
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    want = function(*wide)
    got = _call(_code(function, inputs), inputs)
    yield from zip(got, want if isinstance(want, tuple) else (want,), strict=True)


def _code(function: Function, inputs: list[torch.Tensor]) -> str:
    """The wrapper and kernels that Inductor writes for tensors on a CUDA device of which only the shapes are known."""
    from torch._dynamo import device_interface
    from torch._inductor import scheduler
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    interface = device_interface.CudaInterface
    interface.Worker.get_device_properties = staticmethod(torch.cuda.get_device_properties)
    interface.get_device_properties = staticmethod(torch.cuda.get_device_properties)
    interface.get_compute_capability = staticmethod(lambda device=None: 90)
    scheduler.has_triton = lambda *args: True
    with FakeTensorMode() as mode, torch.no_grad():
        shapes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*shapes)
    lowered = GraphLowering(traced, example_inputs=shapes)
    handlers = V.set_graph_handler(lowered), V.set_fake_mode(mode), V.set_debug_handler(DebugContext())
    with handlers[0], handlers[1], handlers[2], V.set_extern_kernel_nodes([]):
        lowered.run(*shapes)
        written, _ = lowered.codegen()
    return written.value


def _call(code: str, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run Inductor's module with memory of the host where it asks for the device's."""
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    triton_helpers.set_driver_to_gpu = lambda: None
    CachingAutotuner.precompile = lambda tuner, *args, **given: None
    module = ModuleType("inductor_module")
    exec(compile(code, "inductor_module", "exec"), module.__dict__)  # noqa: S102 - torch's own code, as it runs it
    module.__dict__["empty_strided_cuda"] = lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype
    )
    return tuple(module.__dict__["call"](list(inputs)))
