"""What a study concluded of small kernels in April 2023, and notes of others, and how the X-ray answers today.

An answer is computed from reports alone: whether the conclusion holds, and a sentence with the numbers that show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilefold.xray import Report
from tilefold.xray.report.model import Access

Reports = Mapping[str, Report]
Answer = tuple[bool, str]


@dataclass(frozen=True)
class Case:
    """One question: the configurations looked at (names of `xray_cases`), what was concluded, and today's answer."""

    title: str
    configurations: tuple[str, ...]
    then: str
    now: Callable[[Reports], Answer]


def moves(report: Report, kind: str) -> list[Access]:
    """Accesses of global memory of one kind, in the order of lines."""
    return [a for line in report.lines for a in line.accesses if (a.space, a.kind) == ("global", kind)]


def shape(access: Access) -> str:
    """`4 accesses of 4 bytes`."""
    return f"{access.instructions} access{'es' * (access.instructions > 1)} of {access.bytes} bytes"


def opcodes(report: Report) -> dict[str, int]:
    """How often each kind of PTX instruction stands in the kernel."""
    counts: dict[str, int] = {}
    for line in report.lines:
        for name, n in line.opcodes:
            counts[name] = counts.get(name, 0) + n
    return counts


def copies(report: Report) -> int:
    """Threads that hold the same element of what is loaded."""
    return max(x.copies or 1 for line in report.lines for x in line.layouts if x.operation == "load")


def _masked_copy(found: Reports) -> Answer:
    load, store = moves(found["copy"], "load")[0], moves(found["copy"], "store")[0]
    last = 1000 - 7 * 128
    return (load.bytes, load.instructions, store.bytes, store.instructions) == (4, 1, 4, 1), (
        f"a thread makes {shape(load)} to load and {shape(store)} to store; {load.sectors} sectors of {load.ideal} needed in "
        f"the three programs executed, the last of which stores {last} floats of 128"
    )


def _recompiled(found: Reports) -> Answer:
    four, two = found["copy"], found["copy, 2 warps"]
    return four.num_warps == two.num_warps, (
        f"the launch cache holds {launches()} kernels after launches with 4, 2 and again 4 warps: num_warps is part of its "
        f"key, and a thread of 2 warps makes {shape(moves(two, 'load')[0])} where one of 4 makes "
        f"{shape(moves(four, 'load')[0])}"
    )


def launches() -> int:
    """Compiled kernels in the launch cache after launches with 4, 2 and 4 warps, on a stand-in for a device."""
    import kernels
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction, MockTensor

    class Nowhere:
        """What a launch asks its driver; no launch follows a warm-up."""

        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

    fresh = JITFunction(kernels.copy.fn)
    floats = MockTensor(torch.float32)
    driver = triton.runtime.driver
    before = driver._active  # its own reset asks for a device
    driver.set_active(Nowhere())
    try:
        for warps in (4, 2, 4):
            fresh.warmup(floats, floats, 1000, BLOCK=128, grid=(8,), num_warps=warps, enable_fp_fusion=True)
        return len(fresh.device_caches[0][0])
    finally:
        driver._active = before


def _few_and_many_warps(found: Reports) -> Answer:
    one, many = found["copy, 1 warp"], found["copy, 16 warps"]
    load = moves(one, "load")[0]
    held = (load.bytes, load.instructions, copies(many)) == (4, 4, 4)
    return held and "redundant-threads" in many.codes(), (
        f"with 1 warp a thread makes {shape(load)} ({load.sectors} sectors touched where {load.ideal} hold the data, since "
        f"lanes are {load.stride} bytes apart); with 16 warps {copies(many)} threads hold each element and load it again"
    )


def _loop(found: Reports) -> Answer:
    report = found["loop"]
    loads = moves(report, "load")[0]
    return "idle-warps" in report.codes() and loads.instructions > 1, (
        f"the loop is not spread ({copies(report)} copies of each element in 16 warps), and no longer unrolled either: the "
        f"PTX has {loads.instructions} load, executed {loads.requests} times by warps"
    )


def _matrix(found: Reports) -> Answer:
    report = found["matrix"]
    load = moves(report, "load")[0]
    return load.bytes == 16 and copies(report) == 1, (
        f"every thread holds elements of its own and makes {shape(load)}; the masked tail of rows is a whole vector or none"
    )


def _static(found: Reports) -> Answer:
    widths = {n: moves(found[f"static {n}"], "load")[0].bytes for n in (1000, 1002, 1001)}
    return widths == {1000: 16, 1002: 8, 1001: 4}, (
        "widths are "
        + ", ".join(f"{w} bytes for N = {n}" for n, w in widths.items())
        + ": the largest power of two that divides N, up to 16 bytes"
    )


def _dynamic(found: Reports) -> Answer:
    plain, hinted = moves(found["copy, 1 warp"], "load")[0], moves(found["hinted"], "load")[0]
    reason = next(o.reason for o in found["hinted"].observations if o.code == "scalar-access")
    return (plain.bytes, hinted.bytes) == (4, 4), (
        f"{shape(plain)} without the hint and {shape(hinted)} with it; the X-ray's reason: {reason}"
    )


