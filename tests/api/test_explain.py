"""`explain_plan` and `tilefold plan` of every operation: the plan that the call itself would have, its bytes and its time."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

import tilefold
from commands import run
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.errors import ArgumentError, DimError, KindError
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.runtime.switch import ExplainedError, explaining

X = torch.randn(300, 700)
OFFSETS = torch.tensor([0, 10, 10, 300])
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "softmax": (X, {"dim": 1}),
    "log_softmax": (X, {"dim": 0}),
    "normalize": (X, {"dim": 1}),
    "layer_norm": (X, {"normalized_shape": (700,)}),
    "rms_norm": (X, {"normalized_shape": (700,), "residual": X}),
    "group_norm": (X.view(30, 10, 700), {"num_groups": 5}),
    "reduce_map": (X, {"monoid": monoids.SUM, "apply": lambda x, total: x / total, "dim": 1}),
    "scan": ((X, X), {"monoid": monoids.AFFINE, "dim": 1}),
    "cumsum": (X, {"dim": 0}),
    "cumprod": (X, {"dim": 1}),
    "cummax": (X, {"dim": 1}),
    "cummin": (X, {"dim": 0}),
    "logcumsumexp": (X, {"dim": 1}),
    "segment_reduce": (X, {"monoid": monoids.SUM, "offsets": OFFSETS}),
    "topk": (X, {"k": 4, "dim": 1}),
    "transpose": (X, {"dim0": 0, "dim1": 1}),
    "reduce": (X, {"monoid": monoids.LOGSUMEXP, "dim": 1}),
    "amax": (X, {"dim": 1}),
    "var": (X, {"dim": 0}),
    "max": (X, {"dim": 1}),
}


def made_by_the_call(name: str) -> Plan:
    """The plan of the request that the call hands to the dispatcher."""
    x, words = CALLS[name]
    with pytest.raises(ExplainedError) as found, explaining():
        getattr(tilefold, name)(x, **words)
    return found.value.request.plan(found.value.tensors, H200, library=True)[1]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_operation_is_explained_without_data(name: str, device: str) -> None:
    x, words = CALLS[name]

    def there(value: Any) -> Any:
        if isinstance(value, tuple) and isinstance(value[0], torch.Tensor):
            return tuple(map(there, value))
        return value.to(device) if isinstance(value, torch.Tensor) else value

    with mock.patch.object(dispatch, "_on_cpu", side_effect=AssertionError("it must not run")):
        plan = tilefold.explain_plan(
            there(x), getattr(tilefold, name), **{key: there(value) for key, value in words.items()}
        )
    assert plan == made_by_the_call(name)
    assert plan.backend in ("triton", "torch")
    assert plan.moved_bytes >= X.numel() * 4
    assert plan.least_us > 3.7
    assert "MB read and written" in str(plan)


def test_a_call_is_planned_again_while_it_is_explained() -> None:
    """Not found among those that were compiled: nothing runs."""
    x = torch.randn(8, 8)
    for _ in range(3):
        tilefold.softmax(x, 1)
    before = tilefold.last_plan()
    assert tilefold.explain_plan(x, tilefold.softmax, dim=1).backend == "triton"
    assert tilefold.last_plan() is before


def test_bytes_count_each_element_once() -> None:
    x = torch.empty(1 << 20, dtype=torch.float32, device="meta")
    plan = tilefold.explain_plan(x, tilefold.cumsum, dim=0)
    assert plan.moved_bytes == pytest.approx(8 << 20, rel=0.01)
    wide = tilefold.explain_plan(x[:1024].expand(64, 1024), tilefold.amax, dim=0)
    assert wide.moved_bytes < 64 * 1024
    chip = tilefold.explain_plan(x, tilefold.cumsum, dim=0, device=H200)
    assert chip.least_us == pytest.approx(plan.least_us)


def test_of_no_elements_there_is_nothing_to_plan() -> None:
    plan = tilefold.explain_plan(torch.empty(0, 5), tilefold.cumsum, dim=1)
    assert (plan.strategy, plan.launches) == ("nothing", 0)


@pytest.mark.parametrize(
    ("operation", "words", "error", "said"),
    [
        (3, {}, KindError, "`operation` must be a monoid or a function of tilefold's, got int"),
        (len, {}, KindError, "`operation` must run on a GPU, got len"),
        (torch.cumsum, {"dim": 0}, KindError, "got cumsum, which ran nothing of tilefold's"),
        (tilefold.softmax, {}, ArgumentError, r"those of softmax \(input, dim, .*missing .* 'dim'"),
        (tilefold.softmax, {"dim": 7}, DimError, r"softmax: `dim` must be in \[-2, 1\]"),
        (monoids.SUM, {"k": 3}, ArgumentError, "a fold must come without options, got k"),
    ],
)
def test_what_cannot_be_explained(
    operation: Any, words: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        tilefold.explain_plan(X, operation, **words)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("4096x65536 --operation softmax --dim 1", "each held whole by 8 programs"),
        ("4096x65536 --operation softmax --dim 1 --chip a100", "4096 rows"),
        ("64x512x7x7 --operation group_norm", "2048 rows of 784 elements"),
        ("16x1000 --operation layer_norm", "16 rows of 1000 elements"),
        ("8x1000 --operation topk --k 3", "8 rows of 1000"),
        ("64x1000 --operation transpose", "64 x 1000 places"),
        ("1000x64 --operation segment_reduce --segments 7 --dim 0", "7 segments of 1000"),
        ("64x4096 --operation scan --monoid affine --dtype fp32", "expected on NVIDIA H200: at least"),
        ("64x4096 --operation cummax --dim 0", "by columns"),
        ("64x4096 --monoid sum --dim 1", "expected on NVIDIA H200: at least"),
        ("64x4096 --chip b200", "expected on B200: at least"),
        ("2^28", "1 result of 268435456 elements"),
        ("64x2^20 --dim 0", "1048576 results of 64 elements"),
    ],
)
def test_the_command_plans_any_operation(argv: str, said: str) -> None:
    done = run(["plan", *argv.split()])
    assert done.exit_code == 0
    assert said in done.stdout
    assert "MB read and written" in done.stdout


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("8x9 --operation cumsum --dim all", "--dim must be one dim for cumsum, got all"),
        ("8x9 --operation transpose --dim 0", "--dim must be two dims for transpose, got 1"),
        ("8x9 --operation topk --k 12", "`k` must be in"),
        ("8x9 --operation topk --groups 3", "--groups must come with group_norm, got topk; leave it out"),
        ("8x9 --k 3", "--k must come with topk, got reduce; leave it out"),
        (
            "8x9 --operation softmax --monoid sum",
            "--monoid must come with reduce, scan, segment_reduce, got softmax",
        ),
        ("8x9 --operation group_norm --dim 1", "--dim must come with reduce, softmax"),
        ("8x9 --operation scan --segments 3", "--segments must come with segment_reduce, got scan"),
        ("8x9 --operation transpose --dim -1", "--dim must be two dims for transpose, got 1"),
        ("8x9 --operation wat", "--operation must be one of reduce, softmax"),
        ("8x9 --operation var", "got 'var'; use --monoid welford: its results are count, mean and M2"),
        ("8x9 --operation amax", "got 'amax'; use --monoid max"),
        ("8x9 --operation logsumexp", "got 'logsumexp'; use --monoid logsumexp"),
        (
            "8x9 --operation vector_norm",
            "use --monoid FILE.py::name, of a file with name = tilefold.monoids.NORM(2)",
        ),
        (
            "8x9 --operation matmul",
            "matmul must have --by, the second operand's shape, got none; like --by 8192x512",
        ),
        ("8x9 --operation layernorm", "got 'layernorm'; use layer_norm"),
        ("8x9 --operation median", "got 'median'; take one of these"),
        ("8x9 --monoid amax", "got 'amax'; use max"),
        ("8x9 --monoid norm", "of a file with name = tilefold.monoids.NORM(2)"),
        ("2^70", "fewer than 2^63 bytes"),
    ],
)
def test_the_command_refuses_in_one_line(argv: str, said: str) -> None:
    done = run(["plan", *argv.split()])
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_steps_of_a_library_are_shown_and_named() -> None:
    a = torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)
    plan = tilefold.explain_plan((a, a), tilefold.matmul)
    assert plan.strategy == "cublas"
    assert plan.note == "finished_product"
    assert "\n  1. finished_product\n" in str(plan)
    assert (plan.chip, plan.launches) == ("NVIDIA H200", 1)


def test_the_command_explains_the_words_of_its_plans() -> None:
    shown = run(["plan", "--help"]).stdout
    for word in ("lane", "split", "absorbing blocks", "lanes first", "held whole"):
        assert word in shown
