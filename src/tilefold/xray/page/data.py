"""All that a kernel's page shows, as one value of JSON: every number is the report's, or is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilefold.xray.compile.job import Compiled
from tilefold.xray.cuda.readable import UnreadableError, by_regions
from tilefold.xray.cuda.translate import read_line, translate
from tilefold.xray.examine import Examined
from tilefold.xray.ir import Tensor, read
from tilefold.xray.layouts import bases
from tilefold.xray.page.accesses import drawn_accesses
from tilefold.xray.page.passes import compiler_passes
from tilefold.xray.page.source import source_files
from tilefold.xray.page.texts import (
    Keys,
    changed_rows,
    cuda_rows,
    ir_rows,
    llvm_rows,
    near_changes,
    plain_ir,
    ptx_rows,
    sass_rows,
    without_location,
)
from tilefold.xray.render import words
from tilefold.xray.render.summary import summary
from tilefold.xray.report.build import PORT
from tilefold.xray.report.lines import tiles_by_line
from tilefold.xray.report.model import SCHEMA, Line, Observation, Report
from tilefold.xray.report.static import line_of

Document = dict[str, Any]
_MOST_VARIANTS = 4  # of an observation
_MOST_CELLS = 1 << 16  # elements of a tile that is drawn
UNPROVEN = (
    "Not compiled or executed here: tilefold xray --cuda OUT.cu has nvcc's and the X-ray's word for it."
)


def document(made: Examined) -> Document:
    """The page of a report. What it needs besides is made here: the passes of the compiler, and the readable CUDA."""
    report, evidence, keys = made.report, made.evidence, Keys()
    for line in report.lines:
        keys.of((line.file, line.line))
    own = next((place[-1][0] for i in evidence.entry.instructions if (place := evidence.places.place(i))), "")
    ordered = sorted(report.lines, key=lambda line: line.file != own)
    figures = {(line.file, line.line): line for line in ordered if line.line}
    texts = _texts(made, keys)
    passes = compiler_passes(evidence, keys)
    tiles, of_line = _tiles(made, keys)
    accesses, columns = drawn_accesses(evidence, keys), _columns(report)
    known = {place: line.text for place, line in figures.items()}
    return {
        "schema": SCHEMA,
        "kernel": report.kernel,
        "launch": words.launch(report),
        "arguments": list(report.arguments),
        "constants": list(report.constants),
        "summary": [list(pair) for pair in summary(report)],
        "notes": list(report.notes),
        "columns": columns,
        "files": [{"name": name, "rows": rows} for name, rows in source_files(figures, keys, known)],
        "texts": texts,
        **passes,
        "tiles": tiles,
        "keys": [
            _key(place, figures.get(place), columns, report)
            | {"tiles": of_line.get(n, []), "accesses": accesses.get(n, [])}
            for n, place in enumerate(keys.places)
        ],
        "observations": [
            _observation(found, evidence.compiled, variants, keys)
            for found, variants in zip(report.observations, made.variants, strict=True)
        ],
        "roofline": _roofline(report, evidence.compiled),
        "report": report.as_json(),
    }


# ---------------------------------------------------------------------------------------------------------- texts


def _texts(made: Examined, keys: Keys) -> list[Document]:
    """TTIR, TTGIR, LLVM's IR, PTX, machine code and CUDA."""
    evidence = made.evidence
    compiled = evidence.compiled
    text, note = _cuda(compiled)
    places = {(line.file, line.line): line.text for line in made.report.lines if line.line}
    found = [
        ("TTIR", "Triton's IR, before layouts", ir_rows(compiled.ttir, evidence.ttir, keys)),
        (
            "TTGIR",
            "Triton's GPU IR, with a layout for each tile",
            ir_rows(compiled.ttgir, evidence.ttgir, keys),
        ),
        ("LLVM", "LLVM's IR, as its passes leave it", llvm_rows(compiled.llir, keys)),
        ("PTX", "", ptx_rows(evidence, keys)),
        ("SASS", "The machine's instructions, as they are disassembled", sass_rows(evidence, keys)),
        ("CUDA", note, cuda_rows(text, places, keys)),
    ]
    return [{"name": name, "note": said, "rows": rows} for name, said, rows in found]


