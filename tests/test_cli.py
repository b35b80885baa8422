"""The command line: tables at every width, JSON that machines can read, exit codes, one line for each thing that is bad."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from commands import run
from tilefold.checkpoints.describe import FileReport, TensorReport
from tilefold.checkpoints.tables import (
    HEADS,
    bytes_text,
    count_text,
    number_text,
    printable,
    render_report,
    short_dtype,
    shorten,
)

ROOT = Path(__file__).parent.parent
NAN = float("nan")
BAD_NAME = "encoder.layer.10.attention.output.dense.weight"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    save_file({"w": torch.tensor([[1.0, -3.0], [0.0, 4.0]]), "i": torch.arange(5)}, path)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    x = torch.randn(512, 384)
    x[3, 4], x[5, 6] = NAN, float("inf")
    tensors = {BAD_NAME: x, "encoder.layer.9.attention.output.LayerNorm.weight": torch.ones(384).bfloat16()}
    save_file(tensors, tmp_path / "bad.safetensors")
    return tmp_path / "bad.safetensors"


def process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, its streams piped."""
    base = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "TERM", "FORCE_COLOR", "NO_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "tilefold", *map(str, arguments)],
        capture_output=True, text=True, env={**base, "PYTHONPATH": str(ROOT / "src"), **environment}, check=False,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- tables


def rendered(report: FileReport, width: int | None, colour: bool = False) -> list[str]:
    console = Console(width=width or 1000, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as capture:
        console.print(render_report(report, width))
    return capture.get().splitlines()


def report_of(*tensors: TensorReport) -> FileReport:
    return FileReport("model.safetensors", tensors)


def tensor(name: str, nans: int = 0, infs: int = 0, shape: tuple[int, ...] = (30522, 384)) -> TensorReport:
    return TensorReport(
        name, "float32", shape, 4096, 11720448, nans, infs, 3, -0.50731, 1.0489, 1.0489, 1.1784e-5, 0.0556
    )


LONG = [f"encoder.layer.{i}.attention.output.LayerNorm.weight" for i in range(12)]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160])
def test_a_table_fits_and_keeps_names_apart(width: int) -> None:
    lines = rendered(report_of(*(tensor(n, nans=n == LONG[3]) for n in LONG)), width)
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if line.startswith("tensor"))
    assert {"nan", "inf"} <= set(head.split())
    rows = lines[lines.index(head) + 2 :][: len(LONG)]
    assert len({row[: 2 + row[2:].index(" ")] for row in rows}) == len(LONG)
    assert [row.startswith("! ") for row in rows] == [n == LONG[3] for n in LONG]


def test_a_pipe_gets_whole_names_and_every_column() -> None:
    lines = rendered(report_of(*map(tensor, LONG)), None)
    assert lines[1].split() == list(HEADS)
    assert lines[3].split() == [
        LONG[0], "f32", "30522x384", "11720448", "0", "0", "3", "-0.5073", "1.049", "1.049", "1.178e-5", "0.0556",
    ]  # fmt: skip


def test_numbers_stand_under_the_end_of_their_head() -> None:
    lines = rendered(report_of(tensor("w"), tensor("longer", nans=12)), None)
    head, first = lines[1], lines[3]
    for name, text in (("count", "11720448"), ("nan", "0"), ("std", "0.0556"), ("max", "1.049")):
        end = re.search(rf"\b{name}\b", head)
        assert end is not None
        assert first[: end.end()].endswith(text)


def test_nan_is_marked_without_colour_and_with_it() -> None:
    report = report_of(tensor("fine"), tensor("broken", nans=2, infs=1))
    text = "\n".join(rendered(report, 80))
    assert re.search(r"! broken .* !2 +!1 ", text)
    assert "! NaN or inf in 1 of 2 tensors:" in text
    assert "broken: 2 NaN and 1 inf of 11720448 elements" in text
    assert "\x1b[" not in text
    assert "\x1b[1;31m" in "\n".join(rendered(report, 80, colour=True))
    assert "No NaN, no inf." in "\n".join(rendered(report_of(tensor("fine")), 80))


