"""Who holds what, against Triton's own conversion to linear layouts."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from tilefold.xray.ir import Tensor
from tilefold.xray.layouts import Bases, bases, holding
from xray.versions import TRITON

MMA2 = "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 2], instrShape = [16, 8]}>"
MMA3 = (
    "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>"
)
BLOCKED = "#ttg.blocked<{{sizePerThread = {}, threadsPerWarp = {}, warpsPerCTA = {}, order = [1, 0]}}>"
WIDE = BLOCKED.format([1, 4], [4, 8], [4, 1])
FLAT = BLOCKED.format([1, 1], [1, 32], [1, 4])
WGMMA = (
    "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 2], instrShape = [16, 32, 16]}>"
)
COLUMNS = (
    "#ttg.blocked<{sizePerThread = [2, 1], threadsPerWarp = [8, 4], warpsPerCTA = [2, 2], order = [0, 1]}>"
)
OPERAND = "#ttg.dot_op<{{opIdx = {}, parent = {}, kWidth = {}}}>"
VECTORS = "#ttg.dot_op<{{opIdx = {}, parent = {}}}>"
# name: (layout's text, the same as an expression of Triton's Python classes, shape)
CASES = {
    "blocked": (WIDE, "WIDE", (64, 32)),
    "blocked, larger tile": (WIDE, "WIDE", (256, 256)),
    "blocked, smaller tile": (FLAT, "FLAT", (2, 64)),
    "blocked by columns": (COLUMNS, "COLUMNS", (64, 64)),
    "slice by columns": (f"#ttg.slice<{{dim = 0, parent = {COLUMNS}}}>", "g.SliceLayout(0, COLUMNS)", (64,)),
    "first operand, blocked": (VECTORS.format(0, WIDE), "g.DotOperandLayout(0, WIDE, 0)", (32, 16)),
    "second operand, blocked": (VECTORS.format(1, WIDE), "g.DotOperandLayout(1, WIDE, 0)", (16, 64)),
    "slice": (f"#ttg.slice<{{dim = 0, parent = {WIDE}}}>", "g.SliceLayout(0, WIDE)", (32,)),
    "slice of the other dim": (f"#ttg.slice<{{dim = 1, parent = {WIDE}}}>", "g.SliceLayout(1, WIDE)", (128,)),
    "mma": (MMA2, "MMA2", (128, 128)),
    "mma, small tile": (MMA2, "MMA2", (16, 16)),
    "wgmma": (MMA3, "MMA3", (128, 64)),
    "wgmma of eight warps": (WGMMA, "WGMMA", (256, 128)),
    "first operand": (OPERAND.format(0, MMA2, 2), "g.DotOperandLayout(0, MMA2, 2)", (64, 32)),
    "second operand": (OPERAND.format(1, MMA2, 2), "g.DotOperandLayout(1, MMA2, 2)", (32, 64)),
    "operand of 8 bits": (OPERAND.format(0, MMA2, 4), "g.DotOperandLayout(0, MMA2, 4)", (64, 64)),
}  # fmt: skip
WARPS = {"wgmma of eight warps": 8}
# In a process of its own: some of these bindings end the process that calls them.
SCRIPT = """
import json, sys
from triton._C.libtriton import gluon_ir, ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
import triton.experimental.gluon.language as g
backend, context = make_backend(GPUTarget("cuda", 90, 32)), ir.context()
ir.load_dialects(context)
backend.load_dialects(context)
builder = gluon_ir.GluonOpBuilder(context)
WIDE, FLAT = g.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]), g.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
COLUMNS = g.BlockedLayout([2, 1], [8, 4], [2, 2], [0, 1])
WGMMA = g.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
MMA2 = g.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[2, 2], instr_shape=[16, 8])
MMA3 = g.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
found = {}
for name, (_, expression, shape) in json.loads(sys.argv[1]).items():
    linear = builder.to_linear_layout(eval(expression)._to_ir(builder), list(shape))
    found[name] = [linear.reg_bases, linear.lane_bases, linear.warp_bases]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def linear() -> dict[str, list[list[list[int]]]]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(CASES)], capture_output=True, text=True)
    if done.returncode and TRITON != (3, 6):  # those that the script is written for
        pytest.skip(f"this Triton has other bindings: {done.stderr[-200:]}")
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def spread(bases: list[list[int]], rank: int) -> tuple[int, ...]:
    """How many places along each dim these bases reach."""
    return tuple(2 ** sum(1 for basis in bases if basis[d]) for d in range(rank))


@pytest.mark.parametrize("name", list(CASES))
def test_as_triton_has_it(name: str, linear: dict[str, list[list[list[int]]]]) -> None:
    text, _, shape = CASES[name]
    found = holding(Tensor(tuple(shape), "f16", text), {}, WARPS.get(name, 4))
    assert found is not None
    registers, lanes, warps = linear[name]
    assert found.elements == spread(registers, len(shape))
    assert found.lanes == spread(lanes, len(shape))
    assert found.warps == spread(warps, len(shape))
    assert found.copies == 2 ** sum(1 for basis in lanes + warps if not any(basis))


@pytest.mark.parametrize("name", list(CASES))
def test_every_register_of_every_thread(name: str, linear: dict[str, list[list[list[int]]]]) -> None:
    text, _, shape = CASES[name]
    found = bases(Tensor(tuple(shape), "f16", text), {})
    assert found is not None
    registers, lanes, warps = ([tuple(basis) for basis in each] for each in linear[name])
    assert found.register == tuple(basis for basis in registers if any(basis))
    assert (found.lane, found.warp) == (tuple(lanes), tuple(warps))


@pytest.mark.parametrize("name", list(CASES))
def test_everything_is_held(name: str) -> None:
    text, _, shape = CASES[name]
    warps = WARPS.get(name, 4)
    found = holding(Tensor(tuple(shape), "f16", text), {}, warps)
    assert found is not None
    assert found.held * math.prod(found.lanes) * math.prod(found.warps) == math.prod(shape)
    assert math.prod(found.lanes) * math.prod(found.warps) * found.copies == 32 * warps


def test_a_linear_layout_from_its_bases() -> None:
    text = (
        "#ttg.linear<{register = [[0, 1], [0, 2]], lane = [[1, 0], [2, 0], [4, 0], [0, 0], [0, 4]], "
        "warp = [[8, 0]], block = []}>"
    )
    found = holding(Tensor((16, 8), "f32", "#linear"), {"#linear": text}, 2)
    assert found is not None
    assert (found.elements, found.lanes, found.warps, found.copies) == ((1, 4), (8, 2), (2, 1), 2)
    each = bases(Tensor((16, 8), "f32", "#linear"), {"#linear": text})
    assert each == Bases(((0, 1), (0, 2)), ((1, 0), (2, 0), (4, 0), (0, 0), (0, 4)), ((8, 0),))


def test_a_layout_without_a_rule_is_none() -> None:
    assert holding(Tensor((16, 16), "f32", "#ttg.amd_mfma<{version = 3}>"), {}, 4) is None
    assert holding(Tensor((16, 16), "f32"), {}, 4) is None
