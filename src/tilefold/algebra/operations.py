"""The table of scalar operations that a monoid's functions are made of.

Each row says of an operation what it is in Python, torch and Triton, and how dtypes follow (`columns`). All that runs a graph
reads it: tracing folds constants by the Python column, `typing` gives dtypes by the rule, `evaluate` (the
definition) and `backends.step_builder` (the CPU's loop) call the torch column, each in its own way, `backends.triton.emit`
writes the Triton column, and `tilefold.math` has a function for each row. What proofs and planners take for granted of an
operation is its `values`. Besides, proofs know laws of single operations (sums, products, extremes, choices): of
others they show nothing. `proofs.exact` has tables of its own, of arithmetic without rounding, which it checks against
this one.

A new operation is a row here, a function in `math`, a rule in `derivatives.rules` (or an entry of its `FLAT`) and a line in
`proofs.exact`; one of libdevice also a line in `backends.triton.interpreted`.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tilefold.algebra import arithmetic, numbers, units, unsigned
from tilefold.algebra.columns import Kind, Op, Torch, Triton, Values
from tilefold.algebra.numbers import Number, ieee

Tensor = torch.Tensor
_WHOLE = (torch.int32, torch.int64, torch.uint64)
_LOG2_E = math.log2(math.e)


def _is_nan(value: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.ne(value, value, out=out)


def _sum(value: Tensor, dims: Sequence[int], keepdim: bool = True) -> Tensor:
    return value.sum(tuple(dims), keepdim, dtype=value.dtype)


def _max(value: Tensor, dims: Sequence[int], keepdim: bool = True) -> Tensor:
    return torch.amax(value, tuple(dims), keepdim)


def _min(value: Tensor, dims: Sequence[int], keepdim: bool = True) -> Tensor:
    return torch.amin(value, tuple(dims), keepdim)


# Reductions that give results without the dims where they are asked to.
DROPS_DIMS = frozenset({_sum, _max, _min})


def _first(value: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        value = value.narrow(dim, 0, 1)
    return value


def _count(value: Tensor, dims: Sequence[int]) -> int:
    return torch.Size([value.shape[dim] for dim in dims]).numel()  # a number, also while torch.jit traces


def _sigmoid(x: Tensor) -> Tensor:
    return (torch.exp(-x) + 1.0).reciprocal()  # bits of torch.sigmoid depend on where an element lies


def _no_number(x: Number) -> Number:
    raise AssertionError("a block operation has no answer on numbers alone")


def _extreme(name: str) -> Triton:
    return Triton(
        f"tl.{name}({{0}}, {{1}})",
        floats=f"tl.{name}({{0}}, {{1}}, propagate_nan=tl.PropagateNan.ALL)",
        fills="float64",
    )


def _block_extreme(name: str, absent: float) -> Triton:
    one = _extreme(name)
    return Triton(one.text, floats=one.floats, absent=absent)


def _divided(name: str) -> Triton:
    """By functions of `kernels/scalars`: floats, signed whole numbers, uint64."""
    return Triton(
        f"{name}_whole({{0}}, {{1}})",
        floats=f"{name}({{0}}, {{1}})",
        uint64=f"{name}_unsigned({{0}}, {{1}})",
        fills="all",
    )


def _comparison(name: str, python: Callable[..., bool], tensors: Torch, symbol: str, values: Values) -> Op:
    text = Triton(f"{{0}} {symbol} {{1}}", fills="float64")
    return Op(name, 2, "compare", python, tensors, text, values, symbol, gives=torch.bool)


# Every row names one of these, changed where it differs: a number of its own, one of the operands, a truth value, a whole
# number near the operand, bits, or a smooth function of a float.
_EVERY = (-math.inf, math.inf)
_NUMBER = Values(
    swaps=False, fuses=True, nan=False, takes=False, turns=None, within=_EVERY, bits=None, ulps=0, block=None,
    atomic=None, linear=None,
)  # fmt: skip
_CHOSEN = replace(_NUMBER, fuses=False, takes=True, bits=max)
_TRUTH = replace(_NUMBER, fuses=False, within=(0, 1))
_EXTREME = replace(_CHOSEN, swaps=True, turns="compares")
_COMPARED, _TIED = replace(_TRUTH, turns="compares"), replace(_TRUTH, turns="compares", swaps=True)
_ROUNDED = replace(_NUMBER, fuses=False, turns="steps", bits=max)
_BITS = replace(_NUMBER, swaps=True, fuses=False, turns="steps", bits=max)
_SHIFTED = replace(_NUMBER, fuses=False, turns="steps")


def _smooth(low: float, high: float, ulps: float) -> Values:
    return replace(_NUMBER, within=(low, high), ulps=ulps)


def _sum_bits(bits: Sequence[int]) -> int:
    return max(bits) + 1


def _first_bits(bits: Sequence[int]) -> int:
    return bits[0]


ROWS = (
    # ------------------------------------------------------------------------------------------------ arithmetic
    Op("add", 2, "arithmetic", operator.add, Torch(torch.add), Triton("{0} + {1}"),
       replace(_NUMBER, swaps=True, nan=True, bits=_sum_bits, block="block_sum", atomic="add", linear="together"), "+"),
    Op("sub", 2, "arithmetic", operator.sub, Torch(torch.sub), Triton("{0} - {1}"),
       replace(_NUMBER, nan=True, bits=_sum_bits, linear="together"), "-"),
    Op("mul", 2, "arithmetic", operator.mul, Torch(torch.mul), Triton("{0} * {1}"),
       replace(_NUMBER, swaps=True, nan=True, bits=sum, linear="one"), "*"),
    Op("floordiv", 2, "arithmetic", numbers.floor_divide,
       Torch(arithmetic.floor_divide, out=False, unsigned=unsigned.floor_divide), _divided("floor_divide"),
       replace(_NUMBER, turns="compares", bits=lambda bits: bits[0] + 1), "//"),
    Op("mod", 2, "arithmetic", numbers.remainder,
       Torch(arithmetic.remainder, out=False, unsigned=unsigned.remainder), _divided("remainder"),
       replace(_NUMBER, turns="compares", bits=lambda bits: bits[1]), "%"),
    Op("maximum", 2, "arithmetic", numbers.maximum, Torch(torch.maximum, orders=True, by_place=True),
       _extreme("maximum"), replace(_EXTREME, block="block_max", atomic="max"), keeps_bool=True),
    Op("minimum", 2, "arithmetic", numbers.minimum, Torch(torch.minimum, orders=True, by_place=True),
       _extreme("minimum"), replace(_EXTREME, block="block_min", atomic="min"), keeps_bool=True),
    # Triton subtracts from 0, which makes 0.0 of 0.0.
    Op("neg", 1, "arithmetic", operator.neg, Torch(torch.neg), Triton("-{0}", floats="{0} * -1.0"),
       replace(_NUMBER, fuses=False, bits=max, linear="together"), "-"),
    Op("abs", 1, "arithmetic", builtins.abs, Torch(torch.abs, leaves=(torch.uint64,)), Triton("tl.abs({0})"),
       replace(_NUMBER, fuses=False, bits=max)),
    # Triton's own of float32 takes numbers below the least normal one for 0.
    Op("floor", 1, "arithmetic", numbers.rounded(math.floor), Torch(torch.floor, leaves=_WHOLE),
       Triton("{0}", floats="tl.floor({0})", device_float32="FLOOR({0})"), _ROUNDED),
    Op("ceil", 1, "arithmetic", numbers.rounded(math.ceil), Torch(torch.ceil, leaves=_WHOLE),
       Triton("{0}", floats="tl.ceil({0})", device_float32="CEIL({0})"), _ROUNDED),
    # ------------------------------------------------------------------------------------------------ floats
    Op("truediv", 2, "float", numbers.divide, Torch(torch.div), Triton("{0} / {1}"),
       replace(_smooth(*_EVERY, ulps=2), linear="first"), "/"),
    Op("pow", 2, "float", numbers.power, Torch(torch.pow, numbers=True, by_place=True),
       Triton("power({0}, {1})", float64="libdevice.pow({0}, {1})", fills="shape"),
       _smooth(*_EVERY, ulps=16), "**"),
    # Its operand times log2(e) loses 7 bits of the greatest exponents of float32.
    Op("exp", 1, "float", ieee(math.exp), Torch(torch.exp),
       Triton("tl.exp({0})", device_float32=f"EXP2({{0}} * {_LOG2_E!r})"),
       replace(_smooth(0, math.inf, ulps=200), nan=True)),
    Op("exp2", 1, "float", ieee(lambda x: 2.0**x), Torch(torch.exp2, by_place=True),
       Triton("tl.exp2({0})", device_float32="EXP2({0})"), replace(_smooth(0, math.inf, ulps=4), nan=True)),
    Op("expm1", 1, "float", ieee(math.expm1), Torch(torch.expm1), Triton("libdevice.expm1({0})"),
       _smooth(-1, math.inf, ulps=4)),
    Op("log", 1, "float", numbers.log, Torch(torch.log), Triton("tl.log({0})"), _smooth(*_EVERY, ulps=4)),
    Op("log2", 1, "float", lambda x: numbers.log(x, math.log2), Torch(torch.log2), Triton("tl.log2({0})"),
       _smooth(*_EVERY, ulps=4)),
    # For sums of exponentials, which are projected at every element of a scan: within 2 ulp, and 2^-22 near 1.
    Op("log2_approximate", 1, "float", lambda x: numbers.log(x, math.log2), Torch(torch.log2),
       Triton("tl.log2({0})", device_float32="LOG2({0})"), _smooth(*_EVERY, ulps=4)),
    Op("log1p", 1, "float", numbers.log1p, Torch(torch.log1p), Triton("libdevice.log1p({0})"),
       _smooth(*_EVERY, ulps=4)),
    # torch's own of float32 is not always the nearest on a CPU.
    Op("sqrt", 1, "float", numbers.root, Torch(torch.sqrt),
       Triton("tl.sqrt({0})", device_float32="tl.sqrt_rn({0})"), _smooth(0, math.inf, ulps=1)),
    Op("rsqrt", 1, "float", lambda x: numbers.divide(1.0, numbers.root(x)), Torch(torch.rsqrt),
       Triton("tl.rsqrt({0})", device_float32="RSQRT({0})"), _smooth(*_EVERY, ulps=4)),  # of -0.0 it is -inf
    # Units of squares (algebra/units): a magnitude's, the inverse of a power of two (other numbers have none, but 0), and a
    # product that is part of no fused operation. A result has no unit in it: where a unit steps, nothing else does.
    Op("unit", 1, "float", units.of_number, Torch(units.of, out=False), Triton("unit({0})"), replace(_NUMBER, fuses=False)),
    Op("per_unit", 1, "float", units.per_number, Torch(units.per, out=False), Triton("per_unit({0})"),
       replace(_NUMBER, fuses=False)),
    Op("rescale", 2, "float", operator.mul, Torch(torch.mul), Triton("rescale({0}, {1})"), replace(_NUMBER, fuses=False)),
    Op("sin", 1, "float", ieee(math.sin), Torch(torch.sin), Triton("tl.sin({0})"), _smooth(-1, 1, ulps=4)),
    Op("cos", 1, "float", ieee(math.cos), Torch(torch.cos), Triton("tl.cos({0})"),
       _smooth(-1, 1, ulps=4)),
    Op("tanh", 1, "float", math.tanh, Torch(torch.tanh), Triton("libdevice.tanh({0})"), _smooth(-1, 1, ulps=8)),
    # An operation, and no quotient of exponentials: a derivative's would be infinite times 0 where e**-x is infinite.
    Op("sigmoid", 1, "float", numbers.sigmoid, Torch(_sigmoid, out=False),
       Triton("1.0 / (1.0 + tl.exp({0} * -1.0))", device_float32=f"RECIPROCAL(1.0 + EXP2({{0}} * {-_LOG2_E!r}))"),
       _smooth(0, 1, ulps=200)),
    Op("erf", 1, "float", math.erf, Torch(torch.erf), Triton("tl.erf({0})"), _smooth(-1, 1, ulps=4)),
    # ------------------------------------------------------------------------------------------------ comparisons
    _comparison("lt", operator.lt, Torch(torch.lt, orders=True), "<", _COMPARED),
    _comparison("le", operator.le, Torch(torch.le, orders=True), "<=", _COMPARED),
    _comparison("gt", operator.gt, Torch(torch.gt, orders=True), ">", _COMPARED),
    _comparison("ge", operator.ge, Torch(torch.ge, orders=True), ">=", _COMPARED),
    _comparison("eq", operator.eq, Torch(torch.eq), "==", _TIED),
    _comparison("ne", operator.ne, Torch(torch.ne), "!=", _TIED),
    Op("isnan", 1, "test", math.isnan, Torch(_is_nan), Triton("({0} != {0})"), _TRUTH,
       gives=torch.bool),
    Op("isinf", 1, "test", math.isinf, Torch(torch.isinf, out=False),
       Triton("({0} != {0})", floats='(tl.abs({0}) == float("inf"))'), _TRUTH, gives=torch.bool),
    Op("isfinite", 1, "test", math.isfinite, Torch(torch.isfinite, out=False),
       Triton("({0} == {0})", floats='(tl.abs({0}) < float("inf"))'), _TRUTH, gives=torch.bool),
    # ------------------------------------------------------------------------------------------------ bits and choices
    Op("and", 2, "bitwise", operator.and_, Torch(torch.bitwise_and), Triton("{0} & {1}"), replace(_BITS, atomic="and"), "&",
       keeps_bool=True),
    Op("or", 2, "bitwise", operator.or_, Torch(torch.bitwise_or), Triton("{0} | {1}"), replace(_BITS, atomic="or"), "|",
       keeps_bool=True),
    Op("xor", 2, "bitwise", operator.xor, Torch(torch.bitwise_xor), Triton("{0} ^ {1}"), replace(_BITS, atomic="xor"), "^",
       keeps_bool=True),
    Op("lshift", 2, "bitwise", numbers.shift_left, Torch(torch.bitwise_left_shift), Triton(
        "shift_left({0}, {1}, {bits})", fills="all"), _SHIFTED, "<<"),
    Op("rshift", 2, "bitwise", operator.rshift, Torch(torch.bitwise_right_shift, unsigned=unsigned.shift_right), Triton(
        "shift_right({0}, {1}, {bits})", uint64="shift_right_unsigned({0}, {1}, {bits})", fills="all"),
       replace(_SHIFTED, bits=_first_bits), ">>"),
    # Triton's interpreter has no ~ of uint64.
    Op("invert", 1, "bitwise", lambda x: not x if isinstance(x, bool) else ~x, Torch(torch.bitwise_not),
       Triton("~{0}", uint64=f"{{0}} ^ {(1 << 64) - 1}"), replace(_NUMBER, fuses=False), "~",
       keeps_bool=True),
    Op("where", 3, "select", numbers.where, Torch(torch.where), Triton("tl.where({0}, {1}, {2})"),
       _CHOSEN, keeps_bool=True),
    Op("cast", 1, "cast", numbers.cast, None, None, replace(_ROUNDED, fuses=True)),
    # ------------------------------------------------------------------------------------------------ blocks
    Op("block_sum", 1, "block", _no_number, Torch(_sum), Triton("{0} + {1}", absent=0), _NUMBER),
    Op("block_first", 1, "block", _no_number, Torch(_first), Triton("{0}"), _CHOSEN),
    Op("block_count", 1, "block", _no_number, Torch(_count), Triton("{0} + {1}", absent=0),
       replace(_NUMBER, within=(0, math.inf)), gives=torch.int64),
    Op("block_max", 1, "block", _no_number, Torch(_max, orders=True), _block_extreme("maximum", -math.inf),
       _CHOSEN, keeps_bool=True),
    Op("block_min", 1, "block", _no_number, Torch(_min, orders=True), _block_extreme("minimum", math.inf),
       _CHOSEN, keeps_bool=True),
)  # fmt: skip
OPS: dict[str, Op] = {row.name: row for row in ROWS}
COMPARISONS = frozenset(row.name for row in ROWS if row.kind == "compare")
EXTREMES = frozenset(row.name for row in ROWS if row.values.takes and row.values.swaps)
TESTS = frozenset(row.name for row in ROWS if row.kind == "test")


def kind_of(op: str) -> Kind | None:
    """The kind of an operation; None of a graph's inputs and constants.

    >>> kind_of("lt"), kind_of("input")
    ('compare', None)
    """
    return OPS[op].kind if op in OPS else None


# Of a graph's inputs and constants, which are no operations.
_GIVEN = replace(_NUMBER, fuses=False)


def values_of(op: str) -> Values:
    """What holds of an operation's values; nothing of a graph's inputs and constants."""
    return OPS[op].values if op in OPS else _GIVEN
