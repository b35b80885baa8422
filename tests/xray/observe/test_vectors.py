"""`scalar-access`: what one thread holds decides, and the argument that is named is the one that matters."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.compile import offline
from tilefold.xray.explain import make_job
from tilefold.xray.observe import trials, vectors
from tilefold.xray.observe.promises import promising
from tilefold.xray.observe.vectors import Cause, Causes, _apart, _unless_it_loses, narrowest
from tilefold.xray.report.model import Observation
from xray.versions import TRITON


def narrow(kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    return [o for o in report.observations if o.code == "scalar-access"]


@triton.jit
def dequantised(q_ptr, scale_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(q_ptr + offs).to(tl.float32) * tl.load(scale_ptr + offs // 32)
    tl.store(y_ptr + offs, y)


@triton.jit
def every_other(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + 2 * offs))


@triton.jit
def rows(x_ptr, y_ptr, n, stride_x, stride_y, unused, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < n)
    tl.store(y_ptr + row * stride_y + offs, x + unused, mask=offs < n)


def test_scales_of_groups_are_one_place_a_thread() -> None:
    """All threads together read neighbouring scales; each of them reads one, several times."""
    args = {"q_ptr": "*i8", "scale_ptr": "*fp32", "y_ptr": "*fp32"}
    assert not narrow(dequantised, args, {"BLOCK": 1024}, grid=4)


def test_a_stride_of_two_cannot_be_wider() -> None:
    assert not narrow(every_other, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 1024})


def test_only_the_argument_that_matters_is_named() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1024, "stride_x": 1025, "stride_y": 1024, "unused": 7}
    (found,) = narrow(rows, args, {"BLOCK": 1024}, grid=3)
    assert found.reason.startswith("divisibility: with stride_x a multiple of 4 it is 16 bytes (compiled so)")


def test_two_arguments_that_matter_together_are_both_named() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1002, "stride_x": 1026, "stride_y": 1024, "unused": 7}
    reasons = sorted(o.reason for o in narrow(rows, args, {"BLOCK": 1024}, grid=3))
    assert [r.partition(" it is")[0] for r in reasons] == [
        "divisibility: with n a multiple of 2",
        "divisibility: with n and stride_x a multiple of 2",
    ]


@pytest.mark.parametrize(
    ("kind", "n", "divisor", "width"),
    [("fp32", 1002, 2, 8), ("fp16", 1004, 4, 8), ("fp16", 1002, 2, 4), ("i8", 1000, 8, 8)],
)
def test_what_divides_the_value_as_it_is_is_promised(kind: str, n: int, divisor: int, width: int) -> None:
    """The arrays stay as they are: nobody has to pad them."""
    args = {"x_ptr": f"*{kind}", "y_ptr": f"*{kind}", "n": n}
    (found,) = narrow(copied, args, {"BLOCK": 2048, "D": 1})
    assert f"with n a multiple of {divisor} it is {width} bytes (compiled so)" in found.reason
    assert f"n = n // {divisor} * {divisor}" in found.change
    assert (found.severity, "pad" in found.change, dict(found.numbers)["possible"]) == (
        "warning",
        False,
        width,
    )


def test_rows_that_nothing_divides_are_a_note_with_the_cost_of_padding() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1024, "stride_x": 1025, "stride_y": 1024, "unused": 7}
    (found,) = narrow(rows, args, {"BLOCK": 1024}, grid=3)
    assert found.severity == "note"
    assert "stride_x 1025 -> 1028 (0.3 % more); not tried" in found.change


class Costing:
    """Causes of which a promise loses something unless it is made of both arguments."""

    def __init__(self, together: str) -> None:
        self.together = together

    def loses(self, promise: dict[str, int], without: object = None) -> str:
        return self.together if len(promise) > 1 else "clocks of all units 8 -> 9"

    def of_atomics(self) -> dict[str, int]:
        return {}

    def divided(self, promise: dict[str, int]) -> str:
        return " and ".join(promise)


@pytest.mark.parametrize(
    ("together", "severity"), [("", "warning"), ("bytes spilled a thread 0 -> 8", "note")]
)
def test_a_promise_that_gains_nothing_alone_is_given_with_the_others(together: str, severity: str) -> None:
    cause = Cause("", "say a", 8, promise={"a": 4})
    found = _unless_it_loses(cause, Costing(together), [{"a": 4}, {"b": 2}, {}])  # type: ignore[arg-type]
    assert found.severity == severity
    assert "clocks of all units 8 -> 9" in found.change
    assert found.change.startswith("nothing was gained" if together else "a and b")


@pytest.mark.parametrize(("lost", "severity"), [("", "warning"), ("bytes spilled a thread 0 -> 8", "note")])
def test_a_mask_whose_kernel_spills_without_it_is_a_note(lost: str, severity: str) -> None:
    causes = Costing("")
    causes.loses_unmasked = lambda: lost  # type: ignore[attr-defined]
    found = _unless_it_loses(Cause("mask: without it", "split", 8), causes, [])  # type: ignore[arg-type]
    assert (found.severity, lost in found.change) == (severity, True)


@triton.jit
def sums_of_rows(
    a_ptr, b_ptr, c_ptr, y_ptr, plane_a, row_a, plane_b, row_b, plane_c, row_c, BLOCK: tl.constexpr
):
    """Accesses that depend on two arguments each, of their own."""
    row, plane, offs = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    a = tl.load(a_ptr + plane * plane_a + row * row_a + offs)
    b = tl.load(b_ptr + plane * plane_b + row * row_b + offs)
    c = tl.load(c_ptr + plane * plane_c + row * row_c + offs)
    tl.store(y_ptr + (plane * BLOCK + row) * BLOCK + offs, a + b + c)


def test_an_access_is_tried_with_its_own_arguments_and_several_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    real = offline.recompile
    monkeypatch.setattr(offline, "recompile", lambda *a: made.append(a[1]) or real(*a))
    pointers = {f"{name}_ptr": "*fp32" for name in "abcy"}
    strides = {f"{kind}_{name}": 1001 for name in "abc" for kind in ("plane", "row")}
    found = narrow(sums_of_rows, pointers | strides, {"BLOCK": 1024}, grid=(4, 4))
    reasons = sorted(o.reason.partition(" a multiple")[0] for o in found)
    assert reasons == [f"divisibility: with plane_{name} and row_{name}" for name in "abc"]
    # All are promised, then one or the other of each access, then 2 and 4 as the least divisor of each access. There are no
    # masks to be left out.
    assert len(made) == 3 + 2 * 3


@pytest.mark.parametrize("seed", range(20))
def test_arguments_that_no_access_shares_go_together(seed: int) -> None:
    drawn = random.Random(seed)
    sets = [drawn.sample("abcdefghij", drawn.randint(0, 4)) for _ in range(drawn.randint(0, 6))]
    groups = _apart(sets)
    assert sorted(n for group in groups for n in group) == sorted({n for names in sets for n in names})
    assert all(len(set(group) & set(names)) <= 1 for group in groups for names in sets)


def test_where_trials_end_all_arguments_are_named_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not tried is not said to be needed by an access that does not depend on it."""
    monkeypatch.setattr(trials, "TRIALS", 3)
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1001, "stride_x": 1025, "stride_y": 1023, "unused": 7}
    reasons = sorted(o.reason for o in narrow(rows, args, {"BLOCK": 1024}, grid=3))
    assert [r.partition(" a multiple")[0] for r in reasons] == [
        "divisibility: with n and stride_x",
        "divisibility: with n and stride_y",
    ]


