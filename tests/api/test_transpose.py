"""transpose: every layout, width and backend against torch; refusals; what kernels do, executed from their PTX."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import tilefold
from tilefold import errors
from tilefold.api.requests import Rearrangement
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.lower import calls_of
from tilefold.planner import moves
from tilefold.planner.device import H200
from tilefold.planner.plan import Launch, LibraryCall, Step
from tilefold.planner.stages.moves import Move
from tilefold.xray.machine.counts import global_cost, shared_cost
from xray.running import run_call

Tensor = torch.Tensor
WIDTHS = [
    torch.bool, torch.int8, torch.float8_e4m3fn, torch.bfloat16, torch.int16, torch.uint16, torch.float32, torch.int64,
    torch.complex64, torch.complex128,
]  # fmt: skip


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Elements that differ from their neighbours."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 113).to(torch.float32).to(dtype).view(shape)


def same(got: Tensor, want: Tensor) -> bool:
    """Whether two tensors hold the same bits in the same shape."""
    if got.is_complex():
        got, want = torch.view_as_real(got), torch.view_as_real(want.resolve_conj())
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return torch.equal(got.view(bits), want.contiguous().view(bits))


def check(x: Tensor, dim0: int, dim1: int, *backends: str) -> None:
    want = x.transpose(dim0, dim1)
    for backend in backends or ("auto", "interpret"):
        with tilefold.backend(backend):
            got = tilefold.transpose(x, dim0, dim1)
        assert got.is_contiguous()
        assert got.dtype == x.dtype
        assert got.shape == want.shape
        assert x.numel() == 0 or got.data_ptr() != x.data_ptr()
        assert same(got, want), backend


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_widths(dtype: torch.dtype) -> None:
    check(numbers(33, 17, dtype=dtype), 0, 1, "auto", "reference", "interpret")


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((), (0, -1)), ((63,), (0, 0)), ((1, 63), (0, 1)), ((63, 1), (0, 1)), ((0, 5), (0, 1)), ((64, 65), (0, 1)),
        ((127, 129), (-1, 0)), ((5, 8, 8), (1, 2)), ((5, 3, 7), (0, 2)), ((2, 3, 4, 8), (1, 2)), ((300, 8), (0, 1)),
        ((3, 300), (0, 1)), ((4, 1, 5), (0, 1)), ((6, 5, 4, 3), (0, 3)), ((3, 129, 16), (1, 2)), ((3, 16, 129), (1, 2)),
        ((5, 36, 49), (1, 2)), ((2, 3, 37, 70), (2, 3)), ((4, 33, 5, 40), (1, 3)),
    ],
    ids=str,
)  # fmt: skip
def test_shapes(shape: tuple[int, ...], dims: tuple[int, int]) -> None:
    check(numbers(*shape), *dims)


LAYOUTS = {
    "sliced": lambda: numbers(20, 66)[:, ::2],
    "rows expanded": lambda: numbers(33).expand(20, 33),
    "columns expanded": lambda: numbers(20, 1).expand(20, 33),
    "one element": lambda: numbers(1, 1).expand(20, 33),
    "misaligned": lambda: numbers(20 * 33 + 1)[1:].view(20, 33),
    "transposed already": lambda: numbers(33, 20).T,
    "permuted": lambda: numbers(3, 4, 5, 6, 7).permute(4, 0, 2, 1, 3),
    "inside a larger one": lambda: numbers(40, 50, 6)[3:23, 4:37, 2],
}


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_layouts(name: str) -> None:
    check(LAYOUTS[name](), 0, 1, "auto", "reference", "interpret")


def test_lazy_views_are_resolved() -> None:
    x = torch.randn(5, 6, dtype=torch.complex64)
    for view in (x.conj(), x.imag, x.conj().imag):
        check(view, 0, 1)


def test_into_out() -> None:
    x = numbers(33, 17, dtype=torch.bool)
    for out in (torch.empty(17, 33, dtype=torch.bool), torch.empty(33, 17, dtype=torch.bool).T):
        for backend in ("auto", "interpret"):
            out.fill_(False)
            with tilefold.backend(backend):
                assert tilefold.transpose(x, 0, 1, out=out) is out
            assert torch.equal(out, x.T)


LAZY: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda t: t, "conjugated": torch.conj, "negated": torch._neg_view,
    "both": lambda t: torch._neg_view(t).conj(), "an imaginary part": lambda t: t.conj().imag,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.complex64, torch.complex128], ids=str)
def test_memory_that_is_not_what_it_shows(dtype: torch.dtype) -> None:
    """A view with the conjugate bit, the negative bit or both is read as it shows and written so that it shows the result."""
    parts = LAZY.keys() - {"an imaginary part"}
    pairs = [*itertools.product(sorted(parts), repeat=2), *[("an imaginary part",) * 2] * dtype.is_complex]
    for given, into in pairs:
        x = LAZY[given](numbers(5, 6, dtype=dtype))
        out = LAZY[into](torch.empty(6, 5, dtype=dtype))
        assert tilefold.transpose(x, 0, 1, out=out) is out
        assert torch.equal(out.resolve_conj().resolve_neg(), x.T.resolve_conj().resolve_neg()), (given, into)


def test_tensors_without_data_and_classes() -> None:
    assert tilefold.transpose(torch.empty(3, 4, device="meta"), 0, 1).shape == (4, 3)

    class Own(torch.Tensor):
        pass

    assert type(tilefold.transpose(numbers(3, 4).as_subclass(Own), 0, 1)) is Own


X = numbers(2, 3)
REFUSED = {
    "dim": (lambda: tilefold.transpose(X, 0, 2), errors.DimError, r"`dim1` must be in \[-2, 1\] .*got 2"),
    "kind of dim": (
        lambda: tilefold.transpose(X, 0, "1"),
        errors.KindError,
        r"`dim1` must be one int, got '1'; name",
    ),
    "two dims": (
        lambda: tilefold.transpose(X, (0, 1), 1),
        errors.KindError,
        r"`dim0` must be one int, got \(0, 1\); name",
    ),
    "no tensor": (lambda: tilefold.transpose([1], 0, 0), errors.KindError, r"must be a tensor, got list"),
    "gradient": (
        lambda: tilefold.transpose(X.clone().requires_grad_(), 0, 1, out=X.T.clone()),
        errors.GradientError,
        r"must not require grad",
    ),
    "guarantee": (
        lambda: tilefold.transpose(X, 0, 1, guarantee="all"),
        errors.ArgumentError,
        r"must be one of .*got 'all'",
    ),
    "out's shape": (
        lambda: tilefold.transpose(X, 0, 1, out=torch.empty(2, 3)),
        errors.ShapeError,
        r"result's shape \[3, 2\]",
    ),
    "out's memory": (
        lambda: tilefold.transpose(X[:2, :2], 0, 1, out=X[:2, :2]),
        errors.ShapeError,
        r"overlap",
    ),
    "quantized": (
        lambda: tilefold.transpose(torch.quantize_per_tensor(X, 1.0, 0, torch.qint8), 0, 1),
        errors.DtypeError,
        r"plain numbers, got torch.qint8; pass int_repr",
    ),
    "sparse": (lambda: tilefold.transpose(X.to_sparse(), 0, 1), errors.DtypeError, r"dense"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals(name: str) -> None:
    call, error, rule = REFUSED[name]
    with pytest.raises(error, match=rule):
        call()


def test_what_changes_no_places_is_a_plain_copy() -> None:
    """A kernel's up to 1 GiB moved, torch's beyond; of wide elements up to 128 MiB."""
    far, wide = torch.empty(5000, 1, 70000, device="meta"), torch.empty(5000, 1, 7000, device="meta")
    assert isinstance(first_step(far.transpose(0, 1)), LibraryCall)
    assert isinstance(first_step(wide.double().transpose(0, 1)), LibraryCall)
    assert isinstance(first_step(wide.transpose(0, 1)), Launch)
    assert not isinstance(first_step(torch.empty(5000, 7000, device="meta").T), LibraryCall)
    for x in (torch.empty(5, 1, 7000), torch.empty(7000, 5).T):
        step = first_step(x.transpose(0, 1))
        assert isinstance(step, Launch)
        assert (step.settings.block_rows, step.settings.block_columns) == (1, 2048)
        check(x, 0, 1)


@pytest.mark.parametrize("count", [3 * 2048 - 7, 2048 + 1001, 2048 - 3, 4096])
def test_plain_copies_of_odd_counts_are_vectors(count: int) -> None:
    """But for the last tile, which alone has a mask."""
    x = numbers(1, count, dtype=torch.bfloat16)
    result = torch.empty(count, 1, dtype=torch.bfloat16)
    *whole, last = run_call(planned(x.T), [x.T], [result], 90)
    assert same(result, x.T)
    assert {a.bytes for o in whole for a in o.accesses} == ({16} if count > 2048 else set())
    assert {a.bytes for a in last.accesses} == ({16} if count % 2048 == 0 else {2})


def first_step(view: Tensor) -> Step:
    request = Rearrangement(tuple(view.shape), view.dtype, "run_to_run")
    (step,) = request.plan([view], H200, library=True)[1].steps
    return step


def chosen(view: Tensor) -> Move:
    request = Rearrangement(tuple(view.shape), view.dtype, "run_to_run")
    (step,) = request.plan([view], H200, library=False)[1].launched
    return step.settings


def lying(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta").transpose(-1, -2)


def test_a_batch_whose_results_are_runs_joins_the_columns() -> None:
    """A row of the result is one tile's where it is short and begins anywhere, and 16 rows of 32 bytes are not."""
    move = chosen(lying(1000, 129, 128))
    assert (move.rows.size, move.columns.size, move.outer) == (129, 128000, ())
    assert (move.block_rows, move.block_columns) == (256, 32)
    assert chosen(lying(1000, 16, 16)).columns.size == 16


