"""Values as C++: of one value, or of several of one shape as a function of i.

A pack is a tuple of values. What a loop says of a pack holds for its i-th value; a pack of one is that value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tilefold.xray.cuda.readable import functions, operations
from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.formulas import NoFormulaError, formula
from tilefold.xray.cuda.readable.indices import Indices, Pack
from tilefold.xray.cuda.readable.kinds import Kinds, table_name
from tilefold.xray.cuda.readable.linear import Sums
from tilefold.xray.cuda.readable.scopes import Scopes
from tilefold.xray.cuda.readable.sheet import Sheet
from tilefold.xray.cuda.readable.source_names import Names
from tilefold.xray.cuda.readable.text import (
    AND,
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    CHOICE,
    EQUAL,
    OR,
    ORDER,
    PRIMARY,
    PRODUCT,
    SHIFT,
    SUM,
    UNARY,
    Text,
    literal,
)
from tilefold.xray.cuda.readable.values import LEAVES, Graph, Value, apart

_RELATIONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "neu": "!="}
_COMPARED = {
    ("s", 16): "short", ("u", 16): "unsigned short", ("s", 32): "int", ("s", 64): "long long", ("u", 32): "unsigned",
    ("u", 64): "unsigned long long", ("f", 32): "float", ("f", 64): "double",
}  # fmt: skip
_WHOLE = {16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}
_SPECIAL = {
    "%tid": ("threadIdx", "tid"),
    "%ctaid": ("blockIdx", "pid"),
    "%nctaid": ("gridDim", "programs"),
}
ARRAYS = {"shared": "smem", "local": "local"}  # memory of the block and of a thread, by name
_FEW = 4  # values that a loop chooses among
_LARGE = 12  # operations of an expression that is not said twice


class Expressions(Indices):
    """Writes values. `folded` is asked first when a value gets a name of its own."""

    def __init__(self, graph: Graph, sheet: Sheet, kinds: Kinds, sums: Sums, scopes: Scopes) -> None:
        super().__init__(graph, sheet, sums, scopes)
        self.kinds = kinds
        self.packs: dict[Value, Pack] = {}  # values that go together
        self.folded: Callable[[Value], bool] = lambda value: False
        self.is_fold: Callable[[Value], bool] = lambda value: False
        self._signed: set[Value] = set()  # whose sign somebody reads
        self._families: dict[tuple[tuple[Value, int], ...], set[int]] = defaultdict(set)
        for value in scopes.homes:
            if value.op == "sext" or (value.op == "compare" and value.data[1] == "s"):
                self._signed.update(value.args)
            if value.bits == 32 and sums.is_sum(value):
                form = sums.of(value)
                self._families[form.terms].add(form.constant)

    # ------------------------------------------------------------------------------------------------------ one pack
    def say(self, pack: Pack, want: str | None = None) -> Text:
        """The text of a pack, as a type where one is wanted.

        Raises:
            NoFormulaError: no loop says it.
        """
        first = pack[0]
        if all(v is first for v in pack):
            pack = (first,)
        if all(v.op == "const" for v in pack):
            return self._constant(pack, want)
        distinct = tuple(dict.fromkeys(pack))
        if 1 < len(distinct) <= min(_FEW, len(pack) // 2) and self.kinds.of(first) == "float":
            chosen = self._chosen(pack, distinct)
            return chosen if want is None else chosen.to(want)
        if first.op == "undefined" and len(pack) == 1:
            return literal(0, first.bits, want or self.kinds.of(first))
        text = self._known(pack)
        if text is None:
            if self._is_worth(pack):
                self.materialise(pack)
                text = self._known(pack)
                assert text is not None, "what was just named is known"
            else:
                text = self.expression(pack)
        return text if want is None else text.to(want)

    def _chosen(self, pack: Pack, distinct: Pack) -> Text:
        """One of few values, by its place in an array of them."""
        at = formula([distinct.index(v) for v in pack])
        key = ("chosen", distinct)
        known = self.sheet.known.get(key)
        if known is None or not self.scopes.within(self.sheet.region, known[1]):
            texts = ", ".join(self.one(v, "float").text for v in distinct)
            name = self.sheet.name_of(distinct[-1].place, "each", "float")
            self.sheet.say(f"const float {name}[{len(distinct)}] = {{{texts}}};", distinct[-1].place)
            self.sheet.put(self.sheet.known, key, (name, self.sheet.region))
            known = self.sheet.known[key]
        return Text(f"{known[0]}[{at}]", PRIMARY, "float")

    def _constant(self, pack: Pack, want: str | None) -> Text:
        first = pack[0]
        if len(pack) == 1:
            return literal(first.data[0], first.bits, want)
        numbers = [self.sums.of(v).constant for v in pack] if first.bits in (32, 64) else None
        if numbers is None or want not in (None, "int", "unsigned"):
            raise NoFormulaError
        return Text(formula(numbers), SUM, "int").to(want or "int")

    def _known(self, pack: Pack) -> Text | None:
        """The text of what has a name."""
        named = self.sheet.named
        if len(pack) == 1:
            return named.get(pack[0]) or self._special(pack[0])
        held = [self.sheet.arrays.get(v) for v in pack]
        arrays = {h[0] for h in held if h is not None}
        if all(held) and len(arrays) == 1:
            return Text(f"{arrays.pop()}[{formula([h[1] for h in held if h])}]", PRIMARY, named[pack[0]].type)
        if any(v in named for v in pack) and not self._is_spread(pack):
            raise NoFormulaError
        return None

    def _is_spread(self, pack: Pack) -> bool:
        """Whether values are constants away from each other."""
        if pack[0].bits not in (32, 64):
            return False
        terms = self.sums.of(pack[0]).terms
        return all(self.sums.of(v).terms == terms for v in pack[1:])

    def _special(self, value: Value) -> Text | None:
        """Numbers of threads and programs, which the kernel's head names where they are used."""
        if value.op == "special":
            kind, _, axis = value.data[0].partition(".")
            word, name = _SPECIAL[kind]
            name += "" if axis == "x" else f"_{axis}"
            text = f"{word}.{axis}"
        elif value.op in ("shared", "local"):
            (array,) = value.data
            name, text = f"{array}_at", f"(unsigned)__cvta_generic_to_{value.op}({array})"
        elif (
            value.op in ("and", "shr") and value.args[0].op == "special" and value.args[0].data[0] == "%tid.x"
        ):
            known = {("and", 31): ("lane", "threadIdx.x % 32"), ("shr", 5): ("warp", "threadIdx.x / 32")}
            if (value.op, value.args[1].constant) not in known:
                return None
            name, text = known[value.op, value.args[1].constant or 0]
        else:
            return None
        if value.op == "special" and name.startswith("pid"):
            name = self.sheet.name_of(value.place, name, "program")
        else:
            name = self.sheet.fresh(name)
        self.sheet.top(f"{name} = {text}")
        self.sheet.name(value, name, "unsigned", self.scopes.root)
        return self.sheet.named[value]

    def _is_worth(self, pack: Pack) -> bool:
        """Whether a pack gets a name: it is used again, and long; or nothing but a statement says it."""
        first = pack[0]
        if len(pack) > 1:
            shared = any(self.scopes.uses[v] > 1 for v in pack)
            return (
                shared
                and first.op not in LEAVES
                and (self.kinds.of(first) == "float" or self._size(first) > _LARGE)
            )
        if first.op in LEAVES:
            return False
        if self.is_fold(first):
            return True
        if self.scopes.uses[first] < 2:
            return False
        if self.sums.is_sum(first):
            return len(self.sums.of(first).terms) > 1 or self._size(first) > _LARGE
        if first.op == "ptx" and first.data[0].startswith("cvt.") and first.args[0].op == "parameter":
            return False
        if first.op == "compare":
            return not all(self._is_simple(a) for a in first.args)
        if first.op in ("shr", "and") and first.args[0].op == "special":
            return False
        return first.op not in ("sext", "zext", "not")

    def _is_simple(self, value: Value) -> bool:
        return (
            value.op in ("const", "special", "parameter")
            or value in self.sheet.named
            or self.sums.is_sum(value)
        )

    def _size(self, value: Value) -> int:
        """Operations of an expression, up to a bound."""
        count, waiting = 0, [value]
        while waiting and count <= _LARGE:
            at = waiting.pop()
            if at.op not in LEAVES and (at is value or at not in self.sheet.named):
                count += 1
                waiting += at.args
        return count

    # ----------------------------------------------------------------------------------------------------- names
    def materialise(self, pack: Pack) -> None:
        """Give a pack a name, in the region of all its uses.

        Raises:
            NoFormulaError: no loop says it.
        """
        first = pack[0]
        together = self.packs.get(first)
        if (
            together
            and len(together) > 1
            and not self.sheet.one_by_one
            and self.kinds.of(first) == "float"
            and not any(v in self.sheet.named for v in together)
            and apart(together)
        ):
            made = self._try_array(together)
            if made and all(v in self.sheet.named for v in pack):
                return
        home = self.scopes.homes[first]
        for value in pack[1:]:
            home = self.scopes.common(home, self.scopes.homes[value])
        if not self.scopes.within(self.sheet.region, home):
            if not self.scopes.within(home, self.sheet.region):
                raise UnreadableError(
                    "cuda: a value must be used where it is visible, got another region; take the plain form"
                )
            home = self.sheet.region  # a pointer that it is part of stands outside of all its uses
        before, self.sheet.region = self.sheet.region, home
        try:
            if len(pack) > 1:
                self.array(pack)
            elif not self.folded(first):
                self._scalar(first)
        finally:
            self.sheet.region = before

    def _scalar(self, value: Value) -> None:
        text = self.expression((value,))
        kind = self.kinds.of(value)
        if self.sums.is_sum(value) or (value.bits > 1 and value.op in ("mul", "and", "or", "xor", "shr")):
            kind = self._index_type(value, text)
        text = text.to(kind)
        name = self.sheet.name_for(value, {"float": "value", "bool": "on"}.get(kind, "at"), kind)
        self.sheet.say(f"const {kind} {name} = {text.text};", value.place)
        self.sheet.name(value, name, kind)
        if self.sums.is_sum(value) and value.bits == 32:
            form = self.sums.of(value)
            self.sheet.put(
                self.sheet.known, ("sum", form.terms), ((name, form.constant, kind), self.sheet.region)
            )

    def _index_type(self, value: Value, text: Text) -> str:
        """Signed, as indices are; unsigned where others are a constant away, so that C++ may add it as PTX does."""
        if value.bits == 64:
            return text.type
        spread = len(self._families[self.sums.of(value).terms]) > 1
        return "unsigned" if (spread or value not in self._signed) and text.type == "unsigned" else "int"

    def _try_array(self, pack: Pack) -> bool:
        mark = self.sheet.mark()
        try:
            self.array(pack)
        except NoFormulaError:
            self.sheet.back(mark)
            return False
        return True

    def array(self, pack: Pack) -> None:
        """An array of values that one loop fills.

        Raises:
            NoFormulaError: none does.
        """
        if all(v in self.sheet.arrays for v in pack):
            return
        if any(v in self.sheet.named or v.op in LEAVES for v in pack) or len(set(pack)) < len(pack):
            raise NoFormulaError
        home = self.scopes.homes[pack[0]]
        for value in pack[1:]:
            home = self.scopes.common(home, self.scopes.homes[value])
        if not self.scopes.within(self.sheet.region, home):
            raise NoFormulaError
        before, self.sheet.region = self.sheet.region, home
        try:
            kind = self.kinds.of(pack[0])
            text = self.expression(pack).to(kind)
            name = self.sheet.name_for(pack[-1], "values", kind)
            self.sheet.say(f"{kind} {name}[{len(pack)}];", pack[-1].place)
            self.sheet.say(f"for (int i = 0; i < {len(pack)}; ++i) {name}[i] = {text.text};")
            self.sheet.own(name, kind, pack)
        finally:
            self.sheet.region = before

    # ----------------------------------------------------------------------------------------------- expressions
    def expression(self, pack: Pack) -> Text:
        """The operation that makes a pack of what it is made of."""
        return (self._function(pack) if pack[0].op not in LEAVES else None) or self.made(pack)

    def made(self, pack: Pack) -> Text:
        """The same, though it is what a function gives."""
        first = pack[0]
        if any(self.sums.is_sum(v) for v in pack):
            return self.sum(pack)
        if any(v.op == "xor" for v in pack) and (text := self._turned(pack)):
            return text
        if len({(v.op, v.data, len(v.args), v.bits) for v in pack}) > 1 and first.op != "const":
            raise NoFormulaError
        if first.op in LEAVES:
            return self._leaf(pack)
        return self._operation(pack)

    def _function(self, pack: Pack) -> Text | None:
        """A call of a function of mathematics that the compiler wrote out; None where a pack is no such."""
        name, kind = self.sheet.function_of(pack[0]), self.kinds.of(pack[0])
        if not name or kind not in ("float", "double"):
            return None
        found = [functions.Written(v) for v in pack]
        given = tuple(f.argument for f in found if f.argument is not None)
        if not all(f.is_function and f.shape == found[0].shape for f in found):
            return None
        if any(self.kinds.of(a) != kind for a in given):
            return None
        inner = Sheet(scope := functions.alone(pack[0]), {"x"}, Names(""), lambda place: "")
        inner.helpers = self.sheet.helpers
        inner.name(given[0], "x", kind)
        result = Expressions(self.graph, inner, self.kinds, self.sums, Scopes(scope)).made((pack[0],))
        own = [line for line in inner.lines[scope] if not line.startswith("//")]
        lines = [*(f"  {line}" for line in own), f"  return {result.to(kind).text};"]
        head = f"{name}_{'f32' if kind == 'float' else 'f64'}"
        text = "\n".join([f"({kind} x) {{", *lines, "}"])
        known = next((n for n, t in self.sheet.helpers.items() if t.endswith(text)), None)
        if known is None:
            known, k = head, 1
            while known in self.sheet.helpers:
                known, k = f"{head}_{k + 1}", k + 1
            self.sheet.put(self.sheet.helpers, known, f"static __device__ {kind} {known}{text}")
        return Text(f"{known}({self.say(given, kind).text})", PRIMARY, kind)

    def _leaf(self, pack: Pack) -> Text:
        first = pack[0]
        if len(pack) > 1:
            raise NoFormulaError
        if first.op == "table":
            return Text(table_name(first.data[0]), PRIMARY, self.kinds.of(first))
        if first.op == "parameter":
            name, kind = self.kinds.parameter(first.data[0])
            return Text(name, PRIMARY, kind)
        raise UnreadableError(
            f"cuda: a value must have a name where it is used, got {first.op}; take the plain form"
        )

    def _operation(self, pack: Pack) -> Text:
        first = pack[0]

        def given(k: int, want: str | None = None) -> Text:
            return self.say(tuple(v.args[k] for v in pack), want)

        match first.op:
            case "ptx":
                texts = [given(k, want) for k, want in enumerate(operations.wanted(first))]
                return operations.written(first, texts, self.sheet.helpers)
            case "select":
                kind = self.kinds.of(first)
                return Text(
                    f"{given(0).at(OR)} ? {given(1, kind).at(OR)} : {given(2, kind).at(CHOICE)}", CHOICE, kind
                )
            case "compare":
                return self._compare(pack)
            case "not" if first.bits == 1:
                return Text(f"!{given(0).at(UNARY)}", UNARY, "bool")
            case "and" | "or" | "xor" if first.bits == 1:
                sign, level = {"and": ("&&", AND), "or": ("||", OR), "xor": ("!=", EQUAL)}[first.op]
                return Text(
                    f"{given(0).at(level + (first.op == 'xor'))} {sign} {given(1).at(level + 1)}",
                    level,
                    "bool",
                )
            case "pack":
                return self._packed([given(k, _WHOLE.get(a.bits)) for k, a in enumerate(first.args)], first)
            case "part" if first.bits in _WHOLE and first.args[0].bits in _WHOLE:
                whole = given(0, _WHOLE[first.args[0].bits])
                by = first.data[0] * first.bits
                text = f"({whole.at(SHIFT)} >> {by})" if by else whole.at(UNARY)
                return Text(f"({_WHOLE[first.bits]}){text}", UNARY, _WHOLE[first.bits])
            case "trunc":
                whole = given(0)
                whole = whole if whole.type in ("long long", "int", "unsigned") else whole.to(_WHOLE[64])
                return Text(f"(unsigned){whole.at(UNARY)}", UNARY, "unsigned")
            case "widen" | "narrow":
                kinds = {8: "unsigned char", **_WHOLE}
                inner = given(0, kinds[first.args[0].bits])
                return Text(f"({kinds[first.bits]}){inner.at(UNARY)}", UNARY, kinds[first.bits])
            case "zext" | "sext":
                kind = "unsigned" if first.op == "zext" else "int"
                return Text(f"(long long){given(0, kind).at(UNARY)}", UNARY, "long long")
        return self._bits(pack, given)

    def _packed(self, pieces: list[Text], value: Value) -> Text:
        """Pieces beside each other, the first lowest."""
        kind, width = _WHOLE.get(value.bits), value.args[0].bits
        if kind is None or width not in _WHOLE:
            raise UnreadableError(f"cuda: pieces must be of 16 or 32 bits, got {width}; take the plain form")
        terms = [f"({kind}){p.at(UNARY)}" + (f" << {k * width}" if k else "") for k, p in enumerate(pieces)]
        return Text(" | ".join(terms), BIT_OR, kind)

    def _bits(self, pack: Pack, given: Callable[..., Text]) -> Text:
        """Logic, shifts and products of unsigned numbers."""
        first = pack[0]
        kind = {32: "unsigned", 64: "unsigned long long"}.get(first.bits)
        if kind is None:
            raise UnreadableError(
                f"cuda: {first.op} must be of 32 or 64 bits, got {first.bits}; take the plain form"
            )
        constant = first.args[1].constant if len(first.args) == 2 else None
        one = constant is not None and all(v.args[1].constant == constant for v in pack)
        if (
            first.op == "and"
            and one
            and constant is not None
            and not constant & (constant + 1)
            and constant < 1 << 31
        ):
            return Text(f"{given(0, kind).at(PRODUCT)} % {constant + 1}", PRODUCT, kind)
        if first.op == "shr" and one and constant is not None and constant < 31:
            return Text(f"{given(0, kind).at(PRODUCT)} / {1 << constant}", PRODUCT, kind)
        if first.op in ("shr", "shl"):
            return Text(
                f"{given(0, kind).at(SHIFT)} {'<<' if first.op == 'shl' else '>>'} {given(1).at(SUM)}",
                SHIFT,
                kind,
            )
        if first.op == "sar":
            signed = {32: "int", 64: "long long"}[first.bits]
            return Text(f"{given(0, signed).at(SHIFT)} >> {given(1).at(SUM)}", SHIFT, signed)
        if first.op in ("div", "udiv"):
            if not one:
                raise NoFormulaError
            kind = "int" if first.op == "div" else kind
            return Text(f"{given(0, kind).at(PRODUCT)} / {constant}", PRODUCT, kind)
        if first.op == "not":
            return Text(f"~{given(0, kind).at(UNARY)}", UNARY, kind)
        if first.op not in ("and", "or", "xor", "mul"):
            raise UnreadableError(f"cuda: an operation must be known, got {first.op}; take the plain form")
        sign, level = {
            "and": ("&", BIT_AND),
            "or": ("|", BIT_OR),
            "xor": ("^", BIT_XOR),
            "mul": ("*", PRODUCT),
        }[first.op]
        least = PRODUCT if first.op == "mul" else SHIFT
        left, right = given(0), given(1)
        left, right = (
            t if t.type in ("int", "unsigned", "long long", "unsigned long long") else t.to(kind)
            for t in (left, right)
        )
        if kind not in (left.type, right.type):
            left = left.to(kind)
        return Text(f"{left.at(least)} {sign} {right.at(least + 1)}", level, kind)

    def _compare(self, pack: Pack) -> Text:
        relation, kind = pack[0].data
        want = _COMPARED.get((kind, pack[0].args[0].bits))
        sides = [tuple(v.args[k] for v in pack) for k in (0, 1)]
        if want is None:
            raise UnreadableError(
                "cuda: a comparison must be of 32 or 64 bits, got others; take the plain form"
            )
        if relation in ("eq", "ne") and kind == "u":
            left, right = (self.say(s) for s in sides)
            if {left.type, right.type} - {"int", "unsigned", "long long", "unsigned long long"}:
                left, right = (self.say(s, want) for s in sides)
        elif kind == "f" or not all(self._is_small(s) for s in sides):
            left, right = (self.say(s, want) for s in sides)
        else:
            left, right = (self.say(s) for s in sides)
            left, right = (t if t.type in ("int", "unsigned") else t.to(want) for t in (left, right))
        level = EQUAL if relation in ("eq", "ne", "neu") else ORDER
        return Text(f"{left.at(level + 1)} {_RELATIONS[relation]} {right.at(level + 1)}", level, "bool")

    def _is_small(self, pack: Pack) -> bool:
        """Whether values are the same numbers with and without a sign."""
        return all(v.bits == 32 and self.graph.small(v) for v in pack)
