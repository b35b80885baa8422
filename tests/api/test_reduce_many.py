"""`reduce_many`: its answers beside the folds of each tensor, on the CPU, under the interpreter and from PTX; refusals."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import guarded
import tilefold
from asked import Ran, asked, run
from scanned import leaves
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.api import reduce_many as many
from tilefold.api.requests import Many
from tilefold.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    EmptyError,
    GradientError,
    KindError,
    TilefoldError,
)
from tilefold.planner.device import H200, Device
from tilefold.planner.stages.tables import Blocks
from tilefold.planner.tables import BLOCK_BYTES, MOST, blocks_of, rows_of

Tensor = torch.Tensor
# Triton's interpreter takes an array of one element for a number.
pytestmark = pytest.mark.filterwarnings("ignore:.*ndim > 0 to a scalar:DeprecationWarning")
# Order matters, whole numbers are exact: x -> k x + v, and no element hides those before it.
AFFINE = tilefold.Monoid(
    lambda a, b: (a.k * b.k, a.v * b.k + b.v), (1, 0), lift=lambda x: (x % 2 * 2 + 1, x), fields=("k", "v"), name="affine"
)  # fmt: skip
WEIGHTED = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x * (i + 1), index=True, name="weighted")
NAN = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x: tilefold.math.where(x == x, 0, 1), name="nans")
NEVER_EMPTY = tilefold.Monoid(lambda a, b: tilefold.math.maximum(a, b), None, name="greatest")
OF_FLOATS = {
    "norm": monoids.NORM(2), "greatest": monoids.MAX, "moments": monoids.WELFORD, "nans": NAN, "describe": monoids.DESCRIBE
}  # fmt: skip
OF_INTEGERS = {"sum": monoids.SUM, "affine": AFFINE, "weighted": WEIGHTED, "argmax": monoids.ARGMAX}
SIZES = (0, 1, 7, 63, 512, 1031, 4096, 17_000)
FEW = (0, 7, 4100)  # the interpreter and PTX take their time


def floats(dtype: torch.dtype, sizes: Sequence[int] = SIZES, seed: int = 0) -> list[Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(n, generator=made).to(dtype) for n in sizes]


def integers(dtype: torch.dtype, sizes: Sequence[int] = SIZES) -> list[Tensor]:
    made = torch.Generator().manual_seed(1)
    return [torch.randint(-9, 9, (n,), generator=made).to(dtype) for n in sizes]


def unaligned(t: Tensor) -> Tensor:
    """The same elements, one element behind a whole vector."""
    held = torch.empty(t.numel() + 1, dtype=t.dtype)
    held[1:] = t.flatten()
    return held[1:].view(t.shape)


@contextlib.contextmanager
def interpreted(tensors: Sequence[Tensor]) -> Iterator[None]:
    guarded.NAMED[:] = tensors
    try:
        with tilefold.backend("interpret"):
            yield
    finally:
        guarded.NAMED.clear()


def from_ptx(tensors: list[Tensor], monoid: Any, device: Device = H200, **options: Any) -> Ran:
    request, tables, _ = asked(lambda: tilefold.reduce_many(tensors, monoid, **options), device)
    return run(request, tables, device, named=[t for t in tensors if t.numel()])


def each(tensors: Sequence[Tensor], monoid: Any) -> list[Tensor]:
    """The fold of each tensor in a loop over tiles."""
    with tilefold.backend("cpu"):
        folded = [leaves(tilefold.reduce(t, monoid)) for t in tensors]
    return [torch.stack(column) for column in zip(*folded, strict=True)]


def check(got: Any, want: Any) -> None:
    """Sums of up to 17000 numbers near 1 in float32 trees; results of 16 bits are rounded once."""
    for g, w in zip(leaves(got), leaves(want), strict=True):
        assert g.dtype == w.dtype
        if w.dtype.is_floating_point:
            near = 1e-12 if w.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(
                g, w, rtol=near + 2 * torch.finfo(w.dtype).eps, atol=near, equal_nan=True
            )
        else:
            assert torch.equal(g, w)


# ------------------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("name", OF_FLOATS)
def test_folds_of_floats(name: str) -> None:
    tensors = floats(torch.float32, SIZES[1:])
    tensors[3][3] = math.nan
    check(tilefold.reduce_many(tensors, OF_FLOATS[name]), each(tensors, OF_FLOATS[name]))


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_folds_of_integers_are_exact(name: str) -> None:
    tensors = integers(torch.int32, SIZES[1:])
    check(tilefold.reduce_many(tensors, OF_INTEGERS[name]), each(tensors, OF_INTEGERS[name]))


@pytest.mark.parametrize("name", ["affine", "sum"])
def test_under_the_interpreter(name: str) -> None:
    tensors = integers(torch.int64, FEW)
    with interpreted(tensors):
        got, whole = tilefold.reduce_many(tensors, OF_INTEGERS[name], together=True)
    check(got, each(tensors, OF_INTEGERS[name]))
    check(whole, [t[0] for t in each([torch.cat(tensors)], OF_INTEGERS[name])])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bool], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    tensors = (
        floats(dtype, FEW) if dtype.is_floating_point else [t.to(dtype) for t in integers(torch.int32, FEW)]
    )
    (got,) = from_ptx(tensors, monoids.SUM).results
    check(got, torch.stack([t.double().sum() for t in tensors]).to(got.dtype))
    check(tilefold.reduce_many(tensors, monoids.SUM), got)


@pytest.mark.parametrize("name", ["norm", "affine", "weighted", "moments"])
def test_kernels_from_their_ptx(name: str) -> None:
    is_float = name in OF_FLOATS
    tensors = floats(torch.bfloat16, FEW) if is_float else integers(torch.int32, FEW)
    tensors += [unaligned(t) for t in tensors[1:]]
    monoid = (OF_FLOATS | OF_INTEGERS)[name]
    check(from_ptx(tensors, monoid).results, each(tensors, monoid))


def test_mixed_dtypes_are_read_as_the_one_that_holds_all() -> None:
    tensors = [*floats(torch.bfloat16, (5, 700)), *floats(torch.float32, (3,)), *integers(torch.int16, (9,))]
    tensors = [tensors[i] for i in (2, 0, 3, 1)]
    exact = torch.stack([t.double().norm() for t in tensors]).float()
    together = torch.cat([t.double() for t in tensors]).norm().float()
    got = tilefold.reduce_many(tensors, monoids.NORM(2), together=True)
    check([*got], [exact, together])
    check(from_ptx(tensors, monoids.NORM(2), together=True).results, [exact, together])


@pytest.mark.parametrize("name", ["affine", "sum"])
def test_all_together_are_folded_in_their_order(name: str) -> None:
    tensors = integers(torch.int64)
    got, whole = tilefold.reduce_many(tensors, OF_INTEGERS[name], together=True)
    check(got, each(tensors, OF_INTEGERS[name]))
    check(whole, [t[0] for t in each([torch.cat(tensors)], OF_INTEGERS[name])])


def test_together_from_ptx() -> None:
    tensors = integers(torch.int32, (*FEW, 17_000))
    ran = from_ptx(tensors, AFFINE, together=True)
    check(ran.results, [*each(tensors, AFFINE), *(t[0] for t in each([torch.cat(tensors)], AFFINE))])


LAYOUTS = torch.randint(-9, 9, (4, 6, 10), dtype=torch.int32, generator=torch.Generator().manual_seed(2))


def layouts() -> list[Tensor]:
    x = LAYOUTS
    return [x.mT, x[:, ::2], x[1:, 1:], x[0, 0, 0], x[:1].expand(3, 6, 10), x.movedim(0, 2)]


@pytest.mark.parametrize("monoid", [monoids.SUM, AFFINE, WEIGHTED], ids=["sum", "affine", "weighted"])
def test_layouts(monoid: tilefold.Monoid) -> None:
    check(tilefold.reduce_many(layouts(), monoid), each(layouts(), monoid))


def test_tensors_without_gaps_are_read_where_they_lie_unless_order_counts() -> None:
    tensors = layouts()
    read = [[True, False, False, True, False, True], [False, False, False, True, False, False]]
    for monoid, in_place in zip((monoids.SUM, AFFINE), read, strict=True):
        _, (table, *_), _ = asked(lambda monoid=monoid: tilefold.reduce_many(tensors, monoid))
        assert [a == t.data_ptr() for a, t in zip(table[0].tolist(), tensors, strict=True)] == in_place


def test_many_small_tensors() -> None:
    tensors = [torch.full((1 + i % 5,), i, dtype=torch.int32) for i in range(2000)]
    got = tilefold.reduce_many(tensors, monoids.SUM)
    assert got.tolist() == [i * (1 + i % 5) for i in range(2000)]
    assert tilefold.reduce_many(tensors, monoids.SUM, together=True).together == sum(got.tolist())


def test_only_empty_tensors() -> None:
    tensors = [torch.empty(0), torch.empty(3, 0)]
    ran = from_ptx(tensors, monoids.NORM(2), together=True)
    assert [r.tolist() for r in ran.results] == [[0, 0], 0]
    assert tilefold.reduce_many(tensors, monoids.NORM(2)).tolist() == [0, 0]


def test_a_monoid_without_identity() -> None:
    tensors = integers(torch.int32, (3, 40, 1))
    got, whole = tilefold.reduce_many(tensors, NEVER_EMPTY, together=True)
    again, same = from_ptx(tensors, NEVER_EMPTY, together=True).results
    assert got.tolist() == again.tolist() == [int(t.max()) for t in tensors]
    assert whole == same == got.max()


def test_results_have_the_asked_dtype() -> None:
    tensors = floats(torch.bfloat16, (70, 900))
    got = tilefold.reduce_many(tensors, monoids.NORM(2), dtype=torch.float32)
    check(got, torch.stack([t.double().norm() for t in tensors]).float())


# --------------------------------------------------------------------------------------------------------------- bits


def test_bits_do_not_depend_on_other_tensors() -> None:
    tensors = floats(torch.bfloat16, (1031, 33_000, 6))
    want = from_ptx(tensors, monoids.NORM(2)).results
    moved = from_ptx([t.clone() for t in tensors[::-1]], monoids.NORM(2)).results
    assert all(torch.equal(w, m.flip(0)) for w, m in zip(want, moved, strict=True))


# -------------------------------------------------------------------------------------------------------------- plans


def test_tables_hold_every_element_once() -> None:
    counts, itemsize = [5, 0, 3 * BLOCK_BYTES, BLOCK_BYTES // 2 * MOST + 1], 2
    cut = [blocks_of(n, itemsize) for n in counts]
    assert max(blocks for blocks, _ in cut) <= MOST
    address, count, position, number = rows_of(counts, itemsize, [0, 1, 1, 1 + cut[2][0]])
    assert count.sum() == sum(counts)
    assert (address == position * itemsize).all()
    assert number.tolist() == list(range(len(number)))
    ends = (position + count)[[0, cut[2][0], -1]]
    assert ends.tolist() == [n for n in counts if n]


def test_each_element_is_read_once() -> None:
    tensors = floats(torch.bfloat16, (33_000, 4096))
    ran = from_ptx(tensors, monoids.NORM(2))
    (call, outcomes), _ = ran.launches
    assert call.kernel == "fold_table"
    loads = [a for o in outcomes for a in o.accesses if a.kind == "load" and a.space == "global"]
    assert sum(int(a.active.sum()) * a.bytes for a in loads if a.bytes == 16) == 2 * (33_000 + 4096)
    check(ran.results, [torch.stack([t.double().norm() for t in tensors]).bfloat16()])


def test_plans_have_one_launch_a_dtype_and_one_for_tensors() -> None:
    tensors = [*floats(torch.bfloat16), *floats(torch.float32)]
    plan = asked(lambda: tilefold.reduce_many(tensors, monoids.NORM(2), together=True))[2]
    assert [step.kernel for step in plan.launched] == ["fold_table"] * 2 + ["segment_elements"] * 2
    assert [s.elements for s in plan.stages if isinstance(s, Blocks)] == [sum(SIZES)] * 2


# ----------------------------------------------------------------------------------------------------- repeated calls


def sums(request: Many, tables: Sequence[Tensor]) -> Tensor:
    """What kernels make of tables: each tensor's sum, of the elements that lie at the addresses."""
    *groups, first, _ = tables
    blocks = [0.0] * int(first[-1])
    for group, rows in zip(request.groups, groups, strict=True):
        for address, count, _, number in rows.T.tolist():
            memory = (ctypes.c_char * (count * group.dtype.itemsize)).from_address(address)
            blocks[number] = float(torch.frombuffer(memory, dtype=group.dtype).sum())
    ends = first.tolist()
    return torch.tensor([sum(blocks[a:b]) for a, b in itertools.pairwise(ends)])


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> list[Many]:
    """Calls go the way of a GPU's, but for the launches; the requests of those that no earlier one answers."""
    return as_on_a_gpu(monkeypatch)


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Many]:
    made = list[Many]()

    def run(request: Many, tables: Sequence[Tensor], key: Any) -> list[Tensor]:
        made.append(request)
        dispatch.keep(key, SimpleNamespace(plan=None, call=lambda *given: [sums(request, given)]))
        return dispatch.latest(dispatch.kept(key), tables)

    monkeypatch.setattr(dispatch, "_executables", {})
    monkeypatch.setattr(dispatch, "run", run)
    monkeypatch.setattr(many, "_site", lambda tensors, *rest: ("site", *rest, len(tensors)))
    monkeypatch.setattr(many, "_by_tables", lambda t: True)
    return made


