"""Maps of rows that no program holds, executed from PTX: parts folded, then mapped, a window of rows at a time."""

from __future__ import annotations

import functools
import itertools
import types
from types import SimpleNamespace

import pytest
import torch

import tilefold as tf
from mapped_rows import check, cut, executed
from tilefold.api.reduce_map import kept
from tilefold.backends.triton import map_calls
from tilefold.backends.triton.kernels import map_windows
from tilefold.functional.normalized import _norms, _shares
from tilefold.planner import blocks, maps
from tilefold.xray.machine import all_programs
from xray import running

pytestmark = [
    pytest.mark.usefixtures("in_registers"),
    # Elements under no mask are computed with and thrown away.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
F = torch.nn.functional


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
    "one odd row": ((4003,), torch.bfloat16, (0,), "run_to_run"),
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