def _cuda(compiled: Compiled) -> tuple[str, str]:
    from tilefold.xray.ptx import parse

    try:
        return by_regions(compiled, read_line).text, f"As a person would write it. {UNPROVEN}"
    except UnreadableError as error:
        said = str(error).removeprefix("cuda: ").removesuffix("; take the plain form")
        return translate(
            parse(compiled.ptx), lines=read_line
        ), f"A statement an instruction ({said}). {UNPROVEN}"


# ---------------------------------------------------------------------------------------------------------- lines


def _columns(report: Report) -> list[list[Any]]:
    """What stands in the margin, if any line has some: a head, what it means, the most of a line, its place in `_figures`."""
    heads = [
        ["instr.", "instructions issued by warps, a program"],
        ["sectors", "sectors of 32 bytes that requests touch, a program"],
        ["conflicts", "passes through the banks of shared memory that only conflicts cost, a program"],
    ] if report.executed else [["code", "instructions of the machine"], ["PTX", "instructions of PTX"]]  # fmt: skip
    most = [
        max(n for n, _ in column)
        for column in zip(*(_figures(line, report) for line in report.lines), strict=True)
    ]
    return [[*head, top, c] for c, (head, top) in enumerate(zip(heads, most, strict=False)) if top]


def _figures(line: Line, report: Report) -> list[tuple[float, float]]:
    """For each head the number of a line, and what of it was not needed."""
    if line.work is None:
        return [(line.sass, 0), (line.ptx, 0)]
    n = max(len(report.programs), 1)
    moved = [(a.sectors, a.ideal or 0) for a in line.accesses if a.sectors is not None]
    lost = sum(a.passes - (a.ideal or 0) for a in line.accesses if a.passes is not None)
    sectors, ideal = (sum(part) for part in zip(*moved, strict=True)) if moved else (0, 0)
    return [(line.work.issued / n, 0), (sectors / n, max(sectors - ideal, 0) / n), (lost / n, 0)]


def _key(
    place: tuple[str, int], line: Line | None, columns: Sequence[Sequence[Any]], report: Report
) -> Document:
    head: Document = {"file": Path(place[0]).name, "line": place[1], "cells": [], "said": []}
    if line is None:
        return head
    n, figures = max(len(report.programs), 1), _figures(line, report)
    cells = [
        [words.count(number) if number else "", round(number / top, 3), round(spare / number, 2) if number else 0]
        for _, _, top, c in columns for number, spare in figures[c : c + 1]
    ]  # fmt: skip
    issued = (
        []
        if line.work is None
        else [f"{words.count(line.work.issued / n)} instructions issued by warps, a program"]
    )
    off = (
        []
        if line.work is None or not line.work.lanes_off
        else [f"{line.work.lanes_off / 32 / line.work.issued:.0%} of lanes off"]
    )
    said = [
        f"{words.plural(line.sass, 'instruction')} of the machine, {line.ptx} of PTX", *issued, *off,
        *(words.access(a, n) for a in line.accesses), *words.others(line, report), *words.layouts(line.layouts),
    ]  # fmt: skip
    return head | {"cells": cells, "said": said}


def _tiles(made: Examined, keys: Keys) -> tuple[list[Document], dict[int, list[int]]]:
    """Tiles that are drawn, each once, and which of them a line has."""
    ttgir, report = made.evidence.ttgir, made.report
    numbers: dict[tuple[str, Tensor], int] = {}
    of_line: dict[int, list[int]] = {}
    # What words leave out comes last, the largest tile first.
    listed_tiles = sorted(
        tiles_by_line(ttgir), key=lambda each: (each[1] in words.ADDRESSES, -each[2].elements)
    )
    for place, operation, tensor in listed_tiles:
        if bases(tensor, ttgir.aliases) is None or not 0 < tensor.elements <= _MOST_CELLS or not tensor.shape:
            continue
        number = numbers.setdefault((operation, tensor), len(numbers))
        listed = of_line.setdefault(keys.of(place), [])
        listed += [] if number in listed else [number]
    found = []
    for operation, tensor in numbers:
        held = bases(tensor, ttgir.aliases)
        assert held is not None
        layouts = [
            x
            for line in report.lines
            for x in line.layouts
            if (x.operation, x.shape) == (operation, tensor.shape)
        ]
        found.append({
            "name": f"{operation} {words.dims(tensor.shape)} {tensor.pointee}", "shape": tensor.shape,
            "said": words.layouts(tuple(layouts[:1])), "register": held.register, "lane": held.lane, "warp": held.warp,
        })  # fmt: skip
    return found, of_line


