"""What stands above a kernel: its launch, and which elements of each tile a thread holds, as Triton's layouts say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tilefold.xray.compile.job import Compiled
from tilefold.xray.ir import Tensor
from tilefold.xray.layouts import bases

_ALIAS = re.compile(r"^(#\w+) = (#ttg.*)$", re.M)
_MOST = 12  # tiles


def heading(compiled: Compiled, tiles: Sequence[tuple[str, Tensor]]) -> Iterator[str]:
    """Comments. `tiles` have the names of the source and their types in Triton's GPU IR."""
    job = compiled.job
    grid = ", ".join(map(str, job.grid))
    arrays = [f"{a.name}[{a.size}]" for a in compiled.parameters if a.pointer and a.size is not None]
    yield f"// Launched as <<<dim3({grid}), {32 * compiled.num_warps}, {compiled.shared}>>>" + (
        f" with {', '.join(arrays)}." if arrays else "."
    )
    if not compiled.scratch:
        yield "// The last two arguments are Triton's own and may be null."
    aliases = dict(_ALIAS.findall(compiled.ttgir))
    groups: dict[str, list[str]] = {}
    for name, tensor in tiles:
        where = held(tensor, aliases)
        shape = ", ".join(map(str, tensor.shape))
        if where and name not in (names := groups.setdefault(f"[{shape}]: {where}", [])):
            names.append(name)
    if groups:
        yield "// Of each tile a thread holds these elements:"
    for said, names in [*groups.items()][:_MOST]:
        yield f"//   {', '.join(names)} {said}"
    if len(groups) > _MOST:
        yield f"//   and of {len(groups) - _MOST} more kinds of tiles others."


def held(tensor: Tensor, aliases: dict[str, str]) -> str:
    """The elements that a thread holds, dim by dim: what its number gives, and what its registers add.

    Nothing where the layout's rule is not known, or has steps along several dims at once.
    """
    layout = bases(tensor, aliases)
    if layout is None:
        return ""
    threads = (*layout.lane, *layout.warp)
    if any(sum(n > 0 for n in basis) > 1 for basis in (*threads, *layout.register)):
        return ""
    count = 2 ** sum(any(basis) for basis in layout.register)
    copies = 2 ** sum(not any(basis) for basis in threads)
    dims = []
    for d in range(len(tensor.shape)):
        parts = [*_of_bits([basis[d] for basis in threads]), *_added([basis[d] for basis in layout.register])]
        dims.append(" + ".join(parts) or "0")
    shared = f", each in {copies} threads" if copies > 1 else ""
    return f"{count}{shared}, at [{', '.join(dims)}]"


def _of_bits(steps: Sequence[int]) -> Iterator[str]:
    """A thread's number as a place: neighbouring bits whose steps double are one term."""
    at = 0
    while at < len(steps):
        end = at + 1
        while end < len(steps) and steps[at] and steps[end] == steps[end - 1] * 2:
            end += 1
        if steps[at]:
            text = "tid" if at == 0 else f"tid / {1 << at}"
            text = text if end == len(steps) else f"{text} % {1 << (end - at)}"
            yield (
                text if steps[at] == 1 else f"{steps[at]} * ({text})" if " " in text else f"{steps[at]} * tid"
            )
        at = end


def _added(steps: Sequence[int]) -> Iterator[str]:
    """What registers add: runs of steps that double."""
    own = sorted(s for s in steps if s)
    at = 0
    while at < len(own):
        end = at + 1
        while end < len(own) and own[end] == own[end - 1] * 2:
            end += 1
        run = f"0..{(1 << (end - at)) - 1}"
        yield f"({run})" if own[at] == 1 else f"{own[at]} * ({run})"
        at = end
