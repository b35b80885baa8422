"""How folds run: plans and backends, guarantees on a CPU, torch's modes, threads and forks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import tilefold as tf
from answers import GUARANTEES, NAME, NOBODY_S
from tilefold import Monoid, monoids
from tilefold.api import dispatch
from tilefold.errors import ArgumentError, BackendError, TilefoldError
from tilefold.planner.device import H200, Device
from tilefold.runtime import switch

# ------------------------------------------------------------------------------------------- plans and backends


def test_last_plan_says_what_ran():
    x = torch.ones(3, 4)
    for name in ("cpu", "reference"):
        with tf.backend(name):
            tf.reduce(x, monoids.LOGSUMEXP, 1, guarantee="batch_invariant")
        assert tf.last_plan().backend == name
        assert tf.last_plan().guarantee == "batch_invariant"
    tf.reduce(x, NOBODY_S, 1)
    assert tf.last_plan().backend == "cpu", "torch has no such fold"


def test_last_plan_belongs_to_its_thread():
    tf.reduce(torch.ones(3), monoids.SUM)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(tf.last_plan).result() is None


def test_a_backend_holds_inside_its_block_only():
    x = torch.ones(3)
    with tf.backend("reference"):
        with tf.backend("cpu"):
            tf.reduce(x, monoids.SUM)
            assert tf.last_plan().backend == "cpu"
        tf.reduce(x, monoids.SUM)
        assert tf.last_plan().backend == "reference"
        with pytest.raises(ArgumentError, match="guarantee"), tf.backend("cpu"):
            tf.reduce(x, monoids.SUM, guarantee="always")
        tf.reduce(x, monoids.SUM)
        assert tf.last_plan().backend == "reference"
    tf.reduce(x, monoids.SUM)
    assert tf.last_plan().backend != "reference"


def test_torch_is_refused_where_it_has_no_such_fold():
    with tf.backend("torch"), pytest.raises(BackendError, match=r"torch's own fold must be known.*cpu"):
        tf.reduce(torch.ones(3), NOBODY_S)


@pytest.mark.parametrize(
    "fold",
    [
        pytest.param(lambda: tf.var(torch.ones(3, dtype=torch.float64)), id="var"),
        pytest.param(lambda: tf.norm(torch.ones(3), 3), id="norm"),
        pytest.param(lambda: tf.sum(torch.ones(3).bool()), id="sum-of-bool"),
        pytest.param(lambda: tf.prod(torch.ones(3).half()), id="prod-of-half"),
        pytest.param(
            lambda: tf.reduce(torch.ones(3), monoids.SUM, guarantee="batch_invariant"), id="batch-invariant"
        ),
    ],
)
def test_torch_is_refused_where_its_fold_is_not_known_to_be_the_promised_one(fold):
    """torch has these folds: the rule is about their answers."""
    rule = r"^backend: torch's own fold must be known to give the promised answers .*, got \(.*\) of torch\.\w+ over"
    with tf.backend("torch"), pytest.raises(BackendError, match=rule):
        fold()


def test_triton_is_refused_for_cpu_tensors():
    with tf.backend("triton"), pytest.raises(BackendError, match=r"CUDA tensors, got cpu; move.*cpu"):
        tf.reduce(torch.ones(3), monoids.SUM)


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_environment_chooses_a_backend_and_a_forked_child_folds():
    """One fresh interpreter for both. `backend` goes before the environment.

    A child has none of its parent's threads, and torch's own loops then wait for them for ever, unless told to use one
    thread (as torch's data loaders do).
    """
    program = """
import os, signal, torch, tilefold as tf
tf.reduce(torch.ones(3), tf.monoids.SUM)
print(tf.last_plan().backend)
x = torch.arange(2.0**20) % 7
def folds():
    results = []
    for name in ("auto", "cpu"):
        with tf.backend(name):
            results += [float(tf.reduce(x, m)) for m in (tf.monoids.SUM, tf.monoids.LAST, tf.monoids.ARGMAX)]
    print(tf.last_plan().backend, flush=True)
    return results
want = folds()
child = os.fork() if hasattr(os, "fork") else 0
if child == 0:
    signal.alarm(60)
    torch.set_num_threads(1)
    os._exit(0 if folds() == want else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run(program, TILEFOLD_BACKEND="reference")
    assert done.stdout.split() == ["reference", "cpu", "cpu", "0"], done.stderr


def test_folds_and_scans_while_python_ends():
    """A thread that outlives the main one, and functions that run at exit: no pool takes their parts, or can be made."""
    program = """
import atexit, threading, time, torch, tilefold as tf
torch.set_num_threads(2)
affine, x = tf.monoids.AFFINE, torch.arange(2.0**18).view(64, -1) % 7
def results():
    mapped = tf.reduce_map(x, tf.monoids.SUM, lambda x, total: x + total, dim=1)
    return [mapped, *tf.scan((x / 7, x), affine, 1)]
def again(name):
    for threads in (2, 3):
        torch.set_num_threads(threads)
        print(name, all(map(torch.equal, results(), want)), flush=True)
def late():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    again("late")
want = results()
atexit.register(again, "exit")
threading.Thread(target=late).start()
"""
    done = run(program)
    assert done.stdout.splitlines() == ["late True"] * 2 + ["exit True"] * 2, done.stderr


def test_a_wrong_name_in_the_environment_is_said():
    program = "import torch, tilefold as tf; tf.reduce(torch.ones(3), tf.monoids.SUM)"
    last_line = run(program, TILEFOLD_BACKEND="fast").stderr.rstrip().splitlines()[-1]
    assert "TILEFOLD_BACKEND: the name must be one of auto, torch, cpu" in last_line
    assert "got 'fast'; take" in last_line


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_explain_plan_runs_nothing_and_reads_nothing(guarantee):
    x = torch.empty(300, 5000, device="meta")
    plan = tf.explain_plan(x, monoids.SUM, 1, guarantee=guarantee)
    assert plan == tf.explain_plan(torch.empty(300, 5000), monoids.SUM, -1, guarantee=guarantee, device=H200)
    assert plan.backend == "triton"
    assert plan.guarantee == guarantee
    assert plan.launches == len(plan.stages) >= 1
    assert "lanes" in str(plan)


def test_explain_plan_of_several_inputs_that_broadcast():
    x, y = torch.empty(64, 1000, device="meta"), torch.empty(1000, device="meta")
    dot = Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y)
    assert tf.explain_plan((x, y), dot, 1).stages


def test_explain_plan_depends_on_the_chip():
    x = torch.empty(1, 1 << 28, device="meta")
    assert tf.explain_plan(x, monoids.SUM, 1) != tf.explain_plan(
        x, monoids.SUM, 1, device=Device("small", 4, 80)
    )


def test_explain_plan_of_nothing_says_so():
    plan = tf.explain_plan(torch.empty(3, 0), monoids.SUM, 1)
    assert plan.stages == ()
    assert "nothing to fold" in str(plan)


# --------------------------------------------------------------------------------------- guarantees on the CPU


def hard(*shape: int) -> torch.Tensor:
    """Numbers whose sum shows every change of grouping."""
    return torch.randn(shape) * torch.exp(torch.randn(shape) * 5)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(
    "monoid", [monoids.SUM, monoids.LOGSUMEXP, monoids.WELFORD, monoids.DESCRIBE], ids=NAME
)
def test_the_same_bits_from_run_to_run(monoid, guarantee, cpu):
    x = hard(7, 70001)
    results = [tf.reduce(x, monoid, 1, guarantee=guarantee) for _ in range(3)]
    assert len({signature(r) for r in results}) == 1


def signature(result: object) -> bytes:
    tensors = result if isinstance(result, tuple) else (result,)
    return b"".join(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


@pytest.mark.parametrize(
    "monoid", [monoids.SUM, monoids.LOGSUMEXP, monoids.WELFORD, monoids.NORM(3)], ids=NAME
)
@pytest.mark.parametrize("length", [3, 65, 1000, 70001])
@pytest.mark.parametrize("dim", [0, 1])
def test_batch_invariant_bits_do_not_depend_on_the_batch(monoid, length, dim, cpu):
    x = hard(9, length) if dim else hard(length, 9)

    def rows(start: int, end: int) -> bytes:
        part = x[start:end] if dim else x[:, start:end]
        got = tf.reduce(part, monoid, dim, guarantee="batch_invariant")
        got = got if isinstance(got, tuple) else (got,)
        return signature(tuple(g[4 - start] for g in got))

    assert rows(0, 9) == rows(4, 5) == rows(3, 6) == rows(4, 9)


@pytest.fixture
def threads():
    """Lets a test change how many threads torch uses."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.LOGSUMEXP, monoids.WELFORD], ids=NAME)
def test_lanes_bits_do_not_depend_on_the_number_of_threads(monoid, guarantee, threads):
    x = hard(3, 400001)
    with tf.backend("cpu"):
        seen = []
        for count in (1, 2, 3):
            threads(count)
            seen.append([signature(tf.reduce(x, monoid, dim, guarantee=guarantee)) for dim in (0, 1, None)])
    assert seen[0] == seen[1] == seen[2]


# ------------------------------------------------------------------------------ torch's modes, threads and forks


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_compiled_code_calls_the_fold_that_it_names(name):
    """Traced, folds of one shape by different monoids were taken for each other."""
    torch._dynamo.reset()
    x = torch.rand(3, 4)
    folds = [monoids.SUM, monoids.LOGSUMEXP, monoids.MAX, monoids.WELFORD, monoids.MINMAX, monoids.PROD]
    with tf.backend(name):
        for monoid in folds * 2:
            compiled = torch.compile(lambda t, monoid=monoid: tf.reduce(t * 2, monoid, 0), backend="eager")
            got, want = compiled(x), tf.reduce(x * 2, monoid, 0)
            for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
                assert torch.equal(one, other), monoid
        several = lambda t: (tf.mean(t, 1), tf.amax(t, 1), tf.std(t, 1), tf.norm(t, 3, 1))  # noqa: E731  # compiled, too
        assert all(map(torch.equal, torch.compile(several, backend="eager")(x), several(x)))


def test_threads_fold_alike(cpu):
    x, folds = hard(16, 40001), (monoids.SUM, monoids.LOGSUMEXP, monoids.LAST, monoids.ARGMAX)
    want = [signature(tf.reduce(x, m, 1)) for m in folds]
    barrier = threading.Barrier(8)

    def fold(_: int) -> list[bytes]:
        barrier.wait()
        with tf.backend(cpu):
            return [signature(tf.reduce(x, m, 1)) for m in folds]

    with ThreadPoolExecutor(8) as pool:
        assert all(got == want for got in pool.map(fold, range(8)))


def test_inference_mode_makes_inference_tensors(cpu):
    with torch.inference_mode():
        x = torch.ones(3, 5)
        for monoid in (monoids.SUM, monoids.LAST, monoids.LOGSUMEXP):
            assert tf.reduce(x, monoid, 1).is_inference()
    assert not tf.reduce(x, monoids.SUM, 1).is_inference(), "inference inputs fold outside the mode too"


def test_no_grad_lets_parameters_through(cpu):
    weight = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        assert tf.reduce(weight, monoids.SUM) == 3
    assert tf.reduce(weight.detach(), monoids.SUM) == 3
    assert tf.explain_plan(weight.detach(), monoids.SUM).stages


def test_views_with_a_conjugate_or_negative_bit_are_read_right(cpu):
    x = torch.tensor([1.0, -2.0, 5.0])
    assert torch.conj(x) is x, "real tensors have no conjugate bit"
    for monoid, want in (
        (monoids.SUM, -4.0),
        (monoids.MAX, 2.0),
        (monoids.LAST, -5.0),
        (monoids.NORM(1), 8.0),
    ):
        assert tf.reduce(torch._neg_view(x), monoid) == want
    imaginary = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert imaginary.is_neg()
    assert tf.reduce(imaginary, monoids.SUM) == 2
    assert tf.reduce(imaginary, monoids.FIRST) == -2


def test_autocast_changes_no_dtype(cpu):
    x = torch.randn(4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for monoid in (monoids.SUM, monoids.LOGSUMEXP, monoids.LAST):
            assert torch.equal(tf.reduce(x, monoid, 1), tf.reduce(x.clone(), monoid, 1))
            assert tf.reduce(x, monoid, 1).dtype == torch.float32
            assert tf.reduce(x.bfloat16(), monoid, 1).dtype == torch.bfloat16


def meta() -> None:
    assert tf.reduce(torch.ones(3, 4, device="meta"), NOBODY_S, 1).is_meta


def fake() -> None:
    with FakeTensorMode():
        assert tf.reduce(torch.ones(3, 4), NOBODY_S, 1).shape == (3,)


def mapped() -> None:
    x = torch.randn(3, 5)
    torch.testing.assert_close(torch.vmap(lambda row: tf.reduce(row, NOBODY_S))(x), (x**3 - 2).sum(1))


def forward_derivative() -> None:
    x = torch.randn(5)
    with forward_ad.dual_level():
        pair = forward_ad.unpack_dual(tf.reduce(forward_ad.make_dual(x, torch.ones(5)), NOBODY_S))
    assert pair.tangent is not None, "a detached result"
    torch.testing.assert_close(pair.tangent, (3 * x**2).sum())


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # torch's own forward_ad
@pytest.mark.parametrize("mode", [meta, fake, mapped, forward_derivative])
def test_other_kinds_of_tensors_fold_or_are_refused_by_name(mode, cpu):
    with contextlib.suppress(TilefoldError):
        mode()


@pytest.mark.parametrize(
    ("x", "dim"),
    [
        (torch.ones(2, 3), True), (torch.ones(2, 3), 1.0), (torch.ones(2, 3), (0, 1.0)),
        (torch.ones(2, 3), torch.tensor(1)), (torch.ones(2, 3), {0}), (torch.ones(2, 3), "1"),
        (torch.eye(3).to_sparse(), 0),
    ],
    ids=["bool", "float", "a float among", "tensor", "set", "text", "sparse"],
)  # fmt: skip
def test_a_call_that_must_be_checked_is_known_by_no_key(x: torch.Tensor, dim: Any) -> None:
    assert dispatch.again(switch.call_key, [x], "a call", dim, ()) == (None, None)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_known_by_no_key() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert type(nested) is torch.Tensor
    assert switch.call_key([nested], monoids.SUM, 0, (False, None, None, "run_to_run")) is None


def test_a_plain_call_is_known_by_what_its_plan_depends_on() -> None:
    x = torch.ones(4, 6)
    rest = (False, None, None, "run_to_run")
    key = switch.call_key([x], "a call", (0,), rest)
    assert key is not None
    assert dispatch.again(switch.call_key, [torch.ones(4, 6)], "a call", [0], rest) == (key, None)
    assert key != switch.call_key([x[:, 1:]], "a call", (0,), rest)
    assert key != switch.call_key([torch.ones(25)[1:].view(4, 6)], "a call", (0,), rest), "alignment"
    unhashable = switch.call_key([x], monoids.SUM, 0, (False, None, None, ["run_to_run"]))
    assert unhashable is not None
    assert dispatch.repeated(unhashable, x) is None
    seen: list[Any] = []
    torch.vmap(lambda row: (seen.append(switch.call_key([row], monoids.SUM, 0, rest)), row)[1])(x)
    assert seen == [None]


def test_ranks_that_torchrun_starts_describe_files_together(tmp_path):
    for i in range(3):
        torch.save({f"w{j}": torch.full((100,), float(i + j)) for j in range(4)}, tmp_path / f"{i}.pt")
    describe = ["-m", "tilefold", "describe", str(tmp_path), "--json"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    alone, together = (
        subprocess.run([sys.executable, *before, *describe], capture_output=True, timeout=120, check=True)
        for before in ([], torchrun)
    )
    assert together.stdout == alone.stdout
