"""The page of documentation, from the results."""

from __future__ import annotations

from collections import Counter
from typing import Any

# What is behind each case that does not agree, found by reading the package's source and the report.
REASONS = {
    ("flag-gems", "argmin"): (
        "FlagGems' own: `argmin_kernel_opt_k1` loads with `mask=True`, so that behind a row of 300 it takes elements of the "
        "next one in; torch doing so gives 7 wrong elements, too. The report says `out-of-bounds`; with 256 columns the same "
        "kernel agrees."
    ),
    ("flag-gems", "isin_of_300"): (
        "FlagGems' own: a lane that the last tile masks forgets what it found in the tiles before; torch doing so gives 12 "
        "wrong elements, too. The report says `wrong-fill`, already where one tile is enough and the answer right."
    ),
}


def kernels(
    cases: list[dict[str, Any]],
) -> dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Launches with their case, by package and kernel. Inductor numbers its kernels: there each case has its own."""
    found: dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for case in cases:
        for launch in case["launches"]:
            name = (
                f"{case['case']}: {launch['kernel']}" if "Inductor" in case["package"] else launch["kernel"]
            )
            found.setdefault((case["package"], name), []).append((case, launch))
    return found


def agrees(case: dict[str, Any]) -> bool:
    """Whether all that a case computed is right."""
    return bool(case["checked"]) and not case["wrong"] and not case["failure"]


def counts(results: dict[str, Any]) -> dict[str, Counter[str]]:
    """Of each package: kernels tried, reported, executed, and with an output that agrees."""
    found: dict[str, Counter[str]] = {}
    for (package, _), launched in kernels(results["cases"]).items():
        one = found.setdefault(package, Counter())
        one["tried"] += 1
        one["reported"] += all(x["reported"] for _, x in launched)
        one["executed"] += all(x["executed"] for _, x in launched)
        one["agrees"] += all(x["executed"] and agrees(case) for case, x in launched)
    return found


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    by_package = counts(results)
    total: Counter[str] = sum(by_package.values(), Counter())
    rows = [
        f"| {name} | {n['tried']} | {n['reported']} | {n['executed']} | {n['agrees']} |"
        for name, n in [*by_package.items(), ("**all**", total)]
    ]
    return "\n".join(
        [
            _HEAD.format(date=results["date"], target=results["target"], versions=versions),
            "| package | kernels tried | reports | executed | output agrees |",
            "|---|---:|---:|---:|---:|",
            *rows,
            _MIDDLE.format(unknown=_unknown(results["cases"])),
            *_failures(results["cases"]),
            _BEFORE_ALL,
            "| package | case | kernels | programs | instructions | outcome |",
            "|---|---|---|---:|---:|---|",
            *[_row(case) for case in results["cases"]],
            "",
        ]
    )


def _unknown(cases: list[dict[str, Any]]) -> str:
    """Which launches met an instruction that the interpreter does not know."""
    met = [f"`{x['kernel']}` ({x['unknown']})" for c in cases for x in c["launches"] if x["unknown"]]
    return (
        f"Unknown instructions: {'; '.join(met)}."
        if met
        else "No launch met an instruction that the interpreter does not know."
    )


def _failures(cases: list[dict[str, Any]]) -> list[str]:
    found = [c for c in cases if not agrees(c)]
    if not found:
        return ["None."]
    return [
        f"- {c['package']}, `{c['case']}`: {_said(c)}. {REASONS.get((c['package'], c['case']), '')}".rstrip()
        for c in found
    ]


def _said(case: dict[str, Any]) -> str:
    return (
        (case["failure"] or "; ".join(case["wrong"]) or "nothing was compared")
        .rstrip(".")
        .replace("|", "\\|")
    )


def _row(case: dict[str, Any]) -> str:
    launches = case["launches"]
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(x["kernel"] for x in launches))
    programs = sum(_product(x["grid"]) for x in launches)
    issued = sum(x["instructions"] for x in launches)
    outcome = "agrees" if agrees(case) else "see above"
    return f"| {case['package']} | {case['case']} | {names} | {programs} | {issued} | {outcome} |"


def _product(grid: list[int]) -> int:
    total = 1
    for n in grid:
        total *= n
    return total


_HEAD = """# The X-ray on kernels of others

Kernels of public packages, as their own wrappers launch them, reported and executed by the X-ray on a machine without a
GPU, and what they computed compared with torch. Written by `python benchmarks/xray_public` on {date} for {target}, with
{versions}.
Every launch with its arguments, observations and counts is in `benchmarks/xray_public/results.json`.

How: Triton's launch is replaced. A package's wrapper is called with tensors on the host and decides grid, warps and
constants as always (an autotuned kernel gets the first configuration that compiles); the launch asks
`tilefold.xray.explain` for the report, executes every program of the grid in the interpreter, and writes into the
tensors what they stored. The chip that wrappers see is an H200 with 8 SMs in place of 132, so that kernels that spread
over SMs stay small. Inductor compiles its graphs for fake CUDA tensors; its wrapper code then runs as it stands.
Autograd's backward passes are launched and compared in the same way.

What is not in the table: wrappers that refuse tensors that are on no CUDA device and so launch nothing (FlagGems' `where`,
`maximum` and `upsample_nearest2d` were tried), and graphs that take views of their inputs, which torch without CUDA does not
trace for fake CUDA tensors (a transpose and a slice were tried). No result here was compared with a GPU's.

Results are compared with torch in float64: an error may be 2e-5 of the largest magnitude in float32, 2e-3 in float16,
1.6e-2 in bfloat16; integers must be equal. A kernel counts as agreeing if every case that launched it does.
"""
_MIDDLE = """
{unknown}
The library's own kernels are not in this table: every family, for sm_80 and sm_90, is executed and compared in
`tests/xray` (`test_folds`, `test_library_products`).

## What does not agree, and why
"""
_BEFORE_ALL = """
## All cases
"""