def mixed() -> list[Tensor]:
    return [*floats(torch.float32, (30, 9000)), *floats(torch.bfloat16, (0, 17_000)), torch.ones(4, 6)]


def right(tensors: Sequence[Tensor]) -> bool:
    got = tilefold.reduce_many(tensors, monoids.SUM)
    return torch.allclose(got, torch.stack([t.double().sum().float() for t in tensors]), rtol=1e-2)


def test_a_repeated_call_is_answered_by_the_earlier_one(anew: list[Many]) -> None:
    tensors = mixed()
    assert right(tensors)
    tensors[1].mul_(3)
    assert right(tensors)
    assert right([t.view_as(t) for t in tensors])
    assert len(anew) == 1


def test_tensors_of_known_layouts_at_other_addresses_are_read_there(anew: list[Many]) -> None:
    lists = [[t * (i + 1) for t in mixed()] for i in range(6)]
    lists += [[unaligned(t) for t in mixed()]]
    for _ in range(2):
        assert all(map(right, lists))
    assert len(anew) == 1
    lists[0][1].data = lists[3][1].clone()
    assert right(lists[0])
    lists[0][1].set_(torch.full((9000,), 2.0))
    assert right(lists[0])
    assert len(anew) == 1


OTHERS = {
    "fewer elements": lambda t: t[:3],
    "another shape": lambda t: t.view(6, 4),
    "another dtype": lambda t: t.view(torch.int32),
    "resized": lambda t: t.resize_(2, 3),
    "other data": lambda t: setattr(t, "data", t.data[0]) or t,
    "a parameter": torch.nn.Parameter,
    "negated": torch._neg_view,
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_layout_at_a_known_address_is_no_repeated_call(name: str, anew: list[Many]) -> None:
    tensors = mixed()
    assert right(tensors)
    with torch.no_grad():
        tensors[-1] = OTHERS[name](tensors[-1])
        assert right(tensors)
    assert len(anew) == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_refused_is_refused_after_a_call_at_its_address(anew: list[Many]) -> None:
    tensors = mixed()
    assert right(tensors)
    nested = torch.nested.nested_tensor([torch.ones(4, 6)])
    for other in (tensors[-1].to_sparse(), nested, 3, tensors[-1].requires_grad_()):
        with pytest.raises(TilefoldError):
            tilefold.reduce_many([*tensors[:-1], other], monoids.SUM)
    tensors[-1].requires_grad_(False)
    with tilefold.backend("cpu"):
        assert right(tensors)
    assert len(anew) == 2


def refuse_a_nested_tensor_at_a_known_address() -> None:
    """In a process of its own: torch's guards end it where a nested tensor comes to them."""
    with pytest.MonkeyPatch.context() as patch:
        as_on_a_gpu(patch)
        tensors = mixed()
        assert right(tensors)
        of_sizes = (torch.tensor([[4, 6]]), torch.tensor([[6, 1]]), torch.tensor([0]))
        nested = torch._nested_view_from_buffer(tensors[-1].view(-1), *of_sizes)
        assert nested.data_ptr() == tensors[-1].data_ptr()
        with pytest.raises(DtypeError, match=r"must be dense .* got a nested tensor; fold what unbind"):
            tilefold.reduce_many([*tensors[:-1], nested], monoids.SUM)
        assert right([*tensors[:-1], *nested.unbind()])


def test_a_nested_tensor_at_a_known_address_is_refused() -> None:
    code = f"import {__name__} as tests; tests.{refuse_a_nested_tensor_at_a_known_address.__name__}()"
    found = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | found, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]


