"""Which backend runs, and when a repeated call is answered without checks: one rule for folds and products.

There is no GPU here: tensors say that they are on one, and what would be launched there is computed on the CPU.
"""

from __future__ import annotations

import contextvars
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import tilefold as tf
from in_modes import Echo
from test_running import run
from tilefold import monoids
from tilefold.api import dispatch, products
from tilefold.api import reduce as fold
from tilefold.errors import ArgumentError, BackendError, TilefoldError
from tilefold.planner.plan import Plan
from tilefold.runtime import switch

X = torch.linspace(-2, 3, 30).view(5, 6)
B = torch.linspace(-1, 1, 42).view(6, 7)


class Launched:
    """Stands for a compiled plan: computes on the CPU and counts."""

    def __init__(self, plan: Any, compute: Callable[..., Any]) -> None:
        self.plan, self.compute, self.calls = plan, compute, 0

    is_differentiable = False

    def call(self, *tensors: torch.Tensor) -> Any:
        self.calls += 1
        return self.compute(*tensors)

    def __call__(self, inputs: Any, outputs: Any = None) -> Any:
        return self.call(*inputs)


class Pretended:
    """What a pretended GPU was asked."""

    def __init__(self) -> None:
        self.checked = 0
        self.folds = Launched(Plan("triton"), lambda x: [x.detach().sum(1)])
        self.products = Launched(Plan("triton"), lambda a, b: [a.detach() @ b.detach()])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    """Every tensor says that it is on a GPU; calls that go through their checks are counted."""
    seen = Pretended()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            seen.checked += 1
            return function(*arguments, **named)

        return counting

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda t: True))
    monkeypatch.setattr(
        dispatch, "compiled", lambda request, _: seen.products if request.call == "matmul" else seen.folds
    )
    monkeypatch.setattr(dispatch, "_executables", {})
    monkeypatch.setattr(fold, "check_inputs", counted(fold.check_inputs))
    monkeypatch.setattr(products, "_checked", counted(products._checked))
    return seen


def folded(x: torch.Tensor) -> Any:
    return tf.sum(x, 1)


def reduced(x: torch.Tensor) -> Any:
    return tf.reduce(x, monoids.SUM, 1)


def multiplied(x: torch.Tensor) -> Any:
    return tf.matmul(x, B)


CALLS = pytest.mark.parametrize("call", [folded, reduced, multiplied])


@CALLS
def test_a_repeated_call_is_answered_without_checks(call: Callable[..., Any], gpu: Pretended) -> None:
    first = call(X)
    assert gpu.checked == 1
    assert torch.equal(call(X), first)
    assert gpu.checked == 1
    with tf.backend("auto"):
        assert torch.equal(call(X), first)
    assert gpu.checked == 1
    assert tf.last_plan().backend == "triton"


