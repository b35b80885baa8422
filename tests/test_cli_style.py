"""What all commands share: one style of help, errors in one line, and what runs where nothing but torch is installed."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tilefold
from commands import run
from tilefold import cli
from tilefold.bench import command as bench
from tilefold.bench import result_commands as bench_results
from tilefold.checkpoints import command as describe
from tilefold.cli import plan
from tilefold.cli.output import printable
from tilefold.cli.parser import Parser
from tilefold.watch import command as watch
from tilefold.xray import command as xray
from tilefold.xray.capture import command as xray_run
from xray import kernels

ROOT = Path(__file__).parent.parent
PARSERS: dict[str, Callable[[], Parser]] = {
    "": cli.top_parser,
    "describe": describe.parser,
    "plan": plan.parser,
    "watch": watch.parser,
    "xray": xray.parser,
    "xray diff": xray.diff_parser,
    "xray run": xray_run.parser,
    "bench": bench.parser,
    "bench compare": bench_results.compare_parser,
    "bench plot": bench_results.plot_parser,
    "bench merge": bench_results.merge_parser,
    "bench show": bench_results.show_parser,
}
SECTIONS = ("usage: tilefold", "arguments:", "options:", "examples:", "exit codes:")


@pytest.mark.parametrize("command", PARSERS, ids=lambda command: command or "tilefold")
def test_help_has_one_style(command: str) -> None:
    shown = run([*command.split(), "--help"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    places = [shown.stdout.find(section) for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)
    for code in (0, 2, 130):
        assert re.search(rf"^  {code} +\w", shown.stdout, re.MULTILINE)
    assert max(map(len, shown.stdout.splitlines())) <= 110
    assert "(default: None)" not in shown.stdout


@pytest.mark.parametrize("command", PARSERS, ids=lambda command: command or "tilefold")
def test_every_option_says_what_it_is(command: str) -> None:
    for action in PARSERS[command]()._actions:
        assert action.help, action
        takes_value = action.option_strings and action.nargs != 0
        assert not takes_value or action.metavar, f"{action.option_strings} shows no metavar"


@pytest.mark.parametrize("command", [c for c in PARSERS if c], ids=str)
def test_examples_of_help_parse(command: str) -> None:
    """Each example is of a command that there is, with options that it has."""
    import shlex

    lines = re.findall(r"^  (tilefold .*)$", PARSERS[command]().format_help(), re.MULTILINE)
    assert lines
    for line in lines:
        words = shlex.split(line.partition(" > ")[0])[1:]
        name = " ".join(words[:2]) if " ".join(words[:2]) in PARSERS else words[0]
        arguments = [word.replace("mine.py::top2", "sum") for word in words[len(name.split()) :]]
        PARSERS[name]().parse_args(arguments)


def test_the_version_is_said_once() -> None:
    assert run(["--version"]).stdout == f"tilefold {tilefold.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+", tilefold.__version__)
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_all_names_what_is_public() -> None:
    assert len(set(tilefold.__all__)) == len(tilefold.__all__)
    assert all(hasattr(tilefold, name) for name in tilefold.__all__)


def test_without_a_command_help_is_shown() -> None:
    assert run([]).stdout == run(["--help"]).stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plna"],
         "tilefold: COMMAND must be one of describe, plan, xray, watch, bench, got 'plna'; tilefold --help has all"),
        (["plan", "4", "--wat"], "plan: unrecognized arguments: --wat; tilefold plan --help has all"),
        (["describe"], "describe: the following arguments are required: FILE; tilefold describe --help has all"),
        (["xray", "--grid", "a"], "xray: --grid must be one to three numbers, got 'a'; like 8 or 8,4"),
        (["bench", "host", "--jobs", "x"],
         "bench: --jobs must be a whole number from 0 on, got 'x'; tilefold bench --help has all"),
        (["bench", "folds", "--part", "3/2"], "bench: --part must be I/N, I from 1 to N, got '3/2'; write it like 2/3"),
        (["bench", "folds", "--part", "-1/2"], "bench: --part must be I/N, I from 1 to N, got '-1/2'; write it like 2/3"),
        (["plan", "4x4", "--strides", "-1,1"],
         "plan: --strides: strides must be whole numbers from 0 on, got '-1,1'; write it like 8192,1"),
        (["bench", "compare", "a"],
         "bench: the following arguments are required: NEW.json; tilefold bench compare --help has all"),
        (["bench", "host", "--size", "big"],
         "bench: --size must be one of full, small, got 'big'; tilefold bench --help has all"),
        (["bench", "host", "--dev", "cpu"], "bench: unrecognized arguments: --dev cpu; tilefold bench --help has all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(arguments: list[str], line: str) -> None:
    shown = run(arguments)
    assert (shown.exit_code, shown.stdout, shown.stderr) == (2, "", f"{line}\n")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_ctrl_c_is_130(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> argparse.Namespace:
        raise KeyboardInterrupt

    monkeypatch.setattr(Parser, "parse_args", interrupted)
    shown = run([command])
    assert (shown.exit_code, shown.stderr) == (130, f"{command}: interrupted\n")


# ---------------------------------------------------------------------------- where little is installed

BARE = (
    "import sys; sys.modules.update(dict.fromkeys(('rich', 'typer', 'matplotlib', 'safetensors', 'click')));"
)


def bare(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command in a process that has neither rich nor typer nor safetensors."""
    code = f"{BARE} from tilefold.cli import run; sys.exit(run({[str(a) for a in arguments]!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.parametrize("command", PARSERS, ids=lambda command: command or "tilefold")
