"""Numbers and layouts as short texts, the same in every view."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tilefold.xray.report.model import Access, Layout, Line, Observation, Report

# Opcodes of the PTX that are counted by what they do.
_KINDS = {
    "shfl": "shuffle", "redux": "shuffle", "bar": "barrier", "barrier": "barrier", "mma": "tensor-core instruction",
    "wgmma.mma": "tensor-core instruction", "tcgen05.mma": "tensor-core instruction",
}  # fmt: skip
ADDRESSES = ("addi", "muli", "subi", "divsi", "remsi", "cmpi", "andi", "extsi", "trunci")


def count(n: float) -> str:
    """672, 7.4k, 1.2M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if n >= size:
            return f"{n / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{n:.0f}" if n >= 10 or n == int(n) else f"{n:.1f}"


def size(n: float) -> str:
    """Bytes: 32 B, 4.0 kB, 268 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.0f} B"


def duration(us: float) -> str:
    """Microseconds, or nanoseconds where there is less than one."""
    return f"{us * 1e3:.3g} ns" if us < 1 else f"{us:.3g} us"


def waves(n: float) -> str:
    """How often all SMs are filled: 0.1 waves, 3.5 waves."""
    return "1 wave" if n == 1 else f"{n:.2g} waves" if n < 10 else f"{n:.0f} waves"


def dims(sizes: tuple[int, ...]) -> str:
    """128x64."""
    return "x".join(map(str, sizes))


def layouts(found: tuple[Layout, ...]) -> list[str]:
    """Who holds what, tiles held alike together: `load, exp 128x64 f16: 1x8 a thread, 8x4 lanes, 4x1 warps`.

    Arithmetic of addresses and masks is left out where the line has more to show.
    """
    shown = [layout for layout in found if layout.operation not in ADDRESSES] or found
    together: dict[tuple[object, ...], list[Layout]] = {}
    for layout in shown:
        key = (layout.shape, layout.kind, layout.elements, layout.lanes, layout.warps)
        together.setdefault(key, []).append(layout)
    return [_spread(alike) for alike in together.values()]


def _spread(alike: list[Layout]) -> str:
    first = alike[0]
    names = ", ".join(dict.fromkeys(layout.operation for layout in alike))
    tile = f"{names} {dims(first.shape)} {'/'.join(dict.fromkeys(layout.element for layout in alike))}"
    if first.elements is None or first.lanes is None or first.warps is None:
        return f"{tile}: {first.kind}"
    copies = f", {first.copies} copies" if first.copies and first.copies > 1 else ""
    warps = f"{dims(first.warps)} warp{'s' * (dims(first.warps) != '1')}"
    return f"{tile}: {dims(first.elements)} a thread, {dims(first.lanes)} lanes, {warps}{copies}"


def plural(n: int, thing: str) -> str:
    """1 program, 2 programs."""
    return f"{n} {thing}{'s' * (n != 1)}"


def access(found: Access, programs: int) -> str:
    """`load 16 B x4: 128 sectors of 128`, a program."""
    where = {"global": "", "shared": "shared ", "local": "local ", "cluster": "the cluster's shared "}[
        found.space
    ]
    width = f" {found.bytes} B" if found.bytes else ""
    times = f" x{found.instructions}" if found.instructions > 1 else ""
    head = f"{where}{found.kind}{width}{times}"
    if found.sectors is not None and found.ideal is not None:
        return f"{head}: {_of(found.sectors, found.ideal, programs)} sectors"
    if found.passes is not None and found.ideal is not None:
        return f"{head}: {_of(found.passes, found.ideal, programs)} passes"
    return head


def _of(found: int, ideal: int, programs: int) -> str:
    """The number, and behind it the ideal one where that is less."""
    each = count(found / programs)
    return each if found <= ideal else f"{each} for {count(ideal / programs)}"


def others(line: Line, report: Report) -> list[str]:
    """Shuffles (by warps), barriers, tensor-core instructions and atomics of a line, a program."""
    if line.work is None:
        found = Counter[str]()
        for opcode, n in line.opcodes:
            found[_KINDS.get(opcode, _KINDS.get(opcode.split(".")[0], ""))] += n
        return [plural(n, name) for name, n in found.items() if name]
    work, n = line.work, max(len(report.programs), 1)
    issued = (
        ("shuffle", work.shuffles / n, ""),
        ("barrier", work.barriers / n / report.num_warps, ""),
        ("tensor-core instruction", work.tensor / n, ""),
        ("atomic", work.atomics / n, f" ({', '.join(line.atomics)})"),
    )
    return [f"{count(times)} {name}{'s' * (times != 1)}{more}" for name, times, more in issued if times]


def launch(report: Report) -> str:
    """The launch in words: chip, warps, stages, grid, and how many of its programs start together."""
    grid = dims(report.grid) if report.grid[1:] != (1, 1) else str(report.grid[0])
    grid += f" in clusters of {report.cluster}" if report.cluster > 1 else ""
    warps = f"{report.num_warps} warp{'s' * (report.num_warps > 1)}"
    return f"{report.target} ({report.chip}), {warps}, {report.num_stages} stages, grid {grid}, Triton {report.triton}"


def place(found: Observation) -> str:
    """Where an observation is: a file's lines, several files' lines, or the whole kernel."""
    if not found.line:
        return "the whole kernel"
    by_file: dict[str, list[int]] = {}
    for file, line in found.places:
        by_file.setdefault(Path(file).name, []).append(line)
    return ", ".join(f"{name}:{','.join(map(str, lines))}" for name, lines in by_file.items())


def observation(found: Observation) -> list[tuple[str, str]]:
    """An observation's texts, by the names of its parts."""
    texts = [("found", found.evidence), ("why", found.reason), ("do", found.change)]
    if found.us_at_stake:
        moved = f", {size(found.bytes_at_stake)} moved" if found.bytes_at_stake else ""
        n = found.estimated_from
        how = f" (estimated from {n} program{'s' * (n > 1)})" if n else ""
        texts.insert(
            1, ("stake", f"{duration(found.us_at_stake)} of the whole launch at the most{moved}{how}")
        )
    return texts


def hidden(report: Report) -> list[str]:
    """One line for all observations with nothing to do, which are shown on request only; none where there are none."""
    codes = Counter(o.code for o in report.observations if o.quiet)
    listed = ", ".join(f"{code}{f' ({n})' * (n > 1)}" for code, n in codes.items())
    return [f"Nothing to do about {listed} (--all shows them)."] if codes else []