@CALLS
@pytest.mark.parametrize("where", ["environment", "block"])
def test_a_call_under_another_backend_leaves_the_forced_one_in_force(
    call: Callable[..., Any], where: str, gpu: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call by Triton is kept; an equal one later, where another backend is forced, is not answered by it."""
    name = "torch"
    if where == "environment":
        forced = contextvars.ContextVar("tilefold_backend", default=name)
        monkeypatch.setattr(switch, "_forced", forced)
        with tf.backend("triton"):
            call(X)
        with tf.backend("auto"):
            call(X)
            call(X)
        call(X)
    else:
        call(X)
        with tf.backend("triton"):
            call(X)
        with tf.backend(name):
            call(X)
    assert tf.last_plan().backend == name


def test_the_environment_is_in_force_where_no_block_is() -> None:
    program = """
import torch, tilefold as tf, tilefold.runtime.switch as switch
x = torch.ones(3)
assert switch.forced_backend() == "cpu" and switch.layout(x) is None
with tf.backend("auto"):
    assert switch.forced_backend() == "auto" and switch.layout(x) is not None
"""
    done = run(program, TILEFOLD_BACKEND="cpu")
    assert done.returncode == 0, done.stderr
    done = run(program.replace("cpu", "auto").replace("is None", "is not None"), TILEFOLD_BACKEND="")
    assert done.returncode == 0, done.stderr


def test_a_backend_without_a_name_is_refused() -> None:
    with (
        pytest.raises(ArgumentError, match=r"backend: the name must be one of auto, torch.* got 'fast'"),
        tf.backend("fast"),
    ):
        pass


# --------------------------------------------------------------------------- what a repeated call must be checked for


class Plainly(torch.Tensor):
    """A plain subclass."""


def transformed(transform: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    return lambda call: transform(call)(X)


def in_mode(mode: Callable[[], Any]) -> Callable[[Callable[..., Any]], Any]:
    def inside(call: Callable[..., Any]) -> Any:
        with mode():
            return call(X)

    return inside


def of(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Callable[..., Any]], Any]:
    return lambda call: call(change(X.clone()))


def dual(call: Callable[..., Any]) -> Any:
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(X, torch.ones_like(X)))


def traced(call: Callable[..., Any]) -> Any:
    return torch.jit.trace(call, (X,), check_trace=False)(X + 1)


def one_argument(call: Callable[..., Any]) -> Callable[[torch.Tensor], Any]:
    return lambda x: call(x)


class Functional(FunctionalTensorMode):
    """torch.compile's, which counts the operations that it sees by their libraries."""

    saw: ClassVar[Counter[str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Functional.saw[func.namespace] += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


SITUATIONS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "make_fx": lambda call: make_fx(one_argument(call))(X),
    "make_fx, early": lambda call: make_fx(one_argument(call), pre_dispatch=True)(X),
    "make_fx, fake": lambda call: make_fx(one_argument(call), tracing_mode="fake")(X),
    "make_fx, functionalize": lambda call: make_fx(torch.func.functionalize(one_argument(call)))(X),
    "torch.jit.trace": traced,
    "fake": in_mode(lambda: FakeTensorMode(allow_non_fake_inputs=True)),
    "functional": in_mode(Functional),
    "dispatch": in_mode(Echo),
    "vmap": lambda call: torch.vmap(call)(torch.stack([X, X])),
    "functionalize": transformed(torch.func.functionalize),
    "grad": transformed(lambda call: torch.func.grad(lambda x: call(x).sum())),
    "vjp": lambda call: torch.func.vjp(call, X),
    "jvp": lambda call: torch.func.jvp(call, (X,), (X,)),
    "dual": dual,
    "requires grad": of(lambda x: x.requires_grad_()),
    "negated": of(torch._neg_view),
    "subclass": of(lambda x: x.as_subclass(Plainly)),
    "misaligned": lambda call: call(torch.cat([torch.zeros(1), X.view(-1)])[1:].view(5, 6)),
    "double": of(lambda x: x.double()[:, :6].float().double()),
}


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.(trace|script). is (deprecated|not supported).*:DeprecationWarning"
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@CALLS
@pytest.mark.parametrize("name", list(SITUATIONS))
def test_a_known_call_is_checked_again_where_it_must_be(
    name: str, call: Callable[..., Any], gpu: Pretended
) -> None:
    """The checks are gone through, or the call is refused, recorded or differentiated: never answered as the plain one."""
    call(X)
    before, launched = gpu.checked, gpu.folds.calls + gpu.products.calls
    try:
        made = SITUATIONS[name](call)
    except (TilefoldError, TypeError, AssertionError, RuntimeError):
        assert gpu.folds.calls + gpu.products.calls == launched or gpu.checked > before
    else:
        recorded = isinstance(made, torch.fx.GraphModule) and re.search(r"ops\.tilefold\.", made.code)
        has_gradient = isinstance(made, torch.Tensor) and made.requires_grad  # around a plain call
        assert recorded or has_gradient or Functional.saw.pop("tilefold", 0) or gpu.checked > before


@CALLS
def test_no_grad_and_inference_are_no_reason_to_check(call: Callable[..., Any], gpu: Pretended) -> None:
    weight = X.clone().requires_grad_()
    with torch.no_grad():
        call(weight)
        before = gpu.checked
        call(weight)
    with torch.inference_mode():
        call(X)
    assert gpu.checked == before


@pytest.mark.parametrize("call", [folded, reduced])
def test_a_parameter_is_a_plain_tensor(call: Callable[..., Any], gpu: Pretended) -> None:
    call(X)
    with torch.no_grad():
        call(torch.nn.Parameter(X))
    call(torch.nn.Parameter(X, requires_grad=False))
    assert gpu.checked == 1


@CALLS
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.(trace|script). is (deprecated|not supported).*:DeprecationWarning"
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_is_refused_on_a_gpu(call: Callable[..., Any], gpu: Pretended) -> None:
    """It would hold the launch's memory as a constant. A CPU's folds are operations of torch, which it sees."""
    with pytest.raises(BackendError, match=r"must be called, not recorded .*torch\.jit\.trace on a GPU"):
        traced(call)


def test_a_functionalized_tensor_has_no_layout() -> None:
    """Its address is 0, which no fold may read."""
    seen: list[Any] = []
    torch.func.functionalize(lambda x: (seen.append((x.data_ptr(), switch.layout(x))), x * 2)[1])(X)
    assert seen == [(0, None)]
    assert switch.layout(torch.ones(0)) is None
    assert switch.layout(X) == (
        X.shape,
        X.stride(),
        X.dtype,
        X.data_ptr() & 15,
        torch.get_num_threads(),
        False,
    )


@pytest.mark.gpu
@CALLS
@pytest.mark.parametrize("name", [n for n in SITUATIONS if n not in ("misaligned", "double")])
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.(trace|script). is (deprecated|not supported).*:DeprecationWarning"
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_known_call_on_a_gpu_is_never_answered_wrongly(
    name: str, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on a device: refused, or right, and the plain call after it too."""
    x, b = X.cuda(), B.cuda()
    monkeypatch.setitem(globals(), "X", x)
    monkeypatch.setitem(globals(), "B", b)
    want = call(x)
    try:
        SITUATIONS[name](call)
    except (TilefoldError, TypeError, AssertionError, RuntimeError) as error:
        assert "CUDA error" not in str(error)  # noqa: PT017  # a refusal of any of these kinds will do
    torch.cuda.synchronize()
    assert torch.equal(call(x), want)
    assert type(call(x)) is torch.Tensor


@pytest.mark.gpu
@CALLS
def test_a_forced_backend_holds_after_another_one_on_a_gpu(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "B", B.cuda())
    monkeypatch.setattr(switch, "_forced", contextvars.ContextVar("tilefold_backend", default="torch"))
    x = X.cuda()
    with tf.backend("triton"):
        call(x)
    call(x)
    assert tf.last_plan().backend == "torch"


@pytest.mark.gpu
@CALLS
def test_a_graph_is_captured_by_repeated_calls(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "B", B.cuda())
    x = X.cuda()
    call(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x)
    x.copy_(X.cuda() + 1)
    graph.replay()
    assert torch.equal(result, call(x))


def test_a_key_is_of_every_tensor() -> None:
    x, wide, odd = torch.ones(4), torch.ones(4, dtype=torch.float64), torch.ones(8)[::2]
    keys = [switch.call_key(given, "call", 0, ()) for given in ([x], [x, x], [x, wide], [x, odd], [x, x, x])]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert switch.call_key([x, wide], "call", 0, ()) == keys[2]
    assert switch.call_key([x, torch.ones(4).to_sparse()], "call", 0, ()) is None


def test_a_tensor_that_is_given_twice_is_known_again() -> None:
    x, w, b = torch.randn(4, 8), torch.randn(8), torch.randn(8)
    twice, apart = switch.Alike([x, w, w]), switch.Alike([x, w, b])
    assert twice([x, w, w])
    assert apart([x, w, b])
    assert not twice([x, w, b])
    assert not twice([w, x, x])
    assert not apart([x, w, w])


def test_the_cpu_backends_former_name_is_an_alias() -> None:
    with tf.backend("lanes"):
        assert switch.forced_backend() == "cpu"
        tf.sum(X)
    assert tf.last_plan().backend == "cpu"