def test_tiles_that_share_sectors_are_near_where_memory_is_far() -> None:
    """Rows that begin anywhere, and more of them than the L2 holds a column of tiles of."""
    assert chosen(lying(200001, 333)).group > 0
    assert chosen(lying(3001, 333)).group == 0
    assert chosen(lying(200001, 320)).group == 0


def test_results_are_kept_in_the_l2_unless_they_are_far_larger() -> None:
    assert chosen(lying(8192, 8192)).keep
    assert not chosen(lying(1 << 15, 1 << 15)).keep


def test_what_stays_nearest_is_copied_in_runs() -> None:
    """At least a line of the L2 that is contiguous on both sides: a tile is runs that are neighbours in the result."""
    x = numbers(5, 7, 6, 35)
    move = chosen(x.transpose(1, 2))
    assert (move.rows.size, move.columns.size, [d.size for d in move.outer]) == (42, 35, [5])
    assert (move.block_rows, move.block_columns) == (16, 64)
    check(x, 1, 2, "interpret")
    assert chosen(torch.empty(8, 3368, 2632, device="meta").transpose(0, 1)).block_columns == 1024
    for narrow in (x[..., :31], x.to(torch.int8)):
        assert chosen(narrow.contiguous().transpose(1, 2)).columns.size > 35


