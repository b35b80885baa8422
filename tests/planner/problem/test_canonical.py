"""The canonical problem walks the same elements to the same results and positions, in as few dims as strides allow."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layouts import Layout, dims_of, layouts, shapes
from tilefold.errors import DimError, KindError, RepeatedDimError, ShapeError
from tilefold.planner.problem.canonical import (
    Dim,
    Problem,
    broadcast_shape,
    canonical,
    normalize_dims,
    residue_classes,
    split,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[torch.Tensor], tuple[int, ...], bool]:
    """Expanded inputs of one shape, the dims to fold, and whether order matters."""
    shape = draw(shapes())
    count = draw(st.integers(1, 3))
    placed = [draw(layouts(len(shape), may_broadcast=i > 0)) for i in range(count)]
    tensors = [p.place(shape, lambda own: torch.zeros(list(own), dtype=torch.int8)) for p in placed]
    return [t.expand(shape) for t in tensors], draw(dims_of(len(shape))), draw(st.booleans())


def walked(problem: Problem) -> dict[tuple[int, int], tuple[int, ...]]:
    """(offset of the result, position) -> each input's offset, as a kernel would walk the canonical dims."""
    visits: dict[tuple[int, int], tuple[int, ...]] = {}
    inputs = len(problem.dtypes)
    for place in itertools.product(*(range(d.size) for d in problem.dims)):
        steps = list(zip(place, problem.dims, strict=True))
        result = sum(k * d.output for k, d in steps)
        position = sum(k * d.position for k, d in steps)
        assert (result, position) not in visits, "an element is visited twice"
        visits[result, position] = tuple(sum(k * d.strides[i] for k, d in steps) for i in range(inputs))
    return visits


