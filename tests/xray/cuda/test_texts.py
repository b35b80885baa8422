"""What kernels of every kind are as CUDA, on paper: one that means to change a text writes them anew (texts.py)."""

from __future__ import annotations

from xray.cuda import texts
from xray.cuda.test_readable import pinned


@pinned
def test_texts_are_those_written_down() -> None:
    assert list(texts.lines()) == texts.WRITTEN.read_text(encoding="utf-8").splitlines()
