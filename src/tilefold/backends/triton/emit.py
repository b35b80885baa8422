"""From typed graphs to Triton device functions: text made of a fixed vocabulary, never of a user's names.

Booleans are kept as 32-bit words (0 or 1) in states and through & | ^, and as masks after comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tilefold.algebra.expression import Node
from tilefold.algebra.operations import Number
from tilefold.algebra.program import Program
from tilefold.algebra.symmetry import ordered_fields
from tilefold.algebra.typing import TypedGraph, element_dtype, integer_limits, is_float
from tilefold.backends.triton import axes

TL_DTYPES = {
    torch.bool: "tl.int32", torch.int32: "tl.int32", torch.int64: "tl.int64", torch.uint64: "tl.uint64",
    torch.float32: "tl.float32", torch.float64: "tl.float64",
}  # fmt: skip
STORED_DTYPES = {
    **TL_DTYPES, torch.bool: "tl.uint8", torch.uint8: "tl.uint8", torch.int8: "tl.int8", torch.uint16: "tl.uint16",
    torch.int16: "tl.int16", torch.uint32: "tl.uint32", torch.float16: "tl.float16", torch.bfloat16: "tl.bfloat16",
    torch.float8_e4m3fn: "tl.float8e4nv", torch.float8_e5m2: "tl.float8e5",
}  # fmt: skip

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_CALLS = {
    "abs": "tl.abs", "exp2": "tl.exp2", "exp": "tl.exp", "log": "tl.log", "log2": "tl.log2", "sqrt": "tl.sqrt",
    "rsqrt": "tl.rsqrt", "sin": "tl.sin", "cos": "tl.cos", "erf": "tl.erf",
}  # fmt: skip
_LIBDEVICE = {
    "tanh": "libdevice.tanh",
    "expm1": "libdevice.expm1",
    "log1p": "libdevice.log1p",
    "pow": "libdevice.pow",
}
_INTERPRETED = {
    "tanh": "(1.0 - 2.0 / (tl.exp({0} * 2.0) + 1.0))",
    "expm1": "(tl.exp({0}) - 1.0)",
    "log1p": "tl.log({0} + 1.0)",
    "pow": "tl.exp2(tl.log2({0}) * {1})",
}


_ABSENT: dict[str, float] = {"block_sum": 0, "block_max": -math.inf, "block_min": math.inf}


def literal(number: Number, dtype: torch.dtype) -> str:
    """A number as source text in `dtype`: whole ones wrap as torch's do, and an infinity is their greatest or least."""
    if is_float(dtype):
        value = float(number)
        if math.isnan(value):
            return 'float("nan")'
        return f'{"-" if value < 0 else ""}float("inf")' if math.isinf(value) else repr(value)
    if dtype == torch.bool:
        return repr(int(bool(number)))
    least, greatest = integer_limits(dtype)
    if isinstance(number, float) and math.isinf(number):
        return repr(greatest if number > 0 else least)
    return repr((int(number) - least) % (greatest - least + 1) + least)


