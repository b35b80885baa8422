"""The command: dry runs and CPU runs on any machine, exit codes, and life without rich, typer and matplotlib."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tilefold.bench.cases as bench_cases
from tilefold import cli
from tilefold.bench import run as bench_run
from tilefold.bench import suites
from tilefold.bench.results import read_results
from tilefold.bench.timing import SLOW_US

ROOT = Path(__file__).parents[2]
QUICK = ["--device", "cpu", "--warmup-ms", "0.1", "--repeat-ms", "0.5"]


def run(*argv: str) -> int:
    return cli.run(["bench", *argv])


# ---------------------------------------------------------------------------------------------------- dry runs


@pytest.mark.parametrize("name", suites.suite_names())
def test_dry_run_lists_cases_bytes_and_floors(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--dry-run") == 0
    shown = capsys.readouterr().out
    cases = suites.load_suite(name).cases("full")
    assert f"{len(cases)} cases, floors at 4251 GB/s" in shown
    for case in cases:
        assert re.search(
            rf"^{re.escape(case.name)} +{case.compulsory_bytes} +{case.operations} ", shown, re.MULTILINE
        )


def test_dry_run_of_everything_draws_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_cases.Case, "draw", lambda *_: pytest.fail("drew an input"))
    assert run("--dry-run", "--gb-per-s", "1000") == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name}: " in f"\n{shown}" for name in suites.suite_names())
    assert re.search(
        r"^bitwise_or dim2 2048x4096x16 int64 +1140850688 +\d+ +1140\.85 +exact$", shown, re.MULTILINE
    )
    assert "tolerance: " in shown


# ----------------------------------------------------------------------------------------------------- CPU runs


@pytest.mark.parametrize(
    ("name", "selection"),
    [
        ("or-small-axis", []),
        ("folds", ["--shapes", "4096x8,4x8x4", "--dtype", "fp32,int64"]),
        ("host", ["--operations", "sum,var"]),
        ("cpu", ["--shapes", "4096x64"]),
    ],
)
def test_a_suite_runs_on_a_cpu(
    name: str, selection: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert run(name, *QUICK, *selection, "--out", str(tmp_path)) == 0
        assert torch.get_num_threads() == (
            1 if name == "host" else 2
        )  # of a call's own cost no other thread has a part
    finally:
        torch.set_num_threads(threads)
    result = read_results(tmp_path / f"{name}.json")
    assert result.cases
    for case in result.cases:
        ours, theirs = case.of("ours"), case.of("torch")
        assert ours is not None
        assert ours.time_us is not None
        assert ours.plan
        assert ours.fraction
        assert ours.host_us or ours.time_us.median_us > SLOW_US
        assert theirs is not None
        assert theirs.status == "ok"
    (made,) = result.runs
    assert made.copy_gb_per_s
    assert made.copy_again_gb_per_s
    assert made.command is not None
    assert made.command.startswith(f"tilefold bench {name}")
    assert (tmp_path / f"{name}.csv").read_text().count("\n") == 1 + sum(
        len(c.measurements) for c in result.cases
    )
    shown = capsys.readouterr().out
    assert "cases checked and timed" in shown
    assert f"[{len(result.cases)}/{len(result.cases)}, 0:00 left]" in shown
    assert (
        len(result.cases) == 1 or f"[1/{len(result.cases)}] " in shown
    )  # nothing is known of the time left yet


def test_forms_that_need_a_gpu_are_named_so_on_a_cpu(tmp_path: Path) -> None:
    assert run("or-small-axis", *QUICK, "--shapes", "4x8x4", "--out", str(tmp_path)) == 0
    case = read_results(tmp_path / "or-small-axis.json").cases[0]
    assert {m.variant: m.status for m in case.measurements} == {
        "ours": "ok", "reduce 3-D": "needs a GPU", "unrolled loads": "needs a GPU", "reduce flat": "needs a GPU",
        "register tree": "needs a GPU", "torch": "ok",
    }  # fmt: skip


def test_a_missing_peer_is_named_with_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sum_only = ["--operations", "sum", "--dims", "1", "--against", "torch,quack", "--out", str(tmp_path)]
    assert run("host", *QUICK, *sum_only) == 0
    shown = capsys.readouterr().out
    assert f"peer torch: {torch.__version__.split('+')[0]}" in shown
    assert "peer quack: missing" in shown
    result = read_results(tmp_path / "host.json")
    assert result.runs[0].peers["quack"] is None
    missing = result.cases[0].of("quack")
    assert missing is not None
    assert (missing.status, missing.time_us) == ("missing", None)


def test_nobody_is_a_choice_of_peers(tmp_path: Path) -> None:
    sum_only = ["--operations", "sum", "--dims", "1", "--against", "none", "--out", str(tmp_path)]
    assert run("host", *QUICK, *sum_only) == 0
    (case,) = read_results(tmp_path / "host.json").cases
    assert [m.variant for m in case.measurements] == ["ours"]


def test_only_the_variants_that_are_asked_for(tmp_path: Path) -> None:
    quick = ["--dtype", "bf16", "--operations", "matmul", "--out", str(tmp_path)]
    assert run("router", *QUICK, "--size", "small", "--variant", "torch", "--variant", "ours", *quick) == 0
    for case in read_results(tmp_path / "router.json").cases:
        assert [m.variant for m in case.measurements] == ["ours", "torch"]


def test_parts_are_all_cases_once(tmp_path: Path) -> None:
    for part in ("1/2", "2/2"):
        quick = ["--operations", "sum", "--part", part, "--out", str(tmp_path / part[0])]
        assert run("host", *QUICK, *quick) == 0
    files = [tmp_path / part / "host.json" for part in "12"]
    names = ["sum dim1 32x1024 fp32", "sum dim0 32x1024 fp32"]
    assert [case.name for file in files for case in read_results(file).cases] == names
    for order in (files, files[::-1]):
        assert run("merge", *map(str, order), "--out", str(tmp_path)) == 0
        merged = read_results(tmp_path / "host.json")
        assert [case.name for case in merged.cases] == names, "as the suite lists them"
    assert len(merged.runs) == 2


def test_what_there_is_no_time_for_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("host", *QUICK, "--budget-s", "-1", "--out", str(tmp_path)) == 1
    assert "out of time: 12 cases not run" in capsys.readouterr().out
    assert {m.status for c in read_results(tmp_path / "host.json").cases for m in c.measurements} == {
        "not run"
    }


@pytest.mark.parametrize("done", [0, 1])
def test_ctrl_c_keeps_what_is_done(
    done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = bench_run.measure_case

    def interrupted(bench: Any, case: Any, variants: Any) -> Any:
        if case.dim == (1 if done == 0 else 0):
            raise KeyboardInterrupt
        return measure(bench, case, variants)

    monkeypatch.setattr(bench_run, "measure_case", interrupted)
    assert run("host", *QUICK, "--operations", "sum", "--out", str(tmp_path)) == 130
    result = read_results(tmp_path / "host.json")
    assert [case.of("ours").status for case in result.cases].count("ok") == done  # type: ignore[union-attr]  # ours is there
    assert f"interrupted after {done} of 2 cases" in result.runs[0].notes[0]
    captured = capsys.readouterr()
    assert f"interrupted: {done} of 2 cases are in {tmp_path / 'host'}.json" in captured.out
    assert captured.err == "bench: interrupted\n"


def as_a_terminal() -> None:
    """A shell's background jobs, and all that they start, would not hear of Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_terminals_ctrl_c_ends_a_run_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tilefold.bench", "folds", *QUICK, "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=as_a_terminal,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("[3/"):
            child.send_signal(signal.SIGINT)
            break
    out, err = child.communicate()
    assert (child.returncode, err) == (130, "bench: interrupted\n")
    assert "interrupted: " in out
    kept = [case for case in read_results(tmp_path / "folds.json").cases if case.of("ours").time_us]  # type: ignore[union-attr]  # ours is there
    assert len(kept) >= 3