@triton.jit
def masked_rows(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * stride + offs, mask=offs < n)
    tl.store(y_ptr + tl.program_id(0) * BLOCK + offs, x)


@triton.jit
def masked_tiles(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def test_a_tile_that_goes_alone_is_advised_only_against_a_mask() -> None:
    """Rows that are not aligned begin between vectors in every tile."""
    (mask,) = narrow(masked_tiles, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1001}, {"BLOCK": 512}, grid=2)
    assert "split the last tile off" in mask.change
    assert dict(mask.numbers)["whole"] == pytest.approx(0.5, abs=0.02)
    (rows_,) = narrow(
        masked_rows, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1008, "stride": 1009}, {"BLOCK": 1024}, grid=4
    )
    assert "stride a multiple of 4" in rows_.reason
    assert "split" not in rows_.change


@triton.jit
def exchanged(x_ptr, j, BLOCK: tl.constexpr):
    """A step of a bitonic sort: half of the lanes of every tile are off."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = (offs ^ j) > offs
    x = tl.load(x_ptr + offs, mask=first, other=0.0)
    y = tl.load(x_ptr + (offs ^ j), mask=first, other=0.0)
    tl.store(x_ptr + offs, tl.minimum(x, y), mask=first)
    tl.store(x_ptr + (offs ^ j), tl.maximum(x, y), mask=first)


def test_where_no_tile_is_whole_none_is_split_off() -> None:
    """In every tile of a bitonic step, and of rows of one tile each, some lanes are off."""
    found = narrow(exchanged, {"x_ptr": "*fp32", "j": 4}, {"BLOCK": 1024}, grid=8)
    found += narrow(
        masked_rows, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1001, "stride": 1024}, {"BLOCK": 1024}, grid=4
    )
    of_masks = [o for o in found if o.reason.startswith("mask: ")]
    assert len(of_masks) >= 2
    assert all(o.severity == "note" and "split" not in o.change for o in of_masks)


@triton.jit
def copied(x_ptr, y_ptr, n, BLOCK: tl.constexpr, D: tl.constexpr):
    n = n // D * D
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@pytest.mark.parametrize(("kind", "n", "divisor"), [("fp32", 1004, 4), ("fp16", 1000, 8), ("fp64", 1002, 2)])
def test_the_least_divisor_that_suffices_is_named(kind: str, n: int, divisor: int) -> None:
    """What the entry says at the top of the kernel widens it, and half of it does not do as well."""
    args, block = {"x_ptr": f"*{kind}", "y_ptr": f"*{kind}", "n": n}, {"BLOCK": 2048}
    (found,) = narrow(copied, args, {**block, "D": 1})
    assert f"with n a multiple of {divisor} it is 16 bytes (compiled so)" in found.reason
    assert f"n = n // {divisor} * {divisor}" in found.change
    assert not narrow(copied, args, {**block, "D": divisor})
    assert narrow(copied, args, {**block, "D": divisor // 2})


@triton.jit
def looked_up(x_ptr, y_ptr, BLOCK: tl.constexpr, G: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs // G))


@pytest.mark.parametrize(("group", "severity"), [(2, "warning"), (3, "note")])
def test_a_place_that_a_thread_asks_for_twice_is_named(group: int, severity: str) -> None:
    """It is unpacked where all are asked for as often; a look-up by another divisor is what it is."""
    (found,) = narrow(looked_up, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 1024, "G": group})
    assert found.reason.startswith("a thread asks for each place 2 times")
    assert (found.severity, "unpack" in found.change) == (severity, group == 2)


@triton.jit
def backwards(x_ptr, y_ptr, BLOCK: tl.constexpr, LAST: tl.constexpr, STEP: tl.constexpr):
    """Elements from the last one on; or neighbouring ones exchanged."""
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + (LAST - offs if STEP == 1 else offs ^ 1)))


@triton.jit
def shifted(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs + 3))


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, stride_k, stride_n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + offs[:, None] * K + k + offs[None, :])
        b = tl.load(b_ptr + (k + offs)[:, None] * stride_k + offs[None, :] * stride_n)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + offs[:, None] * BLOCK + offs[None, :], acc)


@pytest.mark.parametrize("kind", ["fp32", "fp16", "i8"])
@pytest.mark.parametrize(
    ("block", "warps", "severity"), [(512, 1, "warning"), (4096, 4, "note")], ids=["shuffled", "across warps"]
)
def test_a_tile_moved_backwards_is_to_be_turned_where_that_gains(
    kind: str, block: int, warps: int, severity: str
) -> None:
    """Across warps tl.flip goes through shared memory, axis by axis. Of many programs, whose warps fill an SM: one warp alone
    keeps one of its schedulers busy, and takes longer."""
    args = {"x_ptr": f"*{kind}", "y_ptr": f"*{kind}"}
    constants = {"BLOCK": block, "LAST": block - 1, "STEP": 1}
    (found,) = narrow(backwards, args, constants, num_warps=warps, grid=4096)
    if TRITON < (3, 7) or severity == "warning":  # later ones turn bytes across warps at less cost
        assert found.severity == severity
    severity = found.severity
    assert "in the opposite order" in found.reason
    assert "tl.flip" in found.change
    assert ("and the same is stored" in found.change) == (severity == "warning")
    assert dict(found.numbers)["possible"] == 16


@pytest.mark.parametrize(
    ("last", "step", "width", "said"),
    [
        (510, 1, 16, "begin at addresses that are no multiple of 8"),
        (509, 1, 8, "in the opposite order"),
        (512, 2, 16, "in another order than the tile's"),
    ],
    ids=["odd", "half a vector", "pairs exchanged"],
)
def test_what_a_tile_moved_backwards_can_reach_is_told(last: int, step: int, width: int, said: str) -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
    (found,) = narrow(backwards, args, {"BLOCK": 512, "LAST": last, "STEP": step}, num_warps=1)
    assert said in found.reason
    assert dict(found.numbers)["possible"] == width
    assert found.severity == "note" or "and the same is stored" in found.change


@triton.jit
def added_rows(x_ptr, y_ptr, stride_x, stride_y, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs)
    tl.atomic_add(y_ptr + row * stride_y + offs, x, sem="relaxed")


def test_a_promise_is_tried_with_what_atomics_need() -> None:
    """With wide loads alone the tile changes its layout for the atomics; with both strides it does not."""
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "stride_x": 700, "stride_y": 700}
    (found,) = narrow(added_rows, args, {"BLOCK": 512}, grid=8)
    assert found.severity == "warning"
    assert "stride_x = stride_x // 4 * 4; stride_y = stride_y // 4 * 4" in found.change
    assert re.search(
        r"tried: alone clocks of all units .*; with all of these clocks of all units", found.change
    )


@triton.jit
def gram(k_ptr, v_ptr, y_ptr, n, d, B: tl.constexpr):
    rows, columns = tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros([B, B], tl.float32)
    for start in range(0, n, B):
        on = ((start + rows) < n)[:, None] & (columns < d)[None, :]
        k = tl.load(k_ptr + (start + rows)[:, None] * d + columns[None, :], mask=on, other=0.0)
        v = tl.load(v_ptr + (start + rows)[:, None] * d + columns[None, :], mask=on, other=0.0)
        acc += tl.dot(tl.trans(tl.exp(k)), v)
    tl.store(y_ptr + rows[:, None] * B + columns[None, :], acc)


def promising_kernel(clocks: int, monkeypatch: pytest.MonkeyPatch, *, executed: bool = True) -> Any:
    """Causes whose kernel takes 100 clocks, and `clocks` with any promise; a promise of both a and b takes 80."""
    causes: Any = object.__new__(Causes)
    held = SimpleNamespace(ttir="", parameters=())
    causes._evidence = SimpleNamespace(compiled=held, execution=() if executed else None)
    causes._trials = SimpleNamespace(compile=lambda _: None)
    causes._barriers = lambda _: "barriers in the PTX 8 -> 10"
    causes._clocks = lambda ttir: (100, 80 if ttir == "ab" else clocks)
    monkeypatch.setattr(offline, "resources", lambda _: SimpleNamespace(spilled=0))
    monkeypatch.setattr(vectors, "promising_each", lambda _, promise: "".join(promise))
    return causes


@pytest.mark.parametrize(("clocks", "lost"), [(90, False), (100, True), (120, True)])
def test_a_promise_has_to_save_clocks(clocks: int, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its barriers grow or not: passes through shared memory and instructions count as well."""
    causes = promising_kernel(clocks, monkeypatch)
    assert bool(causes.loses({"a": 4})) == lost


