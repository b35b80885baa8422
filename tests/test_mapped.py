"""`reduce_map` and what torch has of its kind: on every backend beside the definition in float64, and executed from PTX."""

from __future__ import annotations

import functools
import itertools
import types
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilefold as tf
from tilefold import monoids
from tilefold.backends.triton import map_calls
from tilefold.backends.triton.kernels import map_windows
from tilefold.contract.row import make_row_map
from tilefold.errors import GradientError, ShapeError
from tilefold.functional.normalized import _norms, _shares
from tilefold.mapped import graph_of, kept
from tilefold.planner import blocks, maps, rings, spans
from tilefold.planner.device import H200, PORTABLE
from tilefold.requests import RowMap
from tilefold.xray.machine import all_programs
from xray import running
from xray.running import run_plan

# Elements under no mask are computed with and thrown away.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
F = torch.nn.functional
BACKENDS = ["auto", "cpu", "reference", "interpret"]
NAN, INF = float("nan"), float("inf")
# Some roundings of float32 in a row's results, of which an element is made, then one of its dtype.
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are held in registers here; `test_rings` and `test_spans` have those in shared memory."""
    monkeypatch.setattr(rings, "ELEMENTS", ())
    monkeypatch.setattr(spans, "ELEMENTS", ())


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> Any:
    with tf.backend(request.param):
        yield request.param


def check(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """Where all numbers are small (a long row's shares), errors are measured by the largest of them."""
    assert got.dtype == dtype
    bound, known = BOUNDS[dtype], want.double()[want.isfinite()].abs()
    largest = min(1.0, float(known.max())) if known.numel() else 1.0
    torch.testing.assert_close(got.double(), want.double(), rtol=bound, atol=bound * largest, equal_nan=True)


def cut(*shape: int, dtype: torch.dtype = torch.float32, offset: int = 0) -> torch.Tensor:
    flat = torch.randn(torch.Size(shape).numel() + offset, dtype=torch.float64).to(dtype)
    return flat[offset:].view(shape)


LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "rows": lambda dtype: cut(5, 64, dtype=dtype),
    "odd rows": lambda dtype: cut(3, 67, dtype=dtype),
    "misaligned": lambda dtype: cut(3, 32, dtype=dtype, offset=1),
    "transposed": lambda dtype: cut(33, 6, dtype=dtype).t(),
    "expanded": lambda dtype: cut(1, 17, dtype=dtype).expand(4, 17),
    "every other": lambda dtype: cut(6, 34, dtype=dtype)[::2, ::2],
    "one element": lambda dtype: cut(3, 1, dtype=dtype),
    "one row": lambda dtype: cut(1, 31, dtype=dtype),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_softmax(backend: str, name: str, dtype: torch.dtype, dim: int) -> None:
    x = LAYOUTS[name](dtype)
    check(tf.softmax(x, dim), torch.softmax(x.double(), dim), dtype)
    check(tf.log_softmax(x, dim), torch.log_softmax(x.double(), dim), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["odd rows", "transposed", "expanded"])
def test_norms(backend: str, name: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[name](dtype)
    wide, n = x.double(), x.shape[1]
    w, b = cut(n, dtype=dtype), cut(n, dtype=dtype)
    check(tf.layer_norm(x, (n,), w, b), F.layer_norm(wide, (n,), w.double(), b.double()), dtype)
    check(tf.layer_norm(x, (n,), bias=b), F.layer_norm(wide, (n,), None, b.double()), dtype)
    check(tf.rms_norm(x, [n], w, 1e-6), F.rms_norm(wide, (n,), w.double(), 1e-6), dtype)
    check(tf.normalize(x), F.normalize(wide), dtype)
    check(tf.normalize(x, 3.0, (0, 1)), wide / wide.norm(3), dtype)


def test_a_residual_is_added_and_given_back(backend: str) -> None:
    x, r, w = (cut(4, 40, dtype=torch.bfloat16) for _ in range(3))
    total = x.double() + r.double()
    got, added = tf.rms_norm(x, (40,), w[0], 1e-6, residual=r)
    check(added, total, torch.bfloat16)
    check(got, F.rms_norm(total, (40,), w[0].double(), 1e-6), torch.bfloat16)
    got, added = tf.layer_norm(x, (40,), w[0], residual=r)
    check(added, total, torch.bfloat16)
    check(got, F.layer_norm(total, (40,), w[0].double()), torch.bfloat16)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_residual_of_more_bits_keeps_them(name: str, backend: str) -> None:
    """The dtype of the sum in torch: residual streams of models are float32 beside activations of 16 bits."""
    x, r = cut(4, 40, dtype=torch.bfloat16), cut(4, 40, dtype=torch.float32)
    for a, b in ((x, r), (r, x), (x, r.double())):
        dtype = (a + b).dtype
        got, added = getattr(tf, name)(a, (40,), residual=b)
        check(added, a.double() + b.double(), dtype)
        check(got, getattr(F, name)((a + b).double(), (40,)), dtype)
        into = torch.empty_like(a + b), torch.empty_like(a + b)
        getattr(tf, name)(a, (40,), residual=b, out=into)
        assert torch.equal(into[0], got)
        assert torch.equal(into[1], added)


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (3, 4, 2, 7), (0, 4, 2), (2, 4, 0)], ids=str)
def test_group_norm(backend: str, shape: tuple[int, ...]) -> None:
    x, w, b = cut(*shape), cut(shape[1]), cut(shape[1])
    check(tf.group_norm(x, 2, w, b), F.group_norm(x.double(), 2, w.double(), b.double()), torch.float32)
    y = cut(*shape).transpose(0, -1).contiguous().transpose(0, -1)
    check(tf.group_norm(y, 2), F.group_norm(y.double(), 2), torch.float32)