class _Writer:
    """Writes one device function's body, a line a node."""

    def __init__(
        self,
        typed: TypedGraph,
        inputs: Sequence[str],
        block_inputs: Sequence[bool],
        interpret: bool,
        masked: bool = False,
    ) -> None:
        self.typed, self.interpret, self.masked = typed, interpret, masked
        self.lines: list[str] = []
        self.names: list[str] = []
        self.masks: list[bool] = []
        self.blocks: list[bool] = []
        # Constants and counts known at compile time, and what is computed of those alone.
        self.numbers: list[bool] = []
        for position, node in enumerate(typed.graph.nodes):
            if node.op == "input":
                self._keep(inputs[node.value], mask=False, block=block_inputs[node.value], number=False)
            elif node.op == "const":
                self._keep("", mask=False, block=False, number=True)
            else:
                self._write(position, node)

    def _keep(self, name: str, *, mask: bool, block: bool, number: bool) -> None:
        self.names.append(name)
        self.masks.append(mask)
        self.blocks.append(block)
        self.numbers.append(number)

    def _is_literal(self, position: int) -> bool:
        """Whether a node's text is a number and not a value of Triton's."""
        op = self.typed.graph.nodes[position].op
        return op == "const" or (op == "block_count" and not self.masked)

    def _spread(self, position: int, block: bool) -> str:
        """A node's name; with the block's two axes more if it is to meet a block and is none."""
        spread = block and not self.blocks[position] and not self.numbers[position]
        return f"{self.names[position]}{axes.SPREAD}" if spread else self.names[position]

    def _operand(self, position: int, dtype: torch.dtype, block: bool = False) -> str:
        """The text of a node's value converted to `dtype` (bool: a word), spread over the block if asked."""
        node = self.typed.graph.nodes[position]
        if node.op == "const":
            return literal(node.value, dtype)
        text = self.names[position]
        if self._is_literal(position):
            return text
        text = self._spread(position, block)
        source = self.typed.dtypes[position]
        return text if source == dtype and not self.masks[position] else f"{text}.to({TL_DTYPES[dtype]})"

    def _mask(self, position: int, block: bool = False) -> str:
        """The text of a node's truth."""
        node = self.typed.graph.nodes[position]
        if node.op == "const":
            return repr(bool(node.value))
        text = self._spread(position, block)
        return text if self.masks[position] else f"({text} != 0)"

    def _write(self, position: int, node: Node) -> None:
        dtype, operand = self.typed.dtypes[position], self.typed.operand_dtypes[position]
        over_block = any(self.blocks[a] for a in node.args) and not node.op.startswith("block_")
        text, mask = self._expression(node, dtype, operand, over_block)
        self.lines.append(f"v{position} = {text}")
        number = self._is_literal(position) or all(self.numbers[a] for a in node.args)
        self._keep(f"v{position}", mask=mask, block=over_block, number=number)

    def _expression(
        self, node: Node, dtype: torch.dtype, operand: torch.dtype, block: bool
    ) -> tuple[str, bool]:
        """(source text, whether it is a mask)."""
        op = node.op
        if op == "where":
            condition = self._mask(node.args[0], block)
            a, b = (self._operand(p, operand, block) for p in node.args[1:])
            if all(self._is_literal(p) for p in node.args[1:]):
                a = f"tl.full([], {a}, {TL_DTYPES[operand]})"
            return f"tl.where({condition}, {a}, {b})", False
        if op in ("and", "or", "xor") and operand == torch.bool and all(self._is_mask(p) for p in node.args):
            return f" {_BINARY[op]} ".join(self._mask(p, block) for p in node.args), True
        if op == "invert" and operand == torch.bool:
            return f"({self._mask(node.args[0], block)} == 0)", True
        if op == "cast":
            return self._cast(node.args[0], operand, dtype)
        values = [self._operand(p, operand, block) for p in node.args]
        if all(self._is_literal(p) for p in node.args):
            values[0] = f"tl.full([], {values[0]}, {TL_DTYPES[operand]})"
        if op == "truediv" and operand == torch.float32 and values[0] == "1.0" and not self.interpret:
            return f"RECIPROCAL({values[1]})", False
        if op in _BINARY:
            return f"{values[0]} {_BINARY[op]} {values[1]}", self.typed.dtypes[
                len(self.names)
            ] == torch.bool and op not in ("and", "or", "xor")
        return self._call(op, operand, values, node)

    def _is_mask(self, position: int) -> bool:
        return self.masks[position] or self.typed.graph.nodes[position].op == "const"

    def _cast(self, position: int, source: torch.dtype, dtype: torch.dtype) -> tuple[str, bool]:
        text = self._operand(position, source if dtype == torch.bool else dtype)
        if self._is_literal(position):
            text = f"tl.full([], {text}, {TL_DTYPES[source if dtype == torch.bool else dtype]})"
        return (f"({text} != 0)", True) if dtype == torch.bool else (text, False)

    def _call(self, op: str, operand: torch.dtype, values: Sequence[str], node: Node) -> tuple[str, bool]:
        floating, x = is_float(operand), values[0]
        if op in ("maximum", "minimum"):
            propagate = ", propagate_nan=tl.PropagateNan.ALL" if floating else ""
            return f"tl.{op}({values[0]}, {values[1]}{propagate})", False
        if op == "isnan":
            return f"({x} != {x})", True
        if op in ("isinf", "isfinite"):
            if not floating:
                return f"({x} {'!=' if op == 'isinf' else '=='} {x})", True
            return f'(tl.abs({x}) {"==" if op == "isinf" else "<"} float("inf"))', True
        if op == "neg":
            return f"-{x}", False
        if op == "invert":
            # Triton's interpreter has no ~ of uint64.
            return (f"{x} ^ {literal(-1, operand)}" if operand == torch.uint64 else f"~{x}"), False
        if op in ("floor", "ceil"):
            return (f"tl.{op}({x})" if floating else x), False
        if op in ("floordiv", "mod"):
            return _floor_division(op, values[0], values[1], operand), False
        if op == "block_count":
            return (
                "BLOCK_COUNT(mask)" if self.masked else f"({x}.shape[0] * {x}.shape[{axes.UNROLL}])"
            ), False
        if op.startswith("block_"):
            combine = op.upper() + ("_INT" if op in ("block_max", "block_min") and not floating else "")
            if self.masked and op == "block_first":
                return f"BLOCK_FIRST_OF(mask, {x})", False
            if self.masked:
                x = f"tl.where(mask, {x}, {literal(_ABSENT[op], operand)})"
            return f"tl.reduce(tl.reduce({x}, 0, {combine}), {axes.UNROLL_OF_RUNS}, {combine})", False
        if op == "pow":
            return self._power(node, values, operand), False
        if op in _LIBDEVICE:
            return (
                _INTERPRETED[op].format(*values)
                if self.interpret
                else f"{_LIBDEVICE[op]}({', '.join(values)})"
            ), False
        if op in ("exp", "exp2") and operand == torch.float32 and not self.interpret:
            return (f"EXP2({x} * {math.log2(math.e)!r})" if op == "exp" else f"EXP2({x})"), False
        return f"{_CALLS[op]}({x})", False

    def _power(self, node: Node, values: Sequence[str], operand: torch.dtype) -> str:
        exponent = self.typed.graph.nodes[node.args[1]]
        if exponent.op == "const" and exponent.value in (1, 2, 3, 4):
            return " * ".join([values[0]] * int(exponent.value))
        if exponent.op == "const" and exponent.value == 0.5:
            return f"tl.sqrt({values[0]})"
        if exponent.op == "const" and not self.interpret:
            values = [values[0], f"tl.full({values[0]}.shape, {values[1]}, {TL_DTYPES[operand]})"]
        elif self.typed.graph.nodes[node.args[0]].op == "const" and not self.interpret:
            values = [f"tl.full({values[1]}.shape, {values[0]}, {TL_DTYPES[operand]})", values[1]]
        return (_INTERPRETED if self.interpret else {"pow": "libdevice.pow({0}, {1})"})["pow"].format(*values)

    def results(self, dtypes: Sequence[torch.dtype], stored: bool, like: str) -> list[str]:
        """The outputs converted to `dtypes`; constants are spread over the shape of `like`."""
        texts = []
        for position, dtype in zip(self.typed.graph.outputs, dtypes, strict=True):
            target = (STORED_DTYPES if stored else TL_DTYPES)[dtype]
            node = self.typed.graph.nodes[position]
            if self._is_literal(position):
                value = literal(node.value, dtype) if node.op == "const" else self.names[position]
                texts.append(f"tl.full({like}.shape, {value}, {target})")
            elif self.numbers[position]:
                value = self._mask(position) if dtype == torch.bool else self.names[position]
                texts.append(f"tl.full({like}.shape, {value}.to({target}), {target})")
            elif dtype == torch.bool:
                texts.append(f"{self._mask(position)}.to({target})")
            else:
                same = self.typed.dtypes[position] == dtype and not self.masks[position]
                texts.append(self.names[position] if same else f"{self.names[position]}.to({target})")
        return texts


