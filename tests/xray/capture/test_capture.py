"""What Triton launches is captured with all that decides it, and carried out on the tensors of the script."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from tilefold.errors import ArgumentError, CaptureError
from tilefold.xray import capture
from tilefold.xray.capture.saving import reproducer
from xray.versions import TRITON

OFFSET: tl.constexpr = tl.constexpr(1)


@triton.jit
def add_kernel(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask) + tl.load(y_ptr + offs, mask), mask)


@triton.autotune(
    [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)],
    key=["n"],
    reset_to_zero=["total_ptr"],
    restore_value=["x_ptr"],
    prune_configs_by={"early_config_prune": lambda configs, named, **given: configs[::-1]},
)
@triton.heuristics({"EVEN": lambda args: args["n"] % 128 == 0})
@triton.jit
def tuned_kernel(x_ptr, total_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs) if EVEN else tl.load(x_ptr + offs, offs < n, 0.0)
    tl.store(x_ptr + offs, x + 1, offs < n)
    tl.atomic_add(total_ptr, tl.sum(x))


@triton.jit
def helper(x):
    return libdevice.exp2(x) + OFFSET


@triton.jit
def pair_kernel(pair, scales, o_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, helper(tl.load(pair[0] + offs)) * scales[0] + tl.load(pair[1] + offs) * scales[1])


@triton.jit
def described_kernel(x, o_ptr, M: tl.constexpr, N: tl.constexpr):
    tile = x.load([tl.program_id(0) * M, 0])
    o = tl.make_tensor_descriptor(o_ptr, [2 * M, N], [N, 1], [M, N])
    o.store([tl.program_id(0) * M, 0], tile * 2)


@triton.jit
def through_addresses_kernel(table_ptr, o_ptr, BLOCK: tl.constexpr):
    at = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    offs = tl.arange(0, BLOCK)
    tl.store(o_ptr + tl.program_id(0) * BLOCK + offs, tl.load(at + offs))


@triton.jit
def chosen_kernel(x_ptr: tl.const, mask_ptr, o_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(o_ptr + offs, tl.where(tl.load(mask_ptr + offs), tl.load(x_ptr + offs), 7.0))


def rows(*shape):
    return torch.arange(float(torch.Size(shape).numel()), device="cuda").reshape(shape)


def test_a_launch_is_kept_with_all_that_decides_it_and_executed():
    with capture() as captured:
        x, o = rows(100), torch.empty(100, device="cuda")
        add_kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, x, o, 100, BLOCK=64, num_warps=2)
        assert torch.equal(o.cpu(), 2 * torch.arange(100.0))
    (launch,) = captured.launches
    job = launch.job
    assert (launch.kernel, job.grid, job.num_warps, job.constants) == (
        "add_kernel",
        (2, 1, 1),
        2,
        (("BLOCK", 64),),
    )
    assert [str(a) for a in job.arguments] == [
        "x_ptr=*fp32[100]!div16", "y_ptr=*fp32[100]!div16", "o_ptr=*fp32[100]!div16", "n=i32:100",
    ]  # fmt: skip
    assert launch.executed
    assert launch.programs == 2
    assert "test_capture.py" in launch.place
    report = launch.report(trials=False)
    assert report.executed
    assert any("x_ptr and y_ptr share" in note for note in report.notes)


def test_an_argument_in_place_and_a_view_are_the_script_s_memory():
    with capture():
        x = rows(130)
        view = x[2:]
        add_kernel[(1,)](view, view, view, 128, BLOCK=128)
        assert torch.equal(x.cpu(), torch.cat([torch.arange(2.0), 2 * torch.arange(2.0, 130)]))


@pytest.mark.parametrize("every", [False, True], ids=["first", "all"])
def test_an_autotuned_kernel_runs_once_with_the_first_of_its_pruned_configurations(every):
    with capture(every_configuration=every) as captured:
        x, total = torch.ones(256, device="cuda"), torch.zeros(1, device="cuda")
        grid = lambda meta: (triton.cdiv(256, meta["BLOCK"]),)  # noqa: E731 - as launches are written
        tuned_kernel[grid](x, total, 256)
        assert total.item() == 256
        assert (x == 2).all()
        tuned_kernel[grid](x, total, 256)
    first, second = captured.launches
    assert dict(first.job.constants) == {"BLOCK": 128, "EVEN": True}
    assert first.job.num_warps == 8
    assert [(tried.job.num_warps, tried.settings[:10]) for tried in first.tried] == (
        [(8, "BLOCK: 128"), (4, "BLOCK: 64,")] if every else []
    )
    assert second.tried == ()


def test_tuples_constants_of_the_module_and_libdevice():
    with capture() as captured:
        a, b, o = rows(64) / 64, rows(64), torch.empty(64, device="cuda")
        pair_kernel[(1,)]((a, b), (2.0, 3), o, BLOCK=64)
        torch.testing.assert_close(o, (a.exp2() + 1) * 2 + b * 3)
    (launch,) = captured.launches
    assert [a.name for a in launch.job.arguments] == ["pair.0", "pair.1", "scales.0", "scales.1", "o_ptr"]
    assert launch.report(trials=False).executed


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_descriptors_of_the_host_and_of_the_device_with_the_script_s_allocator(target):
    asked = []

    def allocate(size, alignment, stream):
        asked.append(size)
        return torch.empty(size, dtype=torch.int8, device="cuda")

    with capture(target) as captured:
        triton.set_allocator(allocate)
        x, o = rows(32, 32), torch.zeros(32, 32, device="cuda")
        described_kernel[(2,)](TensorDescriptor.from_tensor(x, [16, 32]), o, 16, 32)
        assert torch.equal(o, 2 * x)
    (launch,) = captured.launches
    assert bool(asked) == (target == "sm_90")
    assert launch.report(trials=False).executed


def test_truth_values_and_constant_memory_are_pointed_to():
    with capture() as captured:
        x, o = rows(32), torch.empty(32, device="cuda")
        chosen_kernel[(1,)](x, x > 8, o, 32)
        assert torch.equal(o, torch.where(x > 8, x, 7))
    (launch,) = captured.launches
    assert [a.type for a in launch.job.arguments] == ["fp32", "i1", "fp32"]
    assert launch.report(trials=False).executed


def test_addresses_in_an_array_lead_to_tensors():
    with capture() as captured:
        parts = [rows(32) + i for i in range(3)]
        table = torch.tensor([p.data_ptr() for p in parts], device="cuda")
        o = torch.empty(3, 32, device="cuda")
        through_addresses_kernel[(3,)](table, o, BLOCK=32)
        assert torch.equal(o, torch.stack(parts))
    assert captured.launches[0].outside == ""


def test_beyond_the_budget_values_are_unknown_and_the_script_is_told():
    with capture(budget=300) as captured:
        x, o = torch.ones(640, device="cuda"), torch.zeros(640, device="cuda")
        add_kernel[(10,)](x, x, o, 640, BLOCK=64)
        torch.testing.assert_close(o + 1, x * 100)
        assert torch.allclose(o, x * 100)
        assert (o.cpu() * 2 == 5).all()
        assert not torch.allclose(x, x + 1), "what is known is compared"
        add_kernel[(1,)](o, x, x, 64, BLOCK=64)
        assert torch.equal(x, torch.full((640,), 7.0, device="cuda")), "and what is computed of it"
    assert [launch.executed for launch in captured.launches] == [False, True]
    assert captured.launches[0].programs == 1
    assert any("more than the budget leaves (300)" in note for note in captured.notes)
    assert any("looks at values that are unknown (launch 1, add_kernel" in note for note in captured.notes)


def test_a_kernel_of_ptx_that_is_not_read_is_captured_and_not_executed():
    @triton.jit
    def summed_kernel(x_ptr, BLOCK: tl.constexpr):
        offs = tl.arange(0, BLOCK)
        three = tl.inline_asm_elementwise("add.s32 $0, $1, 1 + 2;", "=r,r", [offs], tl.int32, True, 1)
        tl.store(x_ptr + offs, three)

    with capture() as captured:
        x = torch.zeros(64, dtype=torch.int32, device="cuda")
        summed_kernel[(1,)](x, BLOCK=64)
        assert torch.equal(x, torch.arange(3, 67, device="cuda")), "what it writes is unknown"
    (launch,) = captured.launches
    assert (launch.executed, captured.refused) == (False, [])
    assert re.fullmatch(r"parse: operands must be parted by commas, got '\+' in line \d+", launch.why)
    assert any("summed_kernel, was not executed: parse: operands" in note for note in captured.notes)


def test_options_of_other_vendors_are_kept_as_text():
    with capture() as captured:
        x = rows(64)
        add_kernel[(1,)](x, x, x, 64, BLOCK=64, waves_per_eu=2, matrix_instr_nonkdim=16)
    assert captured.launches[0].unknown_options == ("waves_per_eu=2", "matrix_instr_nonkdim=16")


def test_a_kernel_that_does_not_compile_is_counted_and_raises():
    with capture() as captured:
        x = rows(64)
        with pytest.raises(triton.CompilationError):
            add_kernel[(1,)](x, x, x, 64, BLOCK=60)
    assert captured.launches == []
    assert "add_kernel: CompilationError" in captured.refused[0]


def test_a_kernel_compiled_without_a_launch_says_what_it_occupies():
    with capture() as captured:
        x = rows(64)
        kernel = add_kernel.warmup(x, x, x, 64, BLOCK=64, grid=(1,))
        kernel._init_handles()
        assert kernel.n_regs > 4
        assert kernel.n_spills == 0
    assert captured.launches == []


def test_what_cannot_be_pretended_names_the_line():
    with capture(), pytest.raises(CaptureError, match=r"without torch.cuda.CUDAGraph .*test_capture\.py:\d+"):
        torch.cuda.CUDAGraph()


def test_a_capture_within_another_is_refused_and_all_is_as_before():
    before = torch.Tensor.to, torch.cuda.is_available, threading.Thread.run
    with capture(), pytest.raises(ArgumentError, match="must not lie within another"), capture():
        pass
    assert (torch.Tensor.to, torch.cuda.is_available, threading.Thread.run) == before
    assert not torch.ones(1).is_cuda


def test_devices_as_scripts_write_them():
    with capture("a100"):
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 108
        x = torch.ones(2)
        for there in (x.cuda(), x.to("cuda"), x.to(0), x.to(torch.device("cuda", 0)), torch.tensor([1.0, 1], device="cuda"),
                      torch.ones(2, device=torch.cuda.current_device()), torch.zeros_like(x, device="cuda"),
                      x.new_ones(2, device="cuda:0"), torch.as_tensor(x, device="cuda"), x.cuda() * 2 + 1):  # fmt: skip
            assert there.is_cuda
            assert there.get_device() == 0
            assert not there.cpu().is_cuda
            assert there.to("cuda") is there
        assert not any(t.is_cuda for t in (x, x + 1, torch.empty_like(x.cuda(), device="cpu")))
        assert x.cuda().numpy(force=True).tolist() == x.numpy().tolist() == [1, 1]
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            x.cuda().numpy()
        with torch.device("cuda"):
            assert torch.tensor([1]).is_cuda
            assert torch.zeros(1).is_cuda
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            x.to("cuda:1")
        seen = []
        thread = threading.Thread(target=lambda: seen.append((x.cuda() + 1).is_cuda))
        thread.start()
        thread.join()
        assert seen == [True]


def test_memory_figures_are_of_tensors_on_the_device():
    with capture():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        held = torch.empty(1000, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == before + 1000
        del held
        assert torch.cuda.memory_allocated() == before
        assert torch.cuda.max_memory_allocated() == before + 1000


def test_operations_with_a_kernel_for_the_device_alone():
    library = torch.library.Library("xray_capture", "FRAGMENT")

    with capture() as captured:

        @torch.library.custom_op("xray_capture::doubled", mutates_args=(), device_types="cuda")
        def doubled(x: torch.Tensor) -> torch.Tensor:
            o = torch.empty_like(x)
            add_kernel[(1,)](x, x, o, x.numel(), BLOCK=64)
            return o

        @torch.library.triton_op("xray_capture::doubled_too", mutates_args=())
        def doubled_too(x: torch.Tensor) -> torch.Tensor:
            o = torch.empty_like(x)
            torch.library.wrap_triton(add_kernel)[(1,)](x, x, o, x.numel(), BLOCK=64)
            return o

        x = rows(64)
        assert torch.equal(doubled(x), 2 * x)
        assert torch.equal(doubled_too(x), 2 * x)
        assert doubled(x).is_cuda
    assert len(captured.launches) == 3
    library._destroy()


def test_a_reproducer_runs_alone_and_reports_the_same(tmp_path):
    with capture() as captured:
        a, o = (rows(64) / 64).to(torch.bfloat16), torch.empty(64, device="cuda")
        add_kernel[(1,)](a, a, o, 60, BLOCK=64)
        pair_kernel[(1,)]((o, o), (2.0, 3), o, BLOCK=64)
    plain, nested = captured.launches
    file = tmp_path / "launch.py"
    file.write_text(reproducer(plain))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    report = plain.report()
    assert "x_ptr=*bf16[64]!div16  y_ptr=*bf16[64]!div16" in done.stdout
    assert f"{report.totals.ptx} instructions of PTX" in done.stdout
    with pytest.raises(CaptureError, match="must have plain arguments"):
        reproducer(nested)


def test_launches_keep_no_tensors_of_the_script() -> None:
    def step() -> int:
        x = torch.ones(1000, device="cuda")
        add_kernel[(8,)](x, x, torch.empty_like(x), 1000, BLOCK=128)
        return int(torch.cuda.memory_allocated())

    with capture() as captured:
        begun = torch.cuda.memory_allocated()
        assert {step() for _ in range(4)} == {begun + 4000}
        assert torch.cuda.memory_allocated() == begun
    assert len(captured.launches) == 4
    assert [x.storage == y.storage for x, y, *_ in (l.job.arguments for l in captured.launches)] == [True] * 4


@pytest.mark.parametrize(
    "block",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton has no block pointers")
        ),
    ],
    ids=["pointers", "block pointers"],
)
def test_kernels_of_blocks_with_closures_and_hooks(block: bool) -> None:
    """A kernel that a function makes only where Triton is there, of a variable of that function; its hook runs before it."""
    from torch.utils._triton import has_triton

    with capture() as captured:
        assert has_triton()
        if has_triton():
            shift, by_block = tl.constexpr(3), tl.constexpr(block)

            @triton.autotune(
                [triton.Config({"BLOCK": 8}, pre_hook=lambda named: named["x_ptr"].fill_(2))], key=["n"]
            )
            @triton.jit
            def shifted(x_ptr, n, BLOCK: tl.constexpr):
                if by_block:
                    place = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (BLOCK,), (0,))
                    tl.store(place, tl.load(place, boundary_check=(0,)) + shift, boundary_check=(0,))
                else:
                    offset = tl.arange(0, BLOCK)
                    x = tl.load(x_ptr + offset, mask=offset < n)
                    tl.store(x_ptr + offset, x + shift, mask=offset < n)

        x = torch.zeros(8, device="cuda")
        shifted[(1,)](x[:5], 5)
        assert x.tolist() == [5] * 5 + [0] * 3
    (launch,) = captured.launches
    assert (launch.kernel, launch.executed, launch.outside) == ("shifted", True, "")
    assert "test_capture.py:" in launch.place


def test_accesses_outside_of_every_tensor_are_told_once_a_line() -> None:
    with capture() as captured:
        x, o = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
        for _ in range(2):
            add_kernel[(1,)](x, x, o, 1 << 20, BLOCK=128)
        assert o.tolist() == [2] * 64
    (note,) = captured.notes
    assert "test_capture.py:" in note
    assert re.search(
        r"add_kernel: \d+ threads reach outside of every tensor in .*; nothing of that is moved", note
    )
