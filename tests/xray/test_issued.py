"""How often the machine's instructions are issued: ways through its code, and those that an execution leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.compile.source import load_file
from tilefold.xray.explain import make_job
from tilefold.xray.ptx import parse
from tilefold.xray.report.issued import _Anchor, _kind
from tilefold.xray.report.machine_code import END, Code, read_code, straightened
from tilefold.xray.report.ways import Ways
from xray import kernels
from xray.snippets import module
from xray.test_casebook import FOLDER

# A loop that is walked four elements at a time, then one; threads without an element leave.
UNROLLED = """
.text.kernel:
	//## File "k.py", line 3
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/              @!P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0020*/                   LDG.E R1, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E R1, desc[UR4][R2.64+0x4] ;
        /*0040*/                   LDG.E R1, desc[UR4][R2.64+0x8] ;
        /*0050*/                   LDG.E R1, desc[UR4][R2.64+0xc] ;
        /*0060*/               @P1 BRA `(.L_x_0) ;
.L_x_1:
        /*0070*/              @!P2 BRA `(.L_x_2) ;
.L_x_3:
        /*0080*/                   LDG.E R1, desc[UR4][R2.64] ;
        /*0090*/               @P3 BRA `(.L_x_3) ;
.L_x_2:
        /*00a0*/               @P4 EXIT ;
	//## File "k.py", line 4
        /*00b0*/                   STG.E desc[UR4][R2.64], R1 ;
        /*00c0*/                   EXIT ;
.L_x_4:
        /*00d0*/                   BRA `(.L_x_4);
        /*00e0*/                   NOP;
"""


@pytest.fixture
def unrolled() -> Code:
    code = read_code(UNROLLED)
    assert code is not None
    return code


def weights(code: Code, opcode: str) -> np.ndarray:
    return np.array([float(block.opcodes[opcode]) for block in code.blocks.values()])


def test_code_is_cut_into_blocks(unrolled: Code) -> None:
    followers = {name: set(block.next) for name, block in unrolled.blocks.items() if block.opcodes}
    (store,) = followers[".L_x_2"] - {END}
    assert ".L_x_0" in followers[".L_x_0"]
    assert [(s.line, s.kind) for s in unrolled.blocks[store].shared] == [(4, "store")]
    assert ".L_x_4" not in unrolled.blocks, "nothing leads to the trap behind the end"
    assert not unrolled.parts


def test_calls_are_not_followed() -> None:
    assert read_code("        /*0000*/                   CALL.REL.NOINC `(slow) ;") is None


def test_counts_that_leave_one_way(unrolled: Code) -> None:
    ways, loads, stores = Ways(unrolled), weights(unrolled, "LDG"), weights(unrolled, "STG")
    assert ways.passed([(loads, 0), (stores, 0)])
    assert not ways.passed([(loads, 0), (stores, 2)]), "no way stores twice"
    (found,) = ways.passed([(loads, 3), (stores, 1)])
    passed = dict(zip(unrolled.blocks, found, strict=True))
    assert (passed[".L_x_0"], passed[".L_x_3"], passed[".L_x_2"], passed[END]) == (0, 3, 1, 1)


def test_counts_that_leave_two_ways(unrolled: Code) -> None:
    """Five elements are four and one, or five times one."""
    assert not Ways(unrolled).passed([(weights(unrolled, "LDG"), 5), (weights(unrolled, "STG"), 1)])


AROUND = """
.text.kernel:
        /*0000*/                   BSSY B0, `(.L_x_0) ;
        /*0010*/               @P0 BRA `(.L_x_1) ;
        /*0020*/                   REDG.E.ADD desc[UR4][R2.64], R9 ;
.L_x_1:
        /*0030*/                   BSYNC B0 ;
