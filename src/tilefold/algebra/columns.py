"""The columns of the table of operations: one for each part of the library that runs, writes or proves a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

Dtype = torch.dtype  # a column has the module's name
Kind = Literal["arithmetic", "float", "compare", "test", "bitwise", "select", "cast", "block"]


@dataclass(frozen=True)
class Torch:
    """An operation on tensors of the operands' dtype.

    `function` takes tensors and, with `out`, also `out=`; a block operation takes one and the dims that it reduces, which
    it keeps. uint64 is held as the int64 of the same bits: `unsigned` does on those what int64's own function would not;
    where an operation `orders`, the bits are flipped first, so that they compare as signed ones do. `leaves` are the dtypes
    whose values it gives back as they are. `numbers`: torch knows shorter ways where the last operand is a Python number.
    `by_place`: on a CPU the bits depend on where in memory an element lies: torch computes the elements after the last
    whole vector by another routine (found by comparing every function's bits across lengths and offsets).
    """

    function: Callable[..., Any]
    out: bool = True
    unsigned: Callable[..., Any] | None = None
    orders: bool = False
    leaves: tuple[Dtype, ...] = ()
    numbers: bool = False
    by_place: bool = False


@dataclass(frozen=True)
class Triton:
    """The text of an operation in generated Triton: {0}, {1} and {2} are its operands.

    `text` serves all dtypes that no other field names. `device_float32` is that of float32 on a device, not in Triton's
    interpreter. `fills` says which operands that are numbers must be values of Triton's: none, those of float64 (Triton takes
    a number for one of float32, whatever it is combined with), all, or all and of the other operand's shape. For a block
    operation the text combines two values, and `absent` is what an element that does not count is to it: an infinity is a
    dtype's limit.
    """

    text: str
    floats: str | None = None
    float64: str | None = None
    uint64: str | None = None
    device_float32: str | None = None
    fills: Literal["none", "float64", "all", "shape"] = "none"
    absent: float | None = None

    def of(self, dtype: Dtype, *, interpret: bool) -> str:
        """The text for operands of a dtype."""
        if dtype == torch.float32 and self.device_float32 is not None and not interpret:
            return self.device_float32
        if dtype == torch.float64 and self.float64 is not None:
            return self.float64
        if dtype == torch.uint64 and self.uint64 is not None:
            return self.uint64
        return self.floats if dtype.is_floating_point and self.floats is not None else self.text


@dataclass(frozen=True, kw_only=True)
class Values:
    """What holds of an operation's values, whatever computes them. Nothing has a default: a new operation says each.

    Attributes:
        swaps: the operands may be exchanged, and every bit stays; of one operand False.
        fuses: a compiler may compute it together with a neighbour, rounding once (x * y + z); also where that is not known.
        nan: of a NaN operand it makes the NaN of arithmetic, whatever the other is; also False where that is not known.
        takes: it gives one of its operands as it is, where it selects one of the last two.
        turns: where its slope changes: "compares", where its two operands are equal; "steps", in many places; None, nowhere.
        within: between which numbers its values are, whatever its operands.
        bits: of what power of two the magnitude of a whole result is at most, by the bits of its operands beside their signs
            (of `takes`, of those that it may give); None where it may be any number.
        ulps: units in the last place by which a chip's function or a library's may be off; 0, all give the same bits.
        block: the block operation that folds a block's values by it; None where there is none.
        atomic: the atomic operation of a GPU's memory that combines a value by it; None where there is none.
        linear: in what it is linear: "together", in all operands that vary; "one", in each of them alone; "first", in the
            first alone; None, in nothing, or it only selects.
    """

    swaps: bool
    fuses: bool
    nan: bool
    takes: bool
    turns: Literal["compares", "steps"] | None
    within: tuple[float, float]
    bits: Callable[[Sequence[int]], int] | None
    ulps: float
    block: str | None
    atomic: str | None
    linear: Literal["together", "one", "first"] | None


@dataclass(frozen=True)
class Op:
    """One row: an operation's name, how many operands it has, and what it is in each column.

    `kind` is the rule for dtypes: "arithmetic" (operands promote, result has their dtype), "float" (as arithmetic, integers
    become float), "compare" (operands promote, result is bool), "test" (bool from one operand), "bitwise" (integers and
    bool), "select", "cast", "block" (a block of elements becomes one value; else as arithmetic). Where operands promote to
    bool, arithmetic is done in int64, unless the operation `keeps_bool`. `gives` is the result's dtype where it is always
    the same. `python` is its value on numbers. `torch` and `triton` are None for the cast alone, which is a rule for pairs
    of dtypes (`evaluate.convert`, `words.converted`). `values` is what proofs and planners may take for granted.
    `symbol` is Python's operator, None of an operation that is called by its name.

    Derivatives are graphs of these operations, and so in a table beside this one, `derivatives.rules`; a test holds it to
    the same rows. CUDA C++ is made from PTX and needs no column.
    """

    name: str
    arity: int
    kind: Kind
    python: Callable[..., Any]
    torch: Torch | None
    triton: Triton | None
    values: Values
    symbol: str | None = None
    keeps_bool: bool = False
    gives: Dtype | None = None