def test_rows_of_infinities_and_nan(backend: str) -> None:
    values = [-INF, 0.0, 1.0, INF, NAN]
    x = torch.tensor(list(itertools.product(values, repeat=3)), dtype=torch.float32)
    for ours, theirs in ((tf.softmax, torch.softmax), (tf.log_softmax, torch.log_softmax)):
        torch.testing.assert_close(ours(x, 1), theirs(x, 1), equal_nan=True)
    torch.testing.assert_close(tf.layer_norm(x, (3,)), F.layer_norm(x, (3,)), equal_nan=True)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()], ids=str)
def test_nothing_and_one(backend: str, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    got = tf.softmax(x, -1)
    assert got.shape == x.shape
    assert (got == 1).all() or not x.numel()


def test_dtype_converts_first(backend: str) -> None:
    x = torch.tensor([[1, 2, 3], [5, 5, 5]], dtype=torch.int16)
    check(tf.softmax(x, 1, torch.float32), torch.softmax(x, 1, torch.float64), torch.float32)
    y = cut(2, 9)
    check(tf.softmax(y, 1, dtype=torch.float64), torch.softmax(y.double(), 1), torch.float64)
    check(tf.softmax(y, 1, torch.bfloat16), torch.softmax(y.bfloat16().double(), 1), torch.bfloat16)


def test_several_inputs_extras_and_outputs(backend: str) -> None:
    x, y, e = cut(4, 1, 9), cut(5, 1), cut(9)
    dot = tf.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, commutative=True, check=False)
    got = tf.reduce_map((x, y), dot, lambda x, y, s, e: (x - s * e, x > y), (0, 2), extras=e)
    a, b = torch.broadcast_tensors(x.double(), y.double())
    check(got[0], a - (a * b).sum((0, 2), keepdim=True) * e, torch.float32)
    assert torch.equal(got[1], a > b)


def test_whole_numbers_stay_whole(backend: str) -> None:
    x = torch.randint(-100, 100, (5, 13), dtype=torch.int32)
    got = tf.reduce_map(x, monoids.MAX, lambda x, most: (x - most, x == most, x * 0.5), 1)
    most = x.amax(1, keepdim=True)
    assert torch.equal(got[0], x - most)
    assert torch.equal(got[1], x == most)
    assert torch.equal(got[2], x * 0.5)


def test_positions_and_order(backend: str) -> None:
    x = cut(3, 37)
    best, place = x.max(1, keepdim=True)
    got = tf.reduce_map(x, monoids.MAX_WITH_INDEX, lambda x, value, index: (x - value, index), 1)
    assert torch.equal(got[0], x - best)
    assert torch.equal(got[1], place.expand(3, 37))
    got = tf.reduce_map(x, monoids.LAST, lambda x, last: x - last, 1)
    assert torch.equal(got, x - x[:, -1:])