def test_totals_stand_at_the_foot() -> None:
    lines = rendered(report_of(tensor("a"), tensor("b", nans=5)), None)
    foot = next(line for line in lines if line.startswith("2 tensors"))
    assert foot.split() == ["2", "tensors", "8.2", "kB", "23440896", "!5", "0", "6"]
    assert any(line.startswith("0 tensors") for line in rendered(report_of(), 80))


def test_many_bad_tensors_are_counted_not_listed() -> None:
    lines = rendered(report_of(*(tensor(f"t{i}", nans=1) for i in range(30))), 80)
    assert "  and 20 more" in lines


def test_wide_and_long_names_fit() -> None:
    for name in ("重" * 60, "x" * 300, "a." * 100, "", "9" * 50):
        assert max(len(line) for line in rendered(report_of(tensor(name)), 80)) <= 80


@pytest.mark.parametrize(
    ("name", "width", "short"),
    [
        ("w", 10, "w"),
        ("encoder.layer.11.attention.output.LayerNorm.bias", 28, "enc.lay.11.att.out.Laye.bias"),
        ("abcdefghij", 7, "abcdefg"),
        ("encoder.layer.11.attention.bias", 12, "e.l.11.at.bi"),
        ("1234567890", 7, "123…890"),
    ],
)
def test_shorten(name: str, width: int, short: str) -> None:
    assert shorten(name, width) == short


def test_texts_of_numbers() -> None:
    numbers = (None, 0.0, 511, 12_345_678, -1.1784e-5, 0.00051234, 1e30, 0.25)
    assert [number_text(v, 4) for v in numbers] == [
        "-", "0", "511", "1.235e7", "-1.178e-5", "5.123e-4", "1e30", "0.25",
    ]  # fmt: skip
    assert [count_text(n, False) for n in (0, 9999, 11_720_448, 10**13)] == ["0", "9999", "11.7M", "10.0T"]
    assert [count_text(n, True, marked=True) for n in (0, 11_720_448)] == ["0", "!11720448"]
    assert [bytes_text(n) for n in (0, 999, 90_868_376, 10**15)] == ["0 B", "999 B", "90.9 MB", "1000.0 TB"]
    names = ("float32", "bfloat16", "float8_e4m3fn", "uint8", "int64", "bool")
    assert [short_dtype(n) for n in names] == ["f32", "bf16", "f8e4m3fn", "u8", "i64", "bool"]


# ---------------------------------------------------------------------------------------------------- streams


def test_piped_output_is_whole_and_plain(bad: Path) -> None:
    result = process("describe", bad)
    assert result.returncode == 0
    assert result.stderr == ""  # no progress bar where no terminal is
    assert "\x1b" not in result.stdout
    assert f"! {BAD_NAME} " in result.stdout


def test_columns_are_honoured(bad: Path) -> None:
    lines = process("describe", bad, COLUMNS="80").stdout.splitlines()[1:]
    assert 60 < max(map(len, lines)) <= 80


def test_a_terminal_sees_a_progress_bar_that_goes_away(bad: Path) -> None:
    pty = pytest.importorskip("pty", reason="no pseudo terminals here")
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "tilefold", "describe", str(bad)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, env=environment, text=True)
    table, _ = child.communicate()
    os.close(writer)
    drawn = b""
    with contextlib.suppress(OSError):  # Linux says EIO at the end
        while block := os.read(reader, 65536):
            drawn += block
    os.close(reader)
    assert re.search(r"[\d.]+/[\d.]+ [kM]?B", drawn.decode()) is not None
    assert drawn.decode().rstrip().endswith("\x1b[2K")  # the line is wiped
    assert "\x1b[2K" not in table


