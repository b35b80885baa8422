"""Columns where rows begin between vectors: how many a thread and a program have, and answers with every division."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilefold
from api.test_segment_reduce import AFFINE
from asked import asked, run
from tilefold import monoids
from tilefold.planner.odd_columns import columns_together, loaded_run, narrow_run, run_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BF16, FP32 = torch.bfloat16, torch.float32


def drawn(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_a_run_is_what_address_and_steps_are_multiples_of() -> None:
    assert run_of(2, 16, [4098, 8]) == 2
    assert run_of(2, 2, [4096]) == 1
    assert run_of(4, 16, [0, 4100]) == 4
    assert run_of(8, 4, []) == 1


@pytest.mark.parametrize(
    ("columns", "run", "most", "together"),
    [(4099, 1, 128, 128), (133, 1, 128, 32), (65, 1, 64, 32), (333, 1, 128, 128), (55, 1, 128, 64), (33, 1, 64, 64),
     (7, 1, 64, 8), (1, 1, 64, 1), (130, 2, 256, 64), (66, 2, 128, 128)],
)  # fmt: skip
def test_few_columns_of_a_program_are_none(columns: int, run: int, most: int, together: int) -> None:
    assert columns_together(columns, run, most) == together


def test_only_what_allows_no_whole_vectors_is_narrow() -> None:
    own, shared = (2, 16, [4099]), (4, 16, [0])
    assert narrow_run([own, shared], 4099) == 1
    assert narrow_run([(2, 16, [4096]), shared], 4096) == 0
    assert narrow_run([(2, 16, [64]), shared], 55) == 1  # a mask cuts vectors
    assert narrow_run([own], 4099) == 0  # nothing is loaded for many rows, and nothing allows more
    assert narrow_run([(2, 16, [64]), (2, 16, [55])], 55) == 1
    assert loaded_run([(2, 16, [66])], 66) == 2
    assert loaded_run([], 66) >= 8


ELEMENTS: dict[str, tuple[Any, str]] = {
    "many": (lambda: drawn(13, 4099, dtype=BF16), "elements:8x128,r1,w4"),
    "pairs": (lambda: drawn(13, 1002, dtype=BF16), "elements:4x256,r2,w4"),
    "fours": (lambda: drawn(13, 1004, dtype=BF16), "elements:2x512,r4,w4"),
    "few": (lambda: drawn(70, 133), "elements:32x32,r1,w4"),
    "a part of aligned rows": (lambda: drawn(70, 64)[:, :55], "elements:16x64,r1,w4"),
    "from the second element": (lambda: drawn(70, 65)[:, 1:], "elements:16x64,r1,w4"),
    "aligned": (lambda: drawn(64, 512, dtype=BF16), "elements:2x512,w4"),
}


@pytest.mark.parametrize("name", list(ELEMENTS))
def test_elements_of_odd_columns(name: str) -> None:
    made, note = ELEMENTS[name]
    x = made()
    request, tensors, plan = asked(lambda: tilefold.softmax(x, 0, guarantee="batch_invariant"))
    assert plan.stages[-1].note == note
    (got,) = run(request, tensors).results
    want = torch.softmax(x.double(), 0)
    torch.testing.assert_close(got.double(), want, rtol=2**-8 if x.dtype == BF16 else 2**-20, atol=0)


@pytest.mark.parametrize(
    "monoid", [monoids.SUM, AFFINE, monoids.ARGMAX], ids=["sum", "in order", "positions"]
)
@pytest.mark.parametrize("columns", [1, 2, 3, 7, 17, 33, 65, 133])
def test_segments_of_odd_columns(columns: int, monoid: Any) -> None:
    x = torch.randint(-9, 9, (400, columns), generator=torch.Generator().manual_seed(0)).int()
    check_segments(x, monoid)


def test_segments_of_a_part_of_odd_rows() -> None:
    x = torch.randint(-9, 9, (300, 65), generator=torch.Generator().manual_seed(0)).to(BF16)[:, :64]
    plan = check_segments(x, monoids.MAX)
    assert "r1" in plan.stages[0].note


def check_segments(x: torch.Tensor, monoid: Any) -> Any:
    borders = torch.tensor([0, 0, 1, 60, 61, 64, 130, 290, 290, 299])
    request, tensors, plan = asked(lambda: tilefold.segment_reduce(x, monoid, borders, dim=0, partial=True))
    results = run(request, tensors).results
    with tilefold.backend("reference"):
        want = tilefold.segment_reduce(x, monoid, borders, dim=0, partial=True)
    for a, b in zip(results, want if isinstance(want, tuple) else (want,), strict=True):
        assert torch.equal(a, b)
    return plan
