"""Whole numbers as C++: sums of one value, or of several as a function of i, exact in their width; swizzles."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tilefold.xray.cuda.readable.formulas import NoFormulaError, formula
from tilefold.xray.cuda.readable.linear import Linear, Sums
from tilefold.xray.cuda.readable.scopes import Scopes
from tilefold.xray.cuda.readable.sheet import Sheet
from tilefold.xray.cuda.readable.text import BIT_XOR, PRIMARY, PRODUCT, SHIFT, SUM, UNARY, Text
from tilefold.xray.cuda.readable.values import Graph, Value

Pack = tuple[Value, ...]


class Indices(ABC):
    """Writes sums. What they are made of is written by who extends this."""

    def __init__(self, graph: Graph, sheet: Sheet, sums: Sums, scopes: Scopes) -> None:
        self.graph, self.sheet, self.sums, self.scopes = graph, sheet, sums, scopes

    @abstractmethod
    def say(self, pack: Pack, want: str | None = None) -> Text:
        """The text of a pack, as a type where one is wanted.

        Raises:
            NoFormulaError: no loop says it.
        """

    def one(self, value: Value, want: str | None = None) -> Text:
        """The text of a value."""
        return self.say((value,), want)

    def sum(self, pack: Pack) -> Text:
        """A whole number as a sum, computed without a sign where it may wrap."""
        forms = [self.sums.of(v) for v in pack]
        return self.form(forms, pack)

    def form(self, forms: list[Linear], pack: Pack) -> Text:
        """The same of linear forms. `pack` says where names come from."""
        first = forms[0]
        if any([c for _, c in f.terms] != [c for _, c in first.terms] for f in forms):
            turned = any(v.op == "xor" for f in forms for v, _ in f.terms)
            return self._swizzle(forms) if turned else self._scaled(forms)
        constant = formula([f.constant for f in forms])
        same = all(f.terms == first.terms for f in forms)
        if same and (text := self._from_known(forms, pack)):
            return text
        if same and "%" in constant and (text := self._index(forms, constant, pack)):
            return text
        unsigned = "unsigned" if first.bits == 32 else "unsigned long long"
        terms = [
            (c, self._term(tuple(f.terms[k][0] for f in forms), first.bits))
            for k, (_, c) in enumerate(first.terms)
        ]
        terms.sort(key=lambda t: t[0] < 0)
        bounded = all(self.sums.bounded(f) for f in forms)
        if first.bits == 64 and not bounded:
            terms = [(c, t.to("long long") if t.type in ("int", "unsigned") else t) for c, t in terms]
            bounded = all(self._extends(f) for f in forms)
        if not bounded and not any(t.type == unsigned for _, t in terms) and terms:
            c, t = terms[0]
            if (
                first.bits == 32
                and constant.isdigit()
                and constant != "0"
                and len(terms) == 1
                and abs(c) == 1
            ):
                constant += "u"
                text = _added(terms, constant, first.bits)
                return Text(text.text, text.level, unsigned)
            plain = t.type in ("int", "long long", "unsigned")
            terms[0] = c, (Text(f"({unsigned}){t.at(UNARY)}", UNARY, unsigned) if plain else t.to(unsigned))
        return _added(terms, constant, first.bits)

    def _index(self, forms: list[Linear], constant: str, pack: Pack) -> Text | None:
        """A call of the function that gives the index of a thread's i-th element; None where it has to be 64 bits wide."""
        first = forms[0]
        home = self.scopes.deepest((v for v, _ in first.terms), self.sheet.where)
        if (first.bits == 64 and not all(self.sums.bounded(f) for f in forms)) or not self.scopes.within(
            self.sheet.region, home
        ):
            return None
        key = ("index", first.terms, tuple(f.constant for f in forms))
        known = self.sheet.known.get(key)
        if known is None or not self.scopes.within(self.sheet.region, known[1]):
            before, self.sheet.region = self.sheet.region, home
            try:
                terms = [(c, self._term((v,), first.bits)) for v, c in first.terms]
                if not any(t.type == "unsigned" for _, t in terms):
                    return None
                text = _added(sorted(terms, key=lambda t: t[0] < 0), constant, 32).text
                name = self.sheet.name_of(pack[0].place, "index", "place")
                self.sheet.say(f"auto {name} = [&](int i) -> int {{ return {text}; }};", pack[0].place)
                self.sheet.put(self.sheet.known, key, (name, home))
            finally:
                self.sheet.region = before
            known = self.sheet.known[key]
        return Text(f"{known[0]}(i)", PRIMARY, "int")

    def _extends(self, form: Linear) -> bool:
        """Whether a sum of 64 bits is of so few numbers of 32 that it cannot wrap."""
        narrow = all(v.bits == 32 or v.op in ("zext", "sext") for v, _ in form.terms)
        return narrow and sum(abs(c) for _, c in form.terms) < 1 << 28 and abs(form.constant) < 1 << 60

    def _term(self, pack: Pack, bits: int) -> Text:
        """A value of a sum; one that a wider sum takes in is a number of its own sign."""
        if bits == 64 and pack[0].op in ("zext", "sext") and not any(v in self.sheet.named for v in pack):
            if any(v.op != pack[0].op for v in pack):
                raise NoFormulaError
            kind = "unsigned" if pack[0].op == "zext" else "int"
            return self.say(tuple(v.args[0] for v in pack), kind)
        text = self.say(pack)
        if text.type.endswith("*"):
            return Text(f"(long long){text.at(UNARY)}", UNARY, "long long")
        if text.type not in ("int", "unsigned", "long long", "unsigned long long"):
            return text.to("int" if pack[0].bits == 32 else "long long")
        return text

    def _from_known(self, forms: list[Linear], pack: Pack) -> Text | None:
        """A sum that is a constant away from one with a name; a sum of several values gets one where a loop needs it."""
        first = forms[0]
        known = self._visible(("sum", first.terms))
        if known is None and first.bits == 32 and len(first.terms) > 1 and len(forms) > 1:
            self._name_family(first, pack)
            known = self._visible(("sum", first.terms))
        if known is None or first.bits != 32:
            return None
        name, constant, kind = known
        rest = formula([f.constant - constant for f in forms])
        text = Text(name, PRIMARY, kind)
        if rest == "0":
            return text
        sign, rest = ("-", rest[1:]) if rest.startswith("-") and rest[1:].isdigit() else ("+", rest)
        return Text(f"{text.to('unsigned').at(SUM)} {sign} {rest}", SUM, "unsigned")

    def _name_family(self, form: Linear, pack: Pack) -> None:
        """A name for the part of sums that does not change with i."""
        home = self.scopes.homes.get(pack[0])
        if home is None or not self.scopes.within(self.sheet.region, home):
            return
        before, self.sheet.region = self.sheet.region, home
        try:
            base = Linear(form.terms, 0, form.bits)
            terms = [(c, self._term((v,), form.bits)) for v, c in base.terms]
            terms.sort(key=lambda t: t[0] < 0)
            if not any(t.type == "unsigned" for _, t in terms):
                terms[0] = terms[0][0], terms[0][1].to("unsigned")
            text = _added(terms, "0", form.bits)
            name = self.sheet.name_of(pack[0].place, "at", "unsigned")
            self.sheet.say(f"const unsigned {name} = {text.text};", pack[0].place)
            self.sheet.put(self.sheet.known, ("sum", form.terms), ((name, 0, "unsigned"), home))
            for value in self.scopes.homes:
                inside = self.scopes.within(self.scopes.homes[value], home)
                if (
                    inside
                    and value.bits == 32
                    and value not in self.sheet.named
                    and self.sums.of(value) == base
                ):
                    self.sheet.name(value, name, "unsigned")
        finally:
            self.sheet.region = before

    def _visible(self, key: object) -> tuple[str, int, str] | None:
        found = self.sheet.known.get(key)
        if found is None or not self.scopes.within(self.sheet.region, found[1]):
            return None
        held: tuple[str, int, str] = found[0]
        return held

    def _scaled(self, forms: list[Linear]) -> Text:
        """`x + n * f(i)`: the same values, one of them another number of times for each i."""
        first = forms[0]
        unsigned = "unsigned" if first.bits == 32 else "unsigned long long"
        values = sorted({v for f in forms for v, _ in f.terms}, key=lambda v: v.number)
        terms: list[tuple[int, Text]] = []
        if sum(len({dict(f.terms).get(v, 0) for f in forms}) > 1 for v in values) > 1:
            raise NoFormulaError
        for value in values:
            counts = [dict(f.terms).get(value, 0) for f in forms]
            text = self._term((value,), first.bits).to(unsigned)
            if len(set(counts)) == 1:
                terms.append((counts[0], text))
            else:
                factor = formula(counts)
                factor = factor if factor.isalnum() else f"({factor})"
                terms.append((1, Text(f"{text.at(PRODUCT)} * {factor}", PRODUCT, unsigned)))
        terms.sort(key=lambda t: t[0] < 0)
        return _added(terms, formula([f.constant for f in forms]), first.bits)

    def _turned(self, pack: Pack) -> Text | None:
        """`x ^ f(i)`, where the first of a pack is x itself; None if the pack is no such."""
        split = [
            (v.args[0], v.args[1].constant) if v.op == "xor" and v.args[1].constant is not None else (v, 0)
            for v in pack
        ]
        if len(pack) < 2 or len({x for x, _ in split}) > 1:
            return None
        flips = formula([c or 0 for _, c in split])
        flips = flips if flips.isalnum() else f"({flips})"
        return Text(f"{self.one(split[0][0], 'unsigned').at(SHIFT)} ^ {flips}", BIT_XOR, "unsigned")

    def _swizzle(self, forms: list[Linear]) -> Text:
        """`(x ^ f(i)) + g(i)`."""
        turned = [
            next((v for v, c in f.terms if c == 1 and v.op == "xor" and v.args[1].constant is not None), None)
            for f in forms
        ]
        bases = {v.args[0] for v in turned if v is not None}
        if len(bases) != 1:
            raise NoFormulaError
        base = bases.pop()
        inner = self.sums.of(base)
        flips, rests = [], []
        for form, value in zip(forms, turned, strict=True):
            if value is not None:
                flips.append(value.args[1].constant or 0)
                rests.append(form.without(value))
                continue
            if not set(inner.terms) <= set(form.terms):
                raise NoFormulaError
            flips.append(0)
            rests.append(
                Linear(
                    tuple(t for t in form.terms if t not in inner.terms),
                    form.constant - inner.constant,
                    form.bits,
                )
            )
        turns = formula(flips)
        turns = turns if turns.isalnum() else f"({turns})"
        text = f"({self.one(base, 'unsigned').at(SHIFT)} ^ {turns})"
        if all(not r.terms and r.constant == 0 for r in rests):
            return Text(text, PRIMARY, "unsigned")
        rest = self.form(rests, (base,))
        return Text(f"{text} + {rest.at(SUM)}", SUM, "unsigned")


def _added(terms: list[tuple[int, Text]], constant: str, bits: int) -> Text:
    """A sum of products and what is added to it."""
    kinds = {t.type for _, t in terms}
    kind = next(
        (k for k in ("unsigned long long", "long long", "unsigned") if k in kinds),
        "int" if bits == 32 else "long long",
    )
    pieces: list[tuple[str, str]] = []
    for c, t in terms:
        factor = abs(c)
        text = (
            t.at(PRODUCT)
            if factor == 1
            else f"{t.at(UNARY)} * {factor}"
            if t.level < PRIMARY
            else f"{factor} * {t.text}"
        )
        pieces.append(("-" if c < 0 else "+", text))
    if constant != "0" or not pieces:
        pieces.append(
            ("-", constant[1:]) if constant.startswith("-") and constant[1:].isdigit() else ("+", constant)
        )
    sign, text = pieces[0]
    text = text if sign == "+" else f"-({text})" if " " in text else f"-{text}"
    for sign, piece in pieces[1:]:
        text += f" {sign} {piece}"
    level = SUM if len(pieces) > 1 else PRODUCT if " " in text else UNARY if text.startswith("-") else PRIMARY
    return Text(text, level, kind)
