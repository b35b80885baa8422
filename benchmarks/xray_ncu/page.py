"""The page of documentation, from the results."""

from __future__ import annotations

from typing import Any

# What is behind each count that differs, by launch and quantity.
_ATOMICS, _PLAIN, _SENT = "atomics: ", ", int32, add", "sectors of atomics"
_NARROW = "An atomic of 16 bits is a loop of the machine, which first loads the word; the X-ray counts no load for it."
_TURNS = "More than four runs of 128 bytes, in which lanes meet: see above."
_SUNK = "The assembler moved the load of a sum behind the exit of threads that store nothing; "
_MERGED = "The assembler merges neighbouring loads of PTX into loads of 8 and 16 bytes, which the X-ray does not foresee."
REASONS = {
    ("column sums", "passes of loads"): (
        _SUNK + "the X-ray leaves out warps that have left, but not lanes of a warp that stays."
    ),
    ("column sums", "conflicts of loads"): "The same: lanes that have left have no conflicts.",
    ("matmul, mma.sync", "passes of copies"): (
        "Nsight Compute counts 4 passes for a copy before the loop and 8 for the same addresses in it; the hardware's own "
        "counter of conflicts of copies is 0."
    ),
    ("matmul off the tensor cores", "passes of loads"): _MERGED,
    ("matmul off the tensor cores", "conflicts of loads"): _MERGED,
    ("collatz", "conflicts of stores"): "Of 3,010 passes; another run of the same launch counted none.",
    ("sums since", "passes of loads"): "The assembler left out loads whose values nothing needs.",
    **{
        (name, quantity): _NARROW
        for name in ("halves added", "atomics: 128 float16 from 4 by 1", "atomics: 128 bfloat16 from 4 by 1")
        for quantity in ("sectors loaded", "requests to load")
    },
}


def agrees(launch: dict[str, Any]) -> bool:
    """Whether every count of a launch is within one percent."""
    return all(count["agrees"] for count in launch["counts"])


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    launches, versions = results["launches"], results["versions"]
    alike = sum(map(agrees, launches))
    counts = [count for launch in launches for count in launch["counts"]]
    return "\n".join(
        [
            _HEAD.format(date=results["date"], launches=len(launches), alike=alike, counts=len(counts),
                         same=sum(c["agrees"] for c in counts), kernels=len({x["kernel"] for x in launches}),
                         known=sum(c["quantity"] == "all instructions" for c in counts), **versions),
            "| counted | X-ray | Nsight Compute |",
            "|---|---|---|",
            *_used(counts),
            _BEFORE_DIFFERENCES,
            *(_differences(launches) or ["None."]),
            *_atomics(results),
            _BEFORE_ALL,
            "| launch | counted | X-ray | Nsight Compute | difference |",
            "|---|---|---:|---:|---:|",
            *[_row(launch["name"], count) for launch in launches for count in launch["counts"] if _listed(launch, count)],
            "",
        ]
    )  # fmt: skip


def _listed(launch: dict[str, Any], count: dict[str, Any]) -> bool:
    """Of launches of atomics only what is theirs is in the table; the rest is in the results."""
    return not launch["name"].startswith(_ATOMICS) or count["quantity"] == _SENT


def _atomics(results: dict[str, Any]) -> list[str]:
    """How sectors of atomics are counted, and what a request costs by them."""
    sent = [(x["name"], c) for x in results["launches"] for c in x["counts"] if c["quantity"] == _SENT]
    if not sent:
        return []
    same = sum(c["xray"] == c["ncu"] for _, c in sent)
    apart = max((abs(c["xray"] - c["ncu"]) / c["ncu"] for _, c in sent if c["ncu"]), default=0)
    text = _OF_ATOMICS.format(launches=len(sent), same=same, apart=f"{100 * apart:.0f}")
    rows = [r for r in results.get("costs", ()) if r["type"] == "torch.int32" and not r["kept"]]
    cells: dict[str, dict[int, float]] = {}
    for row in rows:
        if not row["step"]:
            cells.setdefault(row["pattern"], {})[row["spread"]] = row["ns_a_request_and_sm"]
    of = {
        name.removeprefix(_ATOMICS).removesuffix(_PLAIN): c["ncu"]
        for name, c in sent
        if name.endswith(_PLAIN)
    }
    table = [f"| {p} | {of[p]:,.0f} | {by[4096]:,.1f} | {by[0]:,.0f} |" for p, by in cells.items() if p in of]
    return [text, *([_COSTS, *table] if table else [])]


def _used(counts: list[dict[str, Any]]) -> list[str]:
    """Each quantity once, with every counter that it was compared with."""
    names: dict[str, dict[str, None]] = {}
    for count in counts:
        names.setdefault(count["quantity"], {})[count["counter"]] = None
    return [f"| {name} | {OURS[name]} | {_counters(list(used))} |" for name, used in names.items()]


