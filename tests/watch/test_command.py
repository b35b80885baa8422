"""`tilefold watch`: a file, a line that names it, and one line for what cannot be done."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from commands import run


@pytest.fixture
def row(tmp_path: Path) -> str:
    path = tmp_path / "row.npy"
    np.save(path, np.linspace(-1, 1, 21, dtype=np.float32))
    return str(path)


def test_a_page_is_written(tmp_path: Path, row: str) -> None:
    out = tmp_path / "page.html"
    shown = run(["watch", "logsumexp", "--row", row, "--html", str(out)])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(out))}: \d+ kB, opens in any browser\n", shown.stdout)
    assert "the given row" in out.read_text(encoding="utf-8")


def test_a_page_goes_to_the_output(row: str) -> None:
    shown = run(["watch", "affine", "--row", row, "--row", row, "--html", "-"])
    assert shown.exit_code == 0
    assert shown.stdout.startswith("<!doctype html>")
    assert shown.stdout.endswith("</html>\n")


def test_a_monoid_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import tilefold\nspread = tilefold.Monoid(lambda a, b: (tilefold.math.minimum(a.lo, b.lo), "
        "tilefold.math.maximum(a.hi, b.hi)), (float('inf'), -float('inf')), fields=('lo', 'hi'), lift=lambda x: (x, x), "
        "project=lambda lo, hi: hi - lo, name='spread')\n"
    )
    out = tmp_path / "page.html"
    assert run(["watch", f"{file}::spread", "--html", str(out)]).exit_code == 0
    assert "<h1>spread</h1>" in out.read_text(encoding="utf-8")


def test_what_cannot_be_done_is_one_line(tmp_path: Path, row: str) -> None:
    wide, objects, text = tmp_path / "wide.npy", tmp_path / "objects.npy", tmp_path / "text.txt"
    waves, leaves = tmp_path / "waves.npy", tmp_path / "leaves.py"
    np.save(waves, np.ones(3, np.complex64))
    leaves.write_text("import sys\nsys.exit(3)\n")
    makes = tmp_path / "makes.py"
    makes.write_text(
        "import sys\ndef left():\n    sys.exit(3)\ndef wrong():\n    raise ValueError('two\\nlines')\n"
    )
    np.save(wide, np.zeros((2, 3)))
    np.save(objects, np.array([{}], dtype=object))
    text.write_text("1 2 3")
    out = str(tmp_path / "page.html")
    for arguments, line in (
        (["summ"], "watch: MONOID: a monoid must be one of AFFINE, .*, got 'summ'; use sum"),
        (
            ["sum", "--row", f"{tmp_path}/no.npy"],
            "watch: --row .*no.npy: the file must exist, got nothing there; .*",
        ),
        (
            ["sum", "--row", str(waves)],
            r"watch: --row .*: a row must hold real numbers or bool, got .*complex64; .*",
        ),
        ([f"{leaves}::x"], r"watch: MONOID: .*leaves.py must import, got SystemExit: 3 in leaves.py:2; .*"),
        (
            [f"{makes}::left"],
            r"watch: MONOID: a monoid's function must make one, got SystemExit: 3 in makes.py:3 .*; .*",
        ),
        ([f"{makes}::wrong"], r"watch: MONOID: .* got ValueError: two lines in makes.py:5 .*; .*"),
        (["sum", "--row", str(text)], "watch: --row .*text.txt: the file must be .*"),
        (["sum", "--row", str(wide)], r"watch: --row .*: a row must be 1-D, got shape \[2, 3\]; .*"),
        (
            ["sum", "--row", str(objects)],
            "watch: --row .*: the array must hold numbers, got Python objects.*",
        ),
        (
            ["sum", "--row", row, "--row", row],
            r"watch: sum must get a row for each of its inputs \(x\), 1 in all, got 2; .*",
        ),
        (
            ["affine", "--row", row],
            r"watch: affine must get a row for each of its inputs \(x, y\), 2 in all, got 1; .*",
        ),
        (
            ["bitwise_or", "--row", row],
            "watch: .*bitwise operations need integers or bool, got torch.float32; .*",
        ),
    ):
        shown = run(["watch", *arguments, "--html", out])
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert re.fullmatch(f"{line}\n", shown.stderr), shown.stderr
    assert not Path(out).exists()
    shown = run(["watch", "sum", "--html", f"{tmp_path}/no/page.html"])
    assert re.fullmatch(
        "watch: --html must be a file that can be written, got .*; choose another\n", shown.stderr
    )


def test_another_kind_of_checkpoint_is_no_row(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", a=np.zeros(3))
    shown = run(["watch", "sum", "--row", str(tmp_path / "rows.npz"), "--html", str(tmp_path / "page.html")])
    assert re.search(r"must be a \.npy file, got another kind", shown.stderr)