def test_files_are_kept_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed loses the case at hand and a few seconds."""
    measure, seen = bench_run.measure_case, []

    def watched(bench: Any, case: Any, variants: Any) -> Any:
        path = tmp_path / "host.json"
        seen.append(
            sum(bool(c.measurements[0].time_us) for c in read_results(path).cases) if path.exists() else 0
        )
        return measure(bench, case, variants)

    monkeypatch.setattr(bench_run, "measure_case", watched)
    monkeypatch.setattr(bench_run, "SAVED_EVERY_S", 0.0)
    assert run("host", *QUICK, "--dims", "1", "--operations", "sum,amax,var", "--out", str(tmp_path)) == 0
    assert seen == [0, 1, 2]


def test_a_device_that_broke_costs_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = iter([10.0, 10.0, 10.0])
    monkeypatch.setattr(bench_run.limits, "copy_gb_per_s", lambda *_: next(copies))
    assert run("host", *QUICK, "--operations", "sum", "--out", str(tmp_path)) == 0
    result = read_results(tmp_path / "host.json")
    assert all(case.of("ours").time_us for case in result.cases)  # type: ignore[union-attr]  # ours is there
    assert "the copy could not be measured once more" in result.runs[0].notes[0]


def test_a_copy_that_changed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = iter([10.0, 10.0, 10.0, 5.0])
    monkeypatch.setattr(bench_run.limits, "copy_gb_per_s", lambda *_: next(copies))
    assert run("host", *QUICK, "--operations", "sum", "--dims", "1", "--out", str(tmp_path)) == 0
    assert "the copy ran at 5 GB/s when all was done: the machine was not steady" in capsys.readouterr().out


def test_nothing_is_measured_for_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_run, "measure_case", lambda *_: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    assert run("host", *QUICK, "--out", str(tmp_path / "file")) == 2
    assert "--out must be a folder that can be written" in capsys.readouterr().err


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(bench_run, "measure_case", lambda *_: pytest.fail("measured"))
    assert run("host", *QUICK, "--plots", "--out", str(tmp_path)) == 2
    assert "pip install 'tilefold[bench]'" in capsys.readouterr().err


def test_a_variant_of_the_suites_own_alone_is_no_failure(tmp_path: Path) -> None:
    quick = ["--shapes", "1x32x512", "--operations", "matmul", "--out", str(tmp_path)]
    assert run("router", *QUICK, "--size", "small", "--variant", "torch", *quick) == 0
    assert run("router", *QUICK, "--size", "small", "--variant", "ours", "--against", "torch", *quick) == 0
    (case,) = read_results(tmp_path / "router.json").cases
    assert [m.variant for m in case.measurements] == ["ours", "torch"]  # a suite's own may be named as a peer


def test_a_wrong_answer_of_ours_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tilefold

    monkeypatch.setattr(tilefold, "sum", lambda x, dim: x.sum(dim) + 9)
    assert run("host", *QUICK, "--operations", "sum", "--dims", "1", "--out", str(tmp_path)) == 1
    assert "WRONG: sum dim1 32x1024 fp32, ours" in capsys.readouterr().out


def test_plots_and_show_read_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--operations", "sum", "--out", str(tmp_path), "--plots"]
    assert run("host", *QUICK, *quick) == 0
    assert (tmp_path / "plots" / "host-grid.png").exists()
    assert run("show", str(tmp_path / "host.json")) == 0
    assert run("plot", str(tmp_path / "host.json"), "--out", str(tmp_path / "again")) == 0
    assert (tmp_path / "again" / "host-dim-1.png").exists()
    assert "sum dim1 32x1024 fp32" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # Inductor's own imports warn
def test_torch_compile_is_checked_before_it_is_timed_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer's way through the gate and its own check; aot_eager stands for Inductor, which wants a C++ compiler."""
    import torch._dynamo as dynamo

    from tilefold.bench import peers, traps

    compiling = traps.fresh_compile
    monkeypatch.setattr(traps, "fresh_compile", lambda call, mode: compiling(call, backend="aot_eager"))
    assert peers.COMPILE_MODE == "max-autotune-no-cudagraphs"
    quick = ["--against", "compile", "--out", str(tmp_path)]
    with dynamo.config.patch(fail_on_recompile_limit_hit=False):
        assert run("host", *QUICK, *quick) == 0
    dynamo.reset()
    result = read_results(tmp_path / "host.json")
    assert [m.status for case in result.cases for m in case.measurements] == ["ok"] * 24


