"""Instructions that C++ has no word for, as inline PTX: registers become operands, predicates pass as whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilefold.xray.cuda.readable.blocks import UnreadableError, results_and_sources
from tilefold.xray.cuda.readable.tree import Assembly
from tilefold.xray.cuda.readable.values import Graph, Value, leaves
from tilefold.xray.ptx import Address, Immediate, Instruction, Operand, Pair, Register, Symbol, Vector
from tilefold.xray.ptx.writer import write_operand


@dataclass(frozen=True)
class Operands:
    """How a lifter reads an operand and an address, and makes a result of a width; the widths of its registers."""

    read: Callable[[Operand, int], Value]
    address: Callable[[Operand, str], Value]
    result: Callable[[int], Value]
    widths: Mapping[str, int]


def assembly(
    instruction: Instruction, graph: Graph, operands: Operands, waited: Sequence[str], guard: Value | None
) -> tuple[Assembly, list[tuple[Register, Value]]]:
    """The effect of an instruction, and the values that registers have after it. `waited` names those it waits for.

    Raises:
        UnreadableError: an operand has no place in inline PTX.
    """
    targets, sources = results_and_sources(instruction)
    held: tuple[Operand, ...] = tuple(Register(name) for name in waited)
    if instruction.opcode == "mma":
        held, sources = _each(sources[-1]), sources[:-1]
    elif instruction.name.startswith("wgmma.mma_async"):
        held, sources = _each(targets[0]), sources[1:]
    template = _Template(graph, operands)
    outs = held if waited else [r for o in targets for r in _each(o)]
    written = [(r, template.result(operands.widths[r.name])) for r in outs if isinstance(r, Register)]
    names = iter([f"%{k}" if v.bits > 1 else f"q{k}" for k, (_, v) in enumerate(written)])
    text = [_named(o, names) for o in targets] + [template.source(instruction, o) for o in sources]
    if instruction.opcode == "mma":
        text.append(text[0])
    says = template.whole(f"{instruction.name} {', '.join(text)};" if text else f"{instruction.name};")
    effect = Assembly(
        instruction.name,
        says,
        tuple(template.results),
        tuple(operands.read(h, v.bits) for h, (_, v) in zip(held, written, strict=True)) if held else (),
        tuple(template.inputs),
        tuple(template.groups),
        tuple(template.roles),
        guard,
        graph.place,
    )
    return effect, written


def _each(operand: Operand) -> tuple[Operand, ...]:
    match operand:
        case Vector(items):
            return items
        case Pair(first, second):
            return (first, second)
    return (operand,)


def _named(operand: Operand, names: Iterator[str]) -> str:
    """A result's text: the next of the names stands for each of its registers."""
    match operand:
        case Vector(items):
            return "{" + ", ".join(_named(i, names) for i in items) + "}"
        case Pair(first, second):
            return f"{_named(first, names)}|{_named(second, names)}"
        case Register():
            return next(names)
        case Symbol(name):
            return name
    raise UnreadableError("cuda: a result must be registers, got others; take the plain form")


class _Template:
    """Collects an instruction's operands, numbered results first, and what turns predicates into numbers."""

    def __init__(self, graph: Graph, operands: Operands) -> None:
        self.results: list[Value] = []
        self.inputs: list[Value] = []
        self.groups: list[int] = []
        self.roles: list[str] = []
        self._graph, self._operands = graph, operands
        self._before: list[str] = []
        self._behind: list[str] = []

    def result(self, width: int) -> Value:
        """One more result, as the value that its register then has."""
        k, made = len(self.results), self._operands.result(max(width, 32) if width == 1 else width)
        self.results.append(made)
        if width > 1:
            return made
        self._before.append(f".reg .pred q{k};")
        self._behind.append(f"selp.b32 %{k}, 1, 0, q{k};")
        return self._graph.compared("ne", "u", made, self._graph.const(0))

    def source(self, instruction: Instruction, operand: Operand) -> str:
        """An operand's text; it is one group."""
        count = len(self.inputs)
        text = self._source(instruction, operand)
        if len(self.inputs) > count:
            whole = isinstance(operand, Vector) and set(self.roles[count:]) == {"value"}
            self.groups += [len(self.inputs) - count] if whole else [1] * (len(self.inputs) - count)
        return text

    def _source(self, instruction: Instruction, operand: Operand) -> str:
        match operand:
            case Vector(items):
                return "{" + ", ".join(self._source(instruction, i) for i in items) + "}"
            case Immediate():
                return write_operand(operand)
            case Address(base, offset, coordinates):
                inner = ""
                place = self._address(Address(base, offset))
                if coordinates is not None:
                    inner = ", " + self._source(instruction, coordinates)
                return f"[{place}{inner}]"
            case Symbol("_"):
                return "_"
            case Register(name) if name not in self._operands.widths and not name.startswith(
                ("%tid", "%ctaid", "%ntid", "%nctaid")
            ):
                return "%" + name
        width = self._operands.widths.get(operand.name, 32) if isinstance(operand, Register) else 32
        read = self._operands.read(operand, width)
        if read.bits > 1:
            return self._add(read, "value")
        if read.constant is not None:
            return str(read.constant)
        place = self._add(read, "predicate")
        name = f"p{place[1:]}"
        self._before.append(f".reg .pred {name}; setp.ne.b32 {name}, {place}, 0;")
        return name

    def _address(self, operand: Address) -> str:
        """An address as a pointer to what it is the address of, where that is known."""
        value = self._operands.address(operand, "global")
        shared = any(leaf.op == "shared" for leaf in leaves(value))
        if value.bits == 32:
            return self._add(value, "shared" if shared else "value")
        if shared and value.op == "zext":
            return self._add(value.args[0], "wide")
        return self._add(value, "value" if shared else "global")

    def _add(self, value: Value, role: str) -> str:
        self.inputs.append(value)
        self.roles.append(role)
        return f"%{len(self.results) + len(self.inputs) - 1}"

    def whole(self, text: str) -> str:
        """The template of the instruction among what its predicates need."""
        if not self._before and not self._behind:
            return text
        return " ".join(["{", *self._before, text, *self._behind, "}"])
