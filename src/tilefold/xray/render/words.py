"""Numbers and layouts as short texts, the same in every view."""

from __future__ import annotations

from tilefold.xray.report.model import Access, Layout, Line, Report


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


def dims(sizes: tuple[int, ...]) -> str:
    """128x64."""
    return "x".join(map(str, sizes))


def spread(layout: Layout) -> str:
    """Who holds what: `128x64 f16: 1x8 a thread, 8x4 lanes, 4x1 warps`."""
    tile = f"{dims(layout.shape)} {layout.element}"
    if layout.elements is None or layout.lanes is None or layout.warps is None:
        return f"{layout.operation} {tile}: {layout.kind}"
    copies = f", {layout.copies} copies" if layout.copies and layout.copies > 1 else ""
    held = f"{dims(layout.elements)} a thread, {dims(layout.lanes)} lanes, {dims(layout.warps)} warps"
    return f"{layout.operation} {tile}: {held}{copies}"


def access(found: Access, programs: int) -> str:
    """`load 16 B x4: 128 sectors of 128`, a program."""
    where = {"global": "", "shared": "shared ", "local": "local "}[found.space]
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


def others(line: Line, programs: int) -> list[str]:
    """Shuffles, barriers, tensor-core instructions and atomics of a line, a program."""
    names = {"shuffles": "shuffles", "barriers": "barriers", "tensor": "tensor core", "atomics": "atomics"}
    if line.work is None:
        kinds = {"shfl": "shuffles", "redux": "shuffles", "bar": "barriers", "mma": "tensor core",
                 "wgmma": "tensor core"}  # fmt: skip
        found = [(kinds[o.split(".")[0]], n) for o, n in line.opcodes if o.split(".")[0] in kinds]
        return [f"{n} {name}" for name, n in found]
    issued = [(name, getattr(line.work, key) / programs) for key, name in names.items()]
    semantics = f" ({', '.join(line.atomics)})" if line.atomics else ""
    return [f"{count(n)} {name}{semantics if name == 'atomics' else ''}" for name, n in issued if n]


def launch(report: Report) -> str:
    """The launch in words: chip, warps, stages, grid."""
    grid = dims(report.grid) if report.grid[1:] != (1, 1) else str(report.grid[0])
    warps = f"{report.num_warps} warp{'s' * (report.num_warps > 1)}"
    return f"{report.target} ({report.chip}), {warps}, {report.num_stages} stages, grid {grid}, Triton {report.triton}"
