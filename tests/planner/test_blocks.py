"""Maps of rows that registers hold, executed from PTX: a program's rows, those of clusters, columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import tilefold
from mapped_rows import check, cut, executed
from tilefold import monoids
from tilefold.api.reduce_map import graph_of, kept
from tilefold.api.requests import RowMap
from tilefold.functional.normalized import _norms, _shares
from tilefold.planner import blocks, maps
from tilefold.planner.device import PORTABLE
from tilefold.planner.products.row import make_row_map

pytestmark = pytest.mark.usefixtures("in_registers")
F = torch.nn.functional
NAN, INF = float("nan"), float("inf")


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


def test_rows_that_begin_between_vectors_are_two_of_these() -> None:
    """Kernels read such a row's first and last vector apart: where both are one, its elements would be folded twice."""
    found = set()
    for n, rows in itertools.product(range(1, 40), (2, 5000)):
        x = torch.empty(rows, n, dtype=torch.bfloat16, device="meta")
        stage = tilefold.explain_plan(x, tilefold.softmax, dim=1).stages[0]
        found.add((stage.align > 1, n >= 16))
    assert found == {(False, False), (False, True), (True, True)}


def test_norms_executed_from_ptx() -> None:
    x, r, w, b = cut(5, 333), cut(5, 333), cut(333), cut(333)
    norm = kept(_norms, "layer_norm", 333, 1e-5, (True, True), True)
    (got, added), _ = executed(*norm, [x, r, w, b], (1,))
    total = x.double() + r.double()
    check(added, total, torch.float32)
    check(got, F.layer_norm(total, (333,), w.double(), b.double()), torch.float32)


def test_an_ordered_fold_executed_from_ptx() -> None:
    x = cut(3, 50)
    apply = graph_of(lambda x, last: x - last, 2)
    (got,), plan = executed(monoids.LAST, apply, [x], (1,))
    assert plan.strategy == "fold and map"
    assert torch.equal(got, x - x[:, -1:])


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
