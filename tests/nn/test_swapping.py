"""`tilefold.nn.swap`: what is replaced in place, what stays with it, and what is left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tilefold
from tilefold.errors import KindError

Tensor = torch.Tensor
EPS = 1e-5


class Root(nn.Module):
    """An RMSNorm as others write it."""

    def __init__(self, size: int = 6, eps: float = EPS, first: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), first))
        self.variance_epsilon = eps

    def scaled(self, h: Tensor) -> Tensor:
        h = h.float()
        return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + self.variance_epsilon)

    def forward(self, h: Tensor) -> Tensor:
        return self.weight * self.scaled(h).to(h.dtype)


class FromZero(Root):
    def forward(self, h: Tensor) -> Tensor:
        return (self.scaled(h) * (1 + self.weight.float())).to(h.dtype)


class OutsideOfRoot(Root):
    def forward(self, h: Tensor) -> Tensor:
        return self.weight * h / ((h * h).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


class Centred(Root):
    def forward(self, h: Tensor) -> Tensor:
        return self.weight * self.scaled(h - h.mean(-1, keepdim=True)).to(h.dtype)


class Unweighted(Root):
    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(h).to(h.dtype)


class StoppedRoot(Root):
    def forward(self, h: Tensor) -> Tensor:
        root = torch.rsqrt((h * h).mean(-1, keepdim=True) + self.variance_epsilon).detach()
        return self.weight * h * root


class Noisy(Root):
    def forward(self, h: Tensor) -> Tensor:
        made = super().forward(h)
        return made + 0.1 * torch.randn_like(made) if self.training else made


class Wide(Root):
    def forward(self, h: Tensor) -> Tensor:
        return self.weight.float() * self.scaled(h)


class Gated(Root):
    def forward(self, h: Tensor, gate: Tensor | None = None) -> Tensor:
        made = super().forward(h)
        return made if gate is None else made * gate


class Broken(Root):
    def forward(self, h: Tensor) -> Tensor:
        raise ValueError("of its own")


class WithBuffer(Root):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))


class BiasedRMSNorm(Root):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(6))


class TwoEpsilons(Root):
    """`variance_epsilon` is not the one that is used."""

    def __init__(self) -> None:
        super().__init__(eps=0.5)
        self.eps = EPS

    def forward(self, h: Tensor) -> Tensor:
        return self.weight * h * torch.rsqrt((h * h).mean(-1, keepdim=True) + self.eps)


class Block(nn.Module):
    """Every kind of module, one of them at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.again = nn.LayerNorm(6), nn.RMSNorm(6)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), Root(), nn.Tanh()), self.again])
        self.groups, self.shares, self.logs = nn.GroupNorm(2, 6), nn.Softmax(dim=-1), nn.LogSoftmax(-1)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.linspace(1, 2, 6))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = self.again(self.norm(x))
        for layer in self.layers:
            x = x + layer(x)
        return self.loss(self.groups(x) + self.shares(x) + self.logs(x), target)


def block() -> Block:
    model = Block()
    for p in model.parameters():
        nn.init.normal_(p)
    return model


def swapped_names(report: Any) -> dict[str, str]:
    return {line.name: line.became.removeprefix("tilefold.nn.") for line in report.swapped}


def test_a_model_keeps_all_but_its_kinds_of_modules() -> None:
    model = block()
    before, held = copy.deepcopy(model), list(model.parameters())
    optimisers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, before)]
    modules, shared = dict(model.named_modules()), model.again
    report = tilefold.nn.swap(model)
    assert swapped_names(report) == {
        "norm": "LayerNorm", "again": "RMSNorm", "layers.0.1": "RMSNorm", "layers.1": "RMSNorm", "groups": "GroupNorm",
        "shares": "Softmax", "logs": "LogSoftmax", "loss": "CrossEntropyLoss",
    }  # fmt: skip
    assert report.left == ()
    assert all(module is modules[name] for name, module in model.named_modules())
    assert model.layers[1] is model.again is shared
    assert all(one is other for one, other in zip(model.parameters(), held, strict=True))
    assert list(model.state_dict()) == list(before.state_dict())
    x, target = torch.randn(4, 6), torch.tensor([0, 5, 2, 1])
    for _ in range(3):
        losses = [m(x, target) for m in (model, before)]
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)
        for optimiser, loss in zip(optimisers, losses, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for one, other in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert tilefold.nn.swap(model).lines == ()
    before.load_state_dict(model.state_dict())


def test_each_result_is_what_it_was() -> None:
    for module, x in [
        (nn.LayerNorm(6, bias=False), torch.randn(4, 6)),
        (nn.LayerNorm(6, elementwise_affine=False), torch.randn(4, 6)),
        (nn.RMSNorm((2, 3), eps=0.1), torch.randn(4, 2, 3)),
        (nn.GroupNorm(3, 6, affine=False), torch.randn(4, 6, 2)),
        (nn.Softmax(0), torch.randn(4, 6)),
        (Root(), torch.randn(4, 6)),
        (TwoEpsilons(), torch.randn(4, 6) * EPS),
    ]:
        want = module(x)
        assert len(tilefold.nn.swap(module).swapped) == 1
        assert type(module).__module__ == "tilefold.nn.rows"
        torch.testing.assert_close(module(x), want, rtol=1e-5, atol=1e-6)
        copy.deepcopy(module)
        assert repr(module).startswith(type(module).__name__)


def test_hooks_mode_dtype_and_attributes_stay() -> None:
    seen: list[str] = []
    model = nn.Sequential(nn.LayerNorm(6, dtype=torch.float64), Root(6).double()).eval()
    model[0].register_forward_hook(lambda *_: seen.append("after"))
    model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    model[0].weight.register_hook(lambda g: seen.append("gradient"))
    model[1].label = "mine"
    tilefold.nn.swap(model)
    assert seen == [], "the probe runs no hook"
    assert not model[0].training
    assert (model[1].label, model[1].variance_epsilon) == ("mine", EPS)
    x = torch.randn(4, 6, dtype=torch.float64)
    model(x).sum().backward()
    assert seen == ["before", "after", "gradient"]
    assert model(x).dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, of rms_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu(dtype: torch.dtype) -> None:
    """The probe runs there; a step gives torch's loss and gradients, inside of torch.autocast too."""
    before = block().to("cuda", dtype)
    model = copy.deepcopy(before)
    assert len(tilefold.nn.swap(model).swapped) == 8
    x, target = torch.randn(4, 6, device="cuda", dtype=dtype), torch.tensor([0, 5, 2, 1], device="cuda")
    for enabled in (False, True):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
            losses = [m(x, target) for m in (model, before)]
        near = torch.finfo(torch.bfloat16 if enabled else dtype).eps
        torch.testing.assert_close(losses[0], losses[1], rtol=16 * near, atol=0)
        for m, loss in zip((model, before), losses, strict=True):
            m.zero_grad()
            loss.backward()
        for one, other in zip(model.parameters(), before.parameters(), strict=True):
            distance, size = (float(g.float().norm()) for g in (one.grad - other.grad, other.grad))
            assert distance <= 32 * near * size


@pytest.fixture
def one_rank() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_under_the_wrapper_of_data_in_parallel(one_rank: None) -> None:
    """Its hooks on parameters' gradients stay."""
    before = block()
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(before))
    report = tilefold.nn.swap(model)
    assert "module.layers.0.1" in swapped_names(report)
    assert isinstance(model.module.norm, tilefold.nn.LayerNorm)
    x, target = torch.randn(4, 6), torch.tensor([0, 5, 2, 1])
    for m in (model, before):
        m(x, target).backward()
    for one, other in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_is_compiled_anew() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    compiled, x = torch.compile(model, backend=backend, fullgraph=True), torch.randn(4, 6)
    want = compiled(x)
    assert swapped_names(tilefold.nn.swap(compiled)) == {"_orig_mod.1": "LayerNorm"}
    torch.testing.assert_close(compiled(x), want)
    assert [any("tilefold" in name for name in graph) for graph in graphs] == [False, True]


