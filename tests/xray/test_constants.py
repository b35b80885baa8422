"""Values of constants as one writes them on the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import triton.language as tl

from tilefold import cli
from tilefold.errors import ArgumentError
from tilefold.xray.compile.constants import constant

MINUS = -math.inf
WRITTEN: dict[str, Any] = {
    'float("-inf")': MINUS, "float('inf')": math.inf, "float(-inf)": MINUS, "-float('inf')": MINUS, "-inf": MINUS,
    "inf": math.inf, "math.inf": math.inf, "-np.inf": MINUS, "math.pi": math.pi, "float(3)": 3.0, "float('1e-6')": 1e-6,
    "int('7')": 7, "0x10": 16, "1_000": 1000, "-5": -5, "+5": 5, "1.5": 1.5, "1e-6": 1e-6, " 8 ": 8,
    "None": None, "True": True, "False": False, "'words'": "words", '"False"': "False", "''": "", "": "",
    "(1, 2)": (1, 2), "(1,)": (1,), "()": (), "1,2": (1, 2), "[1, 2]": [1, 2], "((1, 2), 'a')": ((1, 2), "a"),
    "(tl.float32, -inf)": (tl.float32, MINUS), "(float('-inf'), None, True)": (MINUS, None, True),
    "tl.float32": tl.float32, "triton.language.bfloat16": tl.bfloat16, "tl.float8e5": tl.float8e5, "tl.int1": tl.int1,
    "relu": "relu", "evict_first": "evict_first", ".cg": ".cg", "bf16-mixed": "bf16-mixed", "a b": "a b", "tf32x3": "tf32x3",
    "silu.v2": "silu.v2", "3d": "3d", "int8": "int8",
}  # fmt: skip


@pytest.mark.parametrize("text", WRITTEN)
def test_written(text: str) -> None:
    found, wanted = constant(text), WRITTEN[text]
    assert (type(found), found) == (type(wanted), wanted)


@pytest.mark.parametrize("text", ["nan", "float('nan')", "-nan", "math.nan", "float('-NaN')"])
def test_nan(text: str) -> None:
    assert math.isnan(constant(text))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').getpid()", "(lambda: 1)()", "[x for x in (1,)]", "max(1, 2)", "float()", "float('x')", "int(1, 2)",
        "int('1' * 9)", "1<<10", "2**30", "4*8", "9**9**9", "float('-inf'", "(1, 2", "(relu, 1)", "tl.nothing", "tl.__name__",
        "tl.load()", "torch.float32", "math.sqrt", "np.float32", "open('x')", "f'{1}'", "false", "true", "none", "null",
        "not 1", "float(inf=1)", "int(inf)", "(" * 500,
    ],
)  # fmt: skip
def test_what_would_have_to_be_evaluated_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"xray: --const must be a literal, .*; write ") as raised:
        constant(text)
    assert "\n" not in str(raised.value)


def test_constants_reach_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "filled.py"
    file.write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        "def filled(o_ptr, X: tl.constexpr, KIND: tl.constexpr, PAIR: tl.constexpr, NAME: tl.constexpr, ON: tl.constexpr):\n"
        "    tl.static_assert(NAME == 'a' and ON is None and PAIR[1] == 3)\n"
        "    tl.store(o_ptr + tl.arange(0, 32), tl.full((32,), X, KIND) + PAIR[0])\n"
    )
    options = ['X=float("-inf")', "KIND=tl.float32", "PAIR=(2, 3)", "NAME='a'", "ON=None"]
    given = [word for option in options for word in ("--const", option)]
    assert cli.run(["xray", f"{file}::filled", "--arg", "o_ptr=*fp32", *given, "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)["reports"][0]
    assert "X=-inf" in shown["constants"]
    assert not any(note.startswith("Not executed") for note in shown["notes"])