def test_in_place(backend: str) -> None:
    x = cut(6, 40)
    want = torch.softmax(x.double(), 1)
    tf.softmax(x, 1, out=x)
    check(x, want, torch.float32)
    y, r = cut(6, 40), cut(6, 40)
    total = y.double() + r.double()
    tf.rms_norm(y, (40,), eps=0.0, residual=r, out=(y, r))
    check(r, total, torch.float32)
    check(y, F.rms_norm(total, (40,), eps=0.0), torch.float32)
    z = cut(40, 6).t()
    want = torch.softmax(z.double(), 1)
    tf.softmax(z, 1, out=z)
    check(z, want, torch.float32)


def test_a_refused_call_leaves_its_input() -> None:
    x = cut(8)
    before = x.clone()
    with pytest.raises(ShapeError, match="overlap"):
        tf.softmax(x[:7], 0, out=x[1:])
    assert torch.equal(x, before)


@pytest.mark.parametrize("backend", ["cpu", "interpret"])
def test_bits_of_a_row_do_not_depend_on_how_many_there_are(backend: str) -> None:
    x = cut(9, 70, dtype=torch.bfloat16)
    with tf.backend(backend):
        every = tf.softmax(x, 1, guarantee="batch_invariant")
        for rows in (1, 5):
            assert torch.equal(tf.softmax(x[:rows], 1, guarantee="batch_invariant"), every[:rows])


def test_bits_of_a_column_do_not_depend_on_its_neighbours() -> None:
    x = cut(70, 33, dtype=torch.bfloat16)
    with tf.backend("cpu"):
        every = tf.softmax(x, 0, guarantee="batch_invariant")
        some = tf.softmax(x[:, :5].contiguous(), 0, guarantee="batch_invariant")
    assert torch.equal(every[:, :5], some)


def test_meta_fake_subclasses_and_gradients() -> None:
    meta = tf.softmax(torch.empty(3, 4, device="meta", dtype=torch.bfloat16), 1)
    assert meta.shape == (3, 4)
    assert meta.dtype == torch.bfloat16
    with torch._subclasses.FakeTensorMode():
        assert tf.rms_norm(torch.empty(3, 4), (4,)).shape == (3, 4)

    class Own(torch.Tensor):
        pass

    x = cut(2, 5)
    assert type(tf.softmax(x.as_subclass(Own), 1)) is Own
    assert type(tf.layer_norm(x, (5,), x[0].as_subclass(Own))) is Own
    assert type(tf.reduce_map(x.as_subclass(Own), monoids.SUM, lambda x, s: x / s, 1)) is Own
    with pytest.raises(GradientError, match="require grad"):
        tf.softmax(x.clone().requires_grad_(), 1)
    check(tf.softmax(torch._neg_view(x), 1), torch.softmax(-x.double(), 1), torch.float32)


@pytest.mark.parametrize("dim", [(), None, (0, 1)])
def test_normalize_takes_no_dims_for_all(dim: Any) -> None:
    x = cut(3, 4)
    check(tf.normalize(x, dim=dim), F.normalize(x, dim=dim), torch.float32)


def test_numbers_that_no_float_holds_are_infinite() -> None:
    x = cut(3, 4)
    assert torch.equal(tf.normalize(x, 10**400), tf.normalize(x, INF))
    assert (tf.rms_norm(x, (4,), eps=10**400) == 0).all()


def test_group_norm_into_out(backend: str) -> None:
    x = cut(2, 6, 5)
    want = F.group_norm(x.double(), 3)
    for out in (torch.empty(2, 6, 5), torch.empty(5, 6, 2).transpose(0, 2), (torch.empty(2, 6, 5),), x):
        got = tf.group_norm(x, 3, out=out)
        assert got is (out[0] if isinstance(out, tuple) else out)
        check(got, want, torch.float32)


