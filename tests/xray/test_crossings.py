"""Which barriers something crosses, by hand-written PTX; tallies of instructions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tilefold.xray.machine import Memory, Outcome, load, run
from tilefold.xray.machine.counts import SharedCost
from tilefold.xray.machine.crossings import Crossing, crossings, needless_barriers
from tilefold.xray.ptx import parse
from xray import kernels, tensor_kernels
from xray.running import Described, kernel_of, launch
from xray.snippets import module
from xray.tallies import tally
from xray.versions import TRITON

STORE = "mul.lo.u32 %r0, %tid_, 4; mov.u32 %r1, room; add.u32 %r2, %r0, %r1; st.shared.b32 [%r2], %tid_;"


def crossed(body: str, threads: int = 64, parameters: int = 0) -> tuple[Crossing, ...]:
    kernel, memory = load(parse(module(body, parameters, threads))), Memory()
    places = [memory.place(f"x{i}", np.zeros(4096, np.uint8)) for i in range(parameters)]
    names = [p.name for p in kernel.entry.parameters]
    return crossings(kernel, run(kernel, memory, dict(zip(names, places, strict=True))))


def neighbour(by: int) -> str:
    """Loads what the thread `by` further stored."""
    place = f"add.u32 %r3, %tid_, {by}; and.b32 %r3, %r3, 63; shl.b32 %r3, %r3, 2; add.u32 %r4, %r3, %r1;"
    return place + "ld.shared.b32 %r5, [%r4];"


@pytest.mark.parametrize(("by", "needed"), [(32, "warps"), (1, "warps"), (0, "lanes")])
def test_a_value_from_another_warp(by: int, needed: str) -> None:
    (found,) = crossed(STORE + "bar.sync 0;" + neighbour(by))
    assert found.needed == needed
    assert found.bytes == {32: 256, 1: 8, 0: 0}[by]


def test_reads_alone_need_no_barrier() -> None:
    first, second = crossed(STORE + "bar.sync 0;" + neighbour(32) + "bar.sync 0;" + neighbour(32))
    assert first.needed == "warps"
    assert (second.needed, second.bytes, second.example) == ("nothing", 0, None)


def test_a_read_before_a_write_needs_one() -> None:
    first, second = crossed(STORE + "bar.sync 0;" + neighbour(32) + "bar.sync 0;" + STORE)
    assert (first.needed, second.needed) == ("warps", "warps")


def test_a_second_barrier_at_once_is_needless() -> None:
    kernel = load(parse(module(STORE + "bar.sync 0; bar.sync 0;" + neighbour(32), 0, 64)))
    outcome = run(kernel, Memory(), {})
    first, second = crossings(kernel, outcome)
    assert (first.needed, second.needed) == ("nothing", "warps"), "one of the two must stay"
    assert needless_barriers(kernel, [outcome]) == {first.instruction: "nothing"}


@pytest.mark.parametrize("rounds", [3, 8])
def test_a_loop_shows_nothing_before_it_went_round_often(rounds: int) -> None:
    loop = f"mov.b32 %r0, 0; AGAIN: bar.sync 0; add.s32 %r0, %r0, 1; setp.lt.s32 %t0, %r0, {rounds}; @%t0 bra AGAIN;"
    kernel = load(parse(module(loop + "bar.sync 0;", 0, 64)))
    inside, behind = (n for n, i in enumerate(kernel.entry.instructions) if i.opcode == "bar")
    found = needless_barriers(kernel, [run(kernel, Memory(), {})])
    assert found == {behind: "nothing"} | ({inside: "nothing"} if rounds == 8 else {})


def test_global_memory_counts_too() -> None:
    """A word that another warp reads back."""
    store = "ld.param.b64 %d8, [k_0]; mad.lo.s64 %d9, %at, 4, %d8; st.global.b32 [%d9], %tid_;"
    for by, needed, count in ((32, "warps", 256), (1, "lanes", 0)):
        other = f"xor.b64 %d10, %at, {by}; mad.lo.s64 %d11, %d10, 4, %d8; ld.global.b32 %r5, [%d11];"
        (found,) = crossed(store + "bar.sync 0;" + other, parameters=1)
        assert (found.needed, found.bytes) == (needed, count)


def test_atomics_do_not_conflict_with_each_other() -> None:
    add = "mov.u32 %r1, room; atom.shared.add.u32 %r5, [%r1], 1;"
    (found,) = crossed(add + "bar.sync 0;" + add)
    assert found.needed == "nothing"
    (found,) = crossed(add + "bar.sync 0; ld.shared.b32 %r5, [room];")
    assert found.needed == "warps"


@pytest.mark.parametrize(
    ("atomic", "needed"),
    [
        ("atom.global.release.gpu.add.u32", "warps"),
        ("fence.acq_rel.gpu; @%t0 atom.global.relaxed.gpu.add.u32", "warps"),
        ("atom.global.relaxed.gpu.add.u32", "nothing"),
    ],
)
def test_a_counter_speaks_for_all_that_was_stored(atomic: str, needed: str) -> None:
    """Thread 0 tells other programs of what both warps wrote: elsewhere, so that no byte crosses."""
    store = "ld.param.b64 %d8, [k_0]; mad.lo.s64 %d9, %at, 4, %d8; st.global.b32 [%d9], %tid_;"
    tell = f"setp.eq.u32 %t0, %tid_, 0; @%t0 {atomic} %r5, [%d8 + 1024], 1;"
    (found,) = crossed(store + "bar.sync 0;" + tell, parameters=1)
    assert (found.needed, found.bytes) == (needed, 0)


@pytest.mark.parametrize("waited", [True, False])
def test_a_copy_is_written_until_it_is_waited_for(waited: bool) -> None:
    copy = (
        "ld.param.b64 %d8, [k_0]; mad.lo.s64 %d9, %at, 16, %d8; shl.b32 %r0, %tid_, 4; mov.u32 %r1, room;"
        "add.u32 %r2, %r0, %r1; cp.async.cg.shared.global [%r2], [%d9], 16; cp.async.commit_group;"
    )
    wait = "cp.async.wait_group 0;"
    read = "xor.b32 %r3, %tid_, 32; shl.b32 %r3, %r3, 4; add.u32 %r4, %r3, %r1; ld.shared.b32 %r5, [%r4];"
    (found,) = crossed(
        copy + (wait if waited else "") + "bar.sync 0;" + ("" if waited else wait) + read, 64, 1
    )
    assert found.needed == ("warps" if waited else "nothing"), "what has not landed does not cross"


def seen(
    function: object, arguments: dict[str, object], **options: object
) -> tuple[dict[int, str], list[Outcome]]:
    made = []
    outcomes = launch(function, arguments, through=lambda c: made.append(kernel_of(c)) or made[0], **options)  # type: ignore[arg-type]
    return needless_barriers(made[0], outcomes), outcomes


def test_a_transpose_needs_its_barrier() -> None:
    x, y = torch.randn(64, 64), torch.empty(64, 64)
    found, outcomes = seen(kernels.transpose, {"x_ptr": x, "y_ptr": y, "m": 64, "n": 64}, BLOCK=64)
    assert found == {}
    assert outcomes[0].barriers == 1


@pytest.mark.parametrize("architecture", [80, 90])
def test_barriers_of_a_pipelined_product(architecture: int) -> None:
    """The loop's own must stay, since buffers are written again; the one that Triton 3.6 puts before it parts nothing."""
    a, b, c = torch.randn(64, 256).half(), torch.randn(256, 64).half(), torch.empty(64, 64)
    arguments = {
        "a_ptr": a,
        "b_ptr": b,
        "c_ptr": c,
        "K": 256,
        "step_am": 256,
        "step_ak": 1,
        "step_bk": 64,
        "step_bn": 1,
    }
    made = []
    outcomes = launch(
        tensor_kernels.product, arguments, architecture=architecture,
        through=lambda m: made.append(kernel_of(m)) or made[0], M=64, N=64, BLOCK_K=32, PRECISION="tf32", STAGES=3,
    )  # fmt: skip
    found = crossings(made[0], outcomes[0])
    needless = needless_barriers(made[0], outcomes)
    needed = {c.instruction for c in found if c.needed == "warps"}
    assert needed
    assert not needed & set(needless)
    if TRITON == (3, 6):
        assert needless[found[0].instruction] == "nothing"
    kinds = {made[0].entry.instructions[n].opcode for c in found if c.example for n in c.example}
    assert kinds >= ({"wgmma"} if architecture == 90 else {"cp", "ldmatrix"})
    tensor = [t for t in tally(made[0], outcomes) if t.opcode == "mma" or t.instruction.has("mma_async")]
    # 64 x 64 x 256 products by four warps: in steps of 16 x 8 x 16, or of 64 x 64 x 16 by all four.
    assert sum(t.warps for t in tensor) == (
        64 * 64 * 256 // (16 * 8 * 16) if architecture == 80 else 4 * 256 // 16
    )
    matrices = [t for t in tally(made[0], outcomes) if t.opcode == "ldmatrix"]
    assert all(t.shared_cost.conflicts == 0 for t in matrices), "Triton swizzles against conflicts"


