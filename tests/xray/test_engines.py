"""Transaction barriers, tensor maps, matrices and what no chip defines, by hand-written PTX."""

from __future__ import annotations

import numpy as np
import pytest

from tilefold.errors import ExecutionError, PtxError, UnknownInstructionError
from tilefold.xray.machine import Memory, TensorMap, chosen_programs, execute, load
from tilefold.xray.machine.bulk.tensormap import SIZE, unpack
from tilefold.xray.machine.matrix.tiles import tile
from tilefold.xray.ptx import parse
from xray.snippets import module

MAP = TensorMap(1 << 41, (48, 40), (32, 8), (192,), 7, swizzle=3, fill=1)


def ran(body: str, *values: int | bytes, threads: int = 64, memory: Memory | None = None) -> Memory:
    memory = memory or Memory()
    execute(load(parse(module(body, len(values), threads))), memory, values, programs=[(0, 0, 0)])
    return memory


INIT = "setp.eq.u32 %t0, %tid_, 0; mov.u32 %r1, room; @%t0 mbarrier.init.shared::cta.b64 [%r1], {count}; bar.sync 0;"
WAIT = "{{ .reg .pred over; again: mbarrier.try_wait.parity.shared.b64 over, [%r1], {parity}; @!over bra.uni again; }}"


def test_threads_wait_until_all_have_arrived() -> None:
    """The last warp arrives behind those that wait already; both then store."""
    body = INIT.format(count=64) + (
        "setp.ge.u32 %t1, %tid_, 32; @%t1 bra LATE; mbarrier.arrive.shared.b64 _, [%r1];"
        + WAIT.format(parity=0)
        + "bra DONE; LATE: mbarrier.arrive.shared.b64 _, [%r1];"
        + WAIT.format(parity=0)
        + "DONE: ld.param.b64 %d8, [k_0]; mad.lo.s64 %d9, %at, 4, %d8; st.global.b32 [%d9], %tid_;"
    )
    memory = Memory()
    ran(body, memory.place("x", np.zeros(64, "u4")), memory=memory)
    np.testing.assert_array_equal(memory.read("x", "u4"), np.arange(64))


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (INIT.format(count=65) + "mbarrier.arrive.shared.b64 _, [%r1];" + WAIT.format(parity=0), "must complete, got 64"),
        ("mov.u32 %r1, room;" + WAIT.format(parity=0), r"initialized before its use, got 0x0 in PTX line"),
        ("setp.eq.u32 %t0, %tid_, 0; @%t0 trap;", "must not trap, got it in PTX line"),
        ("setp.lt.u32 %t0, %tid_, 7; mov.b32 %r0, 0; @%t0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0];",
         "32 threads together, got 0 to 7 of them in PTX line"),
        ("ld.shared.b32 %r0, [room+4096];", "shared addresses must be below 1024, got 4096 for 4 bytes"),
        ("cvt.u64.u32 %d1, %tid_; shl.b64 %d1, %d1, 40; ld.b32 %r0, [%d1];", "must all mean shared, local or global"),
    ],
    ids=["deadlock", "no barrier", "trap", "some lanes", "beyond", "two spaces"],
)  # fmt: skip
def test_what_no_chip_defines_is_said_with_its_line(body: str, rule: str) -> None:
    with pytest.raises(ExecutionError, match=rule):
        ran(body)


def test_a_map_is_read_as_it_was_packed() -> None:
    raw = MAP.pack()
    assert len(raw) == SIZE
    assert unpack(raw) == TensorMap(**{**MAP.__dict__, "steps": (1, 1)})
    with pytest.raises(ExecutionError, match="1 to 5 dims, got 0"):
        unpack(bytes(SIZE))


LOAD = (
    INIT.format(count=1)
    + "@%t0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 1024; mov.u32 %r2, room; add.u32 %r2, %r2, 1024;"
    "mov.b64 %d0, k_0; cvta.param.u64 %d0, %d0; mov.b32 %r3, 40; mov.b32 %r4, 36;"
    "@%t0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d0, {{%r3, %r4}}], [%r1];"
).replace("{{", "{").replace("}}", "}") + WAIT.format(parity=0)


def test_a_box_over_the_edge_is_filled_and_swizzled() -> None:
    x, memory = np.arange(40 * 48, dtype="f4").reshape(40, 48), Memory()
    described = TensorMap(**{**MAP.__dict__, "address": memory.place("x", x)})
    out = memory.place("y", np.zeros(256, "f4"))
    read = "ld.param.b64 %d8, [k_1]; shl.b32 %r0, %tid_, 4; add.u32 %r0, %r0, %r2;"
    read += "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r0];"
    store = "mad.lo.s64 %d9, %at, 16, %d8; st.global.v4.b32 [%d9], {%r3, %r4, %r5, %r6};"
    text = module(LOAD + read + store, 2, 64, 4096).replace(
        ".param .u64 k_0", ".param .align 64 .b8 k_0[128]"
    )
    execute(load(parse(text)), memory, [described.pack(), out], programs=[(0, 0, 0)])
    assert not memory.faults, "nothing outside of the tensor is read"
    want = np.full((8, 32), np.nan, "f4")
    want[:4, :8] = x[36:, 40:]
    # Row r of 128 bytes has its 16-byte pieces exclusive-ored with r, as bits 7.. of the address say.
    pieces = memory.read("y", "f4").reshape(8, 8, 4)
    straight = np.stack([pieces[r][np.arange(8) ^ r] for r in range(8)])
    np.testing.assert_array_equal(straight.reshape(8, 32), want)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("across", [False, True])
