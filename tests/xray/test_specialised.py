"""Warp specialisation, chips whose instructions are not executed, and the texts that a report cites."""

from __future__ import annotations

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.errors import ArgumentError
from tilefold.xray.compile.texts import KINDS, text_of
from tilefold.xray.explain import make_job
from tilefold.xray.machine import Memory
from tilefold.xray.ptx import parse
from tilefold.xray.ptx.writer import write
from xray.observe.planted import XY, double
from xray.snippets import apply, execute, module


@triton.jit
def specialised(a_ptr, b_ptr, c_ptr, M, N, K, B: tl.constexpr):
    row, column = tl.program_id(0) * B, tl.program_id(1) * B
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [B, B])
    b = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [B, B])
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [B, B])
    sums = tl.zeros((B, B), tl.float32)
    for k in tl.range(0, K, B, warp_specialize=True):
        sums = tl.dot(a.load([row, k]), b.load([k, column]), sums)
    c.store([row, column], sums.to(tl.float16))


CHOICE = """list: .branchtargets ZERO, ONE, TWO;
and.b32 %r6, {a}, 3; min.u32 %r6, %r6, 2; brx.idx %r6, list;
ZERO: mov.b32 {d}, 10; bra.uni MET; ONE: mov.b32 {d}, 11; bra.uni MET; TWO: mov.b32 {d}, 12;
MET: shfl.sync.bfly.b32 {d}, {d}, 0, 31, -1;"""


def test_lanes_jump_to_the_label_of_their_index_and_meet_again() -> None:
    lane = np.arange(32, dtype="i4")
    np.testing.assert_array_equal(apply(CHOICE, lane, result="i4"), 10 + np.minimum(lane & 3, 2))


def test_a_list_of_labels_is_written_as_it_was_read() -> None:
    body = "mov.b32 %r6, 1;" + CHOICE.format(a="%tid_", d="%r5")
    text = module(body, 0)
    again = write(parse(text))
    assert ".branchtargets ZERO, ONE, TWO;" in again
    execute(again, Memory(), [])


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_specialised_warps_have_their_static_part(target: str) -> None:
    args = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", "M": 256, "N": 256, "K": 256}
    report = xray.explain(specialised, args, {"B": 128}, grid=(2, 2), target=target)
    assert report.totals.sass > 100
    assert any("tl.dot" in line.text and line.sass for line in report.lines)
    assert all(layout.operation for line in report.lines for layout in line.layouts)
    if target == "sm_100":
        assert not report.executed
        assert any("tcgen05" in note for note in report.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_texts_of_a_kernel(kind: str) -> None:
    job = make_job(double, XY, {"BLOCK": 128})
    text = text_of(job, kind)
    assert {"ttir": "tt.store", "ttgir": "#blocked", "ptx": "st.global", "sass": "STG"}[kind] in text
    numbered = text_of(job, kind, numbered=True).splitlines()
    assert numbered[0].split() == ["1", *text.splitlines()[0].split()]
    assert len(numbered) == len(text.splitlines())


def test_no_such_text() -> None:
    with pytest.raises(ArgumentError, match="must be one of ttir, ttgir, ptx, sass, got 'cubin'"):
        text_of(make_job(double, XY, {"BLOCK": 128}), "cubin")