# --------------------------------------------------------------------------------------------------- observations


def _observation(found: Observation, first: Compiled, variants: Sequence[Compiled], keys: Keys) -> Document:
    tried = [one for variant in variants if (one := _tried(found, first, variant))]
    return {
        "severity": found.severity,
        "code": found.code,
        "stake": words.duration(found.us_at_stake) if found.us_at_stake else "",
        "quiet": found.quiet,
        "place": words.place(found),
        "keys": [n for place in found.places if found.line and (n := keys.of(place)) >= 0],
        "parts": words.observation(found),
        "tried": tried[:_MOST_VARIANTS],
        "untold": max(len(tried) - _MOST_VARIANTS, 0),
    }


def _tried(found: Observation, first: Compiled, variant: Compiled) -> Document | None:
    """What differs in a variant: its launch, or its TTIR at the observation's lines; None where it differs elsewhere."""
    launch = [
        (f"{name}={mine}", f"{name}={other}") for name in ("num_warps", "num_stages")
        if (mine := getattr(first.job, name)) != (other := getattr(variant.job, name))
    ] + [
        (f"{mine.name}={mine.value}", f"{other.name}={other.value}")
        for mine, other in zip(first.job.arguments, variant.job.arguments, strict=True) if mine != other
    ]  # fmt: skip
    if launch:
        return {"title": "the launch", "rows": [row for a, b in launch for row in (["-", a], ["+", b])]}
    rows = [] if variant.ttir == first.ttir else _differing(first, variant, set(found.lines))
    return {"title": "the TTIR", "rows": rows} if rows else None


def _differing(first: Compiled, variant: Compiled, lines: set[int]) -> list[list[str]]:
    """Rows near those in which a variant's TTIR differs; none where it differs at other lines of source."""
    sides = [compiled.ttir.splitlines() for compiled in (first, variant)]
    rows = [[without_location(row) for row in side if not row.startswith("#loc")] for side in sides]
    places = [{o.row: line_of(o.place) for o in read(c.ttir).walk()} for c in (first, variant)]
    kept = [[n for n, row in enumerate(side) if not row.startswith("#loc")] for side in sides]
    marked = list(changed_rows(*map(plain_ir, rows)))
    there = {
        place[1] for mark, i, j in marked if mark != " "
        for place in [places[mark == "+"].get(kept[mark == "+"][j if mark == "+" else i])] if place is not None
    }  # fmt: skip
    if not there & lines:
        return []
    shown = near_changes([mark for mark, *_ in marked], 1)
    return [
        [mark, rows[1][j] if mark == "+" else rows[0][i]]
        for (mark, i, j), near in zip(marked, shown, strict=True)
        if near
    ]


# ------------------------------------------------------------------------------------------------------- roofline


def _roofline(report: Report, compiled: Compiled) -> Document | None:
    """The least times of the launch, and its place under the chip's roofs."""
    line = report.roofline
    if line is None:
        return None
    chip = compiled.job.chip
    rate = chip.fp16_per_clock if line.units == "tensor cores" else chip.fp32_per_clock
    times: Sequence[tuple[str, float, str]] = (
        ("memory", line.memory_us, f"{words.size(line.bytes_once)}, each byte once"),
        ("L2", line.l2_us, f"{words.size(line.bytes_moved)} that requests ask of L2"),
        (line.units, line.compute_us, f"{words.count(line.flops)} operations"),
    )
    most = max(time for _, time, _ in times) or 1.0
    return {
        "times": [
            [name, words.duration(time), round(100 * time / most, 1), said] for name, time, said in times
        ],
        "bound": line.bound,
        "waves": words.waves(line.waves),
        "chip": chip.name,
        "units": line.units,
        "flops": line.flops,
        "once": line.bytes_once,
        "moved": line.bytes_moved,
        "memory_gb": chip.gb_per_s,
        "l2_gb": PORT * line.sms * chip.clock_mhz / 1e3,
        "peak_gflop": rate * chip.sms * chip.clock_mhz / 1e3,
    }
