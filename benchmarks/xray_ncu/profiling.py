"""Nsight Compute around the launches: which counters it has, then two runs, one of hardware counters, one of patched code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Of all counters that it knows for the chip, those whose names match; each is asked for as a sum over the chip.
WANTED = (
    r"smsp__inst_executed",
    r"smsp__inst_executed_op_(global|shared|local|ldgsts|ldsm|stsm|barrier)\w*",
    r"(sm|smsp)__sass_inst_executed_op_(global|shared|local|ldgsts|ldsm|stsm|barrier)\w*",
    r"l1tex__t_(sectors|requests)_pipe_lsu_mem_global_op_(ld|st|atom|red|ldgsts\w*)",
    r"l1tex__data_(bank_conflicts_pipe_lsu|pipe_lsu_wavefronts)_mem_shared\w*",
    r"(sm|smsp)__sass_l1tex_\w*mem_shared\w*",
    r"(sm|smsp)__sass_l1tex_t_(sectors|requests)_\w*mem_global\w*",
    r"l1tex__t_(set_accesses|output_wavefronts|set_conflicts)_pipe_lsu_mem_global_op_(atom|red)",
    r"l1tex__m_l1tex2xbar_write_(sectors|bytes)_mem_global_op_(atom|red)",
    r"lts__t_(requests|sectors)(_srcunit_tex)?_op_(atom|red)",
    r"lts__d_atomic_input_cycles_active",
)
USUAL = (
    "smsp__inst_executed",
    *(
        f"l1tex__t_{what}_pipe_lsu_mem_global_op_{operation}"
        for what in ("sectors", "requests")
        for operation in ("ld", "st", "atom", "red")
    ),
    *(
        f"l1tex__data_{what}_mem_shared_op_{operation}"
        for what in ("bank_conflicts_pipe_lsu", "pipe_lsu_wavefronts")
        for operation in ("ld", "st")
    ),
)  # fmt: skip
# Counted by patching the machine code. These are in no list that can be asked for offline, so smaller sets are tried.
PATCHED = (
    (
        "sass__inst_executed_per_opcode",
        "sass__inst_executed_per_opcode_with_modifier_all",
        "memory_l1_wavefronts_shared",
        "memory_l1_wavefronts_shared_ideal",
        "memory_l2_theoretical_sectors_global",
        "memory_l2_theoretical_sectors_global_ideal",
        "inst_executed",
        "thread_inst_executed_true",
    ),
    (
        "sass__inst_executed_per_opcode",
        "memory_l1_wavefronts_shared",
        "memory_l1_wavefronts_shared_ideal",
        "inst_executed",
    ),
    ("sass__inst_executed_per_opcode",),
)


def profile(folder: Path) -> None:
    """Profile every launch; leaves `hardware.csv`, `patched.csv`, `source.csv`, `versions.json` and logs in a folder."""
    if shutil.which("ncu") is None:
        raise SystemExit("xray_ncu: profile needs Nsight Compute's ncu, and a GPU; got no ncu on the PATH")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")
    available = known_counters()
    (folder / "available.txt").write_text("\n".join(sorted(available)) + "\n")
    chosen = [f"{name}.sum" for name in wanted(available)]
    print(f"{len(available)} counters known, {len(chosen)} taken", flush=True)
    _collect(folder / "hardware", chosen)
    _export(folder / "hardware", folder / "hardware.csv", "raw")
    for metrics in PATCHED:
        if _collect(folder / "probe", metrics, "--first"):
            _collect(folder / "patched", metrics)
            _export(folder / "patched", folder / "patched.csv", "raw")
            _export(folder / "patched", folder / "source.csv", "source")
            return
    print("none of the patched counters could be had", flush=True)


def known_counters() -> set[str]:
    """Names of counters for the GPU that is there; a few that every recent one has, where ncu does not list them."""
    for options in ([], ["--chips", "gh100"]):
        said = subprocess.run(["ncu", "--query-metrics", *options], capture_output=True, text=True)
        rows = [row.split() for row in said.stdout.splitlines()]
        names = {r[0] for r in rows if r and "__" in r[0] and (len(r) < 2 or r[1] == "Counter")}
        if names:
            return names
    print(f"ncu lists no counters: {said.stdout[-300:]!r} {said.stderr[-300:]!r}", flush=True)
    return set(USUAL)


def wanted(available: set[str]) -> list[str]:
    """Those of the counters that the comparison may use."""
    return sorted(n for n in available if any(re.fullmatch(pattern, n) for pattern in WANTED))


def versions() -> dict[str, str]:
    """What ran, on what."""
    import torch
    import triton

    said = subprocess.run(["ncu", "--version"], capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+)", said)
    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "ncu": found[1] if found else said.strip(),
    }  # fmt: skip


def _collect(report: Path, metrics: tuple[str, ...] | list[str], *options: str) -> bool:
    """Run all launches under ncu with these counters; whether there is a report."""
    command = [
        "ncu", "--force-overwrite", "--export", str(report), "--clock-control", "none", "--cache-control", "none",
        "--metrics", ",".join(metrics), sys.executable, str(HERE), "run", *options,
    ]  # fmt: skip
    with report.with_suffix(".log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
    made = report.with_suffix(".ncu-rep").is_file()
    refused = re.search(r"[Ff]ailed to find metric", report.with_suffix(".log").read_text(errors="replace"))
    print(f"{report.name}: exit {done.returncode}, {'a report' if made else 'no report'}"
          f"{', some counters refused' if refused else ''}", flush=True)  # fmt: skip
    return made and not done.returncode and not refused


def _export(report: Path, to: Path, page: str) -> None:
    details = ["--print-metric-instances", "details"] if page == "raw" else ["--print-source", "sass"]
    options = [
        "--import",
        str(report.with_suffix(".ncu-rep")),
        "--csv",
        "--page",
        page,
        "--print-units",
        "base",
        *details,
    ]
    with to.open("w") as file:
        done = subprocess.run(["ncu", *options], stdout=file, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"{to.name}: exit {done.returncode}: {done.stderr[-300:]}", flush=True)
