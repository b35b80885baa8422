"""The CUDA C++ of a kernel: nvcc accepts it, and its own PTX gives the same bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from backends.triton_cases import SMALL as FOLDS
from tilefold.errors import XrayError
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.compile.source import load_file
from tilefold.xray.cuda import compile_ptx, find_nvcc, translate
from tilefold.xray.execution import execute
from tilefold.xray.explain import make_job
from tilefold.xray.machine import Kernel, all_programs, load
from tilefold.xray.ptx import parse
from xray import kernels, language_kernels, tensor_kernels
from xray.running import Described, launch, product
from xray.snippets import module
from xray.test_casebook import FOLDER as CASE_BOOK
from xray.test_folds import folded
from xray.test_library_products import PLANS, filled, plain

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
ARCHITECTURES = pytest.mark.parametrize("architecture", [80, 90])


def again(compiled: Any) -> Kernel:
    """A kernel by way of CUDA C++ and nvcc."""
    read = parse(compiled.asm["ptx"])
    return load(parse(compile_ptx(translate(read), read.target[0])), shared=compiled.metadata.shared)


def both(make: Callable[[], dict[str, Any]], function: Any, **options: Any) -> None:
    """The same arguments through Triton's PTX and through nvcc's: every byte of every tensor is the same afterwards."""
    first, second = make(), make()
    launch(function, first, **options)
    launch(function, second, through=again, **options)
    for name, value in first.items():
        one, other = (v.tensor if isinstance(v, Described) else v for v in (value, second[name]))
        if isinstance(one, torch.Tensor):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (x * 50).to(dtype) if not dtype.is_floating_point else x.to(dtype)


Make = Callable[[], dict[str, Any]]


def through(dtype: torch.dtype, *shape: int, to: torch.dtype | None = None, **sizes: int) -> Make:
    """Arguments of a kernel that reads x and writes y, of the same shape."""
    return lambda: (
        {"x_ptr": random(*shape, dtype=dtype), "y_ptr": torch.zeros(shape, dtype=to or dtype)} | sizes
    )


F32, F64, I32, I64, I8 = torch.float32, torch.float64, torch.int32, torch.int64, torch.int8
SMALL: dict[str, tuple[Any, Make, dict[str, Any]]] = {
    "softmax": (kernels.softmax, through(F32, 2, 777, n=777), {"grid": (2, 1, 1), "BLOCK": 1024}),
    "transpose": (kernels.transpose, through(F32, 32, 48, m=32, n=48), {"grid": (1, 2, 1), "BLOCK": 32}),
    "transpose of bytes": (kernels.transpose, through(I8, 32, 32, m=32, n=32), {"BLOCK": 32}),
    "to bf16": (kernels.convert, through(F32, 256, to=torch.bfloat16, n=256), {"BLOCK": 256}),
    "to fp8": (kernels.convert, through(F32, 256, to=torch.float8_e5m2, n=256), {"BLOCK": 256}),
    "to int64": (kernels.convert, through(F32, 256, to=I64, n=256), {"BLOCK": 256}),
    "from float64": (kernels.convert, through(F64, 256, to=F32, n=256), {"BLOCK": 256}),
    "scan": (kernels.running_sum, through(I64, 512), {"BLOCK": 512}),
    "loop": (kernels.loop, through(F32, 3000, n=3000), {"BLOCK": 512}),
    "sine": (kernels.sine, lambda: {"x_ptr": random(256) * 1e5, "y_ptr": torch.zeros(256)}, {"BLOCK": 256}),
    "cosine of doubles": (language_kernels.unary, through(F64, 256), {"OP": "cos", "BLOCK": 256}),
    "clamp": (language_kernels.unary, through(F32, 256), {"OP": "clamp", "BLOCK": 256}),
    "logarithm": (kernels.logarithm, through(F32, 256), {"BLOCK": 256}),
    "sort": (kernels.sort, through(F32, 256), {"BLOCK": 256}),
    "atomics": (
        kernels.histogram,
        lambda: {"x_ptr": random(300, dtype=I32) % 10, "h_ptr": torch.zeros(10), "n": 300},
        {"grid": (3, 1, 1), "BLOCK": 128},
    ),
    "divisions": (
        language_kernels.binary,
        lambda: {
            "x_ptr": random(256, dtype=I32),
            "y_ptr": random(256, dtype=I32) | 1,
            "z_ptr": torch.zeros(256, dtype=I32),
        },
        {"OP": "div", "BLOCK": 256},
    ),
}


# Chips differ in conversions and reductions.
OLDER = ("softmax", "transpose of bytes", "to bf16", "clamp")


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "architecture"), [*((n, 90) for n in SMALL), *((n, 80) for n in OLDER)], ids=str
)
def test_small_kernels(name: str, architecture: int) -> None:
    function, make, options = SMALL[name]
    both(make, function, architecture=architecture, **options)


@needs_nvcc
@ARCHITECTURES
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.float8_e5m2, torch.float64],
    ids=str,
)
def test_products(dtype: torch.dtype, layout: str, architecture: int) -> None:
    result = {torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32)
    size = {torch.float64: 32}.get(dtype, 64)

    def make() -> dict[str, Any]:
        a, b = random(size, 96, dtype=dtype), random(96, size, dtype=dtype)
        steps = {
            "step_am": 96,
            "step_ak": 1,
            "step_bk": size if layout[1] == "n" else 1,
            "step_bn": 1 if layout[1] == "n" else 96,
        }
        return {"a_ptr": a, "b_ptr": b, "c_ptr": torch.zeros(size, size, dtype=result), "K": 96} | steps

    constants = {"M": size, "N": size, "BLOCK_K": 32, "PRECISION": "tf32", "STAGES": 3}
    both(make, tensor_kernels.product, architecture=architecture, **constants)


@needs_nvcc
@ARCHITECTURES
def test_a_product_from_registers(architecture: int) -> None:
    def make() -> dict[str, Any]:
        q, k, v = (random(n, 64, dtype=torch.float16) for n in (64, 128, 128))
        return {"q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": torch.zeros(64, 64), "n": 128}

    both(make, tensor_kernels.attention, architecture=architecture, D=64, M=64, N=64)


@needs_nvcc
@ARCHITECTURES
def test_descriptors_of_device_and_host(architecture: int) -> None:
    def make() -> dict[str, Any]:
        return {"x_ptr": random(40, 48), "y_ptr": torch.zeros(40, 48), "m": 40, "n": 48}

    both(make, tensor_kernels.described_copy, grid=(2, 2, 1), architecture=architecture, M=32, N=32)

    def made() -> dict[str, Any]:
        a, b, c = (random(*s, dtype=torch.float16) for s in ((64, 192), (192, 64), (64, 64)))
        return {
            "a": Described(a, (64, 64)),
            "b": Described(b, (64, 64)),
            "c": Described(c, (64, 64)),
            "k": 192,
        }

    both(made, tensor_kernels.described_product, architecture=architecture, M=64, N=64, K=64, STAGES=3)


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "architecture"), [("sum", 80), ("logsumexp", 90), ("argmax", 90), ("welford", 90), ("last", 80)]
)
def test_the_library_s_folds(name: str, architecture: int) -> None:
    case = next(c for c in FOLDS if c.name == "rows of 300 from odd places")
    straight, _, _ = folded(case, name, F32, architecture)
    there_and_back, _, _ = folded(case, name, F32, architecture, again)
    for one, other in zip(straight, there_and_back, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@needs_nvcc
@pytest.mark.parametrize(("plan", "architecture"), [("split", 80), ("four warps", 90)])
def test_the_library_s_products(plan: str, architecture: int) -> None:
    a, b = filled(19, 150, dtype=torch.bfloat16), filled(150, 40, dtype=torch.bfloat16, seed=1)
    straight, there_and_back = (
        product(PLANS[plan], a, b, [], plain(torch.bfloat16), architecture, *how) for how in ((), (again,))
    )
    assert torch.equal(straight, there_and_back)


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        ("add.s32 %r0, %r1, -4;", "r0 = r1 - 4;"),
        ("@!%t0 mul.wide.s32 %d0, %r1, %r2;", "if (!t0) d0 = (uint64_t)((int64_t)(int32_t)r1 * (int64_t)(int32_t)r2);"),
        ("setp.ltu.f32 %t0, %r0, %r1;", "t0 = !(as_f32(r0) >= as_f32(r1));"),
        (
            "ld.shared.v2.b32 {%r0, %r1}, [%r2+8];",
            "{ Held32x2 moved = *(Held32x2*)__cvta_shared_to_generic(r2 + 8); r0 = moved.x; r1 = moved.y; }",
        ),
        ("ex2.approx.f32 %r0, %r1;", 'asm volatile("ex2.approx.f32 %0, %1;" : "=r"(r0) : "r"(r1) : "memory");'),
        ("shl.b32 %r0, %r1, %r2;", "r0 = r2 < 32 ? r1 << r2 : 0;"),
        ("shl.b32 %r0, %r1, 31;", "r0 = r1 << 31;"),
        ("shl.b32 %r0, %r1, 32;", "r0 = 0;"),
        ("shr.u64 %d0, %d1, 63;", "d0 = d1 >> 63;"),
        ("shr.u64 %d0, %d1, 64;", "d0 = 0;"),
        ("shr.s32 %r0, %r1, 31;", "r0 = (int32_t)r1 >> 31;"),
        ("shr.s32 %r0, %r1, 32;", "r0 = (int32_t)r1 >> 31;"),
        ("shr.s32 %r0, %r1, %r2;", "r0 = (int32_t)r1 >> (r2 < 32 ? r2 : 31u);"),
        # C++ would multiply two 16-bit numbers as signed ones, for which 65535 * 65535 is undefined.
        ("mul.lo.u16 %h0, %h1, %h2;", "h0 = (uint32_t)h1 * h2;"),
        ("mul.lo.s16 %h0, %h1, %h2;", "h0 = (uint32_t)h1 * h2;"),
        ("mad.lo.u16 %h0, %h1, %h2, %h3;", "h0 = (uint32_t)h1 * h2 + h3;"),
        ("mul.lo.s32 %r0, %r1, %r2;", "r0 = r1 * r2;"),
        ("cvt.u32.u8 %r0, %r1;", "r0 = (uint8_t)r1;"),
        ("cvt.s32.s8 %r0, %r1;", "r0 = (int8_t)(uint8_t)r1;"),
        ("mov.u32 %r0, %laneid;", 'asm volatile("mov.u32 %0, %%laneid;" : "=r"(r0) :  : "memory");'),
    ],
    ids=lambda text: text.split()[0],
)  # fmt: skip
def test_one_statement_an_instruction(instruction: str, words: str) -> None:
    text = translate(parse(module(instruction, 0)))
    assert f"    {words}\n" in text


def test_what_a_kernel_prints_is_left_out() -> None:
    kernel = compile_job(
        make_job(kernels.tell, {"x_ptr": "*fp32[128]", "y_ptr": "*fp32[128]"}, {"BLOCK": 128})
    )
    text = translate(parse(kernel.ptx))
    assert len(re.findall(r"\w+ = 0;  // printed a text; C\+\+ has no vprintf on a device", text)) == 1
    assert "vprintf(" not in text


def test_a_source_line_cannot_swallow_the_next() -> None:
    read = parse(module(".loc 1 7 0\nadd.s32 %r0, %r1, 4;", 0) + '.file 1 "kernel.py"\n')
    text = translate(read, lines=lambda path, line: f"x = {line} + \\")
    assert "    // kernel.py:7: x = 7 + \n" in text


@needs_nvcc
def test_what_nvcc_refuses_is_said_in_its_words() -> None:
    with pytest.raises(XrayError, match=r"nvcc must accept .*undefined"):
        compile_ptx("__global__ void k() { nothing(); }", "sm_90")


def test_without_nvcc_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert find_nvcc() is None
    with pytest.raises(XrayError, match="nvcc must be on the PATH"):
        compile_ptx("", "sm_90")


def test_one_kernel_is_translated() -> None:
    with pytest.raises(XrayError, match="must have one kernel, got 0"):
        translate(parse(".version 8.7\n.target sm_90\n.address_size 64\n"))


MOST_PROGRAMS = 512  # of one grid: an element a program makes 32,768


def book() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load_file(CASE_BOOK / "kernels.py").xray_cases()
    return found


@needs_nvcc
@pytest.mark.parametrize("name", list(book()))
def test_the_case_book(name: str) -> None:
    case = dict(book()[name])
    kernel = case.pop("kernel")
    kinds = {"*fp32": torch.float32, "*fp16": torch.float16, "*i32": torch.int32}
    held = {name: random(32 * 1024, dtype=dtype) for name, dtype in kinds.items()}
    drawn = {n: held.get(str(given).split("[")[0]) for n, given in case["args"].items()}
    args = {n: given if drawn[n] is None else drawn[n].clone() for n, given in case.pop("args").items()}
    job = make_job(kernel, args, case.pop("constants"), **case)
    compiled = compile_job(job)
    read = parse(compiled.ptx)
    ways = [read, parse(compile_ptx(translate(read), read.target[0]))]
    programs = list(all_programs(job.grid))[:MOST_PROGRAMS]
    one, other = (execute(compiled, way, programs).memory for way in ways)
    for number, argument in enumerate(compiled.parameters):
        if argument.pointer:
            key = f"{number}:{argument.name}"
            assert (one.read(key, np.uint8) == other.read(key, np.uint8)).all(), argument.name
