"""tilefold inside torch.compile, on a CPU: Inductor chooses among torch's product, Decompose-K and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import tilefold
from tilefold import inductor
from tilefold.api import registered
from tilefold.bench.inductor_choices import choices_noted

Tensor = torch.Tensor
custom_op = pytest.importorskip("torch._inductor.kernel.custom_op")

pytestmark = [
    # Inductor's subprocess pool and C++ builds warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """No test leaves a lowering behind, nor compiled code."""
    table = inductor._lowerings()
    before = dict(table)
    torch._dynamo.reset()
    graphs = torch._inductor.config.patch(fx_graph_cache=False)
    with graphs, torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    registered.tuned = False
    table.clear()
    table.update(before)


@pytest.fixture
def candidates() -> Iterator[list[str]]:
    """The names of all that Inductor timed."""
    from torch._inductor import select_algorithm

    seen: list[str] = []
    select_algorithm.add_feedback_saver(lambda timings, *rest: seen.extend(c.name for c in timings))
    yield seen
    select_algorithm.clear_feedback_savers()


def operands(rows: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, 128), torch.randn(128, 6), torch.randn(6)


def fused(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return inductor.matmul(a, b, bias, "relu")


def compiled(function: object, **options: object) -> object:
    return torch.compile(function, fullgraph=True, mode="max-autotune-no-cudagraphs", **options)  # type: ignore[call-overload]


def of(names: list[str], part: str) -> int:
    return sum(part in name for name in names)


def ours(names: list[str]) -> int:
    """How often ours was a candidate: the operation itself, or with torch 2.11 its function."""
    return of(names, "fallback") + of(names, "_tuned_matmul")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_the_operations_keep_torchs_rules(bias: bool, dtype: torch.dtype) -> None:
    a, b, c = (t.to(dtype) for t in operands())
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        inductor.tuned_matmul, (a, b.mT.contiguous().mT, c if bias else None, "gelu"), test_utils=checks
    )
    torch.library.opcheck(inductor.own_matmul, (a, b, c if bias else None), test_utils=checks)
    assert torch.equal(fused(a, b, c), tilefold.matmul(a, b, bias=c, epilogue="relu"))


def test_exact_shapes(candidates: list[str]) -> None:
    """Each split of 128 that leaves 32 elements is one candidate."""
    assert inductor.register().exact_shapes
    a, b, bias = operands()
    torch.testing.assert_close(compiled(fused, dynamic=False)(a, b, bias), torch.relu(a @ b + bias))  # type: ignore[operator]
    assert of(candidates, "plain") == ours(candidates) == 1
    assert of(candidates, "k_splits") == 2


def test_one_graph_serves_all_ranges(candidates: list[str]) -> None:
    inductor.register(split_points=(1, 8), unbounded=16)
    call = compiled(fused)
    _, b, bias = operands()
    for rows in (16, 64, 7, 1, 768):
        a = torch.randn(rows, 128)
        torch._dynamo.mark_dynamic(a, 0)
        stance = torch.compiler.set_stance("default" if rows == 16 else "fail_on_recompile")
        with inductor.any_rows(), stance:
            got = call(a, b, bias)  # type: ignore[operator]
        torch.testing.assert_close(got, torch.relu(a @ b + bias), rtol=1e-5, atol=1e-4)
    assert ours(candidates) == of(candidates, "plain") == 3
    assert of(candidates, "k_splits") == 6


def test_plain_products_where_we_would_split(candidates: list[str]) -> None:
    said = inductor.register(mm=True)
    if not said.aten_mm:
        pytest.skip(said.off[-1])
    a, b = torch.randn(4, 64), torch.randn(64, 6)
    call = compiled(lambda a, b: a @ b + 1, dynamic=False)
    torch.testing.assert_close(call(a, b), a @ b + 1, rtol=1e-4, atol=1e-4)  # type: ignore[operator]
    assert of(candidates, "ours") == of(candidates, "k_splits") == 1
    large = {"self": torch.empty(4096, 4096), "mat2": torch.empty(4096, 4096)}
    assert inductor._mm_choices(large) == []


def test_plain_products_of_any_number_of_rows(candidates: list[str]) -> None:
    said = inductor.register(split_points=(1, 8), unbounded=16, mm=True)
    if not said.aten_mm:
        pytest.skip(said.off[-1])
    call, b = compiled(lambda a, b: torch.mm(a, b)), torch.randn(128, 6)
    for rows in (16, 64, 7, 1, 768):
        a = torch.randn(rows, 128)
        torch._dynamo.mark_dynamic(a, 0)
        stance = torch.compiler.set_stance("default" if rows == 16 else "fail_on_recompile")
        with inductor.any_rows(), stance:
            torch.testing.assert_close(call(a, b), a @ b, rtol=1e-5, atol=1e-4)  # type: ignore[operator]
    assert of(candidates, "_ours") == 3
    assert of(candidates, "k_splits") == 6


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)], ids=str)
def test_a_batch_with_a_dynamic_dim_runs_as_ours(dims: tuple[int, ...], candidates: list[str]) -> None:
    """Its rows are a product of sizes: no range can be timed for them."""
    inductor.register()
    _, b, bias = operands()
    a = torch.randn(2, 3, 128)
    for dim in dims:
        torch._dynamo.mark_dynamic(a, dim)
    call = compiled(fused)
    torch.testing.assert_close(call(a, b, bias), torch.relu(a @ b + bias), rtol=1e-5, atol=1e-4)  # type: ignore[operator]
    assert candidates == []


def test_nothing_to_add_up() -> None:
    inductor.register()
    call = compiled(lambda a, b: tilefold.matmul(a, b, epilogue="sigmoid"), dynamic=False)
    assert torch.equal(call(torch.randn(3, 0), torch.randn(0, 5)), torch.full((3, 5), 0.5))  # type: ignore[operator]
    assert call(torch.randn(0, 4), torch.randn(4, 5)).shape == (0, 5)  # type: ignore[operator]
    assert call(torch.randn(4), torch.randn(4, 5)).shape == (5,)  # type: ignore[operator]


def test_other_dtypes_have_no_candidate_but_ours(candidates: list[str]) -> None:
    inductor.register()
    a, b = torch.randint(-9, 9, (4, 128), dtype=torch.int8), torch.randint(-9, 9, (128, 6), dtype=torch.int8)
    call = compiled(lambda a, b: tilefold.matmul(a, b, epilogue="relu"), dynamic=False)
    assert torch.equal(call(a, b), torch.relu(a.int() @ b.int()))  # type: ignore[operator]
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        torch._dynamo.reset()
        wide = a.float(), b.float()
        torch.testing.assert_close(call(*wide), torch.relu(wide[0] @ wide[1]))  # type: ignore[operator]
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert candidates == []


def test_tracing_the_operation_gives_one_that_is_never_replaced() -> None:
    """Torch 2.11 traces it where it is itself the fastest candidate."""
    from torch.fx.experimental.proxy_tensor import make_fx

    inductor.register()
    a, b, bias = operands()
    for mode in ("fake", "symbolic"):
        graph = make_fx(lambda a, b, c: inductor.tuned_matmul._init_fn(a, b, c, "relu"), tracing_mode=mode)(
            a, b, bias
        )
        called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        assert called == [torch.ops.tilefold.own_matmul.default]
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(inductor.tuned_matmul._init_fn, backend=backend, fullgraph=True)(a, b, bias, "relu")
    assert seen == [torch.ops.tilefold.own_matmul.default]


def test_torchs_own_table_of_lowerings_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering

    newer = hasattr(lowering, "user_lowerings")
    assert inductor._lowerings() is (custom_op.user_lowerings if newer else custom_op.lowerings)
    monkeypatch.delattr(lowering, "user_lowerings", raising=False)
    assert inductor._lowerings() is lowering.lowerings


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """A function of (part of what is tuned: part of the winner): nothing is timed, nor taken from a cache."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    def prefer(wanted: dict[str, str]) -> None:
        def time_of(cls: object, choice: object, tensors: object) -> float:
            name = choice.name.replace("__", "_")  # type: ignore[attr-defined]  # torch 2.11 writes one
            return 1.0 if any(where in name and what in name for where, what in wanted.items()) else 2.0

        monkeypatch.setattr(AlgorithmSelectorCache, "benchmark_choice", classmethod(time_of))

    with torch._inductor.config.patch(autotune_local_cache=False):
        yield prefer


