"""Calls of several executables as one function: their launches in order, of addresses, without a view in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from tilefold.backends.triton import executable as executables
from tilefold.backends.triton.executable import Executable
from tilefold.planner.plan import names
from tilefold.planner.problem.canonical import contiguous_strides

if TYPE_CHECKING:
    from tilefold.api.replays import Noted, Source

Tensor = torch.Tensor
Joined = Callable[..., list[Tensor | None]]


def joined(
    constants: Sequence[Tensor],
    given: Sequence[Tensor | None],
    calls: Sequence[Noted],
    outputs: Sequence[Source | None],
) -> Joined | None:
    """A function of what is given that makes the calls; None where a step is no launch, or devices differ.

    Places count constants, what is given, then what each call makes. Memory that nothing reads any more is given back after
    each call, as without this function.
    """
    made = [executable for executable, _, _ in calls]
    if not all(isinstance(e, Executable) and e.launches is not None for e in made):
        return None
    if len({e.index for e in made}) != 1:
        return None
    first, last = len(constants), len(constants) + len(given)
    scope = executables.on_device(made[0].index) | {f"value{i}": t for i, t in enumerate(constants)}
    sizes = [0 if t is None else t.itemsize for t in (*constants, *given)]
    lines, known = list[str](), set[str]()

    def address(place: int, distance: int) -> str:
        if (name := f"address{place}") not in known:
            lines.append(f"{name} = value{place}.data_ptr()")
            known.add(name)
        return f"{name} + {distance * sizes[place]}" if distance else name

    def allocate(name: str, size: Sequence[int], dtype: torch.dtype) -> None:
        scope[f"{name}_layout"] = tuple(size), contiguous_strides(size), dtype
        lines.append(f"{name} = empty(*{name}_layout)")

    shapes = _whole(outputs, last, [size for e in made for size, _ in e.results.values()])
    for number, (executable, sources, dead) in enumerate(calls):
        places = [address(s.place, s.view[2] if s.view else 0) for s in sources]
        local = dict(zip(names("input", len(sources)), places, strict=True))
        ended = [f"value{p}" for p in dead if p >= last]
        for name, (size, dtype) in executable.results.items():
            place = len(sizes)
            sizes.append(dtype.itemsize)
            allocate(f"value{place}", shapes.get(place, size), dtype)
            local[name] = address(place, 0)
        for buffer in executable.plan.workspaces:
            allocate(f"call{number}_{buffer.name}", buffer.shape, buffer.dtype)
            ended.append(f"call{number}_{buffer.name}")
            local[buffer.name] = f"{ended[-1]}.data_ptr()"
        for step, (launch, operands) in enumerate(executable.launches):
            scope[f"step{number}_{step}"] = launch
            lines.append(f"step{number}_{step}(stream, {', '.join(local[n] for n in operands)})")
        lines += [f"del {', '.join(ended)}"] * bool(ended)
    text = _FORM.format(
        parameters=", ".join(f"value{p}" for p in range(first, last)),
        body="\n    ".join(lines),
        results=", ".join(_seen(o, last, o is not None and o.place in shapes) for o in outputs),
    )
    exec(text, scope)  # noqa: S102  # fixed names and numbers only
    return scope["call"]  # type: ignore[no-any-return]  # what the text defines


_FORM = """
def call({parameters}):
    if current_device() != index:
        with device(index):
            return call({parameters})
    stream = current_stream(index)
    {body}
    return [{results}]
"""


def _whole(
    outputs: Sequence[Source | None], given: int, sizes: Sequence[Sequence[int]]
) -> dict[int, tuple[int, ...]]:
    """The sizes of results, by place, that are seen in one shape alone, and whole: they are made so."""
    seen = [o for o in outputs if o is not None and o.place >= given]
    return {
        o.place: o.view[0]
        for o in seen
        if o.view is not None
        and [other.place for other in seen].count(o.place) == 1
        and o.view[1:] == (contiguous_strides(o.view[0]), 0)
        and math.prod(o.view[0]) == math.prod(sizes[o.place - given])
    }


def _seen(output: Source | None, given: int, whole: bool) -> str:
    if output is None:
        return "None"
    name = f"value{output.place}"
    if whole or output.view is None:
        return name
    size, strides, distance = output.view
    begin = f"{name}.storage_offset() + {distance}" if output.place < given else f"{distance}"
    return f"{name}.as_strided({size}, {strides}, {begin})"
