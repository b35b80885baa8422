"""The C++ type of each value, by what its loads, stores and operations make of it."""

from __future__ import annotations

from collections.abc import Sequence

from tilefold.xray.compile.arguments import Argument
from tilefold.xray.cuda.readable.linear import Sums
from tilefold.xray.cuda.readable.tree import (
    Assembly,
    Atomic,
    Effect,
    If,
    Load,
    Loop,
    Region,
    Shuffle,
    Store,
    walk,
)
from tilefold.xray.cuda.readable.values import Value
from tilefold.xray.ptx import Variable

TYPES = {
    "fp64": "double", "fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16", "i64": "long long", "i32": "int",
    "i16": "short", "i8": "signed char", "i1": "bool", "u64": "unsigned long long", "u32": "unsigned",
    "u16": "unsigned short", "u8": "unsigned char", "fp8e5": "unsigned char", "fp8e4nv": "unsigned char",
    "fp8e4b15": "unsigned char",
}  # fmt: skip
SIZES = {
    "double": 8, "float": 4, "__half": 2, "__nv_bfloat16": 2, "long long": 8, "unsigned long long": 8, "int": 4,
    "unsigned": 4, "short": 2, "unsigned short": 2, "signed char": 1, "unsigned char": 1, "bool": 1, "char": 1,
}  # fmt: skip
PLAIN = {1: "bool", 8: "unsigned char", 16: "unsigned short", 32: "int", 64: "long long"}
TABLES = {
    f".{letter}{bits}": kind
    for letter in "bus"
    for bits, kind in (
        (8, "unsigned char"),
        (16, "unsigned short"),
        (32, "unsigned"),
        (64, "unsigned long long"),
    )
}
_OF_PTX = {"f64": "double", "f32": "float", "f16": "__half", "bf16": "__nv_bfloat16"}