def test_help_needs_nothing(command: str) -> None:
    done = bare(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_plan_and_the_bench_need_nothing() -> None:
    assert "rows contiguous" in bare("plan", "64x1024").stdout
    assert "sum dim1 32x1024 fp32" in bare("bench", "host", "--dry-run").stdout
    assert bare("plan", "4x4", "--monoid", "wat").stderr.startswith("plan: --monoid: a monoid must be one of")


def test_describe_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "a.safetensors")
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    tables = bare("describe", tmp_path / "a.pt")
    assert (tables.returncode, tables.stdout) == (2, "")
    assert (
        tables.stderr == "describe: tables need rich, got none; pip install 'tilefold[cli]', or take --json\n"
    )
    assert '"count": 3' in bare("describe", "--json", tmp_path / "a.pt").stdout
    other = bare("describe", "--json", tmp_path / "a.safetensors")
    assert other.returncode == 2
    assert re.fullmatch(
        r"describe: .*: the package safetensors must be there to read this file, got none; pip install 'tilefold\[cli\]'\n",
        other.stderr,
    )


def test_xray_shows_the_same_words_without_rich() -> None:
    pytest.importorskip("triton")
    kernel = [
        f"{kernels.__file__}::softmax",
        "--arg",
        "x_ptr=*fp32",
        "--arg",
        "y_ptr=*fp32",
        "--arg",
        "n=i32:1000",
    ]
    options = [*kernel, "--const", "BLOCK=1024", "--grid", "64"]
    plain, rich = bare("xray", *options), run(["xray", *options])
    assert (plain.returncode, plain.stderr, rich.exit_code) == (0, "", 0)
    for part in (
        "sm_90 (H200), 4 warps, 3 stages, grid 64",
        "load 4 B x8: 125",
        "28 shuffles",
        "scalar-access",
    ):
        assert part in plain.stdout
        assert part in re.sub(r"\s+", " ", rich.stdout) or part in rich.stdout
    quoted = " ".join(options)
    two = bare("xray", "diff", quoted, f"{quoted} --num-warps 1 --static")
    assert two.returncode == 0, two.stderr
    assert re.search(r"registers a thread +\d+ +\d+", two.stdout)


def test_lines_on_stderr_are_printable() -> None:
    assert printable("a\x1b[2Jb") == "a\\x1b[2Jb"