@pytest.mark.parametrize("rows", ["exact", "ranges"])
def test_ours_keeps_its_epilogue_where_it_wins(
    rows: str, preferred: Callable[[dict[str, str]], None]
) -> None:
    """In every graph of a process: torch 2.11 would forget arguments, and the operation itself after the first."""
    preferred({"fallback": "", "_tuned_matmul": ""})
    inductor.register(split_points=(8,), unbounded=16)
    a, b, bias = operands(16)
    for epilogue, want in (("relu", torch.relu), ("tanh", torch.tanh)):
        with choices_noted() as noted, inductor.any_rows():
            torch._dynamo.mark_dynamic(a, 0) if rows == "ranges" else None
            call = compiled(lambda a, b, c, e=epilogue: inductor.matmul(a, b, c, e))
            torch.testing.assert_close(call(a, b, bias), want(a @ b + bias))  # type: ignore[operator]
        assert ours([winner for _, winner in noted]) == len(noted) == (2 if rows == "ranges" else 1)


@pytest.mark.parametrize("dynamic", [None, True])
def test_each_range_runs_what_won_there(
    dynamic: bool | None, preferred: Callable[[dict[str, str]], None]
) -> None:
    """Several winners in one graph, also where torch.compile takes every number for dynamic."""
    preferred(
        {
            "range_1_1_": "splits_2",
            "range_2_8_": "_tuned_",
            "range_9_32_": "splits_4",
            "range_33_inf_": "_plain",
        }
    )
    inductor.register(split_points=(1, 8, 32), unbounded=64)
    _, b, bias = operands()
    call = compiled(lambda a: tilefold.matmul(a, b, bias=bias, epilogue="relu"), dynamic=dynamic)
    for rows in (16, 1, 5, 64, 256, 768):
        a = torch.randn(rows, 128)
        torch._dynamo.mark_dynamic(a, 0) if dynamic is None else None
        stance = torch.compiler.set_stance("default" if rows == 16 else "fail_on_recompile")
        with inductor.any_rows(), stance:
            got = call(a)  # type: ignore[operator]
        torch.testing.assert_close(got, torch.relu(a @ b + bias), rtol=1e-5, atol=1e-4)