.L_x_0:
        /*0040*/               @P1 BRA `(.L_x_2) ;
        /*0050*/                   STS [R2], R9 ;
.L_x_2:
        /*0060*/               @P2 EXIT ;
        /*0070*/                   STG.E desc[UR4][R2.64], R1 ;
        /*0080*/                   EXIT ;
"""


def test_a_jump_around_a_block_is_a_predicate() -> None:
    """Where lanes converge or end behind it; another jump is one that all lanes take together."""
    code = read_code(AROUND)
    assert code is not None
    straight = straightened(code)
    assert sorted(behind for _, behind in straight.aside.values()) == [".L_x_1", END]
    assert (code.parts, straight.parts) == (True, False)
    assert len(Ways(straight)._ways or ()) == 2


def machine(report: xray.Report) -> dict[str, int]:
    assert report.totals.machine is not None
    return dict(report.totals.machine)


def test_a_straight_kernel_issues_its_code_once_a_warp() -> None:
    floats = dict.fromkeys(("x_ptr", "y_ptr", "z_ptr"), "*fp32")
    report = xray.explain(kernels.add, floats | {"n": 1024}, {"BLOCK": 128}, grid=8)
    found = machine(report)
    assert found["LDG"] == 2 * 4 * len(report.programs)
    assert found["EXIT"] <= sum(found.values()) // 10
    assert sum(found.values()) <= report.totals.sass * 4 * len(report.programs)


def case(name: str) -> dict[str, Any]:
    found: dict[str, Any] = load_file(FOLDER / "kernels.py").xray_cases()[name]
    return found


def test_loads_that_the_machine_does_not_make_are_not_counted() -> None:
    """Only the first warp stores a sum. Triton 3.6 lets every warp load it first, and the assembler only that one."""
    report = xray.explain(**case("sum"))
    (entry,) = parse(compile_job(make_job(**case("sum"))).ptx).entries
    loads = [i for i in entry.instructions if i.opcode == "ld" and i.has("shared")]
    passes = [
        a.passes for line in report.lines for a in line.accesses if (a.kind, a.space) == ("load", "shared")
    ]
    if len(loads) == 2:
        assert machine(report)["LDS"] == 4 + 1
        assert sum(p or 0 for p in passes) == 1 + 1
    else:  # newer ones have no second round
        assert machine(report)["LDS"] == sum(p or 0 for p in passes) == 4


def test_warps_that_part_around_a_block_come_to_its_end_twice() -> None:
    """The last program's last warp stores some of its lanes' elements: `BSYNC` is issued for those, and for the others."""
    last, first = (machine(xray.explain(**case("copy"), programs=[(n, 0, 0)])) for n in (7, 0))
    assert last["BSYNC"] == first["BSYNC"] + 1
    assert last["STG"] == first["STG"]


def test_atomics_of_16_bits_leave_the_way_open() -> None:
    """They are loops of the machine, whose rounds depend on other warps."""
    report = xray.explain(
        add_halves, {"y_ptr": "*fp16", "at_ptr": np.arange(32, dtype="i4")}, {"BLOCK": 32}, num_warps=1
    )
    assert report.executed
    assert report.totals.machine is None


@triton.jit
def add_halves(y_ptr, at_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(y_ptr + tl.load(at_ptr + tl.arange(0, BLOCK)), 1.0, sem="relaxed")


def test_passes_of_a_warp_are_told_by_its_own_lanes() -> None:
    """The first warp's lanes are on by half, all of the second's, and of the third's the last one alone."""
    active = np.repeat([True, False, True, False], [16, 16, 32, 32])
    active[95] = True
    outcome: Any = SimpleNamespace(accesses=[SimpleNamespace(instruction=4, active=active)])
    anchor = _Anchor("load", [4], [7], np.ones(1), None, True)
    assert [anchor.aside(7, outcome, warp, [1]) for warp in range(3)] == [(1, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("shfl.sync.bfly.b32 %r0, %r1, 16, 31, -1;", "shuffle"),
        ("shfl.sync.idx.b32 %r0, %r1, 0, 31, -1;", ""),  # the machine may have it in another way
        ("add.s32 %r0, %r1, 4;", ""),
        ("bar.sync 0;", "barrier"),
        ("bar.warp.sync -1;", ""),
        ("ld.global.b32 %r0, [%d0];", "load"),
        ("st.global.b32 [%d0], %r0;", "store"),
        ("st.shared.b32 [%r1], %r0;", "shared store"),
        ("red.global.add.u32 [%d0], %r0;", "atomic"),
    ],
)
def test_what_is_found_again_among_machine_instructions(instruction: str, kind: str) -> None:
    (entry,) = parse(module(instruction, 0)).entries
    assert _kind(entry.instructions[-2]) == kind