def test_an_encoding_without_the_name_s_letters(tmp_path: Path) -> None:
    save_file({"größe": torch.ones(1)}, tmp_path / "a.safetensors")
    result = process("describe", tmp_path / "a.safetensors", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert "gr\\xf6\\xdfe" in result.stdout


def test_names_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "names.safetensors"
    save_file(
        {"a[red]\x1b[31m": torch.tensor([NAN]), "b\x1b[2J": torch.zeros(1, dtype=torch.complex64)}, path
    )
    result = run(["describe", str(path)])
    assert "\x1b" not in result.output
    assert "a[red]\\x1b[31m" in result.stdout
    assert "b\\x1b[2J" in result.stderr
    assert printable("\x1b") == "\\x1b"


# ------------------------------------------------------------------------------------------------------- JSON


def test_json_is_all_of_stdout_and_follows_the_documented_shape(
    tmp_path: Path, good: Path, bad: Path
) -> None:
    save_file({"c": torch.zeros(2, dtype=torch.complex64), "d": torch.ones(3)}, tmp_path / "c.safetensors")
    result = process("describe", tmp_path / "none.pt", good, bad, tmp_path / "c.safetensors", "--json")
    document = json.loads(result.stdout)
    assert list(document) == ["schema", "files", "errors", "skipped", "totals"]
    assert document["schema"] == 1
    assert [list(f) for f in document["files"]] == [["path", "tensors", "refused", "totals"]] * 3
    keys = [
        "name",
        "dtype",
        "shape",
        "bytes",
        "count",
        "nans",
        "infs",
        "zeros",
        "min",
        "max",
        "absmax",
        "mean",
        "std",
    ]
    assert all(list(t) == keys for f in document["files"] for t in f["tensors"])
    assert list(document["totals"]) == ["tensors", "bytes", "count", "nans", "infs", "zeros"]
    assert document["totals"]["nans"] == 1
    assert [e["path"] for e in document["errors"]] == [str(tmp_path / "none.pt")]
    assert document["files"][2]["refused"][0]["name"] == "c"
    page = (ROOT / "docs" / "describe.md").read_text(encoding="utf-8")
    documented = [*document, *document["files"][0], *keys, *document["totals"], "reason"]
    assert all(f"`{key}`" in page for key in documented)


def test_json_has_no_nan(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([NAN, float("inf")]))
    document = json.loads(run(["describe", str(tmp_path / "a.npy"), "--json"]).stdout)
    tensor = document["files"][0]["tensors"][0]
    assert (tensor["min"], tensor["mean"], tensor["nans"], tensor["infs"]) == (None, None, 1, 1)


# ------------------------------------------------------------------------------------------------- exit codes


def test_a_finite_weight_above_a_limit(tmp_path: Path, good: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([-5.0, 3.0, NAN, float("inf")]))
    np.save(tmp_path / "nan.npy", np.array([NAN, float("inf")]))
    path, missing = str(tmp_path / "a.npy"), str(tmp_path / "none.pt")
    cases = {
        ("4.5",): 1,
        ("5",): 0,
        ("0",): 1,
        ("4", "--json"): 1,
        ("4", missing): 2,
        ("-1",): 2,
        ("nan",): 2,
        ("x",): 2,
    }
    assert {case: run(["describe", path, "--fail-above", *case]).exit_code for case in cases} == cases
    assert run(["describe", str(tmp_path / "nan.npy"), "--fail-above", "1"]).exit_code == 0
    assert run(["describe", path, "--fail-above", "9", "--fail-on-nan"]).exit_code == 1
    said = " ".join(run(["describe", path, "--fail-above", "4"]).stdout.split())
    assert "! absmax above 4 in 1 of 1 tensor: a: 5" in said


def test_what_was_refused_is_counted_where_tensors_are(tmp_path: Path) -> None:
    none = torch.zeros(1, dtype=torch.complex64)
    save_file({"a": torch.ones(2), "b": none, "c\x1b[2J": none.clone()}, tmp_path / "a.safetensors")
    text = run(["describe", str(tmp_path / "a.safetensors")]).stdout
    assert re.search(r"^1 tensor, 2 refused ", text, re.MULTILINE)
    assert "No NaN, no inf in 1 tensor." in text
    assert "! 2 refused, without statistics:\n  b\n  c\\x1b[2J" in text
    for width in (30, 60, 90):
        assert (
            "2 refused, without"
            in run(["describe", str(tmp_path / "a.safetensors")], COLUMNS=str(width)).stdout
        )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_paths_of_any_bytes_on_the_terminal(tmp_path: Path) -> None:
    directory = tmp_path / "d\x1b[31m\n"
    directory.mkdir()
    for name in ("a\udcff.npy", "b\x1b]0;t\x07.npy"):
        with (directory / name).open("wb") as file:
            np.save(file, np.ones(2))
    (directory / "c\x1b[2J.pt").write_bytes(b"?")
    (directory / "d\x9b.txt").write_bytes(b"?")
    (directory / "e\x1b.index.json").write_text("{")
    result = process("describe", directory, f"{directory}/*.none", directory / "none\x1b")
    assert result.returncode == 2
    shown = result.stdout + result.stderr
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count("d\\x1b[31m\\n/") >= 5
    assert "a\\udcff" in result.stdout


def test_exit_codes(tmp_path: Path, good: Path, bad: Path) -> None:
    missing = str(tmp_path / "none.pt")
    cases = {
        (str(good),): 0,
        (str(bad),): 0,
        (str(good), "--fail-on-nan"): 0,
        (str(good), str(bad), "--fail-on-nan"): 1,
        (missing,): 2,
        (missing, str(good)): 2,
        (str(bad), missing, "--fail-on-nan"): 2,  # an incomplete answer weighs more than a found NaN
        (str(bad), missing, "--fail-on-nan", "--json"): 2,
        (): 2,
    }
    assert {case: run(["describe", *case]).exit_code for case in cases} == cases


def test_warnings_of_torch_do_not_reach_the_terminal(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized tensors are deprecated, files of them remain
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        torch.save({"q": quantized}, tmp_path / "a.pt")
    result = process("describe", tmp_path / "a.pt")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_the_help_states_the_exit_codes() -> None:
    text = " ".join(run(["describe", "--help"], COLUMNS="200").stdout.split())
    assert "2 a file or tensor could not be described" in text


def test_others_are_done_after_bad_ones(tmp_path: Path, good: Path) -> None:
    save_file({"c": torch.zeros(2, dtype=torch.complex64), "d": torch.ones(3)}, tmp_path / "c.safetensors")
    (tmp_path / "dir.pt").mkdir()
    paths = [tmp_path / "none.pt", tmp_path / "dir.pt", tmp_path / "c.safetensors", good]
    result = run(["describe", *map(str, paths)])
    assert result.exit_code == 2
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [str(p) for p in paths[:3]]
    assert all(line.startswith("describe: ") and "; " in line for line in result.stderr.splitlines())
    assert re.search(r"^d +f32", result.stdout, re.MULTILINE)
    assert re.search(r"^w +f32", result.stdout, re.MULTILINE)


def test_the_same_file_twice_is_described_twice(good: Path) -> None:
    document = json.loads(run(["describe", str(good), str(good), "--json"]).stdout)
    assert len(document["files"]) == 2
    assert document["files"][0] == document["files"][1]


@pytest.mark.parametrize("device", ["nowhere", "meta", "cuda:99", "mps"])
def test_a_device_that_is_not_there(good: Path, device: str) -> None:
    result = run(["describe", str(good), "--device", device])
    assert result.exit_code == 2
    assert re.fullmatch(
        rf"describe: --device must be one of cpu.*, got '{device}'; try --device cpu\n", result.stderr
    )
    assert result.stdout == ""


@pytest.mark.gpu
def test_on_a_gpu(bad: Path) -> None:
    texts = [run(["describe", str(bad), "--json", "--device", device]).stdout for device in ("cpu", "cuda")]
    cpu, gpu = (json.loads(text)["files"][0]["tensors"] for text in texts)
    for a, b in zip(cpu, gpu, strict=True):
        assert {k: a[k] for k in ("count", "nans", "infs", "zeros", "min", "max")} == {
            k: b[k] for k in ("count", "nans", "infs", "zeros", "min", "max")
        }
        assert a["std"] == pytest.approx(b["std"], rel=1e-5)


# ------------------------------------------------------------------------------------------------------- plan


def test_plan_command() -> None:
    assert "rows" in run(["plan", "16384x8192"]).stdout


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (
            ["16384x8192", "--monoid", "nothing"],
            r"--monoid: a monoid must be one of .*SUM.*, got 'nothing'; ",
        ),
        (["16384x8192", "--monoid", "norm"], r"--monoid: a monoid must be one of"),
        (["axb"], r"a shape must be sizes joined by x, got 'axb'; "),
        (["4294967296x4294967296"], r"fewer than 2\^63 bytes, got 4294967296x4294967296; "),
        (["99999999999999999999"], r"fewer than 2\^63 bytes, got 99999999999999999999; "),
        (["4x4", "--dtype", "floaty"], r"--dtype: a dtype must be one of torch's, got 'floaty'; "),
        (["4x4", "--dim", "7"], r"`dim` must be in \[-2, 1\] for a 2-D tensor, got 7\b.*; "),
        (["4x4", "--dtype", "complex64"], r"real numbers or bool, got torch.complex64; "),
    ],
)
def test_plan_refuses_in_one_line(arguments: list[str], rule: str) -> None:
    result = run(["plan", *arguments])
    assert result.exit_code == 2
    assert re.search(rule, result.stderr)
    assert len(result.stderr.splitlines()) == 1


