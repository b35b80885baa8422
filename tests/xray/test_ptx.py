"""PTX that Triton wrote is read whole, and written again as PTX that assembles."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from tilefold.errors import PtxError
from tilefold.xray.ptx import (
    Address,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Register,
    Symbol,
    Vector,
    parse,
    write,
)
from xray import kernels
from xray.snippets import module

SOURCES: dict[str, dict[str, Any]] = {
    "add": {"x_ptr": "*fp32", "y_ptr": "*fp32", "z_ptr": "*fp32", "n": "i32", "BLOCK": 256},
    "softmax": {"x_ptr": "*bf16", "y_ptr": "*bf16", "n": "i32", "BLOCK": 1024},
    "transpose": {"x_ptr": "*fp16", "y_ptr": "*fp16", "m": "i32", "n": "i32", "BLOCK": 32},
    "histogram": {"x_ptr": "*i32", "h_ptr": "*fp32", "n": "i32", "BLOCK": 128},
    "convert": {"x_ptr": "*fp32", "y_ptr": "*bf16", "n": "i32", "BLOCK": 128},
    "running_sum": {"x_ptr": "*i64", "y_ptr": "*i64", "BLOCK": 512},
    "loop": {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "BLOCK": 512},
}


def ptx_of(name: str, architecture: int) -> str:
    listed = SOURCES[name]
    constants = {k: v for k, v in listed.items() if not isinstance(v, str)}
    source = ASTSource(
        fn=getattr(kernels, name),
        signature=listed | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
    )
    target = GPUTarget("cuda", architecture, 32)
    return str(triton.compile(source, target=target, options={"enable_fp_fusion": True}).asm["ptx"])


def without_places(read: Module) -> Module:
    """The same without lines, of the text and of calls inlined: what writing may change."""
    entries = tuple(
        replace(
            entry,
            body=tuple(
                replace(i, line=0, location=None) if isinstance(i, Instruction) else i for i in entry.body
            ),
        )
        for entry in read.entries
    )
    return replace(read, entries=entries)


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", list(SOURCES))
def test_written_again_it_reads_the_same_and_assembles(name: str, architecture: int, tmp_path: Path) -> None:
    read = parse(ptx_of(name, architecture))
    text = write(read)
    assert without_places(parse(text)) == without_places(read)
    (tmp_path / "again.ptx").write_text(text)
    tool = [get_ptxas(architecture).path, f"-arch={read.target[0]}", "again.ptx", "-o", "again.cubin"]
    done = subprocess.run(tool, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_instruction_knows_its_source_line() -> None:
    read = parse(ptx_of("add", 90))
    (entry,) = read.entries
    assert entry.threads == 128
    loads = [i for i in entry.instructions if i.name.startswith("ld.global")]
    assert len(loads) == 4
    assert all(i.guard for i in loads)
    (line,) = {i.location.line for i in loads if i.location}
    # By name: Triton's cache may hold what was compiled from the same text in another folder.
    assert Path(read.file(1)).name == "kernels.py"
    assert "tl.load" in (Path(__file__).parent / "kernels.py").read_text().splitlines()[line - 1]


def test_operands() -> None:
    (entry,) = parse(
        module("@!%t1 ld.global.v2.b32 {%r1, %r2}, [%d1 + -16]; mov.b32 %r3, 0fBF800000;", 0)
    ).entries
    load, move = entry.instructions[2:4]
    assert load.guard == Guard("%t1", negated=True)
    assert load.operands == (Vector((Register("%r1"), Register("%r2"))), Address(Register("%d1"), -16))
    assert move.operands == (Register("%r3"), Immediate(0xBF800000, 32))


@pytest.mark.parametrize(
    ("text", "bits", "width"),
    [("mov.f32 %f1, 1.5", 0x3FC00000, 32), ("mov.f32 %f1, -0.1", 0xBDCCCCCD, 32), ("add.f32 %f1, %f2, -1e-3", 0xBA83126F, 32),
     ("mov.f32 %f1, 2.", 0x40000000, 32), ("mov.f32 %f1, .5", 0x3F000000, 32), ("mov.f32 %f1, 1e40", 0x7F800000, 32),
     ("mov.f64 %d1, -0.1", 0xBFB999999999999A, 64), ("mov.b64 %d1, 1.5E2", 0x4062C00000000000, 64),
     ("cvt.rn.f32.f64 %f1, 0.1", 0x3FB999999999999A, 64)],
)  # fmt: skip
def test_decimals_of_inline_assembly_are_floats_of_the_width_that_the_instruction_reads(text, bits, width):
    (entry,) = parse(module(f"{text};", 0)).entries
    assert entry.instructions[2].operands[-1] == Immediate(bits, width)


def test_names_of_inner_scopes_are_their_own() -> None:
    text = module("{ .reg .b32 a<2>; mov.b32 a1, 1; } { .reg .b32 a<2>; mov.b32 a1, 2; }", 0)
    (entry,) = parse(text).entries
    first, second = (i.operands[0] for i in entry.instructions[2:4])
    assert first != second
    assert isinstance(first, Register)


def test_labels_of_inner_scopes_are_their_own() -> None:
    loop = "{ .reg .pred over; wait: setp.eq.u32 over, 1, 1; @!over bra.uni wait; }"
    (entry,) = parse(module(loop + loop, 0)).entries
    first, second = (i.operands[0] for i in entry.instructions if i.opcode == "bra")
    labels = [item.name for item in entry.body if isinstance(item, Label)]
    assert [first, second] == [Symbol(name) for name in labels]
    assert first != second


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("?", r"known tokens, got '\?' in line 1"),
        (".version 8.7\n.entry k() .reqntid 32 {", "must be whole"),
        (".version 8.7\n5", r"directives, variables and entries, got '5' in line 2"),
        (".entry k() .reqntid 32 {\nadd.s32 %r1 %r2;\n}", "parted by commas.*line 2"),
    ],
)
def test_what_is_no_ptx_is_refused_by_its_line(text: str, rule: str) -> None:
    with pytest.raises(PtxError, match=rule):
        parse(text)


def test_variables_keep_what_they_begin_with() -> None:
    text = (
        ".version 8.4\n.target sm_90\n.address_size 64\n.global .align 4 .b32 table[3] = {5, -6, 7};\n"
        ".global .b32 one = 9;\n.const .align 8 .b64 none[2];\n.extern .shared .align 16 .b8 shared[];\n"
        ".visible .entry k() { ret; }\n"
    )
    module = parse(text)
    found = {v.name: (v.count, v.initial, v.align) for v in module.variables}
    assert found == {
        "table": (3, (5, -6, 7), 4), "one": (None, (9,), 1), "none": (2, (), 8), "shared": (0, (), 16)
    }  # fmt: skip
    again = {v.name: (v.count, v.initial, v.align) for v in parse(write(module)).variables}
    assert again == found


def test_registers_and_bytes_of_a_scope_have_names_of_their_own() -> None:
    """What a call is given in bytes is a register for every eight of them; a name twice is two registers."""
    text = (
        ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k() {\n.reg .b32 %r<3>;\n"
        "{ .reg .b32 %r<2>, %one; .param .align 16 .b8 held[20]; mov.b32 %r1, 1; mov.b32 %one, %r1; mov.b32 %r2, %one;\n"
        "st.param.b64 [held+8], 7; }\n{ .reg .b32 %one; mov.b32 %one, %r1; } ret; }\n"
    )
    (entry,) = parse(text).entries
    names = [(r.type, r.name, r.count) for r in entry.registers]
    assert len(set(names)) == len(names)
    held = [name for kind, name, _ in names if kind == ".b64"]
    assert [name.rpartition("_at")[2] for name in held] == ["0", "8", "16"]
    first, one, outer, _, last = (i.operands for i in entry.instructions[:5])
    assert first[0] == one[1] != last[1]  # of the scope, and of the entry
    assert one[0] == outer[1] != last[0]
    assert outer[0].name == "%r2"
    assert last[1].name == "%r1"
    inner, (outer,) = (
        "{ .reg .b32 %one; { .reg .b32 %one; mov.b32 %one, 2; } mov.b32 %one, 3; }",
        parse(text.split("{ .reg")[0] + "ret; }\n").entries,
    )
    assert len(outer.registers) == 1
    (nested,) = parse(text.split("{ .reg")[0] + inner + " ret; }\n").entries
    written = [i.operands[0] for i in nested.instructions[:2]]
    assert written[0] != written[1]
    assert [f".b32 {o.name}" for o in written[::-1]] == [f"{r.type} {r.name}" for r in nested.registers[1:]]