def test_several_suites_share_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--dtype", "fp32", "--against", "none", "--variant", "ours", "--out", str(tmp_path)]
    assert run("transpose,topk", *QUICK, *argv) == 0
    shown = capsys.readouterr().out
    for name in ("transpose", "topk"):
        assert f"{name}: copy " in shown
        assert f"{name}: seconds of " in shown
        assert f"written: {tmp_path / name}.json" in shown
        cases = read_results(tmp_path / f"{name}.json").cases
        assert {m.status for case in cases for m in case.measurements} == {"ok"}


# --------------------------------------------------------------------------------------------------- exit code 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["wat"], "one that exists, got 'wat'; there are atomic-sum, cpu, decompose-k, folds"),
        ([], "SUITE must be one of"),
        (
            ["folds", "--device", "cpu", "--shapes", "3xx3"],
            "--shapes: a shape must be sizes joined by x, got '3xx3'",
        ),
        (["folds", "--device", "cpu", "--shapes", "3x0"], "--shapes must be sizes from 1 on, got '3x0'"),
        (
            ["folds", "--device", "cpu", "--shapes", "3x3", "--dims", "2"],
            r"`dim` must be in \[-2, 1\] .* got 2",
        ),
        (
            ["folds", "--device", "cpu", "--dims", "0,1"],
            "--dims must be of 1, 0, 2 here, got '0,1'; .* --shapes of your",
        ),
        (
            ["router", "--dry-run", "--shapes", "16x16"],
            "--shapes must fit an operation of router .* got '16x16'",
        ),
        (["router", "--dry-run", "--monoid", "sum"], "--monoid must be given a suite of folds, got router"),
        (["folds", "--dry-run", "--monoid", "wat"], "--monoid: a monoid must be one of .* got 'wat'"),
        (["folds", "--device", "cpu", "--dtype", "fp8"], "--dtype must be of bf16, .* got 'fp8'"),
        (
            ["router", "--device", "cpu", "--size", "small", "--variant", "theirs"],
            "--variant must be of ours; torch; .* got 'theirs'",
        ),
        (["folds", "--device", "cpu", "--against", "numpy"], "--against must be of torch, .* got 'numpy'"),
        (["show", "no.json"], "must be a readable JSON file"),
        (
            ["host", "--device", "cpu", "--operations", "sum", "--part", "9/9"],
            "must leave a case of host, got none",
        ),
        (["host", "--device", "tpu"], "--device must be cpu, cuda or cuda:1 ..., got 'tpu'"),
        (["host", "--dry-run", "--against", "wat"], "--against must be of torch, .* got 'wat'"),
        (
            ["host", "--dry-run", "--variant", "wat"],
            "--variant must be of ours, got 'wat'",
        ),
        (["--dry-run", "--dtype", "fp8"], "--dtype must be of fp32 here, got 'fp8'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_one_line(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said, line)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--shapes", ","), ("--dtype", ""), ("--jobs", "-1"), ("--jobs", "²"), ("--budget-s", "nan"),
        ("--warmup-ms", "inf"), ("--repeat-ms", "nan"), ("--repeat-ms", "-1"), ("--gb-per-s", "0"), ("--part", "²/3"),
    ],
)  # fmt: skip
def test_a_value_that_means_nothing_is_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("host", "--device", "cpu", flag, value) == 2
    assert re.search(rf"{flag} must (be|name) .*got '{value}'", capsys.readouterr().err)