# ------------------------------------------------------------------------------------------------------------- graphs


def test_a_compiled_call_is_one_operation() -> None:
    tensors = floats(torch.float32, (5, 0, 90))
    compiled = torch.compile(
        lambda *x: tilefold.reduce_many(list(x), monoids.NORM(2), together=True),
        fullgraph=True,
        backend="aot_eager",
    )
    check(compiled(*tensors), tilefold.reduce_many(tensors, monoids.NORM(2), together=True))


def test_vmap_folds_each_member() -> None:
    x, y = torch.randn(3, 5), torch.randn(4)
    got = torch.func.vmap(lambda a: tilefold.reduce_many([a, y], monoids.SUM))(x)
    torch.testing.assert_close(got, torch.stack([x.sum(1), y.sum().expand(3)], 1))


def test_tensors_without_data() -> None:
    tensors = [torch.empty(4, 2, device="meta", dtype=torch.bfloat16), torch.empty(0, device="meta")]
    got, whole = tilefold.reduce_many(tensors, monoids.NORM(2), together=True)
    assert (got.shape, whole.shape, got.dtype) == ((2,), (), torch.float32)


# ----------------------------------------------------------------------------------------------------------- refusals


def test_refusals() -> None:
    x = torch.ones(3)
    grown = torch.ones(3, requires_grad=True)
    cases: list[tuple[Any, type[Exception], str, dict[str, Any]]] = [
        (x, KindError, "must be several tensors, got Tensor; pass a list", {}),
        ([], ArgumentError, "must have one at least, got none", {}),
        ([x, 3], KindError, "inputs must be tensors, got int", {}),
        ([x, x.to("meta")], DeviceError, "must be on one device", {}),
        ([x, x.to_sparse()], DtypeError, "must be dense", {}),
        ([x, grown], GradientError, "must ask for no gradient.*tilefold.reduce of each", {}),
        ([x], KindError, "`together` must be True or False", {"together": 1}),
    ]
    for tensors, kind, rule, options in cases:
        with pytest.raises(kind, match=rule):
            tilefold.reduce_many(tensors, monoids.SUM, **options)
    with pytest.raises(KindError, match=r"tilefold\.Monoid"):
        tilefold.reduce_many([x], "sum")
    with pytest.raises(ArgumentError, match=r"must take one input, got .*, which takes 2"):
        tilefold.reduce_many([x], monoids.AFFINE)
    with pytest.raises(ArgumentError, match=r"sees positions.*torch.cat"):
        tilefold.reduce_many([x], monoids.ARGMAX, together=True)
    with pytest.raises(EmptyError, match="needs an identity"):
        tilefold.reduce_many([x, x[:0]], NEVER_EMPTY)
    with torch.no_grad():
        assert tilefold.reduce_many([x, grown], monoids.SUM).tolist() == [3, 3]
