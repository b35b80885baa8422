"""What is said above a kernel of the elements that a thread holds is what Triton's layouts give it."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from tilefold.xray.cuda.readable import readable
from tilefold.xray.cuda.readable.heading import held
from tilefold.xray.ir import Tensor
from tilefold.xray.layouts import bases
from xray.cuda.test_readable import CASE_BOOK, OWN, compiled, pinned


def drawn(seed: int) -> tuple[Tensor, int]:
    """A tile with a blocked layout, its slice, or the layout of a product, and its threads."""
    draw = random.Random(seed)
    warps = 2 ** draw.randint(0, 3)

    def up(a: int, b: int) -> int:
        return int(2 ** draw.randint(a, b))

    lanes = up(0, 5)
    along = 2 ** draw.randint(0, warps.bit_length() - 1)
    order = draw.choice(["[1, 0]", "[0, 1]"])
    text = (
        f"#ttg.blocked<{{sizePerThread = [{up(0, 2)}, {up(0, 3)}], threadsPerWarp = [{lanes}, {32 // lanes}], "
        f"warpsPerCTA = [{along}, {warps // along}], order = {order}}}>"
    )
    if draw.random() < 0.3:
        text = (
            f"#ttg.nvidia_mma<{{versionMajor = 2, versionMinor = 0, warpsPerCTA = [{along}, {warps // along}], "
            "instrShape = [16, 8]}>"
        )
    if draw.random() < 0.4:
        return Tensor(
            (up(0, 8),), "f32", f"#ttg.slice<{{dim = {draw.randint(0, 1)}, parent = {text}}}>"
        ), 32 * warps
    return Tensor((up(0, 7), up(0, 7)), "f32", text), 32 * warps


def said(text: str, tid: int) -> list[tuple[int, ...]]:
    """The elements that a text gives to a thread."""
    dims = text.partition(" at [")[2].removesuffix("]")
    ranges = re.findall(r"\(0\.\.(\d+)\)", dims)
    numbers = iter(range(len(ranges)))
    formula = re.sub(r"\(0\.\.\d+\)", lambda _: f"k[{next(numbers)}]", dims).replace(" / ", " // ")
    code = compile(f"({formula},)", "said", "eval")
    counts = [range(int(n) + 1) for n in ranges]
    return [eval(code, {"tid": tid, "k": k}) for k in itertools.product(*counts)]


@pytest.mark.parametrize("seed", range(60))
def test_each_thread_s_elements(seed: int) -> None:
    tensor, threads = drawn(seed)
    layout = bases(tensor, {})
    assert layout is not None
    text = held(tensor, {})
    own = [b for b in layout.register if any(b)]
    for tid in {0, 1, 5, 31, threads - 1, threads // 2}:
        bits = [b for k, b in enumerate((*layout.lane, *layout.warp)) if tid >> k & 1]
        start = [sum(b[d] for b in bits) for d in range(len(tensor.shape))]
        want = [
            tuple(s + sum(b[d] for b in chosen) for d, s in enumerate(start))
            for n in range(len(own) + 1)
            for chosen in itertools.combinations(own, n)
        ]
        assert sorted(said(text, tid)) == sorted(want), (tensor, text)
        assert text.startswith(str(len(want)))


def test_layouts_with_steps_along_several_dims_are_not_said() -> None:
    tensor = Tensor(
        (4, 4), "f32", "#ttg.linear<{register = [[1, 1]], lane = [[1, 0]], warp = [], block = []}>"
    )
    assert held(tensor, {}) == ""


@pinned
def test_the_heading_of_a_kernel() -> None:
    text = readable(compiled(OWN, "layer norm"), lambda path, line: "")
    assert "//   x, centred, w, b [1024]: 8, at [4 * tid + (0..3) + 512 * (0..1)]\n" in text
    assert "// Launched as <<<dim3(3, 1, 1), 128, 2048>>> with x_ptr[4000], y_ptr[4000], w_ptr[781]" in text
    assert "//   x [128]: 1, at [tid]" in readable(compiled(CASE_BOOK, "copy"), lambda path, line: "")