def _floor_division(op: str, a: str, b: str, dtype: torch.dtype) -> str:
    """Python's floor semantics; Triton's // and % truncate. One of the two may be a number."""
    if is_float(dtype):
        return f"tl.floor({a} / {b})" if op == "floordiv" else f"({a} - tl.floor({a} / {b}) * {b})"
    if dtype == torch.uint64:
        return f"({a} {'//' if op == 'floordiv' else '%'} {b})"
    crossing = f"((({a} % {b}) != 0) & ((({a} % {b}) < 0) != ({b} < 0)))"
    if op == "floordiv":
        return f"({a} // {b} - {crossing}.to({TL_DTYPES[dtype]}))"
    return f"({a} % {b} + tl.where({crossing}, {b}, 0))"


def _function(name: str, parameters: Sequence[str], lines: Sequence[str], results: Sequence[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"def {name}({', '.join(parameters)}):\n{body}    return ({', '.join(results)},)\n"


def emit(
    program: Program, *, index: torch.dtype, from_partials: bool = False, interpret: bool = False
) -> str:
    """The device functions of a program as Triton source. With `from_partials`, LIFT takes a stored state."""
    n, k = len(program.state), program.algebra.inputs
    a, b = [f"a{i}" for i in range(n)], [f"b{i}" for i in range(n)]
    x = [f"x{i}" for i in range(k)]
    parts = [
        _emit_combine(program, a, b, interpret),
        _emit_meet(program, a, b),
        _emit_project(program, a, interpret),
        *_emit_identity(program, a),
    ]
    parts.append(f"def TO_INDEX(x):\n    return x.to({TL_DTYPES[index]})\n")
    if from_partials:
        parts.append(_function("LIFT", [*a, "i"], [], a))
        parts += _no_absorb(a, b)
        return "\n\n".join([*parts, _BLOCK_FUNCTIONS])
    reads = [f"{name} = {_read(name, program.elements[p])}" for p, name in enumerate(x)]
    lift = _Writer(program.lift, [*x, "i"], [False] * (k + 1), interpret)
    parts.append(
        _function("LIFT", [*x, "i"], [*reads, *lift.lines], lift.results(program.state, False, "x0"))
    )
    if program.absorb is None:
        parts += _no_absorb(a, x)
    else:
        parts += _emit_absorb(program, a, x, reads, interpret)
    return "\n\n".join([*parts, _BLOCK_FUNCTIONS])


def emit_epilogue(
    typed: TypedGraph, elements: Sequence[torch.dtype], result: torch.dtype, interpret: bool
) -> str:
    """EPILOGUE(accumulator, *extras as loaded) -> (result,), of a product."""
    return f"{_emit_finishing('EPILOGUE', typed, elements, result, [], interpret)}\n\n{_BLOCK_FUNCTIONS}"


def emit_row(program: Program, apply: TypedGraph, result: torch.dtype, *, interpret: bool) -> str:
    """A row's fold: LIFT, COMBINE, MEET, OR_IDENTITY, PROJECT and TO_INDEX, and APPLY(value, *its results) -> (result,)."""
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    value = [f"a0 = {_read('a0', program.elements[0])}"]
    applied = _emit_finishing("APPLY", apply, program.outputs, result, value, interpret)
    return f"{emit(program, index=index, interpret=interpret)}\n\n{applied}"


def _emit_finishing(
    name: str,
    typed: TypedGraph,
    elements: Sequence[torch.dtype],
    result: torch.dtype,
    before: Sequence[str],
    interpret: bool,
) -> str:
    """A function of a value and further elements as stored, to the one that is stored."""
    names = [f"x{i}" for i in range(len(elements))]
    reads = [f"{x} = {_read(x, element)}" for x, element in zip(names, elements, strict=True)]
    writer = _Writer(typed, ["a0", *names], [False] * (1 + len(names)), interpret)
    body = [*before, *reads, *writer.lines]
    return _function(name, ["a0", *names], body, writer.results([result], True, "a0"))


def emit_products(operand: torch.dtype, accumulator: torch.dtype, interpret: bool) -> str:
    """ZEROS(shape) -> (accumulator,) and OPERAND(element as loaded) -> (factor,), of a product.

    Triton's interpreter multiplies the bits of narrow floats: it gets them widened, which changes no product.
    """
    zeros = f"tl.full(shape, 0, {TL_DTYPES[accumulator]})"
    widened = interpret and is_float(operand) and operand.itemsize < accumulator.itemsize
    factor = f"x.to({TL_DTYPES[accumulator]})" if widened else "x"
    return f"{_function('ZEROS', ['shape: tl.constexpr'], [], [zeros])}\n\n{_function('OPERAND', ['x'], [], [factor])}"


def _no_absorb(a: Sequence[str], x: Sequence[str]) -> list[str]:
    """What the kernels name but a fold without `absorb` never calls."""
    given = {"BEGIN": [*x, "i"], "BEGIN_MASKED": ["mask", *x, "i"]}
    given |= {"ABSORB": [*a, *x, "i"], "ABSORB_MASKED": ["mask", *a, *x, "i"]}
    return [_function(name, parameters, [], [parameters[-1]]) for name, parameters in given.items()]


def _emit_absorb(
    program: Program, a: Sequence[str], x: Sequence[str], reads: Sequence[str], interpret: bool
) -> list[str]:
    """BEGIN and ABSORB for whole blocks; the masked ones count only elements under the mask, and none leave the state."""
    assert program.absorb is not None
    assert program.begin is not None
    begin, absorb = (program.begin, [*x, "i"], 0), (program.absorb, [*a, *x, "i"], len(a))
    like = f"tl.reduce(tl.reduce(x0, 0, BLOCK_FIRST), {axes.UNROLL_OF_RUNS}, BLOCK_FIRST)"
    empty = "IDENTITY(like.shape)"
    functions = []
    for name, (graph, names, states) in (("BEGIN", begin), ("ABSORB", absorb)):
        blocks = [False] * states + [True] * (len(names) - states)
        head = [*reads, f"like = {like if not states else 'a0'}"]
        whole, part = (_Writer(graph, names, blocks, interpret, masked=masked) for masked in (False, True))
        results = whole.results(program.state, False, "like")
        functions.append(_function(name, names, [*head, *whole.lines], results))
        tail = ["some = BLOCK_COUNT(mask) != 0"] + ([] if states else [f"old = {empty}"])
        old = a if states else [f"old[{i}]" for i in range(len(a))]
        results = part.results(program.state, False, "like")
        kept = [f"tl.where(some, {new}, {was})" for new, was in zip(results, old, strict=True)]
        functions.append(_function(f"{name}_MASKED", ["mask", *names], [*head, *part.lines, *tail], kept))
    return functions


def _read(name: str, element: torch.dtype) -> str:
    """An element as loaded -> the dtype it is read as -> the dtype lift sees."""
    seen = element_dtype(element)
    if element == torch.bool:
        return f"({name} != 0).to(tl.int32)"
    return f"{name}.to({STORED_DTYPES[element]}).to({TL_DTYPES[seen]})"


def _emit_combine(program: Program, a: Sequence[str], b: Sequence[str], interpret: bool) -> str:
    texts = []
    for name, graph in (("COMBINE", program.combine), ("COMBINE_LATER", program.combine_later)):
        writer = _Writer(graph, [*a, *b], [False] * (2 * len(a)), interpret)
        texts.append(_function(name, [*a, *b], writer.lines, writer.results(program.state, False, "a0")))
    return "\n\n".join(texts)


def _emit_meet(program: Program, a: Sequence[str], b: Sequence[str]) -> str:
    """MEET: COMBINE where threads exchange states, with the same bits whichever of two threads computes it.

    The fields whose order may be told from the result are put into the order of their own bits first.
    """
    ordered, lines = ordered_fields(program), list[str]()
    for f in reversed(ordered):
        left, right = (_bits_of(name, program.state[f]) for name in (a[f], b[f]))
        rest = f" | (({right} == {left}) & swap)" if lines else ""
        lines.append(f"swap = ({right} < {left}){rest}")
    for x, y in ((a[f], b[f]) for f in ordered):
        lines.append(f"{x}, {y} = tl.where(swap, {y}, {x}), tl.where(swap, {x}, {y})")
    body = "".join(f"    {line}\n" for line in lines)
    parameters = ", ".join([*a, *b])
    return f"def MEET({parameters}):\n{body}    return COMBINE({parameters})\n"


def _bits_of(name: str, dtype: torch.dtype) -> str:
    """A field as whole numbers, of which no two that differ are equal."""
    if not is_float(dtype):
        return name
    return f"{name}.to(tl.int{8 * dtype.itemsize}, bitcast=True)"


def _emit_project(program: Program, a: Sequence[str], interpret: bool) -> str:
    writer = _Writer(program.project, a, [False] * len(a), interpret)
    return _function("PROJECT", a, writer.lines, writer.results(program.outputs, True, "a0"))


def _emit_identity(program: Program, a: Sequence[str]) -> list[str]:
    values = [(literal(v, d), TL_DTYPES[d]) for v, d in zip(program.identity, program.state, strict=True)]
    return [
        _function("IDENTITY", ["shape: tl.constexpr"], [], [f"tl.full(shape, {v}, {t})" for v, t in values]),
        _function(
            "OR_IDENTITY", ["mask", *a], [],
            [f"tl.where(mask, {name}, tl.full([], {v}, {t}))" for name, (v, t) in zip(a, values, strict=True)],
        ),
    ]  # fmt: skip


_BLOCK_FUNCTIONS = """\
def EXP2(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


def RECIPROCAL(x):
    return tl.inline_asm_elementwise("rcp.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


def BLOCK_SUM(a, b):
    return a + b


def BLOCK_FIRST(a, b):
    return a


def FIRST_THAT_COUNTS(a, counts_a, b, counts_b):
    return tl.where(counts_a != 0, a, b), counts_a | counts_b


def BLOCK_FIRST_OF(mask, x):
    runs = tl.reduce((x, mask.to(tl.int32)), 0, FIRST_THAT_COUNTS)
    return tl.reduce(runs, UNROLL_OF_RUNS, FIRST_THAT_COUNTS)[0]


def BLOCK_COUNT(mask):
    return tl.reduce(tl.reduce(mask.to(tl.int32), 0, BLOCK_SUM), UNROLL_OF_RUNS, BLOCK_SUM)


def BLOCK_MAX(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def BLOCK_MAX_INT(a, b):
    return tl.maximum(a, b)


def BLOCK_MIN(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


def BLOCK_MIN_INT(a, b):
    return tl.minimum(a, b)
"""