def row_major(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    place = 0
    for i, n in zip(index, shape, strict=True):
        place = place * n + i
    return place


def defined(tensors: list[torch.Tensor], dims: tuple[int, ...]) -> dict[tuple[int, int], tuple[int, ...]]:
    """The same from the definition: every index of the shape, its result and its row-major position."""
    shape = tuple(tensors[0].shape)
    output_dims = [d for d in range(len(shape)) if d not in dims]
    visits = {}
    for index in itertools.product(*map(range, shape)):
        result = row_major(tuple(index[d] for d in output_dims), tuple(shape[d] for d in output_dims))
        position = row_major(tuple(index[d] for d in dims), tuple(shape[d] for d in dims))
        visits[result, position] = tuple(
            sum(i * s for i, s in zip(index, t.stride(), strict=True)) for t in tensors
        )
    return visits


@given(calls())
def test_every_element_is_visited_once_at_its_result_and_position(call):
    tensors, dims, ordered = call
    problem = canonical(tensors, dims, ordered=ordered)
    assert walked(problem) == defined(tensors, dims)
    assert problem.outputs == math.prod(n for d, n in enumerate(tensors[0].shape) if d not in dims)
    assert problem.length == math.prod(tensors[0].shape[d] for d in dims)


@given(calls())
def test_what_one_stride_can_walk_is_one_dim(call):
    tensors, dims, ordered = call
    problem = canonical(tensors, dims, ordered=ordered)
    for side in (problem.output_dims, problem.reduced_dims):
        assert all(d.size != 1 for d in side)
        for outer, inner in itertools.pairwise(side):
            far, near = outer.steps, inner.steps
            assert any(f != n * inner.size for f, n in zip(far, near, strict=True))


@pytest.mark.parametrize("ordered", [True, False])
def test_dims_of_a_contiguous_tensor_are_one(ordered):
    x = torch.empty(2, 3, 5)
    reduced = canonical([x], (0, 1, 2), ordered=ordered).reduced_dims
    assert [(d.size, d.strides, d.position) for d in reduced] == [(30, (1,), 1)]
    outputs = canonical([x], (2,), ordered=ordered).output_dims
    assert [(d.size, d.strides, d.output) for d in outputs] == [(6, (5,), 1)]


@given(calls())
def test_reduced_dims_are_in_order_where_order_matters(call):
    tensors, dims, _ = call
    problem = canonical(tensors, dims, ordered=True)
    positions = [
        sum(k * d.position for k, d in zip(place, problem.reduced_dims, strict=True))
        for place in itertools.product(*(range(d.size) for d in problem.reduced_dims))
    ]
    assert positions == list(range(problem.length))


def test_dims_of_a_permuted_tensor_keep_their_order_where_it_matters():
    x = torch.empty(4, 3, 2).permute(2, 1, 0)
    ordered, sorted_by_stride = (canonical([x], (0, 1, 2), ordered=o).reduced_dims for o in (True, False))
    assert [d.strides for d in ordered] == [(1,), (2,), (6,)]
    assert [d.position for d in sorted_by_stride] == [1, 4, 12]


def reach(dim: Dim) -> int:
    return max(abs(s) for s in dim.strides)


@given(calls())
def test_the_nearest_dims_come_last(call):
    tensors, dims, _ = call
    problem = canonical(tensors, dims, ordered=False)
    for side in (problem.output_dims, problem.reduced_dims):
        reaches = [reach(d) for d in side]
        assert reaches == sorted(reaches, reverse=True)


@given(calls())
def test_equal_calls_make_equal_problems(call):
    tensors, dims, ordered = call
    again = canonical([t.view(t.shape) for t in tensors], dims, ordered=ordered)
    assert canonical(tensors, dims, ordered=ordered) == again
    assert hash(canonical(tensors, dims, ordered=ordered)) == hash(again)


def places(dims: tuple[Dim, ...], *numbers: int) -> tuple[int, ...]:
    """Every step of one element: along the inputs, the results and the positions."""
    by_dim = zip(*(d.steps for d in dims), strict=True)
    return tuple(sum(n * s for n, s in zip(numbers, steps, strict=True)) for steps in by_dim)


@given(size=st.integers(1, 40), modulus=st.integers(1, 12))
def test_residue_classes_have_every_element_once(size, modulus):
    dim = Dim("reduce", size, (3, -2, 0), 5, 7)
    elements, classes = residue_classes(dim, modulus)
    assert (elements.role, classes.role, classes.size) == ("reduce", "reduce", modulus)
    whole = (
        size % modulus or modulus
    )  # the first classes have as many elements as `elements` says, the others one less
    found = [
        (n, places((elements, classes), i, n))
        for n in range(modulus)
        for i in range(elements.size - (n >= whole))
    ]
    want = [(i % modulus, places((dim,), i)) for i in range(size)]
    assert sorted(found) == sorted(want)


@given(size=st.integers(1, 40), length=st.integers(1, 12))
def test_parts_of_a_dim_are_runs_of_elements(size, length):
    dim = Dim("reduce", size, (3, -2), 5, 7)
    parts, elements = split(dim, length)
    found = [places((parts, elements), i, n) for i in range(parts.size) for n in range(elements.size)]
    assert found == [places((dim,), i) for i in range(size // length * length)]


@given(calls())
def test_compulsory_bytes_count_what_broadcasts_once(call):
    tensors, dims, ordered = call
    problem = canonical(tensors, dims, ordered=ordered)
    if problem.outputs * problem.length:
        seen = zip(*walked(problem).values(), strict=True)
        assert problem.bytes_read == sum(len(set(offsets)) for offsets in seen)  # int8: a byte an element


@pytest.mark.parametrize(
    ("shape", "dims", "output", "reduced"),
    [
        pytest.param((2, 3, 4), (1,), [2, 4], [3], id="middle"),
        pytest.param((2, 3, 4), (0, 1, 2), [], [24], id="all"),
        pytest.param((2, 3, 4), (), [24], [], id="none"),
        pytest.param((2, 3, 4), (1, 2), [2], [12], id="last-two"),
        pytest.param((2, 3, 4), (0, 1), [4], [6], id="first-two"),
        pytest.param((2, 3, 4), (0, 2), [3], [2, 4], id="apart"),
        pytest.param((5, 1, 4), (0, 2), [], [20], id="a-dim-of-one-between"),
        pytest.param((1, 1), (0,), [], [], id="ones"),
        pytest.param((), (), [], [], id="0-d"),
        pytest.param((63, 65), (1,), [63], [65], id="odd"),
    ],
)
def test_dims_of_contiguous_tensors(shape, dims, output, reduced):
    problem = canonical([torch.empty(shape)], dims, ordered=True)
    assert [d.size for d in problem.output_dims] == output
    assert [d.size for d in problem.reduced_dims] == reduced


def test_a_transposed_tensor_folds_as_one_run_unless_order_matters():
    x = torch.empty(6, 7).t()
    assert [d.size for d in canonical([x], (0, 1), ordered=False).reduced_dims] == [6, 7]
    assert canonical([x], (0, 1), ordered=False).reduced_dims[-1].strides == (1,)
    assert canonical([x], (0, 1), ordered=True).reduced_dims[-1].strides == (7,)


def test_an_expanded_dim_joins_what_lies_beside_it_only_where_both_stand_still():
    x = torch.empty(5, 1, 1).expand(5, 3, 4)
    problem = canonical([x], (1, 2), ordered=True)
    assert [(d.size, d.strides) for d in problem.reduced_dims] == [(12, (0,))]
    assert problem.bytes_read == 5 * 4


@given(
    rows=st.integers(1, 9),
    length=st.sampled_from([1, 2, 3, 8, 12, 16, 63, 64, 65]),
    dtype=st.sampled_from([torch.int8, torch.bfloat16, torch.float32, torch.float64]),
    data=st.data(),
)
def test_alone_a_row_does_not_know_its_neighbours(rows, length, dtype, data):
    x = torch.empty(rows, length, dtype=dtype)
    start = data.draw(st.integers(0, rows - 1))
    some = x[start : data.draw(st.integers(start + 1, rows))]
    whole, part = (canonical([t], (1,), ordered=False).alone() for t in (x, some))
    assert whole.reduced_dims == part.reduced_dims
    assert whole.aligned == part.aligned


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
def test_alignment_is_that_of_the_first_element(offset):
    base = torch.empty(64, dtype=torch.int8)
    start = -base.data_ptr() % 16
    view = base[start + offset :][:8]
    assert canonical([view], (0,), ordered=False).aligned == ({0: 16, 1: 1, 2: 2, 4: 4, 8: 8}[offset],)


@pytest.mark.parametrize(
    ("dim", "ndim", "want"),
    [
        (None, 3, (0, 1, 2)),
        (1, 3, (1,)),
        (-1, 3, (2,)),
        ((2, 0), 3, (0, 2)),
        ([-3, 1], 3, (0, 1)),
        ((), 3, ()),
        (0, 0, ()),
        (-1, 0, ()),
        (None, 0, ()),
        (np.int64(1), 3, (1,)),
        (torch.Size([0, 1]), 3, (0, 1)),
    ],
    ids=str,
)
def test_dims_become_sorted_numbers(dim, ndim, want):
    assert normalize_dims(dim, ndim) == want


@pytest.mark.parametrize(
    ("dim", "ndim", "rule"),
    [
        (2, 2, r"must be in \[-2, 1\] for a 2-D tensor, got 2"),
        (-3, 2, r"must be in \[-2, 1\] for a 2-D tensor, got -3"),
        ((0, 5), 2, r"must be in \[-2, 1\] for a 2-D tensor, got 5"),
        (1, 0, r"must be in \[-1, 0\] for a 0-D tensor, got 1"),
    ],
    ids=str,
)
def test_a_dim_out_of_range_is_an_index_error(dim, ndim, rule):
    with pytest.raises(DimError, match=rf"^fold: `dim` {rule}.*count dims from 0") as caught:
        normalize_dims(dim, ndim, "fold")
    assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize("dim", [(0, 0), (0, -2), [1, -1]], ids=str)
def test_a_repeated_dim_is_a_runtime_error(dim):
    with pytest.raises(
        RepeatedDimError, match=r"^fold: each dim may be named once.*appears multiple"
    ) as caught:
        normalize_dims(dim, 2, "fold")
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("dim", [1.0, "0", True, (0, None), {0}, (False,)], ids=str)
def test_a_dim_of_a_wrong_kind_is_a_type_error(dim):
    with pytest.raises(KindError, match=r"^fold: `dim` must be an int, a sequence of ints or None") as caught:
        normalize_dims(dim, 2, "fold")
    assert isinstance(caught.value, TypeError)


def test_shapes_that_do_not_broadcast_are_shown():
    with pytest.raises(
        ShapeError, match=r"^fold: .*must broadcast.*\[2, 3\] and \[4, 3\].*reshape"
    ) as caught:
        broadcast_shape([torch.empty(2, 3), torch.empty(4, 3)], "fold")
    assert isinstance(caught.value, RuntimeError)


def test_layouts_are_what_they_say():
    """The strategy itself: a layout places exactly the values it is given."""
    layout = Layout(order=(1, 0), steps=(2, 3), broadcast=(False, False), offset=7)
    x = layout.place((3, 4), lambda own: torch.arange(12.0).view(list(own)))
    assert x.stride() == (2, 18)
    assert torch.equal(x, torch.arange(12.0).view(3, 4))