def _counters(used: list[str]) -> str:
    opcodes = sorted({word for name in used for word in name.split(" + ") if "_" not in word})
    others = [f"`{name}`" for name in used if "_" in name]
    executed = [f"opcodes executed: {', '.join(opcodes)}"] if opcodes else []
    return "; ".join([*others, *executed])


def _differences(launches: list[dict[str, Any]]) -> list[str]:
    return [
        f"- {launch['name']}, {count['quantity']}: {count['xray']:,} for {_number(count['ncu'])}. "
        f"{_reason(launch['name'], count['quantity'])}"
        for launch in launches
        for count in launch["counts"]
        if not count["agrees"]
    ]


def _reason(name: str, quantity: str) -> str:
    wide = name.startswith(_ATOMICS) and quantity == _SENT
    return REASONS.get((name, quantity), _TURNS if wide else "Not explained.")


def _row(name: str, count: dict[str, Any]) -> str:
    apart = count["xray"] - count["ncu"]
    share = "0" if not apart else f"{100 * apart / count['ncu']:+.2f} %" if count["ncu"] else "all"
    return f"| {name} | {count['quantity']} | {count['xray']:,} | {_number(count['ncu'])} | {share} |"


def _number(value: float) -> str:
    return f"{value:,.0f}"


OURS = {
    "sectors loaded": "sectors of loads and of copies to shared memory",
    "sectors stored": "sectors of stores",
    "sectors of atomics": "sectors of atomic operations",
    "requests to load": "warps that loaded or copied with an active lane",
    "requests to store": "warps that stored with an active lane",
    "requests of atomics": "warps with an atomic operation in an active lane",
    "passes of loads": "passes through the banks of shared memory, of loads",
    "passes of stores": "the same of stores",
    "passes of copies": "the same of copies from global memory",
    "conflicts of loads": "passes of loads beyond the fewest possible",
    "conflicts of stores": "passes of stores beyond the fewest possible",
    "barriers": "`BAR`, or `bar` in the PTX",
    "shuffles": "`SHFL` and `REDUX`, or `shfl` and `redux` in the PTX",
    "tensor instructions": "`HMMA`, `HGMMA` and their like, or `mma` and `wgmma` in the PTX",
    "all instructions": "all instructions of the machine, where the way of warps through its code is known",
}
_HEAD = """# The X-ray beside Nsight Compute

{launches} launches of {kernels} kernels, every program of each executed by the X-ray on a machine without a GPU, and the same
launches counted by Nsight Compute {ncu} (`--clock-control none`) on an {device}. Written by
`python benchmarks/xray_ncu` on {date}; the GPU ran torch {torch} and triton {triton}. All numbers are in
`benchmarks/xray_ncu/results.json`.

{same} of {counts} counts agree within one percent, and every count of {alike} launches.

How: both compile the same kernels with the same Triton and take the same inputs; grids are small, so that the X-ray can
execute every program. Sectors, requests and passes come from executing PTX. How often the machine's instructions are issued
follows from that where only one way of a warp through the machine's code agrees with it ({known} of {launches} launches);
else barriers, shuffles and tensor instructions are those of the PTX, and there is no count of all instructions. Counters of
the hardware are taken where it counts the quantity. Passes of copies are counted by Nsight Compute's patching of the code,
since of copies the hardware counts something else.
Reads of shared memory that tensor cores make by descriptors are no request of a thread, and are left out on both sides.
Quantities that a launch has none of on either side are left out.
"""
_BEFORE_DIFFERENCES = """
## What differs, and why
"""
_OF_ATOMICS = """
## Atomics

A request of an atomic sends sectors to L2 in turns: of lanes that meet at one place each turn takes one. So a sector is sent
as often as lanes meet at that of its places where most of them meet: 32 lanes at one place are 32 sectors, at 8 neighbours of
4 bytes by turns 4, and side by side 4. Operation, order and whether the old value is used make no difference. An atomic of 16
bits that is no vector is a loop that compares and swaps words of 32: a request for each turn in a word.

Of {launches} launches with atomics, most of them of one request, {same} have just the counter's sectors. The others' lanes go
to more than four runs of 128 bytes and meet in some of them: the chip then sends up to {apart} % more.
"""
_COSTS = """The time of a warp's request, in ns on each SM of a full GPU (`python benchmarks/xray_ncu costs FILE`): programs
with places of their own pay some 1.5 ns a sector. Where all add to the same places, every atomic on one address waits for the
one before, 0.7 ns each of int32 and 1.8 ns of float32, whichever SM it comes from.

| places of a warp's lanes, int32 | sectors | each program its own | all the same |
|---|---:|---:|---:|"""
_BEFORE_ALL = """
## All counts
"""