@pytest.mark.parametrize(("clocks", "lost"), [(90, False), (70, True)])
def test_a_promise_has_to_save_clocks_beside_the_others(
    clocks: int, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the others do without it what they do with it, the gain is theirs."""
    causes = promising_kernel(clocks, monkeypatch)
    assert bool(causes.loses({"a": 4, "b": 4}, without={"b": 4})) == lost


def test_a_promise_that_nothing_executed_is_weighed_by_its_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    causes = promising_kernel(90, monkeypatch, executed=False)
    assert causes.loses({"a": 4}) == "barriers in the PTX 8 -> 10"


def test_conflicts_that_wide_copies_do_not_have_are_at_stake() -> None:
    args = {"k_ptr": "*fp32", "v_ptr": "*fp32", "y_ptr": "*fp32", "n": 96, "d": 20}
    report = xray.explain(gram, args, {"B": 32})
    found = [o for o in report.observations if o.code == "narrow-copy"]
    assert {o.severity for o in found} == {"warning"}
    assert all(re.search(r"d = d // 4 \* 4 .*tried: clocks of all units", o.change) for o in found)


def test_a_shift_that_nothing_can_widen_is_a_note() -> None:
    (found,) = narrow(shifted, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 1024})
    assert (found.severity, found.reason.partition(":")[0]) == ("note", "alignment")


def test_a_tile_turned_on_its_way_is_one_entry_and_has_a_remedy() -> None:
    """The matrix unit takes tf32 only with K innermost."""
    args = {"a_ptr": "*fp32", "b_ptr": "*fp32", "c_ptr": "*fp32", "K": 128}
    across = xray.explain(product, {**args, "stride_k": 64, "stride_n": 1}, {"BLOCK": 64})
    along = xray.explain(product, {**args, "stride_k": 1, "stride_n": 128}, {"BLOCK": 64}, run=False)
    (found,) = [o for o in across.observations if o.code == "narrow-copy"]
    assert found.reason.startswith("the tile is turned on its way into shared memory")
    assert "of shared memory makes 8.0 passes" in found.evidence
    assert "bank-conflict" not in across.codes()
    assert "narrow-copy" not in along.codes()


def test_three_elements_are_a_note() -> None:
    args = {"x_ptr": "*fp32[3]", "y_ptr": "*fp32[3]", "n": 3, "stride_x": 0, "stride_y": 0, "unused": 0}
    found = narrow(rows, args, {"BLOCK": 1024})
    assert found
    assert {o.severity for o in found} == {"note"}
    assert "no tile of the executed programs is whole" in found[0].change


def test_what_is_advised_of_a_pointer_is_where_it_begins() -> None:
    args = {
        "x_ptr": "*fp32!div4",
        "y_ptr": "*fp32",
        "n": 1024,
        "stride_x": 1024,
        "stride_y": 1024,
        "unused": 0,
    }
    (found,) = narrow(rows, args, {"BLOCK": 1024})
    assert found.change == "let x_ptr begin at a multiple of 16 bytes"
    assert found.severity == "warning"


@triton.jit
def two_loads_of_a_line(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    even, odd = tl.load(x_ptr + 2 * offs), tl.load(x_ptr + 2 * offs + 1)
    tl.store(y_ptr + offs, even + odd)


def test_two_loads_of_a_line_are_not_one_vector() -> None:
    """Each has a stride of two; only together are their elements neighbours."""
    assert not narrow(two_loads_of_a_line, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 1024})


@triton.jit
def products_with_bias(
    a_ptr, b_ptr, bias_ptr, c_ptr, tiles, K, N, stride_a, stride_b, stride_c, B: tl.constexpr
):
    """Tiles and rounds flattened into one loop, and one of its own for a K of 0: what a line loads lies in two layouts."""
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    offs = tl.arange(0, B)
    for tile in tl.range(tl.program_id(0), tiles, 2, flatten=True):
        acc = tl.zeros((B, B), tl.float32)
        for k in range(tl.cdiv(K, B)):
            here = tile * B + rows
            a = tl.load(a_ptr + here * stride_a + k * B + columns, mask=columns < K - k * B, other=0.0)
            b = tl.load(b_ptr + (k * B + rows) * stride_b + columns, mask=rows < K - k * B, other=0.0)
            acc = tl.dot(a, b, acc)
        acc += tl.load(bias_ptr + offs, mask=offs < N, other=0.0)
        tl.store(c_ptr + (tile * B + rows) * stride_c + columns, acc.to(tl.bfloat16), mask=columns < N)


def test_what_is_said_to_widen_an_access_does() -> None:
    """The arguments that are named, and these alone, promised what is said."""
    sizes = {"tiles": 2, "K": 100, "N": 40, "stride_a": 100, "stride_b": 200, "stride_c": 40}
    args = {**{f"{name}_ptr": "*bf16" for name in ("a", "b", "bias", "c")}, **sizes}
    compiled = offline.compile_job(make_job(products_with_bias, args, {"B": 64}, grid=2))
    said = narrow(products_with_bias, args, {"B": 64}, grid=2)
    assert said
    for o in said:
        words = re.match(
            r"divisibility: with (.*) a multiple of (\d+) it is (\d+) bytes \(compiled so\)", o.reason
        )
        assert words is not None
        made = offline.recompile(compiled, promising(compiled.ttir, words[1].split(" and "), int(words[2])))
        assert {w for place, w in narrowest(made).items() if place[1] == o.line} == {int(words[3])}


@pytest.mark.parametrize("most", [2, 4, 6, 9, 32])
def test_no_divisor_is_named_that_is_more_than_was_shown_to_suffice(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few trials there are: 4 elements of 4 bytes need no more than 4, and what was not tried is said."""
    monkeypatch.setattr(trials, "TRIALS", most)
    pointers = {f"{name}_ptr": "*fp32" for name in "abcy"}
    strides = {f"{kind}_{name}": 1001 for name in "abc" for kind in ("plane", "row")}
    reasons = [
        o.reason
        for o in narrow(sums_of_rows, pointers | strides, {"BLOCK": 1024}, grid=(4, 4))
        if o.reason.startswith("divisibility")
    ]
    assert reasons
    assert all("a multiple of 4 it is" in r or "less may do: not tried" in r for r in reasons), reasons
    assert most < 6 or all("a multiple of 4 it is" in r for r in reasons)


@triton.jit
def chosen(x_ptr, m_ptr, y_ptr, n_ptr, BY_TILE: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = tl.load(m_ptr + offs) != 0 if BY_TILE else offs < tl.load(n_ptr)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=mask, other=0.0))


