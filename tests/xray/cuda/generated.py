"""Random small Triton kernels: elementwise, masked, reduced, scanned, in loops, under ifs, gathered, with atomics, with dots.

`source(seed)` is the text of a file with one kernel and one case, as `tilefold xray` takes it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_HEAD = """\
import triton
import triton.language as tl


@triton.jit
def compose(a0, b0, a1, b1):
    return a0 * a1, a1 * b0 + b1


@triton.jit
def kernel({parameters}):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
"""
_TAIL = """

def xray_cases():
    return {{"kernel": {{"kernel": kernel, "args": {args}, "constants": {constants}, "grid": {grid}, "num_warps": {warps},
            "target": "{target}"}}}}
"""
_UNARY = (
    "-{0}",
    "tl.abs({0})",
    "tl.exp({0} * 0.1)",
    "tl.sqrt(tl.abs({0}))",
    "tl.log(tl.abs({0}) + 1.0)",
    "({0}).to(tl.float16).to(tl.float32)",
    "1.0 / (1.0 + tl.exp(-{0}))",
    "({0}).to(tl.bfloat16).to(tl.float32)",
    "tl.sin({0})",
    "tl.floor({0})",
    "tl.rsqrt(tl.abs({0}) + 1.0)",
)
_BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "tl.maximum({0}, {1})",
    "tl.minimum({0}, {1})",
    "{0} / (tl.abs({1}) + 0.5)",
    "tl.where({0} < {1}, {0}, {1} * 2.0)",
    "tl.fma({0}, {1}, {0})",
    "tl.where(mask, {0}, {1})",
    "tl.where(({0} > 0.0) & ({1} != 0.25), {1}, 0.0)",
)
_WHOLE = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "{0} & {1}",
    "{0} | {1}",
    "{0} ^ {1}",
    "{0} << 3",
    "{0} >> 2",
    "{0} % 7",
    "{0} // 5",
    "tl.where({0} < {1}, {0}, {1})",
    "{0} // ({1} * {1} + 1)",
    "-{0}",
    "tl.maximum({0}, {1})",
    "({0}).to(tl.int64).to(tl.int32)",
    "({0}.to(tl.uint32, bitcast=True) >> 5).to(tl.int32, bitcast=True)",
    "{0} * 3 + 1",
)
_ANY_WIDTH = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "{0} & {1}",
    "{0} | {1}",
    "{0} ^ {1}",
    "{0} << 2",
    "{0} >> 1",
    "{0} // 3",
    "{0} % 5",
    "-{0}",
    "~{0}",
    "({0}).to(tl.{2})",
    "({0} + {1}).to(tl.{2})",
    "tl.where({0} < {1}, {0}, {1})",
    "tl.where({0} == {1}, 1, {0})",
    "tl.maximum({0}, {0} + 1)",
    "({0}).to(tl.float32).to(tl.{2})",
    "(({0}).to(tl.float32) * 0.5).to(tl.float16).to(tl.{2})",
    "tl.load(a_ptr + ({0}).to(tl.int64) % 100).to(tl.{2})",
    "({0} >> 4) & 15",
    "tl.abs({0})",
)
_FOLDS = ("tl.sum({0}, 0)", "tl.max({0}, 0)", "tl.min({0}, 0)", "tl.sum({0} * {0}, 0)")


class _Kernel:
    """Lines of a kernel, and the names that hold blocks of floats and of whole numbers."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.lines: list[str] = []
        self.floats: list[str] = []
        self.wholes: list[str] = []
        self.numbers: list[str] = []  # scalars
        self.made = 0
        self.indent = "    "

    def say(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def name(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def float(self) -> str:
        return self.draw.choice(self.floats)

    def whole(self) -> str:
        return self.draw.choice(self.wholes)

    def step(self, depth: int = 0) -> None:
        """One more statement, or a structure of some."""
        kinds = [
            self.one,
            self.two,
            self.integer,
            self.load,
            self.gather,
            self.fold,
            self.scan,
            self.mixed,
            self.atomic,
        ]
        weights = [4, 5, 4, 2, 2, 2, 1, 2, 1]
        if depth < 2:
            kinds += [self.loop, self.when, self.until]
            weights += [2, 2, 1]
        chosen = self.draw.choices(kinds, weights)[0]
        if chosen in (self.loop, self.when, self.until):
            chosen(depth)  # type: ignore[call-arg]  # structures know how deep they are
        else:
            chosen()  # type: ignore[call-arg]  # the others do not

    def one(self) -> None:
        new = self.name()
        self.say(f"{new} = {self.draw.choice(_UNARY).format(self.float())}")
        self.floats.append(new)

    def two(self) -> None:
        new = self.name()
        self.say(f"{new} = {self.draw.choice(_BINARY).format(self.float(), self.float())}")
        self.floats.append(new)

    def integer(self) -> None:
        new = self.name()
        self.say(f"{new} = {self.draw.choice(_WHOLE).format(self.whole(), self.whole())}")
        self.wholes.append(new)

    def mixed(self) -> None:
        new = self.name()
        if self.draw.random() < 0.5:
            self.say(f"{new} = ({self.whole()} & 1023).to(tl.float32)")
            self.floats.append(new)
        else:
            self.say(
                f"{new} = tl.where(tl.abs({self.float()}) < 1000.0, {self.float()}, 0.0).to(tl.int32)"
                if self.draw.random() < 0.5
                else f"{new} = tl.where({self.float()} > {self.float()}, {self.whole()}, {self.whole()})"
            )
            self.wholes.append(new)

    def load(self) -> None:
        new, other = (
            self.name(),
            self.draw.choice(["", ", other=0.0", ", other=-1.5", ', other=float("-inf")']),
        )
        shift = self.draw.choice(["offs", "offs", f"offs + {self.draw.choice([1, 4, 32])}", "offs * 2"])
        pointer = self.draw.choice(["x_ptr", "x_ptr", "h_ptr"])
        cast = ".to(tl.float32)" if pointer == "h_ptr" else ""
        self.say(f"{new} = tl.load({pointer} + {shift}, mask=mask{other}){cast}")
        self.floats.append(new)

    def gather(self) -> None:
        new = self.name()
        if self.draw.random() < 0.3:
            self.say(
                f"{new} = tl.load(i_ptr + ({self.whole()} & 127), mask=mask, other={self.draw.choice([0, 3])})"
            )
            self.wholes.append(new)
        else:
            self.say(
                f"{new} = tl.load(x_ptr + ({self.whole()} & 255){self.draw.choice(['', ', mask=mask, other=2.0'])})"
            )
            self.floats.append(new)

    def fold(self) -> None:
        new = self.name()
        if self.draw.random() < 0.25:
            self.say(
                f"{new} = {self.draw.choice(['tl.sum', 'tl.max', 'tl.min', 'tl.xor_sum'])}({self.whole()}, 0)"
            )
            wide = self.name()
            self.say(f"{wide} = {self.whole()} + {new}")
            self.wholes.append(wide)
            self.numbers.append(new)
            return
        if self.draw.random() < 0.15:
            self.say(f"{new} = tl.argmax({self.float()}, 0)")
            self.numbers.append(new)
            return
        self.say(f"{new} = {self.draw.choice(_FOLDS).format(self.float())}")
        wide = self.name()
        self.say(f"{wide} = {self.float()} - {new}")
        self.floats.append(wide)

    def scan(self) -> None:
        new = self.name()
        if self.draw.random() < 0.5:
            self.say(f"{new} = tl.cumsum({self.float()}, 0)")
        else:
            self.say(
                f"{new}_a, {new} = tl.associative_scan(({self.float()} * 0.1, {self.float()} + 0.0), 0, compose)"
            )
        self.floats.append(new)

    def atomic(self) -> None:
        sem = self.draw.choice(["", ', sem="relaxed"'])
        how = self.draw.choice(["add", "max", "or"])
        self.say(f"tl.atomic_{how}(c_ptr + ({self.whole()} & 15), {self.whole()}, mask=mask{sem})")

    def loop(self, depth: int) -> None:
        acc, old = self.name(), self.float()
        self.say(f"{acc} = {old} + 0.0")
        other = self.name()
        whole = self.draw.random() < 0.4
        if whole:
            self.say(f"{other} = {self.whole()} + 0")
        bound = self.draw.choice(
            ["3", "n // 64", "m", "m + 1", f"{self.draw.choice(self.numbers)} % 4" if self.numbers else "2"]
        )
        self.say(f"for k{self.made} in range(0, {bound}, {self.draw.choice([1, 1, 2])}):")
        k = f"k{self.made}"
        self.block(
            depth,
            lambda: self.say(f"{acc} = {self.draw.choice(_BINARY).format(acc, self.float())}"),
            (lambda: self.say(f"{other} = {other} * 3 + {k}")) if whole else None,
        )
        self.floats.append(acc)
        if whole:
            self.wholes.append(other)

    def until(self, depth: int) -> None:
        acc, at = self.name(), self.name()
        self.say(f"{acc} = {self.float()} * 0.5")
        self.say(f"{at} = m * {self.draw.choice([1, 2])}")
        self.say(f"while {at} < {self.draw.choice(['9', 'n // 20'])}:")
        self.block(
            depth,
            lambda: self.say(f"{acc} = {acc} * 0.5 + {self.float()}"),
            lambda: self.say(f"{at} += {self.draw.choice(['2', '3', 'pid + 1'])}"),
        )
        self.floats.append(acc)

    def when(self, depth: int) -> None:
        new, old = self.name(), self.float()
        self.say(f"{new} = {old} + 0.0")
        self.say(f"if {self.draw.choice(['pid % 2 == 0', 'n > 300', 'm < pid', 'm + pid > 2', 'm == 2'])}:")
        self.block(depth, lambda: self.say(f"{new} = {self.draw.choice(_UNARY).format(self.float())}"), None)
        if self.draw.random() < 0.6:
            self.say("else:")
            self.block(
                depth,
                lambda: self.say(f"{new} = {self.draw.choice(_BINARY).format(new, self.float())}"),
                None,
            )
        self.floats.append(new)

    def block(self, depth: int, *ends: object) -> None:
        """Statements of their own names, then what a structure is for."""
        kept = list(self.floats), list(self.wholes), list(self.numbers), self.indent
        self.indent += "    "
        for _ in range(self.draw.randint(0, 2)):
            self.step(depth + 1)
        for end in ends:
            if callable(end):
                end()
        self.floats, self.wholes, self.numbers, self.indent = kept


def source(seed: int) -> str:
    """The text of a kernel's file; each fifth is of whole numbers of any width."""
    draw = random.Random(seed)
    if seed % 5 == 4:
        return _widths(draw)
    return (
        _product(draw)
        if draw.random() < 0.1
        else _tile(draw)
        if draw.random() < 0.12
        else _blocks(seed, draw)
    )


def _ended(
    draw: random.Random,
    args: dict[str, object],
    constants: dict[str, int],
    grid: int,
    warps: Sequence[int] = (1, 2, 4),
) -> str:
    """The case of a kernel, for warps and a chip that are drawn."""
    return _TAIL.format(
        args=args,
        constants=constants,
        grid=grid,
        warps=draw.choice(warps),
        target=draw.choice(["sm_80", "sm_90"]),
    )


def _blocks(seed: int, draw: random.Random) -> str:
    kernel = _Kernel(seed)
    kernel.floats, kernel.wholes = ["x"], ["offs", "i"]
    kernel.say("x = tl.load(x_ptr + offs, mask=mask, other=0.0)")
    kernel.say("i = tl.load(i_ptr + offs, mask=mask, other=1)")
    for _ in range(draw.randint(1, 7)):
        kernel.step()
    kernel.say(f"tl.store(y_ptr + offs, {kernel.floats[-1]} + {kernel.float()}, mask=mask)")
    if draw.random() < 0.6:
        kernel.say(f"tl.store(j_ptr + offs, {kernel.wholes[-1]}, mask=mask)")
    if draw.random() < 0.3:
        kernel.say(f"tl.store(h_ptr + offs, {kernel.float()}, mask=mask)")
    block = draw.choice([32, 64, 128, 256, 512])
    args = {
        "x_ptr": "*fp32[1200]",
        "y_ptr": "*fp32[1200]",
        "h_ptr": f"*{draw.choice(['fp16', 'bf16'])}[1200]",
        "i_ptr": "*i32[600]",
        "j_ptr": "*i32[600]",
        "c_ptr": "*i32[16]",
        "n": draw.choice([1, 63, 100, 500, 512]),
        "m": draw.choice([0, 1, 2, 5]),
    }
    grid = -(-args["n"] // block)  # type: ignore[operator]  # n is a number
    head = _HEAD.format(parameters=", ".join([*args, "BLOCK: tl.constexpr"]))
    return head + "\n".join([*kernel.lines, _ended(draw, args, {"BLOCK": block}, grid, [1, 2, 4, 4, 8])])


def _widths(draw: random.Random) -> str:
    """Whole numbers of any width, as blocks and as parameters, that meet each other."""
    kinds = ["i8", "u8", "i16", "u16", "i32", "u32", "i64"]
    given = {f"{x}_ptr": draw.choice(kinds) for x in "abc"}
    numbers = {x: draw.choice([*kinds, "i1"]) for x in ("s", "t")}
    held = [f"{x}" for x in "abc"]
    lines = [f"    {x} = tl.load({x}_ptr + offs, mask=mask, other={draw.choice([0, 1, 77])})" for x in "abc"]
    for k in range(draw.randint(2, 7)):
        one, two = draw.choice(held), draw.choice([*held, *numbers])
        kind = draw.choice([{"u": "uint", "i": "int"}[x[0]] + x[1:] for x in kinds])
        form = draw.choice(_ANY_WIDTH).format(one, two, kind)
        lines.append(f"    v{k} = {form}")
        held.append(f"v{k}")
    stored = draw.choice([*kinds, "fp16", "fp32"])
    lines += [
        f"    tl.store(y_ptr + offs, {held[-1]}, mask=mask)",
        f"    tl.store(z_ptr + offs, {held[-2]}, mask=mask)",
    ]
    args: dict[str, object] = {x: f"*{kind}[600]" for x, kind in given.items()}
    args |= {
        "y_ptr": f"*{stored}[600]",
        "z_ptr": f"*{draw.choice(kinds)}[600]",
        "n": draw.choice([63, 100, 512]),
    }
    least = {"u": 0, "i": -5}
    args |= {
        x: f"{kind}:{1 if kind == 'i1' else draw.choice([least[kind[0]], 3, 100])}"
        for x, kind in numbers.items()
    }
    head = _HEAD.format(parameters=", ".join([*args, "BLOCK: tl.constexpr"]))
    block = draw.choice([64, 128, 512])
    return head + "\n".join([*lines, _ended(draw, args, {"BLOCK": block}, -(-int(str(args["n"])) // block))])


def _product(draw: random.Random) -> str:
    m, n, k = (draw.choice([16, 32, 64]) for _ in range(3))
    add = draw.choice(
        ["", "\n    c = tl.where(c > 0, c, c * 0.1)", "\n    c += tl.load(c_ptr + offs_m * N + offs_n)"]
    )
    head = _HEAD.split("@triton.jit\ndef kernel")[0]
    body = f"""\
@triton.jit
def kernel(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    offs_m, offs_n, offs_k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    a = tl.load(a_ptr + offs_m * K + offs_k[None, :])
    b = tl.load(b_ptr + offs_k[:, None] * N + offs_n)
    c = tl.dot(a, b{draw.choice(["", ", out_dtype=tl.float32"])}){add}
    tl.store(c_ptr + offs_m * N + offs_n, c)
"""
    kind = draw.choice(["fp16", "bf16"])
    args = {"a_ptr": f"*{kind}[{m * k}]", "b_ptr": f"*{kind}[{k * n}]", "c_ptr": f"*fp32[{m * n}]"}
    return head + body + _ended(draw, args, {"M": m, "N": n, "K": k}, 1)


def _tile(draw: random.Random) -> str:
    m, n = (draw.choice([16, 32, 64]) for _ in range(2))
    how = draw.choice(
        [
            "tl.store(y_ptr + columns * M + rows, x)",
            "tl.store(y_ptr + rows * N + columns, x - tl.max(x, 1)[:, None])",
            "tl.store(y_ptr + rows * N + columns, x + tl.sum(x, 0)[None, :])",
            "tl.store(y_ptr + rows * N + columns, tl.cumsum(x, 1))",
            "tl.store(y_ptr + rows * N + columns, tl.exp(x - tl.sum(x, 1)[:, None] / N), mask=(rows < m) & (columns < n))",
        ]
    )
    mask = draw.choice(["", ", mask=(rows < m) & (columns < n), other=0.0"])
    body = f"""\
@triton.jit
def kernel(x_ptr, y_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + rows * {draw.choice(["N", "n"])} + columns{mask})
    {how}
"""
    args = {
        "x_ptr": f"*fp32[{m * n}]",
        "y_ptr": f"*fp32[{m * n}]",
        "m": draw.choice([m, m - 3]),
        "n": draw.choice([n, n - 5]),
    }
    return _HEAD.split("@triton.jit\ndef kernel")[0] + body + _ended(draw, args, {"M": m, "N": n}, 1)
