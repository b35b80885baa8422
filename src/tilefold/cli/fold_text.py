"""A fold as one writes it, in the same words for every command: `logsumexp dim=1 16384x8192 bf16`.

    MONOID SHAPE [DTYPE] [dim=1 | dim=0,2 | dim=all] [strides=1,16384] [offset=3] [guarantee=batch_invariant]

MONOID is a name of `tilefold.monoids` in any case of letters, or `FILE.py::name`; SHAPE is sizes joined by x,
each as 4096 or 2^12.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilefold.cli.dtypes import dtype_of
from tilefold.cli.python_files import load_file, said, split_target
from tilefold.errors import ArgumentError, CompileError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tilefold.algebra.monoid import Monoid

GUARANTEES = ("run_to_run", "batch_invariant", "none")
OPTIONS = ("dim", "strides", "offset", "guarantee", "dtype")
_SIZE = r"\d{1,40}(?:\^\d{1,2})?"
_SHAPE = re.compile(rf"{_SIZE}(?:x{_SIZE})*", re.ASCII)


@dataclass(frozen=True)
class FoldText:
    """A fold as written: its monoid, dims and tensors.

    `dims` None is all of them. `strides` None is contiguous; `offset` counts the elements before the first one, of memory
    that begins at a multiple of 16 bytes. Every input of a monoid of several has this shape, dtype and place.
    """

    monoid: Monoid
    shape: tuple[int, ...]
    dtype: torch.dtype
    dims: tuple[int, ...] | None = (-1,)
    strides: tuple[int, ...] | None = None
    offset: int = 0
    guarantee: str = "run_to_run"

    def tensors(self) -> list[torch.Tensor]:
        """The inputs, without data."""
        import torch

        strides = contiguous_strides(self.shape) if self.strides is None else self.strides
        if len(strides) != len(self.shape):
            raise ArgumentError(
                f"strides must be as many as dims ({len(self.shape)}), got {','.join(map(str, strides))}; "
                "give one a dim, in elements"
            )
        reach = (
            self.offset + 1 + sum(max(n - 1, 0) * step for n, step in zip(self.shape, strides, strict=True))
        )
        if max(reach, math.prod(max(1, n) for n in self.shape)) * self.dtype.itemsize >= 2**63:
            sizes = "x".join(map(str, self.shape))
            raise ArgumentError(f"a shape must hold fewer than 2^63 bytes, got {sizes}; take smaller sizes")
        memory = torch.empty(reach, dtype=self.dtype, device="meta")
        view = memory.as_strided(self.shape, strides, self.offset)
        return [view] * self.monoid.total.inputs


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor whose elements lie in row-major order without gaps.

    >>> contiguous_strides((4, 8, 2))
    (16, 2, 1)
    """
    steps = itertools.accumulate(reversed(shape[1:]), lambda a, n: a * max(n, 1), initial=1)
    return tuple(steps)[::-1] if shape else ()


def read_fold(text: str) -> FoldText:
    """The fold that a text of words says: of bfloat16 where it says no dtype, of the last dim where it says no dims.

    Raises:
        ArgumentError: a word of another form, or a missing monoid or shape.
        CompileError: the monoid's file does not import.
    """
    given, plain = _words(text)
    shapes = [word for word in plain if _SHAPE.fullmatch(word)]
    others = [word for word in plain if word not in shapes]
    if len(shapes) != 1 or not 1 <= len(others) <= 2:
        raise ArgumentError(f"a fold must be a monoid, a dim, a shape and a dtype, got {text!r}; {_FORM}")
    return FoldText(
        monoid=monoid_named(others[0]),
        shape=read_shape(shapes[0]),
        dtype=dtype_of(others[1] if len(others) == 2 else given.get("dtype", "bf16")),
        dims=read_dims(given.get("dim", "-1")),
        strides=read_numbers(given["strides"], "strides") if "strides" in given else None,
        offset=read_numbers(given.get("offset", "0"), "offset")[0],
        guarantee=given.get("guarantee", "run_to_run"),
    )


_FORM = 'write it like "logsumexp dim=1 16384x8192 bf16"'