@pytest.mark.parametrize(("by_tile", "severity"), [(True, "note"), (False, "warning")])
def test_a_mask_that_is_loaded_has_no_tail_to_split_off(by_tile: bool, severity: str) -> None:
    args = {"x_ptr": "*fp16", "m_ptr": "*i8", "y_ptr": "*fp16", "n_ptr": np.array([3000], np.int32)}
    found = narrow(chosen, args, {"BY_TILE": by_tile, "BLOCK": 1024}, grid=3)
    assert [(o.reason.partition(":")[0], o.severity) for o in found] == [("mask", severity)]


@triton.jit
def scaled_by_channel(x_ptr, w_ptr, y_ptr, n, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    n, offs = n // 2 * 2, tl.arange(0, BLOCK)
    at = tl.program_id(0) * n + offs
    x = tl.load(x_ptr + at, mask=offs < n)
    w = tl.load(w_ptr + offs // GROUP, mask=offs < n)
    tl.store(y_ptr + at, x * w, mask=offs < n)


def test_a_place_that_many_threads_ask_for_is_a_group_s() -> None:
    args = {"x_ptr": "*fp16", "w_ptr": "*fp32", "y_ptr": "*fp16", "n": 1002}
    found = narrow(scaled_by_channel, args, {"BLOCK": 1024, "GROUP": 196}, grid=3)
    asked = [o for o in found if o.reason.startswith("a thread asks")]
    assert [o.severity for o in asked] == ["note"]


@triton.jit
def counted_places(x_ptr, y_ptr, width, row, TILES: tl.constexpr, BLOCK: tl.constexpr):
    """Places of an image by its width, or tiles of rows by their number, or rows that wrap around."""
    pid, offs = tl.program_id(0), tl.arange(0, BLOCK)
    if TILES == 2:
        at, on = (pid * 7 + offs // BLOCK) % width * row + offs, offs < width
    elif TILES:
        tiles = tl.cdiv(width, BLOCK)
        at, on = pid // tiles * row + pid % tiles * BLOCK + offs, pid % tiles * BLOCK + offs < width
    else:
        at, on = offs // width * row + offs % width, offs < width * 4
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=on), mask=on)


@pytest.mark.parametrize("width", [250, 251])
@pytest.mark.parametrize("tiles", [2, 1, 0])
def test_a_length_that_places_are_counted_in_is_not_padded(tiles: int, width: int) -> None:
    """What divides the width as it is makes no other problem of it."""
    args = {"x_ptr": "*fp16", "y_ptr": "*fp16", "width": width, "row": width}
    found = narrow(counted_places, args, {"TILES": tiles, "BLOCK": 1024}, grid=4)
    said = [o for o in found if o.reason.startswith("divisibility")]
    assert all(("can pad" in o.change) == (width == 251) for o in said)
    assert width == 250 or {o.severity for o in said} <= {"note"}