def test_every_element_of_a_tile_has_a_place_of_its_own(mode: int, across: bool) -> None:
    width = {0: 16, 1: 128, 2: 64, 3: 32}[mode]
    # 64 rows of 16 two-byte elements, packed as tightly as each layout allows.
    leading, stride = (2048, 128) if mode == 0 else (16 * width, 8 * width)
    descriptor = (mode << 62) | (stride >> 4 << 32) | (leading >> 4 << 16) | 64
    if mode == 0 and across:
        descriptor = (128 >> 4 << 32) | (1024 >> 4 << 16) | 64
    found = tile(descriptor, 64, 16, 2, across)
    assert len(np.unique(found.index)) == 64 * 16
    assert found.index.min() >= 512
    assert len(found.chunks) == 64 * 16 * 2 // 16


def test_programs_of_a_grid() -> None:
    assert chosen_programs((5, 1, 1)) == ((0, 0, 0), (2, 0, 0), (4, 0, 0))
    assert chosen_programs((1, 1, 1)) == ((0, 0, 0),)
    assert chosen_programs((2, 3, 4))[-1] == (1, 2, 3)
    kernel = load(parse(module("", 2)))
    with pytest.raises(ExecutionError, match="2 parameters must be given 0 or 2 values, got 1"):
        execute(kernel, Memory(), [0])
    with pytest.raises(ExecutionError, match=r"lie in the grid \(2, 1, 1\), got \(2, 0, 0\)"):
        execute(kernel, Memory(), [0, 0], grid=(2, 1, 1), programs=[(2, 0, 0)])


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "bf16", "i4", "bytes"])
def test_memory_without_bounds_holds_random_values_that_stay(kind: str) -> None:
    memory = Memory(seed=3)
    base = memory.place_open("x", kind)
    where = np.uint64(base) + np.arange(64, dtype="u8") * np.uint64(4)
    first = memory.load(where, np.dtype("u4"), 1, 0)
    np.testing.assert_array_equal(first, memory.load(where, np.dtype("u4"), 1, 0))
    assert len(np.unique(first)) > 32
    if kind == "f4":
        assert (np.abs(first.view("f4")) < 6).all()
    if kind == "i4":
        assert (first < 128).all()


def test_a_vector_over_the_end_is_a_fault_but_moves_what_is_inside() -> None:
    memory = Memory()
    base = memory.place("x", np.arange(5, dtype="u4"))
    found = memory.load(np.array([base + 16], "u8"), np.dtype("u4"), 4, 7)
    np.testing.assert_array_equal(found[:, 0], [4, 0, 0, 0])
    (fault,) = memory.faults
    assert (fault.instruction, fault.nearest, fault.threads) == (7, "x", 1)
    memory.load(np.array([base - 8], "u8"), np.dtype("u4"), 1, 8)
    assert memory.faults[1].nearest == "x"


def test_functions_stand_where_they_are_called() -> None:
    text = module(
        "{ .param .b32 param0; .param .b32 retval0; st.param.b32 [param0], %tid_;"
        " call.uni (retval0), twice, (param0); ld.param.b32 %r0, [retval0]; }"
        " ld.param.b64 %d8, [k_0]; mad.lo.s64 %d9, %at, 4, %d8; st.global.b32 [%d9], %r0;", 1, 32,
    )  # fmt: skip
    function = """.func (.param .b32 out) twice(.param .b32 given)
{ .reg .b32 %r<2>; ld.param.b32 %r0, [given]; add.u32 %r1, %r0, %r0; st.param.b32 [out], %r1; ret; }
"""
    memory = Memory()
    place = memory.place("x", np.zeros(32, "u4"))
    execute(load(parse(text + function)), memory, [place])
    np.testing.assert_array_equal(memory.read("x", "u4"), 2 * np.arange(32))
    endless = function.replace("add.u32 %r1, %r0, %r0;", "call.uni (out), twice, (given);")
    with pytest.raises(PtxError, match="is one recursive"):
        parse(text + endless)


def test_functions_that_return_bytes() -> None:
    text = module(
        "{ .param .b32 param0; .param .align 16 .b8 retval0[16]; st.param.b32 [param0], %tid_;"
        " call.uni (retval0), both, (param0); ld.param.b32 %r0, [retval0+8]; ld.param.b64 %d7, [retval0]; }"
        " cvt.u32.u64 %r1, %d7; add.u32 %r0, %r0, %r1;"
        " ld.param.b64 %d8, [k_0]; mad.lo.s64 %d9, %at, 4, %d8; st.global.b32 [%d9], %r0;", 1, 32,
    )  # fmt: skip
    function = """.func (.param .align 16 .b8 out[16]) both(.param .b32 given)
{ .reg .b32 %r<2>; .reg .b64 %rd; ld.param.b32 %r0, [given]; cvt.u64.u32 %rd, %r0; st.param.b64 [out], %rd;
  mul.lo.u32 %r1, %r0, 100; st.param.b32 [out+8], %r1; ret; }
"""
    memory = Memory()
    place = memory.place("x", np.zeros(32, "u4"))
    execute(load(parse(text + function)), memory, [place])
    np.testing.assert_array_equal(memory.read("x", "u4"), 101 * np.arange(32))


def test_registers_that_only_a_chip_fills_are_named() -> None:
    kernel = load(parse(module("mov.u32 %r0, %smid; st.shared.b32 [room], %r0;", 0)))
    with pytest.raises(UnknownInstructionError, match=r"got 'mov.u32 %smid' in PTX line"):
        execute(kernel, Memory(), [])