def test_later_graphs_of_a_process_split_as_they_like(preferred: Callable[[dict[str, str]], None]) -> None:
    """Torch 2.11 would take the number of splits for a dynamic one as soon as two graphs differ in it, and fail."""
    inductor.register(split_points=(8,), unbounded=16)
    _, b, _ = operands()
    for epilogue, few, many in ((None, "splits_2", "_plain"), ("relu", "splits_4", "splits_2")):
        preferred({"range_1_8_": few, "range_9_inf_": many})
        call = compiled(lambda a, e=epilogue: tilefold.matmul(a, b, epilogue=e))
        for rows in (16, 1, 5, 64):
            a = torch.randn(rows, 128)
            torch._dynamo.mark_dynamic(a, 0)
            with inductor.any_rows():
                got = call(a)  # type: ignore[operator]
            want = a @ b if epilogue is None else torch.relu(a @ b)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


def test_what_is_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch that knows neither graphs in its timing nor other operations than custom ones."""
    whole = custom_op.register_custom_op_autotuning

    def older(custom_op, configs=None, config_generator=None, name=None, dispatch_on=None, split_points=None):  # type: ignore[no-untyped-def]
        if not isinstance(custom_op, torch._library.custom_ops.CustomOpDef):
            raise TypeError("custom_op must be a CustomOpDef")
        whole(custom_op, configs, config_generator, name, dispatch_on=dispatch_on, split_points=split_points)

    monkeypatch.setattr(custom_op, "register_custom_op_autotuning", older)
    said = inductor.register(mm=True)
    assert (said.exact_shapes, said.row_ranges, said.aten_mm) == (True, True, False)
    assert "aten.mm: off" in str(said)
    assert len(said.off) == 2


@pytest.mark.parametrize("shape", [(4, 128), (128,), (2, 3, 128)], ids=str)
def test_matmul_itself_is_an_operation_of_the_graph(shape: tuple[int, ...], candidates: list[str]) -> None:
    inductor.register()
    a, (_, b, bias) = torch.randn(shape), operands()
    call = compiled(lambda a, b, c: tilefold.matmul(a, b, bias=c, epilogue="silu") + 1)
    torch.testing.assert_close(call(a, b, bias), torch.nn.functional.silu(a @ b + bias) + 1)  # type: ignore[operator]
    assert ours(candidates) == 1


def test_a_bias_of_rows_keeps_ours_at_any_number_of_rows(candidates: list[str]) -> None:
    """Ranges are timed with other numbers of rows than the bias has."""
    inductor.register(split_points=(1, 8), unbounded=16)
    call = compiled(lambda a, b, c: tilefold.matmul(a, b, bias=c, epilogue="relu"))
    a, b, bias = torch.randn(16, 128), torch.randn(128, 6), torch.randn(16, 6)
    for tensor in (a, bias):
        torch._dynamo.mark_dynamic(tensor, 0)
    torch.testing.assert_close(call(a, b, bias), torch.relu(a @ b + bias))  # type: ignore[operator]
    assert candidates == []


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_a_layer_is_compiled_whole(guarantee: str) -> None:
    layer = tilefold.nn.Linear(128, 6, activation="silu", guarantee=guarantee)
    x = torch.randn(2, 3, 128)
    torch._dynamo.reset()
    call = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(call(x), layer(x))
    with torch.no_grad():
        torch.testing.assert_close(call(x), layer(x))
    given = torch.autograd.grad(call(x).sum(), list(layer.parameters()))
    for g, w in zip(given, torch.autograd.grad(layer(x).sum(), list(layer.parameters())), strict=True):
        torch.testing.assert_close(g, w)


def routed(rows: int, dtype: torch.dtype, b: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Some tokens, and what a router's layer makes of them."""
    a = torch.randn(rows, 7168).cuda().to(dtype)
    return a, torch.relu(a.double() @ b.double() + bias).to(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_an_exact_shape_on_a_gpu(dtype: torch.dtype, candidates: list[str]) -> None:
    inductor.register()
    b, bias = (torch.randn(7168, 256) / 7168**0.5).cuda().to(dtype), torch.randn(256).cuda()
    a, want = routed(16, dtype, b, bias)
    bound = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else {"rtol": 1e-4, "atol": 1e-4}
    got = compiled(fused, dynamic=False)(a, b, bias)  # type: ignore[operator]
    torch.testing.assert_close(got, want, **bound)
    assert of(candidates, "_plain") == ours(candidates) == 1
    assert of(candidates, "decomposed") == 7


@pytest.mark.gpu
def test_one_graph_serves_a_routers_batches_on_a_gpu(candidates: list[str]) -> None:
    inductor.register(unbounded=768)
    b, bias = (torch.randn(7168, 256) / 7168**0.5).cuda().bfloat16(), torch.randn(256).cuda()
    call = compiled(lambda a: tilefold.matmul(a, b, bias=bias, epilogue="relu"), dynamic=True)
    for rows in (16, 1, 64, 256, 768):
        a, want = routed(rows, torch.bfloat16, b, bias)
        stance = torch.compiler.set_stance("default" if rows == 16 else "fail_on_recompile")
        with inductor.any_rows(), stance:
            torch.testing.assert_close(call(a), want, rtol=2e-2, atol=2e-2)  # type: ignore[operator]
    assert ours(candidates) == 6
