"""Reports of small kernels: numbers that one can count by hand, and what happens where something is missing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tilefold import xray
from tilefold.errors import ArgumentError, CompileError
from tilefold.planner.chips import ALL, CHIPS, chip_of
from tilefold.planner.device import H200, of_chip
from tilefold.xray import evidence
from tilefold.xray.compile import Resources, offline
from tilefold.xray.execution import Execution, execute
from tilefold.xray.explain import explain, make_job
from tilefold.xray.ptx import parse
from tilefold.xray.report.model import Line
from tilefold.xray.report.occupancy import occupancy
from xray import kernels
from xray.observe import planted

ADD: dict[str, Any] = {
    "args": {"x_ptr": "*fp32", "y_ptr": "*fp32", "z_ptr": "*fp32", "n": 1000},
    "constants": {"BLOCK": 128},
}


def line_of(report: xray.Report, text: str) -> Line:
    (found,) = [line for line in report.lines if text in line.text]
    return found


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_masked_addition(target: str) -> None:
    report = xray.explain(kernels.add, **ADD, grid=8, target=target)
    assert report.programs == ((0, 0, 0), (4, 0, 0), (7, 0, 0))
    line = line_of(report, "tl.store")
    load, store = line.accesses
    assert (load.kind, load.bytes, store.kind) == ("load", 4, "store")
    # Two arrays of 128, 128 and 1000 - 896 floats; 8 floats a sector.
    assert (load.sectors, load.ideal, load.asked) == (90, 90, 2 * 360 * 4)
    assert (store.sectors, store.asked, store.stride) == (45, 360 * 4, 4)
    assert report.totals.bytes_moved == 3 * 360 * 4
    assert report.roofline is not None
    assert report.roofline.bytes_moved == report.roofline.bytes_once == 3 * 1000 * 4
    (layout,) = [x for x in line.layouts if x.operation == "load"]
    assert (layout.elements, layout.lanes, layout.warps, layout.copies) == ((1,), (32,), (4,), 1)
    assert "wasted-sectors" not in report.codes()


def test_values_are_what_the_kernel_is_given() -> None:
    """A gather through indices that were given: each lane reads the sector that its index names."""
    x, i = torch.arange(4096, dtype=torch.float32), np.arange(128, dtype=np.int32) * 32
    report = xray.explain(
        planted.look_up_rows, {"x_ptr": x, "i_ptr": i, "y_ptr": "*fp32[128]"}, {"BLOCK": 128}, num_warps=4
    )
    loads = [a for line in report.lines for a in line.accesses if a.kind == "load"]
    # Indices lie together in 16 sectors, what they name in 128, each of which one would need 4 bytes of.
    assert sum(a.requests or 0 for a in loads) == 4 + 4
    assert sum(a.sectors or 0 for a in loads) == 16 + 128
    assert sum(a.ideal or 0 for a in loads) == 16 + 16


def test_what_is_inlined_is_shown_at_the_call() -> None:
    report = xray.explain(kernels.softmax, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1000}, {"BLOCK": 1024})
    maximum = line_of(report, "tl.max")
    assert maximum.work is not None
    assert maximum.work.shuffles == 28
    assert maximum.work.barriers >= 4
    assert maximum.sass > 40
    assert {line.file for line in report.lines if line.line} == {kernels.__file__}
    assert sum(line.sass for line in report.lines) == report.totals.sass


def test_without_values_nothing_is_executed() -> None:
    report = xray.explain(kernels.add, {**ADD["args"], "n": "i32"}, ADD["constants"])
    assert not report.executed
    assert report.totals.work is None
    assert "needs a value for every number, got none for 'n'" in report.notes[0]
    assert report.resources.registers > 0


def test_the_static_part_alone() -> None:
    report = xray.explain(kernels.add, **ADD, target="sm_100", run=False)
    assert (report.executed, report.notes, report.chip) == (False, (), "B200")
    assert {a.bytes for line in report.lines for a in line.accesses} == {4}
    assert report.totals.sass > 0


def _with_unknown(monkeypatch: pytest.MonkeyPatch, guard: str) -> Any:
    """The report of a kernel whose first addition is an instruction that nobody knows, behind a guard."""
    parsed = evidence.parse

    def parse(ptx: str) -> Any:
        head, rest = ptx.split("add.f32 ", 1)
        return parsed(f"{head.rstrip()}\n{guard} bogus.f32 {rest}")

    monkeypatch.setattr(evidence, "parse", parse)
    return xray.explain(kernels.add, **ADD)


def test_an_unknown_instruction_is_named_and_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, report = xray.explain(kernels.add, **ADD, run=False), _with_unknown(monkeypatch, "")
    (note,) = report.notes
    assert re.match(r"Not executed: .* got 'bogus\.f32' in PTX line \d+, source line \d+", note)
    assert not report.executed
    assert (report.totals.sass, report.resources) == (plain.totals.sass, plain.resources)


def test_an_unknown_instruction_that_is_not_reached_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    report = _with_unknown(monkeypatch, "@!%p1")
    (note,) = report.notes
    assert re.match(r"Not reached, .*: bogus\.f32 in PTX line \d+, source line \d+$", note)
    assert report.executed


@triton.jit
def optional(x_ptr, y_ptr, w_ptr=None, shift=3, BLOCK: tl.constexpr = 32):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    if w_ptr is not None:
        x *= tl.load(w_ptr + offs)
    tl.store(y_ptr + offs, x + shift)


def test_arguments_that_are_not_given_have_their_defaults() -> None:
    x = np.arange(32, dtype="f4")
    report = xray.explain(optional, {"x_ptr": x, "y_ptr": "*fp32[32]"})
    assert "w_ptr=None" in str(report)
    with_w = xray.explain(optional, {"x_ptr": x, "y_ptr": "*fp32[32]", "w_ptr": "*fp32"})
    assert "w_ptr=*fp32" in str(with_w)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"args": {**ADD["args"], "m": 1}}, "--arg must name one of add"),
        (
            {"args": {"x_ptr": "*fp32"}},
            "every parameter of 'add' must have a type, got none for y_ptr, z_ptr, n",
        ),
        ({"constants": {}}, "every tl.constexpr of 'add' must have a value, got none for BLOCK"),
        (
            {"constants": {}, "args": {"x_ptr": "*fp32"}},
            r"none for BLOCK, and every parameter .* got none for y_ptr, z_ptr, n; add --const BLOCK=... and --arg y_ptr=",
        ),
        ({"constants": {"BLOCK": 256, "n": 1}}, "--const must name one of add"),
        (
            {"target": "sm_70"},
            "chip must be one of sm_80, sm_90, sm_100, got 'sm_70'; take one, or say a100, h200, h100, b200",
        ),
        ({"num_warps": 3}, "power of two up to 32, got 3"),
        ({"num_stages": 0}, "at least 1, got 0"),
        ({"grid": 0}, "one to three positive numbers, got 0"),
        ({"programs": [(9, 0, 0)]}, r"must lie in the grid \(1, 1, 1\), got \(9, 0, 0\)"),
    ],
)
def test_calls_that_do_not_fit(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ArgumentError, match=rule):
        xray.explain(kernels.add, **{**ADD, **changes})


def test_a_function_that_is_no_kernel() -> None:
    with pytest.raises(ArgumentError, match=r"decorated with triton.jit, got function"):
        xray.explain(kernels.add.fn, **ADD)


@pytest.mark.parametrize("grid", [2**31, (1, 65536), (1, 1, 65536)])
def test_a_grid_that_no_launch_takes(grid: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"a grid must have at most 2147483647 programs along x and 65535"
    ):
        xray.explain(kernels.add, **{**ADD, "grid": grid})


def test_a_kernel_that_does_not_compile() -> None:
    with pytest.raises(CompileError, match=r"(?s)add must compile for sm_90, got .*tl.arange"):
        xray.explain(kernels.add, ADD["args"], {"BLOCK": 100})


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(CompileError, match=r"must go into a folder .*, got .*file.*; set TRITON_CACHE_DIR"):
        xray.explain(kernels.add, **{**ADD, "constants": {"BLOCK": 64}})


def test_a_divisor_is_what_decides() -> None:
    widths = []
    for n in ("i32:1000", "i32:1000!div16", "i32:1008", "i32:1008!div1"):
        args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": n}
        report = xray.explain(planted.copy, args, {"BLOCK": 1024}, run=False)
        widths.append({a.bytes for line in report.lines for a in line.accesses})
        assert any("no launch is compiled so" in note for note in report.notes) == (n == "i32:1000!div16")
    assert widths == [{4}, {16}, {16}, {4}]


def test_a_tensor_that_begins_between_two_vectors() -> None:
    x = torch.arange(1, 1002, dtype=torch.float32)[1:]
    report = xray.explain(planted.copy, {"x_ptr": x, "y_ptr": "*fp32", "n": 1000}, {"BLOCK": 1024})
    assert report.executed, report.notes
    load, store = (line_of(report, text).accesses[0] for text in ("tl.load", "tl.store"))
    assert (load.bytes, store.bytes) == (4, 4)
    assert load.asked == store.asked == 4000


def test_a_view_that_is_walked_backwards() -> None:
    x = torch.arange(1000, dtype=torch.float32)
    report = xray.explain(
        kernels.reverse, {"x_ptr": x[999:], "y_ptr": torch.zeros(1000), "n": 1000}, {"BLOCK": 1024}
    )
    assert report.executed, report.notes
    assert "out-of-bounds" not in report.codes()


@pytest.mark.parametrize(("alone", "widths"), [(True, {4}), (False, {16})])
def test_what_a_kernel_declares_is_not_specialised(alone: bool, widths: set[int]) -> None:
    kernel = triton.jit(planted.copy.fn, do_not_specialize=["n"] if alone else None)
    report = xray.explain(kernel, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1008}, {"BLOCK": 1024}, run=False)
    assert {a.bytes for line in report.lines for a in line.accesses} == widths


def test_a_one_that_is_not_specialised_is_passed() -> None:
    kernel = triton.jit(kernels.add.fn, do_not_specialize=["n"])
    report = xray.explain(kernel, {**ADD["args"], "n": 1}, ADD["constants"])
    assert report.executed, report.notes
    assert line_of(report, "tl.store").accesses[-1].asked == 4


def test_a_pointer_that_is_none() -> None:
    report = xray.explain(kernels.add_perhaps, {**ADD["args"], "y_ptr": None}, ADD["constants"])
    assert report.executed, report.notes
    assert "y_ptr=None" in report.arguments
    assert len(line_of(report, "x = tl.load").accesses) == 1


def test_folds_of_the_library() -> None:
    (report,) = xray.explain_fold("sum dim=1 301x1001 bf16")
    assert report.grid == (151, 1, 1)
    assert any(a.startswith("inputs.0.pointer=*bf16") for a in report.arguments)
    first, second = xray.explain_fold("sum dim=0 1000000 fp32", run=False)
    assert (first.kernel[-6:], second.kernel[-6:]) == ("1 of 2", "2 of 2")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sum", "must be a monoid, a dim, a shape and a dtype"), ("nothing dim=0 8 fp32", "a monoid must be one of"),
        ("sum dim=0 8 fp33", "a dtype must be one of torch's, got 'fp33'"),
        ("sum dim=2 8x8 fp32", r"`dim` must be in \[-2, 1\] for a 2-D tensor, got 2"),
        ("sum dim=0,0 8x8 fp32", "each dim may be named once"), ("sum dim=x 8 fp32", "dim must be whole numbers, got 'x'"),
        ("sum dim=0 8 fp32 wat=3", "must be of dim, strides, offset, guarantee, dtype, got 'wat=3'"),
        ("sum dim=0 8x8 fp32 strides=1", r"as many as dims \(2\), got 1"),
        ("nowhere.py::x dim=0 8 fp32", "must name a file, got 'nowhere.py'"),
    ],
)  # fmt: skip
def test_folds_that_do_not_fit(text: str, rule: str) -> None:
    with pytest.raises(ArgumentError, match=rule):
        xray.explain_fold(text)


@pytest.mark.parametrize(
    ("resources", "warps", "held", "limiter"),
    [
        (Resources(32, 0, 0, 0, 0), 4, 64, "nothing"),
        (Resources(64, 0, 0, 0, 0), 4, 32, "registers"),
        (Resources(168, 0, 0, 0, 0), 4, 12, "registers"),
        (Resources(40, 0, 0, 0, 0), 2, 48, "registers"),
        (Resources(96, 0, 0, 0, 0), 1, 20, "registers"),
        (Resources(255, 0, 0, 0, 0), 8, 8, "registers"),
        (Resources(32, 0, 0, 0, 48 * 1024), 4, 16, "shared memory"),
        (Resources(32, 0, 0, 0, 0), 1, 32, "blocks"),
        (Resources(16, 0, 0, 0, 0), 32, 64, "nothing"),
    ],
)
def test_occupancy_of_an_h200(resources: Resources, warps: int, held: int, limiter: str) -> None:
    found = occupancy(chip_of("sm_90"), resources, warps)
    assert (found.warps, found.limiter) == (held, limiter)


@pytest.mark.parametrize("registers", [24, 33, 40, 56, 72, 96, 104, 152, 200, 255])
def test_registers_lie_in_quarters(registers: int) -> None:
    """Warps are dealt to four parts of the registers in turn, 256 registers at a time, as long as a part has room."""
    chip = chip_of("sm_90")
    for warps in (1, 2, 4, 8):
        room, held = [chip.registers // 4] * 4, 0
        while room[held % 4] >= (size := -(-registers * 32 // 256) * 256):
            room[held % 4] -= size
            held += 1
        found = occupancy(chip, Resources(registers, 0, 0, 0, 0), warps)
        assert dict(found.limits)["registers"] == held // warps


def test_chips_are_what_their_data_sheets_say() -> None:
    """TFLOP/s of dense 16-bit tensor cores: 312, 989 and 2250."""
    rates = [c.sms * c.clock_mhz * c.fp16_per_clock / 1e6 for c in CHIPS.values()]
    assert rates == pytest.approx([312, 989, 2250], rel=0.01)


def test_chips_of_one_target() -> None:
    """sm_90 alone is an H200; an H100 differs by its memory, for the planner too."""
    h200, h100 = chip_of("sm_90"), chip_of("H100")
    assert h200 == chip_of("h200")
    assert (h100.name, h100.gb_per_s) == ("H100", 3350)
    assert replace(h100, name=h200.name, gb_per_s=h200.gb_per_s, device=h200.device) == h200
    assert of_chip(h200) == H200
    assert replace(of_chip(h100), name=H200.name, gb_per_s=H200.gb_per_s) == H200
    seen = [(of_chip(c).capability, of_chip(c).sms, of_chip(c).gb_per_s) for c in ALL]
    assert seen == [(c.architecture, c.sms, c.gb_per_s) for c in ALL]
    assert list(CHIPS) == ["sm_80", "sm_90", "sm_100"]
    assert set(CHIPS.values()) | {h100} == set(ALL)


def test_files_of_kernels(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef one(x_ptr, N: tl.constexpr = 64):\n"
        "    tl.store(x_ptr + tl.arange(0, N), 1.0)\n\n\n"
        "def xray_cases():\n    return {'small': dict(kernel=one, args={'x_ptr': '*fp32'}, num_warps=1),\n"
        "            'two': dict(kernel=both, args={'x_ptr': '*fp32', 'y_ptr': '*fp32'}, constants={'N': 8, 'M': 2})}\n\n\n"
        "@triton.jit\ndef both(x_ptr, y_ptr, N: tl.constexpr, M: tl.constexpr):\n"
        "    i = tl.arange(0, N)\n    tl.store(y_ptr + i, tl.load(x_ptr + i) * M)\n"
    )
    report = xray.explain_file(f"{file}::one", args={"x_ptr": "*fp32"})
    assert report.constants == ("N=64",)
    assert xray.explain_file(str(file), "small").num_warps == 1
    assert xray.explain_file(str(file), "small", num_warps=2).num_warps == 2
    assert xray.explain_file(str(file), "two", constants={"N": 32}).constants == ("N=32", "M=2")
    other = xray.explain_file(str(file), "two", args={"x_ptr": "*fp16"})
    assert other.arguments == ("x_ptr=*fp16!div16", "y_ptr=*fp32!div16")
    assert other.constants == ("N=8", "M=2")
    assert line_of(report, "tl.store").file == str(file)
    for target, case, rule in (
        (f"{file}::two", None, "it has one, both"), (str(tmp_path / "not.py"), None, "must name a file"),
        (str(file), "large", "--case must be one of small, two, got 'large'"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=rule):
            xray.explain_file(target, case)
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(CompileError, match=r"bad.py must import, got ZeroDivisionError"):
        xray.explain_file(f"{tmp_path / 'bad.py'}::x")
    (tmp_path / "plain.py").write_text("x = 1\n")
    with pytest.raises(ArgumentError, match=r"a function xray_cases\(\)"):
        xray.explain_file(str(tmp_path / "plain.py"), "x")


def test_what_the_assembler_refuses_is_said_in_its_words() -> None:
    compiled = offline.compile_job(
        make_job(kernels.reverse, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 32}, {"BLOCK": 32})
    )
    wrong = replace(compiled, ptx=compiled.ptx.replace("ret;", "retire;"))
    for ask in (offline.assemble, offline.resources):
        with pytest.raises(CompileError, match=r"must accept the kernel, got .*retire"):
            ask(wrong)


def shared(x: Any, y: Any, n: int, programs: int) -> tuple[Execution, dict[str, int]]:
    """y[i] = x[n - 1 - i], a program a tile of 32, executed one after the other."""
    job = make_job(
        kernels.reverse, {"x_ptr": x, "y_ptr": y, "n": n}, {"BLOCK": 32}, grid=programs, num_warps=1
    )
    compiled = offline.compile_job(job)
    done = execute(compiled, parse(compiled.ptx), [(i, 0, 0) for i in range(programs)])
    return done, dict(zip([a.name for a in done.arguments], done.addresses, strict=True))


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_arguments_of_one_storage_share_their_memory(kind: str) -> None:
    held = torch.arange(64, dtype=torch.float32)
    base: Any = held if kind == "torch" else held.numpy()
    done, at = shared(base[63:], base, 64, 2)
    assert at["x_ptr"] - at["y_ptr"] == 63 * 4
    stored = done.memory.read("0:x_ptr", np.float32)
    assert stored.tolist() == [*range(63, 31, -1), *range(32, 64)]
    assert done.named(at["y_ptr"] + 8) == ("x_ptr", 2 - 63)
    assert [(b.name, b.end - b.base) for b in done.bounds] == [("x_ptr", 256)]
    done, at = shared(base[63:], base.clone() if kind == "torch" else base.copy(), 64, 2)
    assert done.memory.read("1:y_ptr", np.float32).tolist() == [*range(63, -1, -1)]


def test_arguments_that_are_said_to_share_memory_do() -> None:
    _, at = shared("*fp32", "&x_ptr", 64, 1)
    assert at["x_ptr"] == at["y_ptr"]
    report = explain(
        kernels.reverse, {"x_ptr": "*fp32[64]", "y_ptr": "&x_ptr", "n": 64}, {"BLOCK": 32}, run=False
    )
    assert "x_ptr and y_ptr share their memory." in report.notes
    on_meta = torch.empty(128, device="meta")
    _, at = shared(on_meta[64:], on_meta, 64, 1)
    assert at["x_ptr"] - at["y_ptr"] == 256


@triton.jit
def rows_of_a_table(i_ptr, x_ptr, y_ptr, n, end, BLOCK: tl.constexpr):
    for start in range(0, end, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        i = tl.load(i_ptr + offs, mask=offs < n)
        tl.store(y_ptr + offs, tl.load(x_ptr + i * 4096, mask=offs < n), mask=offs < n)


def test_a_report_without_trials_names_what_it_cannot_show() -> None:
    """Each code that trials add to a report stands in its note."""
    args = {
        "i_ptr": np.full(512, 1 << 20, np.int32),
        "x_ptr": "*fp32",
        "y_ptr": "*fp32",
        "n": 101,
        "end": 512,
    }
    tried, quick = (xray.explain(rows_of_a_table, args, {"BLOCK": 128}, trials=t) for t in (True, False))
    assert {*tried.codes()} - {*quick.codes()} == {"masked-rounds", "offset-overflow"}
    assert "masked-rounds" in quick.notes[-1]
    assert "loaded indices that wrap" in quick.notes[-1]