COMPILED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: tf.softmax(x, 1),
    "log_softmax": lambda x: tf.log_softmax(x, 1),
    "layer_norm": lambda x: tf.layer_norm(x, (8,), x[0], x[1]),
    "rms_norm": lambda x: tf.rms_norm(x, (8,), residual=x)[1],
    "group_norm": lambda x: tf.group_norm(x, 2),
    "normalize": lambda x: tf.normalize(x),
    "reduce_map": lambda x: tf.reduce_map(x, monoids.SUM, lambda x, s: x / s, 1),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_function_calls_it_without_warnings(name: str) -> None:
    function, x = COMPILED[name], cut(4, 8)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = torch.compile(lambda x: function(x * 2) + 1, backend="eager")(x)
    assert not [w.message for w in said if not issubclass(w.category, DeprecationWarning)]
    assert torch.equal(got, function(x * 2) + 1)


# ------------------------------------------------------------------------------------------- executed from PTX


def executed(
    monoid: Any,
    apply: Any,
    tensors: list[torch.Tensor],
    dims: tuple[int, ...],
    guarantee: str = "run_to_run",
) -> Any:
    """A map as an H200 would be given it, every launch executed from its PTX: results and the plan."""
    inputs = monoid.algebra.inputs
    shape = tensors[0].shape
    expanded = [t.expand(shape) for t in tensors]
    dtypes = tuple(t.dtype for t in tensors)
    row = make_row_map(monoid.total, apply, dtypes[:inputs], dtypes[inputs:])
    request = RowMap(row, dims, guarantee, tuple(shape))
    problem, plan = request.plan(expanded, H200, library=False)
    results = [torch.empty(s, dtype=d) for s, d in request.results]
    run_plan(plan, problem, row, expanded, results, 90)
    return results, plan


PTX = {
    "rows": ((4, 256), torch.bfloat16, (1,), "block_rows"),
    "short rows": ((40, 24), torch.float32, (1,), "block_rows"),
    "odd rows": ((5, 333), torch.bfloat16, (1,), "block_rows"),
    "columns": ((2, 40, 72), torch.bfloat16, (1,), "block_columns"),
}


@pytest.mark.parametrize("name", PTX)
def test_executed_from_ptx(name: str) -> None:
    shape, dtype, dims, family = PTX[name]
    x = cut(*shape, dtype=dtype)
    (got,), plan = executed(*kept(_shares, False), [x], dims)
    assert plan.stages[0].family == family
    check(got, torch.softmax(x.double(), dims[0]), dtype)