def _specialised(found: Reports) -> Answer:
    load = moves(found["dynamic 1008"], "load")[0]
    return (
        load.bytes == 16,
        f"{shape(load)}: 16 divides 1008, and Triton compiles a kernel of its own for that",
    )


def _split(found: Reports) -> Answer:
    whole, tail = moves(found["split"], "load")
    return (whole.bytes, tail.bytes) == (16, 4), f"{shape(whole)} in the loop, {shape(tail)} in the tail"


def _sum(found: Reports) -> Answer:
    report = found["sum"]
    shuffles, barriers = opcodes(report)["shfl.b32"], opcodes(report)["bar"]
    needless = "needless-barrier" in report.codes()
    return needless, (
        f"{shuffles} butterfly shuffles (5 in a warp, 2 across), {report.resources.shared} bytes of shared memory and "
        f"{barriers} barriers; {'one is not' if needless else 'both are'} needed: partial sums cross the first, "
        "the result the second"
    )


def _atomic_sum(found: Reports) -> Answer:
    four, one = found["atomic sum"], found["atomic sum, 1 warp"]
    each = one.totals.work.atomics / len(one.programs) if one.totals.work else 0
    order = next(a for line in four.lines for a in line.atomics)
    clean = one.resources.shared == 0 and "bar" not in opcodes(one)
    return clean and each == 1, (
        f"one atomic a program ({order}); with 1 warp {one.resources.shared} bytes of shared memory and no barrier, with 4 "
        f"warps {four.resources.shared} bytes and {opcodes(four)['bar']}. The X-ray adds: the order is "
        "stronger than a sum needs"
    )


def _transpose(found: Reports) -> Answer:
    report = found["transpose"]
    load, store = moves(report, "load")[0], moves(report, "store")[0]
    inside = [a for line in report.lines for a in line.accesses if a.space == "shared"]
    conflicts = (report.totals.shared_passes or 0) - (report.totals.shared_ideal or 0)
    padded = report.resources.shared > 16 * 16 * 4
    return (load.bytes, store.bytes) == (16, 16) and padded, (
        f"{load.bytes}-byte loads and stores, yes; shared memory is no longer padded but swizzled: "
        f"{report.resources.shared} bytes for 16 x 16 floats, accessed {inside[0].bytes} bytes at a time with "
        f"{conflicts} conflicts"
    )


def _transposes(found: Reports) -> Answer:
    elements = {"elements": 1, "strided": 256, "tiles": 64 * 64}  # of a program
    each = {}
    for name, count in elements.items():
        report = found[f"transpose, {name}"]
        each[name] = report.totals.bytes_moved / (count * len(report.programs))
    totals = found["transpose, tiles"].totals
    conflicts = (totals.shared_passes or 0) - (totals.shared_ideal or 0)
    widths = {a.bytes for kind in ("load", "store") for a in moves(found["transpose, tiles"], kind)}
    return each == {"elements": 64, "strided": 36, "tiles": 8}, (
        f"an element that is read and written moves {each['elements']:g} bytes alone (two sectors), {each['strided']:g} with "
        f"strided stores (a sector each) and {each['tiles']:g} in a tile, the least there is: {max(widths)} bytes a thread "
        f"on both sides, and {conflicts} conflicts in the shared memory between them"
    )


def _sigmoid(found: Reports) -> Answer:
    report = found["sigmoid"]
    evidence = sorted(o.evidence for o in report.observations if o.code == "approximate-math")
    names = [e.split()[2].rstrip(",") for e in evidence]
    return names == ["div.full.f32", "ex2.approx.f32"], " and ".join(names)


def _dot(found: Reports) -> Answer:
    report = found["dot"]
    work = report.totals.work
    return opcodes(report).get("mma", 0) > 0, (
        f"{opcodes(report).get('mma', 0)} mma.sync"
        + (f", {work.flops} operations by tensor cores" if work else "")
        + f"; operands reach it through {report.resources.shared} bytes of shared memory"
    )


def _ors(found: Reports) -> Answer:
    tile, single, halves = (found[f"or, {form}"] for form in ("by a tile", "one by one", "by halves"))
    load, lone, flat = (moves(r, "load")[0] for r in (tile, single, halves))
    alike = shape(flat) == shape(load) and halves.totals.work == tile.totals.work
    return single.totals.bytes_moved <= tile.totals.bytes_moved, (
        f"a thread loads whole rows of the tile, in {shape(load)}, and joins them in registers, so that {load.sectors} "
        f"sectors are touched and {load.ideal} hold the data; one by one it makes {shape(lone)}, {lone.stride} bytes from "
        f"those of its neighbour, and {lone.sectors} are. Of reshape and split nothing is left: the halves have "
        f"{'the accesses of the tile, and as many instructions' if alike else 'other accesses than the tile'}"
    )  # fmt: skip


