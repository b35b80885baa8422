"""Files that do not import and cases that raise: one line, with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilefold.errors import ArgumentError, CompileError
from tilefold.xray.compile.source import find_case, find_kernel, kernels_of, load_file
from tilefold.xray.explain import explain_file


def written(folder: Path, text: str, name: str = "cases.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "x = 1\nimport no_such_module\n",
            r"must import, got ModuleNotFoundError: .* in broken.py:2; install it for .* no_such_module",
        ),
        (
            "x = 1\n\ny = 1 / 0\n",
            r"must import, got ZeroDivisionError: division by zero in broken.py:3; run it",
        ),
        ("def f(:\n", r"must import, got SyntaxError: .* in broken.py:1; run it"),
    ],
    ids=["import", "exception", "syntax"],
)
def test_a_file_that_does_not_import(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(CompileError, match=rule) as raised:
        load_file(written(tmp_path, text, "broken.py"))
    assert "\n" not in str(raised.value)


def test_cases_that_raise_name_their_line(tmp_path: Path) -> None:
    path = written(tmp_path, "def xray_cases():\n    size = None\n    return {'a': size + 1}\n")
    with pytest.raises(
        CompileError, match=r"xray_cases\(\) must return cases, got TypeError: .* in cases.py:3"
    ):
        explain_file(f"{path}::", "a")


def test_cases_are_a_mapping(tmp_path: Path) -> None:
    path = written(tmp_path, "def xray_cases():\n    return ['a']\n")
    with pytest.raises(CompileError, match="got TypeError: a list and no mapping of names to cases"):
        explain_file(f"{path}::", "a")


@pytest.mark.parametrize("case", ["7", "{}", "{'constants': {}}"])
def test_a_case_without_arguments(tmp_path: Path, case: str) -> None:
    module = load_file(written(tmp_path, f"def xray_cases():\n    return {{'a': {case}}}\n", "wanting.py"))
    with pytest.raises(ArgumentError, match="a case must be a mapping with 'args'"):
        find_case(module, "a")


def test_kernels_that_are_static_methods(tmp_path: Path) -> None:
    text = (
        "import triton\nimport triton.language as tl\nfrom triton.language import sum as total\n\n\nclass Twice:\n"
        "    @staticmethod\n    @triton.jit\n    def of(x):\n        return x + x\n\n"
        "    @staticmethod\n    @triton.jit\n    def forward(x_ptr, BLOCK: tl.constexpr):\n"
        "        at = x_ptr + tl.arange(0, BLOCK)\n        tl.store(at, tl.load(at))\n"
    )
    module = load_file(written(tmp_path, text, "in_a_class.py"))
    assert [*kernels_of(module)] == ["Twice.of", "Twice.forward"]
    report = explain_file(
        f"{tmp_path / 'in_a_class.py'}::Twice.forward", args={"x_ptr": "*fp32"}, constants={"BLOCK": 32}
    )
    assert report.executed
    with pytest.raises(ArgumentError, match=r"got 'Twice.x'; it has Twice.of, Twice.forward"):
        find_kernel(module, "Twice.x")
