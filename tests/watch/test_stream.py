"""The states of a row read in chunks are those of the definition, whatever the chunk's size; a wrong fill is a padded row."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold
from scanned import MATRICES, POSITIONS, P, leaves
from tilefold import monoids
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.program import Program, as_written
from tilefold.backends import reference
from tilefold.watch import scaling
from tilefold.watch.stream import (
    bits,
    boundary,
    chunk_sizes,
    identity,
    lifted,
    prefixes,
    streamed,
    true_fold,
)

UNIT = 2.0**-24
LENGTHS = (1, 2, 7, 8, 9, 63)


def program_of(monoid: Monoid, dtype: torch.dtype) -> Program:
    return as_written(monoid.total, (dtype,) * monoid.algebra.inputs)


def elements(monoid: Monoid, dtype: torch.dtype, length: int, rows: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    whole = [torch.randint(-9, 10, (rows, length), generator=generator) for _ in range(monoid.algebra.inputs)]
    return [(t / 8).to(dtype) if dtype.is_floating_point else t.to(dtype) for t in whole]


def test_chunk_sizes_are_powers_of_two_up_to_one_chunk() -> None:
    assert chunk_sizes(1) == [1]
    assert chunk_sizes(57) == [1, 2, 4, 8, 16, 32, 64]
    assert chunk_sizes(64) == [1, 2, 4, 8, 16, 32, 64]
    assert chunk_sizes(4096) == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


WHOLE = [
    (monoids.SUM, torch.int64),
    (monoids.SUM, torch.uint64),
    (monoids.MAX, torch.int16),
    (monoids.BITWISE_XOR, torch.int32),
    (monoids.ARGMAX, torch.float32),
    (monoids.MIN_WITH_INDEX, torch.float16),
    (monoids.FIRST, torch.float32),
    (monoids.LAST, torch.int8),
    (monoids.AFFINE, torch.int64),
    (monoids.MATMUL2X2, torch.int64),
]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("monoid", "dtype"), WHOLE, ids=lambda value: getattr(value, "name", str(value)))
def test_every_state_is_that_of_the_prefix_read(monoid: Monoid, dtype: torch.dtype, length: int) -> None:
    """Whole numbers and choices: to the bit, and in order where order matters."""
    program = program_of(monoid, dtype)
    rows = elements(monoid, dtype, length)
    defined = [reference.fold([t[:, :read] for t in rows], program, [1]) for read in range(1, length + 1)]
    for size in chunk_sizes(length):
        found = streamed(program, rows, size)
        for step in range(1, found.after[0].shape[1]):
            for got, expected in zip(found.results, defined[min(step * size, length) - 1], strict=True):
                assert torch.equal(got[:, step], expected), (size, step)


@pytest.mark.parametrize("length", LENGTHS)
def test_float_states_are_those_of_the_prefix_within_their_rounding(length: int) -> None:
    program = program_of(monoids.LOGSUMEXP, torch.float32)
    exact = program_of(monoids.LOGSUMEXP, torch.float64)
    (rows,) = elements(monoids.LOGSUMEXP, torch.float32, length)
    defined = [reference.fold([rows[:, :read].double()], exact, [1])[0] for read in range(1, length + 1)]
    for size in chunk_sizes(length):
        found = streamed(program, [rows], size)
        depth = math.log2(size) + found.after[0].shape[1]
        for step in range(1, found.after[0].shape[1]):
            expected = defined[min(step * size, length) - 1]
            # a combine rounds its difference, exponential, product and sum: less than 8 units relative to the sum
            bound = 8 * depth * UNIT + UNIT * expected.abs()
            assert ((found.results[0][:, step].double() - expected).abs() <= bound).all(), (size, step)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("monoid", "dtype"),
    [*WHOLE, (monoids.CUMMAX, torch.float32), (MATRICES, torch.int64), (POSITIONS, torch.int32)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_states_after_chunks_are_prefixes_of_a_scan(monoid: Monoid, dtype: torch.dtype, length: int) -> None:
    """Whatever the chunks' size: results to the bit, states too, and the last one is the scan's own."""
    program = program_of(monoid, dtype)
    rows = elements(monoid, dtype, length)
    if monoid is MATRICES:
        rows = [t % P for t in rows]
    results, state = tilefold.scan(rows, monoid, 1, return_state=True)
    for size in chunk_sizes(length):
        found = streamed(program, rows, size)
        ends = torch.arange(size, length + size, size).clamp(max=length) - 1
        for got, want in zip(found.results, leaves(results), strict=True):
            assert (got.dtype, got.shape[1]) == (want.dtype, len(ends) + 1)
            assert torch.equal(bits(got)[:, 1:], bits(want)[:, ends]), size
        # a monoid without an identity has one field more here: whether there was an element
        for got, want in zip(found.after[: len(monoid.algebra.fields)], leaves(state), strict=True):
            assert got[:, -1].tolist() == want.tolist(), size


@pytest.mark.parametrize("name", ["logsumexp", "sum", "welford"])
@pytest.mark.parametrize("length", LENGTHS)
def test_states_of_floats_after_chunks_are_prefixes_of_a_scan(name: str, length: int) -> None:
    """Each within its rounding of the same scan in float64."""
    monoid = {"logsumexp": monoids.LOGSUMEXP, "sum": monoids.SUM, "welford": monoids.WELFORD}[name]
    (rows,) = elements(monoid, torch.float32, length)
    exact = leaves(tilefold.scan(rows.double(), monoid, 1))
    for size in chunk_sizes(length):
        found = streamed(program_of(monoid, torch.float32), [rows], size)
        ends = torch.arange(size, length + size, size).clamp(max=length) - 1
        depth = math.log2(size) + len(ends)
        for got, want in zip(found.results, exact, strict=True):
            # as above; elements and what is summed of them are below 2 in absolute value, squares below 4
            bound = 8 * depth * UNIT * (1 + 4 * length * (name != "logsumexp")) + UNIT * want[:, ends].abs()
            assert ((got[:, 1:].double() - want[:, ends]).abs() <= bound).all(), size


def test_a_chunks_own_state_is_that_of_its_elements_alone() -> None:
    program = program_of(monoids.ARGMAX, torch.float32)
    (rows,) = elements(monoids.ARGMAX, torch.float32, 13)
    found = streamed(program, [rows], 4)
    for chunk in range(4):
        part = rows[:, chunk * 4 : chunk * 4 + 4]
        assert torch.equal(found.own[0][:, chunk], part.amax(1))
        assert torch.equal(found.own[1][:, chunk], part.argmax(1) + chunk * 4)


def test_prefixes_begin_with_the_identity() -> None:
    program = program_of(monoids.SUM, torch.int64)
    (rows,) = elements(monoids.SUM, torch.int64, 9)
    (found,) = prefixes(program, lifted(program, [rows]))
    assert torch.equal(found[:, 0], torch.zeros(3, dtype=torch.int64))
    assert torch.equal(found[:, 1:], rows.cumsum(1))
    assert identity(program, (2, 3))[0].shape == (2, 3)


FILLED = [
    (monoids.MAX, torch.float32),
    (monoids.PROD, torch.int64),
    (monoids.BITWISE_AND, torch.uint8),
    (monoids.LAST, torch.uint16),
    (monoids.ARGMAX, torch.int64),
    (monoids.AFFINE, torch.int64),
    (monoids.ALL, torch.bool),
]


@pytest.mark.parametrize(("monoid", "dtype"), FILLED, ids=lambda value: getattr(value, "name", str(value)))
def test_the_wrong_fill_is_the_fold_of_the_padded_row(monoid: Monoid, dtype: torch.dtype) -> None:
    program = program_of(monoid, dtype)
    rows = elements(monoid, dtype, 13)
    if dtype.is_signed:  # all below 0, which is then a maximum
        rows = [-t.abs() - 1 for t in rows]
    for size in (1, 2, 4, 8, 16):
        found = boundary(program, rows, size, streamed(program, rows, size))
        if size == 1:
            assert found is None
            continue
        assert found is not None
        bytes_of = [t.view(torch.uint8).reshape(3, 13, -1) for t in rows]
        pads = [torch.cat([b, torch.zeros_like(b[:, : -13 % size])], 1).reshape(3, -1) for b in bytes_of]
        padded = [p.view(t.dtype) for p, t in zip(pads, rows, strict=True)]
        for got, expected in zip(found.results, reference.fold(padded, program, [1]), strict=True):
            assert torch.equal(got[:, 0], expected), size


def test_the_true_value_of_floats_is_in_float64() -> None:
    program = program_of(monoids.SUM, torch.float32)
    rows = torch.tensor([[2.0**24, 1.0, 1.0]])
    exact, state, results = true_fold(program, [rows])
    assert exact.state == (torch.float64,)
    assert state[0].item() == results[0].item() == 2.0**24 + 2
    assert streamed(program, [rows], 1).results[0][0, -1].item() == 2.0**24


# ------------------------------------------------------------------------------------------------ scaled fields


def test_the_sum_of_an_online_softmax_is_rescaled() -> None:
    program = program_of(monoids.LOGSUMEXP, torch.float32)
    assert scaling.extremes(program.algebra.combine, 2) == {0: "maximum"}
    assert scaling.scaled_fields(program) == [scaling.Scaled(1, (0,))]
    old, own = [torch.tensor([[1.0]]), torch.tensor([[3.0]])], [torch.tensor([[2.0]]), torch.tensor([[5.0]])]
    kept, taken = scaling.factors(program, 1, old, own)
    assert kept.item() == pytest.approx(math.exp(-1), rel=4 * UNIT)
    assert taken.item() == 1


@pytest.mark.parametrize(
    ("monoid", "fields"),
    [
        (monoids.AFFINE, [1]),
        (monoids.SUM, []),
        (monoids.PROD, []),
        (monoids.WELFORD, []),
        (monoids.ARGMAX, []),
        (Monoid(lambda a, b: (a.n + b.n, a.n * b.s / 2 + 0.0 - a.s), (0, 0), fields=("n", "s"), check=False,
                commutative=False), [1]),
    ],
    ids=["affine", "sum", "prod", "welford", "argmax", "linear"],
)  # fmt: skip
def test_which_fields_are_sums_of_scaled_parts(monoid: Monoid, fields: list[int]) -> None:
    found = scaling.scaled_fields(program_of(monoid, torch.float32))
    assert [one.field for one in found] == fields


# Of both sides' value of a field, s and t, and of what others make of theirs, w.
SIDES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a product": lambda s, t, w: s * w + t, "a product from the left": lambda s, t, w: w * s - t,
    "a quotient": lambda s, t, w: s / w - t / 2, "all of it in a quotient": lambda s, t, w: (t - s) / w,
    "a sign": lambda s, t, w: -(s * w) - t, "a choice by others": lambda s, t, w: tilefold.math.where(w > 0, s, t * w),
    "a choice of nothing": lambda s, t, w: tilefold.math.where(w > 0, s, 0) + t,
    "in a denominator": lambda s, t, w: w / s + t, "both in a denominator": lambda s, t, w: w / (s + t),
    "over each other": lambda s, t, w: s / t * w, "times each other": lambda s, t, w: s * t * w,
    "and a constant": lambda s, t, w: s * w + t + 1, "and another": lambda s, t, w: s + t + w,
    "a choice by itself": lambda s, t, w: tilefold.math.where(s > 0, s * w, t),
    "a maximum": lambda s, t, w: tilefold.math.maximum(s * w, t), "a square": lambda s, t, w: s * s * w + t,
    "an exponential": lambda s, t, w: tilefold.math.exp(s) * w + t, "a power": lambda s, t, w: s**2 / w + t,
}  # fmt: skip


@pytest.mark.parametrize("name", SIDES)
def test_a_field_is_said_to_be_a_sum_of_scaled_parts_where_it_is_linear(name: str) -> None:
    """Linear by the definition: the combine of a sum of two pairs is the sum of the combines, for any numbers."""
    made = Monoid(
        lambda a, b: (a.n + b.n, SIDES[name](a.s, b.s, a.n - b.n)), (0.0, 0.0), fields=("n", "s"), check=False,
        commutative=False,
    )  # fmt: skip
    draw = random.Random(name)

    def of(s: float, t: float, w: float) -> float:
        return float(made.algebra.combine(w, s, 0.0, t)[1])

    linear = True
    for _ in range(50):
        s, t, u, v, w = (draw.choice([-1, 1]) * draw.uniform(0.1, 2) for _ in range(5))
        linear &= math.isclose(of(s + u, t + v, w), of(s, t, w) + of(u, v, w), rel_tol=1e-9, abs_tol=1e-9)
    found = scaling.scaled_fields(program_of(made, torch.float32))
    assert [one.field for one in found] == [1] * linear