def test_a_few_runs_that_alternate_in_the_result() -> None:
    """Channels to the last dim: a tile has those of one image, and long runs of both; its stores are whole sectors."""
    move = chosen(torch.empty(512, 3, 56 * 56, device="meta").transpose(1, 2))
    assert (move.rows.size, move.columns.size, [d.size for d in move.outer]) == (3, 3136, [512])
    assert (move.block_rows, move.block_columns) == (4, 1024)
    for other in ((64, 3, 400), (64, 17, 3136)):  # too short, too many
        assert chosen(torch.empty(other, device="meta").transpose(1, 2)).rows.size > other[1]
    x = numbers(2, 3, 4096, dtype=torch.bfloat16)
    result = torch.empty(2, 4096, 3, dtype=torch.bfloat16)
    outcomes = run_call(planned(x.transpose(1, 2)), [x.transpose(1, 2)], [result], 90)
    assert same(result, x.transpose(1, 2))
    stored = global_cost(a for outcome in outcomes for a in outcome.accesses if a.kind == "store")
    assert stored.sectors == stored.ideal
    check(numbers(3, 5, 1025), 1, 2, "interpret")


def test_short_runs_that_stay_neighbours() -> None:
    """Pixels of three colours: a tile has runs along both dims, and neither loads nor stores are pieces of sectors."""
    move = chosen(torch.empty(8, 1296, 859, 3, dtype=torch.bfloat16, device="meta").transpose(1, 2))
    assert (move.rows.size, move.columns.size, move.run, [d.size for d in move.outer]) == (1296, 859, 3, [8])
    assert (move.block_rows, move.block_columns) == (32, 32)
    assert move.note == "move:32x32x3,w4"
    assert "runs of 3 elements" in str(move)
    for other in ((8, 1296, 859, 16), (1296, 5, 3)):  # a sector; too few
        assert chosen(torch.empty(other, dtype=torch.bfloat16, device="meta").transpose(-3, -2)).run == 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(2, 40, 35, 3), (33, 70, 2), (3, 9, 40, 7)], ids=str)