def test_norms_executed_from_ptx() -> None:
    x, r, w, b = cut(5, 333), cut(5, 333), cut(333), cut(333)
    norm = kept(_norms, "layer_norm", 333, 1e-5, (True, True), True)
    (got, added), _ = executed(*norm, [x, r, w, b], (1,))
    total = x.double() + r.double()
    check(added, total, torch.float32)
    check(got, F.layer_norm(total, (333,), w.double(), b.double()), torch.float32)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few hundred elements are too long to be held, and a window is a few of them."""
    sizes = {
        "THREAD_WORDS": 0,
        "SHARED_TILES": (),
        "WINDOW_BYTES": 5000,
        "PART_BYTES": 1024,
        "NARROW_PARTS": 1,
        "LEAST_PART_BYTES": 1024,
        "WINDOW_WARPS": 1,
    }
    for name, value in sizes.items():
        monkeypatch.setattr(maps, name, value)
    monkeypatch.setattr(blocks, "ELEMENTS", 0)
    monkeypatch.setattr(map_calls, "PARTS_TOGETHER", 2)


WINDOWS = {
    "rows": ((5, 1200), torch.float32, (1,), "run_to_run"),
    "odd rows": ((2, 3301), torch.bfloat16, (1,), "run_to_run"),
    "one row": ((2000,), torch.float32, (0,), "run_to_run"),
    "rows alone": ((3, 1203), torch.float32, (1,), "batch_invariant"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_executed_from_ptx(name: str, small_windows: None) -> None:
    shape, dtype, dims, guarantee = WINDOWS[name]
    x = cut(*shape, dtype=dtype)
    (got,), plan = executed(*kept(_shares, False), [x], dims, guarantee)
    assert plan.strategy == "windows"
    assert plan.stages[1].stage.splits > 1
    check(got, torch.softmax(x.double(), dims[0]), dtype)


def test_windows_in_whatever_order_programs_begin(
    small_windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, found = cut(4, 1200), []
    for order in (sorted, functools.partial(sorted, reverse=True), functools.partial(sorted, key=hash)):
        monkeypatch.setattr(running, "all_programs", lambda grid, order=order: order(all_programs(grid)))
        (got,), _ = executed(*kept(_shares, False), [x], (1,))
        found.append(got)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_windows_of_sums_with_weights(small_windows: None) -> None:
    x, r, w, b = cut(3, 1030), cut(3, 1030), cut(1030), cut(1030)
    norm = kept(_norms, "layer_norm", 1030, 1e-5, (True, True), True)
    (got, added), plan = executed(*norm, [x, r, w, b], (1,))
    assert plan.strategy == "windows"
    total = x.double() + r.double()
    check(added, total, torch.float32)
    check(got, F.layer_norm(total, (1030,), w.double(), b.double()), torch.float32)


def test_windows_interpreted(small_windows: None) -> None:
    x = cut(3, 700)
    with tf.backend("interpret"):
        check(tf.softmax(x, 1, out=x.clone()), torch.softmax(x.double(), 1), torch.float32)
        plan = tf.last_plan()
    assert plan is not None
    assert plan.strategy == "windows"


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """A row is held by programs of so many warps, and elements a thread."""

    def tiles(warps: int, elements: int) -> None:
        monkeypatch.setattr(maps, "THREAD_WORDS", 0)
        monkeypatch.setattr(blocks, "LANES", (32 * warps,))
        monkeypatch.setattr(blocks, "SHARED_LANES", 1)
        monkeypatch.setattr(blocks, "ELEMENTS", elements)
        monkeypatch.setattr(maps, "SHARED_TILES", ((warps, elements),))

    return tiles


# Shape, dtype, dim, tile, programs of a cluster.
CLUSTERS = {
    "rows": ((5, 500), torch.float32, 1, (1, 8), 2),
    "odd rows": ((3, 1403), torch.bfloat16, 1, (1, 16), 3),
    "rows of 20,000": ((2, 20000), torch.bfloat16, 1, (4, 32), 5),
    "rows of 50,257": ((2, 50257), torch.bfloat16, 1, (8, 32), 7),
    "one row": ((3900,), torch.bfloat16, 0, (1, 16), 8),
    "rows of 20,011": ((2, 20011), torch.float32, 1, (4, 16), 10),
    "rows of 16 programs": ((2, 4000), torch.float32, 1, (1, 8), 16),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_executed_from_ptx(name: str, clusters: Callable[[int, int], None]) -> None:
    shape, dtype, dim, tile, programs = CLUSTERS[name]
    clusters(*tile)
    x = cut(*shape, dtype=dtype)
    logarithm = name == "rows of 50,257"
    (got,), plan = executed(*kept(_shares, logarithm), [x], (dim,))
    assert (plan.strategy, plan.stages[0].splits) == ("whole", programs)
    check(got, (torch.log_softmax if logarithm else torch.softmax)(x.double(), dim), dtype)


@pytest.mark.parametrize(
    ("length", "dtype", "tile", "programs"),
    [(1032, torch.float32, (1, 16), 5), (20000, torch.bfloat16, (8, 32), 5)],
    ids=str,
)
def test_norms_of_clusters(
    length: int,
    dtype: torch.dtype,
    tile: tuple[int, int],
    programs: int,
    clusters: Callable[[int, int], None],
) -> None:
    clusters(*tile)
    x, r, w, b = cut(2, length, dtype=dtype), cut(2, length, dtype=dtype), cut(length), cut(length)
    norm = kept(_norms, "layer_norm", length, 1e-5, (True, True), True)
    (got, added), plan = executed(*norm, [x, r, w, b], (1,))
    assert (plan.strategy, plan.stages[0].splits) == ("whole", programs)
    total = x.double() + r.double()
    check(added, total, dtype)
    check(got, F.layer_norm(total, (length,), w.double(), b.double()), dtype)


def test_positions_of_clusters(clusters: Callable[[int, int], None]) -> None:
    """Equal elements in the tiles of several programs: the first counts."""
    clusters(1, 8)
    x = torch.randint(0, 9, (3, 1000)).float()
    apply = graph_of(lambda x, value, index: (x - value, index), 3)
    got, plan = executed(monoids.MAX_WITH_INDEX, apply, [x], (1,))
    assert plan.stages[0].splits == 4
    best = x.amax(1, keepdim=True)
    assert torch.equal(got[0], x - best)
    first = (x == best).int().argmax(1, keepdim=True)
    assert torch.equal(got[1], first.expand(3, 1000))


def test_infinities_and_nan_of_clusters(clusters: Callable[[int, int], None]) -> None:
    """Wherever they are in a row, and where a program has nothing else."""
    clusters(1, 8)
    x = cut(6, 600)
    x[0], x[1, 256:512], x[2, 300], x[3, 599], x[4, :256] = -INF, -INF, INF, NAN, NAN
    (got,), plan = executed(*kept(_shares, False), [x], (1,))
    assert plan.stages[0].splits == 3
    check(got, torch.softmax(x.double(), 1), torch.float32)


@pytest.mark.parametrize("warps", [1, 4])
def test_programs_whose_elements_are_far_from_the_rows_largest(
    warps: int, clusters: Callable[[int, int], None]
) -> None:
    """Each program's exponentials are about its own maximum, and then the row's; four rows a program, and one."""
    clusters(warps, 8)
    n = 256 * warps
    x = cut(5, 2 * n + n // 4)
    x[0, n : 2 * n] -= 60
    x[1, n : 2 * n] += 60
    x[2] *= 1e30
    x[3, :n] = -1e38
    x[4, n + 40] = 1e10
    (got,), plan = executed(*kept(_shares, False), [x], (1,))
    assert plan.stages[0].splits == 3
    check(got, torch.softmax(x.double(), 1), torch.float32)


COLUMNS = {  # shape, dtype, programs of a cluster
    "one program": ((2, 100, 72), torch.bfloat16, 1),
    "two a thread, one program": ((2, 128, 64), torch.bfloat16, 1),
    "two programs": ((300, 40), torch.bfloat16, 2),
    "many programs": ((1400, 36), torch.float32, 6),
    "two a thread": ((600, 72), torch.bfloat16, 3),
    "two a thread, of a batch": ((2, 1100, 64), torch.float16, 5),
    "two a thread, pairs of them": ((260, 66), torch.bfloat16, 2),
}


@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_clusters(name: str, logarithm: bool) -> None:
    shape, dtype, programs = COLUMNS[name]
    x, dim = cut(*shape, dtype=dtype), len(shape) - 2
    (got,), plan = executed(*kept(_shares, logarithm), [x], (dim,))
    assert (plan.stages[0].family, plan.stages[0].splits) == ("block_columns", programs)
    check(got, (torch.log_softmax if logarithm else torch.softmax)(x.double(), dim), dtype)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("weighted", [False, True])
def test_norms_of_columns(name: str, weighted: bool) -> None:
    """Two columns a thread where states have two fields at most and nothing stands beside the elements."""
    x, w = cut(3, 300, 72, dtype=torch.bfloat16), cut(300, 1)
    norm = kept(_norms, name, 300, 1e-5, (weighted, False), False)
    (got,), plan = executed(*norm, [x, w] if weighted else [x], (1,))
    stage = plan.stages[0]
    narrow = name == "rms_norm" and not weighted
    assert (stage.block_outputs, stage.neighbours) == (32, 2 if narrow else 0)
    centred = x.double() - (x.double().mean(1, keepdim=True) if name == "layer_norm" else 0)
    scale = torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-5)
    check(got, centred * scale * (w.double() if weighted else 1), torch.bfloat16)


def test_infinities_and_nan_of_columns() -> None:
    """Wherever they are in a column, and where a program has nothing else."""
    x = cut(300, 64, dtype=torch.bfloat16)
    x[:, 0], x[100:, 1], x[50, 2], x[299, 3], x[:260, 4] = -INF, -INF, INF, NAN, -INF
    x[3, 5], x[:, 6] = 1e30, -1e38
    (got,), plan = executed(*kept(_shares, False), [x], (0,))
    assert (plan.stages[0].neighbours, plan.stages[0].splits) == (2, 3)
    check(got, torch.softmax(x.double(), 0), torch.bfloat16)


def test_bits_of_a_clusters_row_do_not_depend_on_how_many_there_are(
    clusters: Callable[[int, int], None],
) -> None:
    """No chip starts more programs together for fewer rows."""
    clusters(1, 16)
    x = cut(7, 2500, dtype=torch.bfloat16)
    (every,), plan = executed(*kept(_shares, False), [x], (1,), "batch_invariant")
    assert 1 < plan.stages[0].splits <= PORTABLE
    for rows in (1, 2, 5):
        (some,), _ = executed(*kept(_shares, False), [x[:rows]], (1,), "batch_invariant")
        assert torch.equal(some, every[:rows])


@pytest.mark.parametrize("itemsize", [2, 4])
def test_blocks_hold_rows_with_few_places_beyond_their_ends(itemsize: int) -> None:
    dtype = torch.bfloat16 if itemsize == 2 else torch.float32
    monoid, apply = kept(_shares, False)
    row = make_row_map(monoid.total, apply, (dtype,), ())
    for length in [
        *range(1, 40),
        63,
        64,
        65,
        777,
        1024,
        3000,
        4099,
        5120,
        10007,
        20000,
        50257,
        100003,
        151936,
    ]:
        x = torch.empty((8192, length), dtype=dtype, device="meta")
        problem = RowMap(row, (1,), "run_to_run", (8192, length)).problem([x])
        stage = blocks.blocks_stage(problem, row.program, (dtype,), False, 16)
        assert stage is not None
        places = stage.step * stage.splits
        assert (stage.splits - 1) * stage.step < length + stage.align - 1 <= places
        assert length < 1024 or places <= 1.3 * length
        assert (stage.masks == 0) == (places == length and stage.align == 1)


@pytest.mark.parametrize(("groups", "splits", "window"), [(1, 1, 1), (5, 3, 2), (4, 1, 4), (7, 4, 3)])
def test_every_job_comes_once_and_after_what_it_waits_for(groups: int, splits: int, window: int) -> None:
    """By the kernel's own order of jobs: a part is mapped after all parts of its row are folded, and both happen once."""
    blocks = -(-groups // window)
    jobs = [job(t, groups, splits, window) for t in range(blocks * 2 * window * splits)]
    real = [(maps, group, split) for maps, group, split in jobs if group < groups]
    assert sorted(real) == sorted(itertools.product((False, True), range(groups), range(splits)))
    for number, (mapping, group, _) in enumerate(real):
        before = [g for m, g, _ in real[:number] if not m]
        assert not mapping or before.count(group) == splits


def job(ticket: int, groups: int, splits: int, window: int) -> tuple[bool, int, int]:
    scope = {"tl": SimpleNamespace(where=lambda condition, a, b: a if condition else b, constexpr=bool)}
    function = types.FunctionType(map_windows.job_of.__code__, scope)
    maps_it, group, split = function(ticket, groups, splits, window)
    return bool(maps_it), group, split


def test_an_ordered_fold_executed_from_ptx() -> None:
    x = cut(3, 50)
    apply = graph_of(lambda x, last: x - last, 2)
    (got,), plan = executed(monoids.LAST, apply, [x], (1,))
    assert plan.strategy == "fold and map"
    assert torch.equal(got, x - x[:, -1:])


@pytest.mark.parametrize("order", [1, 2, INF], ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 64), (2, 1024), (2, 1025), (3, 2500), (7,)], ids=str)
def test_rows_are_normalized_by_torchs_norm(shape: tuple[int, ...], order: float) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    for _ in range(2):  # the second is answered by what the first planned
        made = tf.normalize(x, order, -1)
        assert str(tf.last_plan()).startswith("torch: torch.linalg.vector_norm")
        wide = x.double()
        want = wide / torch.linalg.vector_norm(wide, order, -1, True)
        torch.testing.assert_close(made.double(), want, rtol=1e-6, atol=0)


def test_norms_that_float32_does_not_hold_are_not_torchs() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    for scale in (1.0, 1e-25, 1e25):
        torch.testing.assert_close(tf.normalize(x * scale, eps=0.0)[0], torch.tensor([0.6, 0.8]))
    assert not str(tf.last_plan()).startswith("torch")
    assert tf.normalize(x)[1].tolist() == [0.0, 0.0]
    assert str(tf.last_plan()).startswith("torch")