def test_a_gpu_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert run("host", "--device", "cuda:2") == 2
    assert "--device must be one of this machine's GPUs (2), got 'cuda:2'" in capsys.readouterr().err


def test_a_dry_run_of_all_suites_lists_those_that_have_such_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--dry-run", "--dtype", "fp16") == 0
    shown = capsys.readouterr().out
    assert [line.split(":")[0] for line in shown.splitlines() if " cases, floors" in line] == [
        "decompose-k",
        "products",
        "shapes",
    ]


def test_a_suite_of_the_cpu_runs_there_whatever_is_asked_for(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        quick = [*QUICK[2:], "--shapes", "4096x64", "--operations", "sum", "--out", str(tmp_path)]
        assert run("cpu", "--device", "cuda", *quick) == 0
    finally:
        torch.set_num_threads(threads)


def test_without_a_gpu_the_fix_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("folds") == 2
    assert "folds needs a GPU, got a machine without one; try --device cpu" in capsys.readouterr().err
    for suite in ("decompose-k", "products", "router"):
        assert run(suite) == 2
        assert f"{suite} needs a GPU, got a machine without one" in capsys.readouterr().err
        assert run(suite, "--device", "cpu") == 2
        assert f"{suite} needs a GPU, got --device cpu" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["0/2", "3/2", "x", "1"])
def test_a_part_that_is_none_is_refused(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("folds", "--part", part) == 2
    assert "must be I/N, I from 1 to N, got" in capsys.readouterr().err


def test_help_names_suites_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*suites.suite_names(), "compare", "plot", "merge", "exit code"))


def test_it_runs_without_rich_typer_and_matplotlib(tmp_path: Path) -> None:
    """As on a GPU's machine that has torch and Triton only."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(('rich', 'typer', 'matplotlib', 'safetensors')))"
    argv = ["host", *QUICK, "--operations", "sum", "--out", str(tmp_path)]
    code = f"{blocked}; from tilefold.cli import run; sys.exit(run({['bench', *argv]}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "host.json").read_text())["suite"] == "host"
