"""The house itself: examples run, the README's code is true, importing is light."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_or_of_bit_masks() -> None:
    assert all(count > 20 for count in load("or_of_bit_masks").main().values())


def test_online_softmax_pair() -> None:
    assert load("online_softmax_pair").main() < 1e-4


def test_longest_run() -> None:
    assert load("longest_run").main() > 5


def test_readme_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        scope: dict[str, object] = {}
        exec(block, scope)  # our own README
        x, result = scope["x"], scope["result"]
        assert isinstance(x, torch.Tensor)
        assert isinstance(result, torch.Tensor)
        torch.testing.assert_close(result, torch.logsumexp(x, 1))


PAGES = [
    "README.md",
    "DESIGN.md",
    "CONTRIBUTING.md",
    "docs/guarantees.md",
    "docs/algebra.md",
    "docs/measured.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout


def timed_import() -> float:
    """Seconds that `import tilefold` adds after `import torch`, at best of three."""
    code = "import torch, time; s = time.perf_counter(); import tilefold; print(time.perf_counter() - s)"
    return min(float(run_python(code)) for _ in range(3))


def test_import_is_light() -> None:
    code = "import torch; import sys; before = set(sys.modules); import tilefold; print(*(set(sys.modules) - before))"
    loaded = run_python(code).split()
    assert not [m for m in loaded if m.split(".")[0] == "triton"]
    assert timed_import() < 0.3