def test_short_runs_from_the_ptx(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = numbers(*shape).to(dtype)
    view = x.transpose(-3, -2)
    request = Rearrangement(tuple(view.shape), dtype, "run_to_run")
    problem, plan = request.plan([view], H200, library=False)
    assert plan.stages[0].run == (shape[-1] if shape[-1] * dtype.itemsize < 32 else 1)
    (call,) = calls_of(plan, problem, None)
    got = torch.full(view.shape, 9).to(dtype)
    outcomes = run_call(call, [view], [got], 90)
    assert torch.equal(got, view)
    moved = global_cost([access for outcome in outcomes for access in outcome.accesses])
    assert moved.sectors <= 2.5 * 2 * x.numel() * dtype.itemsize / 32
    check(x, -3, -2, "interpret")


def test_small_tensors_are_more_and_smaller_tiles() -> None:
    """Eight programs for each SM, unless tiles would be below 2 KiB or a side that is one tile's were cut."""
    move = chosen(lying(3, 747, 745))
    assert (move.block_rows, move.block_columns) == (32, 32)
    assert chosen(lying(21737, 16)).block_rows * chosen(lying(21737, 16)).block_columns == 1024
    whole = chosen(lying(127, 79712, dtype=torch.int8))
    assert whole.programs < 8 * H200.sms
    assert whole.block_rows == 128


def test_groups_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last group is lower than the others."""
    monkeypatch.setattr(moves, "STRIP", 0)
    x = numbers(35 * 128 + 3, 70, dtype=torch.bfloat16)
    assert chosen(x.T).group == moves.GROUP
    check(x, 0, 1, "interpret")


def test_programs_lie_on_three_axes_where_those_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """An axis beyond the first one holds 65535. Numbered in one row, programs find the same tiles."""
    assert chosen(lying(8, 1000, 128)).spread
    assert not chosen(lying(70000, 40, 1000)).spread
    x = numbers(4, 33, 3, 40, dtype=torch.bfloat16)
    call = planned(x.transpose(1, 3))
    assert call.programs == call.grid * call.across[0] * call.across[1] > call.grid
    monkeypatch.setattr(moves, "MOST_ACROSS", 0)
    alone = planned(x.transpose(1, 3))
    assert (alone.grid, alone.across) == (call.programs, (1, 1))
    check(x, 1, 3, "interpret")


def planned(view: Tensor) -> calls.Call:
    request = Rearrangement(tuple(view.shape), view.dtype, "run_to_run")
    problem, plan = request.plan([view], H200, library=False)
    (call,) = calls_of(plan, problem, None)
    return call


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_both_sides_are_whole_vectors_and_sectors(dtype: torch.dtype) -> None:
    """From the PTX: the answer, 16 bytes a thread on both sides, no sector more than needed, no conflict of banks."""
    x = (torch.arange(128 * 256) % 251).to(torch.int16).to(dtype).view(128, 256)
    result = torch.empty(256, 128, dtype=dtype)
    outcomes = run_call(planned(x.T), [x.T], [result], 90)
    assert same(result, x.T)
    for outcome in outcomes:
        assert {a.bytes for a in outcome.accesses if a.space == "global"} == {16}
        moved = global_cost(outcome.accesses)
        assert moved.sectors == moved.ideal
        assert shared_cost(outcome.accesses).conflicts == 0


@pytest.mark.parametrize(
    ("shape", "dims", "dtype"),
    [
        ((5, 6, 3, 93), (0, 2), torch.int8),
        ((3, 5, 70, 35), (1, 2), torch.float32),
        ((9, 33, 35), (1, 2), torch.bfloat16),
        ((3, 70, 37), (1, 2), torch.float32),
    ],
    ids=str,
)
def test_threads_go_along_what_lies_side_by_side(
    shape: tuple[int, ...], dims: tuple[int, int], dtype: torch.dtype
) -> None:
    """Sizes that no power of two divides, between dims of one side: answers, and few sectors more than needed.

    Across what lies side by side, these move 2.7 to 16 times as many.
    """
    x = numbers(*shape, dtype=dtype)
    view = x.transpose(*dims)
    result = torch.empty(view.shape, dtype=dtype)
    outcomes = run_call(planned(view), [view], [result], 90)
    assert same(result, view)
    moved = [global_cost(outcome.accesses) for outcome in outcomes]
    assert sum(m.sectors for m in moved) < 2.1 * sum(m.ideal for m in moved)


@pytest.mark.parametrize("shape", [(33, 130), (130, 33), (64, 3), (3, 5, 65), (3, 37, 50)], ids=str)
def test_edges_from_the_ptx(shape: tuple[int, ...]) -> None:
    x = numbers(*shape, dtype=torch.bfloat16)
    view = x.transpose(-1, -2)
    result = torch.empty(view.shape, dtype=torch.bfloat16)
    run_call(planned(view), [view], [result], 90)
    assert same(result, view)
