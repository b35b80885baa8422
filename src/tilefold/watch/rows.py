"""The rows that a page shows: one given or drawn, and the same elements in orders that are hard on a recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.domain import Domain, within
from tilefold.algebra.dtypes import FOLDABLE, is_float
from tilefold.algebra.program import as_written
from tilefold.checkpoints.file_kinds import NPY, kind_of
from tilefold.checkpoints.streams import Stream
from tilefold.checkpoints.tensor_files import tensors_of
from tilefold.errors import ArgumentError, DtypeError, FileError, TilefoldError
from tilefold.watch.stream import bits

MOST = 4096  # elements: as many as a strip of a page's width can show, and a file of a few megabytes holds
LENGTH = 57  # of a drawn row: odd, so that chunks of any even size leave a boundary tile
HUGE = 1e4
_SEED = 7


@dataclass(frozen=True)
class Row:
    """One row of elements, as many tensors as the monoid has inputs."""

    key: str
    label: str
    about: str
    tensors: tuple[torch.Tensor, ...]


def read_rows(paths: Sequence[str]) -> list[torch.Tensor]:
    """The 1-D arrays of .npy files, one for each input of a monoid.

    Raises:
        ArgumentError: one is not 1-D, or has no elements or more than a page shows.
        DtypeError: one holds complex numbers.
        FileError: there is no .npy file that can be read, or its elements are no numbers.
    """
    return [_read_row(path) for path in paths]


def _read_row(path: str) -> torch.Tensor:
    try:
        if kind_of(Path(path)) != NPY:
            raise FileError("the file must be a .npy file, got another kind; save the row with numpy.save")
        ((_, load),) = tensors_of(path)
        array = load()
        assert isinstance(array, Stream), "a .npy file is read in chunks"
        check_shape(array.shape)
        row = torch.cat(list(array.chunks))
        if row.dtype not in FOLDABLE:
            raise DtypeError(f"a row must hold real numbers or bool, got {row.dtype}; save its real part")
        return row
    except TilefoldError as error:
        raise type(error)(f"--row {path}: {error}") from None


def check_shape(shape: Sequence[int]) -> None:
    """Refuse a value that is not a row for a page.

    Raises:
        ArgumentError: the shape is not one dim of 1 to `MOST` elements.
    """
    if len(shape) != 1:
        raise ArgumentError(
            f"a row must be 1-D, got shape {list(shape)}; save one row of it, and name a file for each input"
        )
    if not 1 <= shape[0] <= MOST:
        raise ArgumentError(
            f"a row must have 1 to {MOST} elements, got {shape[0]}; save a part of it, since a page draws every element"
        )


def given_rows(tensors: Sequence[torch.Tensor], domain: Domain | None) -> list[Row]:
    """The row that was given, and its elements in other orders."""
    generator = torch.Generator().manual_seed(_SEED)
    mixed = tuple(_taken(t, torch.randperm(len(t), generator=generator)) for t in tensors)
    about = "the given elements in random order"
    first = Row("given", "the given row", "the row of the file, as it is", tuple(tensors))
    return [first, Row("random", "random order", about, mixed), *_adverse(tensors, domain)]


def drawn_rows(tensors: Sequence[torch.Tensor], domain: Domain | None) -> list[Row]:
    """A row that was drawn, and its elements in other orders."""
    about = "elements drawn at random"
    return [Row("random", "random", about, tuple(tensors)), *_adverse(tensors, domain)]


def _adverse(tensors: Sequence[torch.Tensor], domain: Domain | None) -> Iterator[Row]:
    """The same elements rising and falling, and with one that outweighs all others; of bools, True alone."""
    orders = [_rising(t) for t in tensors]
    rising = tuple(_taken(t, order) for t, order in zip(tensors, orders, strict=True))
    yield Row("rising", "rising", "the elements sorted, the least first", rising)
    falling = tuple(_taken(t, order.flip(0)) for t, order in zip(tensors, orders, strict=True))
    yield Row("falling", "falling", "the elements sorted, the greatest first", falling)
    if all(t.dtype == torch.bool for t in tensors):
        yield Row("true", "all True", "every element is True", tuple(torch.ones_like(t) for t in tensors))
        return
    about = "one element outweighs all others together"
    yield Row("huge", "one huge value", about, tuple(_with_huge(t, k, domain) for k, t in enumerate(tensors)))


def _rising(tensor: torch.Tensor) -> torch.Tensor:
    """The order that sorts a row, by numpy: torch sorts not all unsigned dtypes. NaN comes last."""
    import numpy as np

    keys = tensor.double() if is_float(tensor.dtype) else tensor
    return torch.from_numpy(np.argsort(keys.numpy(), kind="stable"))


def _taken(tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return bits(tensor)[order].view(tensor.dtype)


def _with_huge(tensor: torch.Tensor, place: int, domain: Domain | None) -> torch.Tensor:
    """One element, beyond the middle, replaced by a value larger than the others; a bool stays."""
    if tensor.dtype == torch.bool:
        return tensor
    at = (len(tensor) * 3) // 5
    finite = tensor.double()[tensor.double().isfinite()]
    size = max(HUGE, 1e3 * float(finite.abs().max()) if len(finite) else HUGE)
    info: Any = torch.finfo(tensor.dtype) if is_float(tensor.dtype) else torch.iinfo(tensor.dtype)
    value = min(size, info.max)
    if domain is not None:
        kind = torch.float64 if is_float(tensor.dtype) else torch.int64
        value = within((value,), domain[place], kind)[0]
    made = bits(tensor).clone()
    made[at] = bits(torch.tensor([value if is_float(tensor.dtype) else int(value)], dtype=tensor.dtype))
    return made.view(tensor.dtype)


# ------------------------------------------------------------------------------------------------- drawing a row

Draw = Callable[[torch.Generator], torch.Tensor]


def _normal(mean: float, spread: float) -> Draw:
    """Numbers of two decimals, which are easy to read."""
    return lambda g: ((torch.randn(LENGTH, generator=g) * spread + mean) * 100).round() / 100


def _bits(flip: int) -> Draw:
    return lambda g: (1 << torch.randint(0, 12, (LENGTH,), generator=g)) ^ flip


# Numbers below 0, so that a 0 beside them is their maximum; above, for a minimum; factors about 1, whose products stay small;
# few bits set, few not set, and some always; few zeros.
_DRAWS: dict[torch.dtype, tuple[Draw, ...]] = {
    torch.float32: (_normal(-4.0, 1.5), _normal(4.0, 1.5), _normal(1.0, 0.2)),
    torch.int64: (_bits(0), _bits(0xFFFF)),
    torch.bool: (lambda g: torch.rand(LENGTH, generator=g) < 0.8,),
}


def draw(algebra: Algebra, rate: Callable[[Sequence[torch.Tensor]], float]) -> list[torch.Tensor]:
    """Elements of the kind that is rated highest, of the first dtype that the monoid folds.

    Raises:
        DtypeError: it folds none of float32, int64 and bool.
    """
    truths = _asks_truth(algebra)
    dtypes = sorted(_DRAWS, key=lambda dtype: dtype != torch.bool) if truths else list(_DRAWS)
    refusals = [(dtype, _refusal(algebra, dtype)) for dtype in dtypes]
    taken = next((dtype for dtype, refusal in refusals if refusal is None), None)
    if taken is None:
        error = refusals[0][1]
        assert error is not None
        raise error
    return max((_drawn(algebra, taken, drawn) for drawn in _DRAWS[taken]), key=rate)


def _refusal(algebra: Algebra, dtype: torch.dtype) -> DtypeError | None:
    """Why elements of a dtype cannot be folded."""
    try:
        as_written(algebra, (dtype,) * algebra.inputs)
    except DtypeError as error:
        return error
    return None


def _drawn(algebra: Algebra, dtype: torch.dtype, drawn: Draw) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    return [_inside(drawn(generator).to(dtype), k, algebra.domain) for k in range(algebra.inputs)]


def _asks_truth(algebra: Algebra) -> bool:
    """Whether all that a monoid asks of an element is if it is 0."""
    nodes = algebra.lift.nodes
    elements = {p for p, n in enumerate(nodes) if n.op == "input" and n.value < algebra.inputs}
    zeros = {p for p, n in enumerate(nodes) if n.op == "const" and n.value == 0}
    takers = [node for node in nodes if elements & set(node.args)]
    asked = (
        (node.op == "where" and not elements & set(node.args[1:]))
        or (node.op in ("ne", "eq") and bool(zeros & set(node.args)))
        for node in takers
    )
    return bool(takers) and all(asked) and not elements & set(algebra.lift.outputs)


def _inside(tensor: torch.Tensor, place: int, domain: Domain | None) -> torch.Tensor:
    """The elements within the declared domain of the monoid's input."""
    if domain is None:
        return tensor
    kind = torch.float64 if is_float(tensor.dtype) else tensor.dtype
    return torch.tensor(within(tensor.tolist(), domain[place], kind), dtype=tensor.dtype)