# ------------------------------------------------------------------------- directories, patterns, shards, bad bytes


def sharded(directory: Path) -> Path:
    save_file({"a": torch.ones(3)}, directory / "m-1.safetensors")
    save_file({"b": torch.tensor([NAN])}, directory / "m-2.safetensors")
    index = directory / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}))
    return index


@pytest.mark.parametrize("argument", ["", "*.safetensors", "m.safetensors.index.json"])
def test_a_sharded_checkpoint(tmp_path: Path, argument: str) -> None:
    sharded(tmp_path)
    (tmp_path / "README.md").write_text("x")
    result = run(["describe", "--json", "--fail-on-nan", str(tmp_path / argument)])
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [t["name"] for f in document["files"] for t in f["tensors"]] == ["a", "b"]
    assert document["skipped"] == ([] if argument else [{"path": str(tmp_path), "names": ["README.md"]}])


def test_a_shard_that_is_missing_or_lacks_a_tensor(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    (tmp_path / "m-2.safetensors").unlink()
    index.write_text(
        json.dumps({"weight_map": dict.fromkeys("acd", "m-1.safetensors") | {"b": "m-2.safetensors"}})
    )
    result = run(["describe", str(index)])
    assert result.exit_code == 2
    lines = [line.partition(": ")[2] for line in result.stderr.splitlines()]
    assert (
        "m-1.safetensors: the shard must hold what its index places there, got no 'c' and 1 more; "
        in lines[0]
    )
    assert "m-2.safetensors: the file must exist, got nothing there; check the path" in lines[1]


def test_a_bad_index_does_not_keep_its_directory_from_being_described(tmp_path: Path) -> None:
    sharded(tmp_path).write_text("{}")
    result = run(["describe", "--json", str(tmp_path)])
    document = json.loads(result.stdout)
    assert result.exit_code == 2
    assert len(document["files"]) == 2
    assert ['must hold a "weight_map"' in e["reason"] for e in document["errors"]] == [True]


def test_garbage_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(bytes(range(256)))
    (tmp_path / "b").write_bytes(b"\x80\x02" + bytes(range(256)))
    result = run(["describe", str(tmp_path / "a.pt"), str(tmp_path / "b"), "no\0such"])
    assert result.exit_code == 2
    for line in result.stderr.splitlines():
        assert re.fullmatch(r"describe: .*: the \w+ must .*, got .*; .*", line)


def test_a_small_file_that_asks_for_much(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(1 << 46)}, tmp_path / "a.pt")
    result = run(["describe", "--json", str(tmp_path / "a.pt")])
    assert json.loads(result.stdout)["totals"]["zeros"] == 1 << 46