def _softmaxes(found: Reports) -> Answer:
    reports = [found[f"softmax, {form}"] for form in ("one pass", "of pairs", "online")]
    (two, two_waits, two_issued), (pair, pair_waits, pair_issued), (_, waits, _) = map(_of_a_warp, reports)
    rounds = -(-781 // 256)
    twice = len(moves(reports[2], "load")) == 2
    return two == pair and pair_waits < two_waits and twice, (
        f"a warp makes {pair} shuffles for the fold of pairs, and as many for the two folds; it waits for the others "
        f"{pair_waits} times and not {two_waits}, but issues {pair_issued / two_issued:.1f} times the instructions, as "
        f"each step has exponentials. The recurrence reads a row twice, and waits {waits // rounds} times in each round of "
        "256: states of each thread, folded last, would not"
    )  # fmt: skip


def _of_a_warp(report: Report) -> tuple[int, int, int]:
    """Shuffles, barriers and instructions of a warp."""
    work, warps = report.totals.work, len(report.programs) * report.num_warps
    assert work is not None
    return work.shuffles // warps, work.barriers // warps, work.issued // warps


def _relaxed(found: Reports) -> Answer:
    relaxed, strong = found["atomic sum, relaxed"], found["atomic sum"]
    orders = [next(a for line in r.lines for a in line.atomics) for r in (relaxed, strong)]
    each = relaxed.totals.work.atomics / len(relaxed.programs) if relaxed.totals.work else 0
    said = "strong-atomic" in strong.codes() and "strong-atomic" not in relaxed.codes()
    return said and each == 1, (
        f"{each:g} atomic a program, {orders[0]}, where it is {orders[1]} if `sem` is left out; of that the X-ray says that "
        "the order is stronger than a sum needs, and of this nothing"
    )


CASES = (
    Case("A masked copy", ("copy",),
         "Program id and arange become block and thread index, the mask a predicate; a thread makes one 32-bit load and "
        "one store.",
         _masked_copy),
    Case("Another number of warps", ("copy", "copy, 2 warps"),
         "A second launch with 2 warps does not recompile: num_warps of the first launch was captured.", _recompiled),
    Case("One warp, sixteen warps", ("copy, 1 warp", "copy, 16 warps"),
         "With 1 warp a thread makes four scalar accesses; with 16 warps threads beyond the tile repeat the same work.",
         _few_and_many_warps),
    Case("A loop over tiles", ("loop",), "The loop is unrolled, and not spread over the threads that have nothing to do.",
         _loop),
    Case("A tile of two dims", ("matrix",), "Every thread is used, and accesses are 128 bits wide.", _matrix),
    Case("A length known when compiling", ("static 1000", "static 1002", "static 1001"),
         "Accesses are as wide as the largest power of two that divides N allows: 128 bits for 1000, scalars for 1001.",
         _static),
    Case("A length known when launched", ("copy, 1 warp", "hinted"),
         "With n = 1000 accesses are scalars, even if the kernel is told that n is a multiple of 4.", _dynamic),
    Case("A length that 16 divides", ("dynamic 1008",), "With n = 1008 accesses are 128 bits wide.", _specialised),
    Case("The last tile split off", ("split",), "128 bits in the loop of whole tiles, scalars in the masked tail.", _split),
    Case("A sum", ("sum", "sum, 1 warp"),
         "Butterfly shuffles, shared memory, a second round; one of the two barriers is not needed.", _sum),
    Case("A sum of many programs", ("atomic sum", "atomic sum, 1 warp"),
         "One atomicAdd a program; shared memory and barriers are not needed for one warp.", _atomic_sum),
    Case("A transposed tile", ("transpose",), "128-bit loads, through padded shared memory, 128-bit stores.", _transpose),
    Case("A transposed matrix", ("transpose, elements", "transpose, strided", "transpose, tiles"),
         "An element a program, or stores with a stride, waste most of each memory transaction; a tile makes both sides "
         "coalesced.",
         _transposes),
    Case("A sigmoid", ("sigmoid",), "The exponential becomes ex2.approx; the division stays div.full.", _sigmoid),
    Case("A small product", ("dot",), "A dot of 16 x 16 x 16 runs on tensor cores, for one warp.", _dot),
    Case("An OR over a short axis", ("or, by a tile", "or, one by one", "or, by halves"),
         "To fold a tile's last axis is up to 3.5 times slower than to load the values one by one (a note, Triton 3.4).",
         _ors),
    Case("Three softmaxes", ("softmax, one pass", "softmax, of pairs", "softmax, online"),
         "Maximum and sum of exponentials are an associative pair, so one fold does for both; a row longer than a tile needs "
         "the recurrence (a lesson).",
         _softmaxes),
    Case("A sum that orders nothing", ("atomic sum, relaxed", "atomic sum"),
         "Relaxed is right where an atomic only adds up; stronger orders are for other data (notes).", _relaxed),
)  # fmt: skip