def test_a_buffer_that_the_accelerator_fills_again() -> None:
    a, b, c = torch.randn(64, 512).half(), torch.randn(512, 64).half(), torch.empty(64, 64).half()
    arguments = {
        "a": Described(a, (64, 64)),
        "b": Described(b, (64, 64)),
        "c": Described(c, (64, 64)),
        "k": 512,
    }
    made = []
    (outcome,) = launch(
        tensor_kernels.described_product, arguments,
        through=lambda m: made.append(kernel_of(m)) or made[0], M=64, N=64, K=64, STAGES=3,
    )  # fmt: skip
    pairs = {
        tuple(made[0].entry.instructions[n].name.split(".")[0] for n in found.example)
        for found in crossings(made[0], outcome)
        if found.example
    }
    assert ("wgmma", "cp") in pairs, "a tile is loaded over one that was multiplied"
    assert {t.kind for t in outcome.transfers} == {"load", "store"}
    loaded = sum(t.bytes for t in outcome.transfers if t.kind == "load")
    assert loaded == a.nbytes + b.nbytes


def test_lanes_whose_predicate_is_false_are_counted() -> None:
    kernel = load(parse(module("setp.lt.u32 %t0, %tid_, 5; @%t0 st.shared.b32 [room], %tid_;", 0, 64)))
    store = next(t for t in tally(kernel, [run(kernel, Memory(), {})]) if t.opcode == "st")
    assert (store.warps, store.lanes) == (2, 5)
    assert store.shared_cost == SharedCost(1, 1, 1)