def _words(text: str) -> tuple[dict[str, str], list[str]]:
    """The words NAME=VALUE of a text, and the others. A path may hold an equals sign."""
    given: dict[str, str] = {}
    plain = []
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or "::" in name:
            plain.append(word)
        elif name.removesuffix("s") in ("dim", "stride"):
            given["dim" if name.startswith("dim") else "strides"] = value
        elif name in OPTIONS:
            given[name] = value
        else:
            raise ArgumentError(f"a fold's word must be of {', '.join(OPTIONS)}, got {word!r}; {_FORM}")
    return given, plain


def read_shape(text: str) -> tuple[int, ...]:
    """Sizes joined by x, as `16384x8192` or `64x2^20`; a power as the tables of results write it."""
    if not _SHAPE.fullmatch(text):
        raise ArgumentError(
            f"a shape must be sizes joined by x, got {text!r}; write it like 16384x8192 or 64x2^20"
        )
    sizes = (size.partition("^") for size in text.split("x"))
    return tuple(int(base) ** int(power or 1) for base, _, power in sizes)


def read_dims(text: str) -> tuple[int, ...] | None:
    """Dims joined by commas, from 0 on or from -1 backwards; None for `all`."""
    return None if text == "all" else read_numbers(text, "dim")


def read_numbers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers joined by commas."""
    if not re.fullmatch(r"-?\d+(,-?\d+)*", text, re.ASCII) or (name != "dim" and "-" in text):
        like = "1 or 0,2 or all" if name == "dim" else "8192,1" if name == "strides" else "3"
        rule = "whole numbers" if name == "dim" else "whole numbers from 0 on"
        raise ArgumentError(f"{name} must be {rule}, got {text!r}; write it like {like}")
    return tuple(int(number) for number in text.split(","))


def monoid_named(text: str) -> Monoid:
    """A monoid of the catalogue by its name, or of a file: `FILE.py::name`, a Monoid or a function that makes one.

    Raises:
        ArgumentError: there is none of that name.
        CompileError: the file does not import.
    """
    return _of_file(text) if "::" in text or text.endswith(".py") else _of_catalogue(text)


def _of_catalogue(name: str) -> Monoid:
    from tilefold import monoids

    known = _monoids_in(vars(monoids))
    if name.upper() not in known:
        meant = monoid_meant(name)
        raise ArgumentError(
            f"a monoid must be one of {', '.join(sorted(known))}, or FILE.py::name, got {name!r}; "
            f"{meant or 'take one of these'}"
        )
    return known[name.upper()]


def monoid_meant(name: str, spelt: bool = True) -> str | None:
    """What to write for a name that other libraries have, "use welford ..." for `var`; `spelt`: for a misspelt one too."""
    from tilefold import monoids

    known = _monoids_in(vars(monoids))
    found = monoids.ALIASES.get(name.replace("_", "").lower()) or (
        "NORM(2)" if name.lower() == "norm" else name.upper()
    )
    if found.startswith("NORM"):
        return f"use FILE.py::name, of a file with name = tilefold.monoids.{found if '(' in found else 'NORM(2)'}"
    if found not in known:
        close = nearest(name, known) if spelt else None
        return close and f"use {close.lower()}"
    if found == "WELFORD":
        return "use welford: its results are count, mean and M2, and M2 / (count - 1) is the variance"
    return f"use {found.lower()}"


def _of_file(text: str) -> Monoid:
    from tilefold.algebra.monoid import Monoid

    path, name = split_target(text)
    module = load_file(path, "monoid", "monoid")
    found = getattr(module, name, None) if name else None
    if callable(found) and not isinstance(found, Monoid):
        found = _made(found, text, path)
    if not isinstance(found, Monoid):
        there = ", ".join(sorted(_monoids_in(vars(module)))) or "none"
        raise ArgumentError(
            f"a monoid must be a tilefold.Monoid of its file or a function that makes one, got {text!r}; it has {there}"
        )
    return found


def _made(make: Any, text: str, path: Path) -> Any:
    """The monoid that a function without arguments makes; a class, or a function with arguments, is refused."""
    try:
        return make()
    except TypeError as error:
        raise ArgumentError(
            f"a monoid's function must take no arguments, got {text!r} ({error}); name one that takes none"
        ) from None
    except (Exception, SystemExit) as error:
        raise CompileError(
            f"a monoid's function must make one, got {said(error, path.resolve())} from {text!r}; call it with python"
        ) from error


def _monoids_in(names: dict[str, Any]) -> dict[str, Monoid]:
    from tilefold.algebra.monoid import Monoid

    return {name: value for name, value in names.items() if isinstance(value, Monoid)}