class Kinds:
    """Types of values; those that must be one are joined."""

    def __init__(
        self, body: Region, parameters: Sequence[Argument], sums: Sums, tables: Sequence[Variable] = ()
    ) -> None:
        self._parameters, self._sums = parameters, sums
        self._tables = {v.name: v for v in tables}
        self._above: dict[Value, Value] = {}
        self._known: dict[Value, str] = {}
        self.pointers: dict[Value, str] = {}  # variables that are addresses, by what they point to
        effects = tuple(walk(body))
        self._find_pointers(effects)
        for effect in effects:
            self._effect(effect)
        self._shared(effects)

    def of(self, value: Value) -> str:
        """The type in which a value is held."""
        if value.op == "parameter":
            return self.parameter(value.data[0])[1]
        if value.op == "table":
            return f"{TABLES[self._tables[value.data[0]].type]}*"
        if value in self.pointers:
            return self.pointers[value] + "*"
        return self._known.get(self._root(value), PLAIN[value.bits])

    def parameter(self, number: int) -> tuple[str, str]:
        """Name and type of a parameter by its number; what Triton adds behind the kernel's own is memory of no type."""
        if number >= len(self._parameters):
            return f"scratch{number}", "char*"
        given = self._parameters[number]
        return given.name.replace(".", "_"), (
            TYPES[given.type] if given.type != "i1" else "unsigned char"
        ) + ("*" if given.pointer else "")

    def base(self, address: Value) -> Value | None:
        """The pointer that an address begins with: a parameter, or a variable that walks through memory."""
        for value, times in self._sums.of(address).terms:
            if times == 1 and self.of(value).endswith("*"):
                return value
        return None

    def element(self, address: Value) -> str | None:
        """The type of what an address of global memory points to."""
        base = self.base(address)
        return None if base is None else self.of(base)[:-1]

    # ------------------------------------------------------------------------------------------------ how it is found
    def _find_pointers(self, effects: Sequence[Effect]) -> None:
        for _ in range(3):
            for effect in effects:
                pairs = [(c.inside, c.first) for c in effect.carried] if isinstance(effect, Loop) else []
                pairs += [(c.behind, c.first) for c in effect.carried] if isinstance(effect, Loop) else []
                pairs += [(v, a) for v, a, _ in effect.merged] if isinstance(effect, If) else []
                for variable, value in pairs:
                    if (
                        variable.bits == 64
                        and variable not in self.pointers
                        and (kind := self.element(value))
                    ):
                        self.pointers[variable] = kind

    def _effect(self, effect: Effect) -> None:
        match effect:
            case Load(space, address, results):
                for value, old in zip(results, effect.old, strict=True):
                    self._join(value, old)
                    if space == "global" and (kind := self.element(address)):
                        self._set(value, kind)
                self.learn([address, *effect.old])
            case Store(space, address, values):
                for value in values:
                    if space == "global" and (kind := self.element(address)):
                        self._set(value, kind)
                self.learn([address, *values])
            case Shuffle():
                self._join(effect.value, effect.result)
                self.learn([effect.value, effect.by])
            case Atomic():
                kind = _OF_PTX.get(effect.name.rpartition(".")[2])
                for value in (*effect.values, *((effect.result,) if effect.result else ())):
                    self._set(value, kind or PLAIN[value.bits])
                self.learn(effect.values)
            case Assembly():
                for value, before in zip(effect.results, effect.held, strict=bool(effect.held)):
                    self._join(value, before)
                for word, kind in ((".f32.", "float"), (".f64.", "double")):
                    if effect.name.startswith(("mma", "wgmma.mma_async")) and word in effect.name:
                        for value in effect.results:
                            self._set(value, kind)
                self.learn([*effect.held, *effect.inputs])
            case If():
                for variable, a, b in effect.merged:
                    self._join(variable, a)
                    self._join(variable, b)
                    self.learn([a, b])
                self.learn([effect.condition])
            case Loop():
                for c in effect.carried:
                    for other in (c.behind, c.first, c.next):
                        self._join(c.inside, other)
                    self.learn([c.first, c.next])
                self.learn([effect.condition])
        guard = getattr(effect, "guard", None)
        self.learn([guard] if guard is not None else [])

    def _shared(self, effects: Sequence[Effect]) -> None:
        """What is loaded from shared memory and has no type yet is what most stores put there."""
        stores = [
            self.of(v) for e in effects if isinstance(e, Store) and e.space == "shared" for v in e.values
        ]
        for effect in effects:
            if isinstance(effect, Load) and effect.space == "shared":
                for value in effect.results:
                    fitting = [k for k in stores if SIZES.get(k, 0) * 8 == value.bits]
                    if self._root(value) not in self._known and fitting:
                        self._set(value, max(set(fitting), key=fitting.count))

    def learn(self, values: Sequence[Value]) -> None:
        """What operations say of what they are made of."""
        waiting, seen = list(values), self.__dict__.setdefault("_seen", set())
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            waiting += value.args
            if value.op == "select":
                self._join(value, value.args[1])
                self._join(value, value.args[2])
            elif value.op == "compare" and value.data[1] == "f":
                for a in value.args:
                    self._set(a, {32: "float", 64: "double"}[a.bits])
            elif value.op == "ptx":
                result, of = types_of(value)
                self._set(value, result)
                for a in value.args:
                    if (kind := of.get(a.bits)) is not None:
                        self._set(a, kind)

    def _root(self, value: Value) -> Value:
        while value in self._above:
            value = self._above[value]
        return value

    def _set(self, value: Value, kind: str) -> None:
        if value.op not in ("const", "undefined", "parameter") and SIZES.get(kind, 0) * 8 == value.bits:
            self._known.setdefault(self._root(value), kind)

    def _join(self, a: Value, b: Value) -> None:
        if any(v.op in ("const", "undefined", "parameter") for v in (a, b)):
            if b.op == "parameter" and not self.of(b).endswith("*"):
                self._set(a, self.of(b))
            return
        a, b = self._root(a), self._root(b)
        if a is not b:
            self._above[a] = b
            if a in self._known:
                self._known.setdefault(b, self._known.pop(a))


def table_name(name: str) -> str:
    """What C++ calls a variable of the module, of which names with two underscores belong to the compiler."""
    return f"table_{name.strip('_').replace('$', '_').replace('.', '_')}"


def types_of(value: Value) -> tuple[str, dict[int, str]]:
    """The type of an instruction's result, and those of its operands by their width."""
    words = value.data[0].split(".")
    to, of = (words[-2], words[-1]) if words[0] == "cvt" else (words[-1], words[-1])
    result = _held(to, value.bits) if words[0] not in ("setp", "set") else "bool"
    return result, {bits: _held(of, bits) for bits in (16, 32, 64)}


def _held(kind: str, bits: int) -> str:
    named = _OF_PTX.get(kind)
    if named is not None and SIZES[named] * 8 == bits:
        return named
    if kind.startswith("u"):
        return {1: "bool", 16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}[bits]
    return PLAIN[bits]