@pytest.mark.parametrize("kind", [FromZero, OutsideOfRoot, Centred, Unweighted, StoppedRoot, Noisy])
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_what_is_no_rms_norm_is_left(kind: Any, first: float) -> None:
    model = nn.Sequential(kind(first=first))
    (line,) = tilefold.nn.swap(model).left
    assert (line.name, line.was) == ("0", kind.__name__)
    assert line.reason == "its result or gradient on a probe is not that of rms_norm"
    assert type(model[0]) is kind


class Subclass(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def own_forward(module: nn.Module) -> nn.Module:
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


def parametrized() -> nn.Module:
    made = nn.LayerNorm(6)
    nn.utils.parametrize.register_parametrization(made, "weight", nn.Softplus())
    return made


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Subclass(6), "a subclass of torch.nn.LayerNorm"),
        (lambda: own_forward(nn.RMSNorm(6)), "the object has a forward of its own"),
        (lambda: own_forward(Root()), "the object has a forward of its own"),
        (parametrized, "it is parametrized"),
        (nn.Softmax, "it has no dim"),
        (Gated, "its forward takes more than one tensor"),
        (Broken, r"its forward fails on a probe \(ValueError\)"),
        (lambda: Wide().bfloat16(), "its result has another dtype or shape than its input"),
        (WithBuffer, "it has modules or buffers"),
        (BiasedRMSNorm, "it has not a weight of one dim alone and an epsilon"),
    ],
)
def test_what_is_near_and_left(make: Callable[[], nn.Module], reason: str) -> None:
    model = make()
    kind = type(model)
    (line,) = tilefold.nn.swap(model).lines
    assert line.became is None
    assert line.reason == reason.replace("\\", "")
    assert type(model) is kind


def test_what_is_not_near_has_no_line() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.PReLU(3), nn.Dropout(), nn.LazyLinear(3))
    assert tilefold.nn.swap(model).lines == ()


def test_the_probe_needs_neither_data_nor_modes_and_draws_nothing() -> None:
    torch.manual_seed(5)
    want = torch.randn(3)
    torch.manual_seed(5)
    models = [Root().to("meta"), Root().half(), Root(0), Root(1), Root(eps=0.0), Root(4097)]
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        for model in [*models, Noisy()]:
            tilefold.nn.swap(model)
    assert all(type(model) is tilefold.nn.RMSNorm for model in models)
    assert torch.equal(torch.randn(3), want)


def test_the_report_is_a_table() -> None:
    report = tilefold.nn.swap(nn.Sequential(nn.LayerNorm(6), FromZero()))
    assert str(report).splitlines() == [
        "module  was                 is",
        "0       torch.nn.LayerNorm  tilefold.nn.LayerNorm",
        "1       FromZero            left: its result or gradient on a probe is not that of rms_norm",
        "1 swapped, 1 left",
    ]
    assert str(tilefold.nn.swap(nn.Linear(2, 2))) == "0 swapped, 0 left"
    assert str(tilefold.nn.swap(nn.RMSNorm(2))).splitlines()[1].startswith("(the model)  torch.nn.RMSNorm")


def test_no_model_is_refused() -> None:
    with pytest.raises(KindError, match=r"`model` must be a torch.nn.Module, got .*; pass"):
        tilefold.nn.swap([nn.LayerNorm(2)])  # type: ignore[arg-type]
