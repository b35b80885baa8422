"""What is folded, one value after another in a thread, or in halves over a warp: loops in the order of the PTX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilefold.xray.cuda.readable import functions, operations
from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.combines import Climbed, Combine, Combines, Halved
from tilefold.xray.cuda.readable.expressions import Expressions
from tilefold.xray.cuda.readable.formulas import NoFormulaError
from tilefold.xray.cuda.readable.indices import Pack
from tilefold.xray.cuda.readable.scopes import Scopes
from tilefold.xray.cuda.readable.sheet import Sheet
from tilefold.xray.cuda.readable.text import PRIMARY, Text
from tilefold.xray.cuda.readable.tree import Shuffle, walk
from tilefold.xray.cuda.readable.values import LEAVES, Value

_LONGEST = 4096
_EXCHANGED = ("float", "double", "int", "unsigned", "long long", "unsigned long long")
# Operations by which the lanes of a warp are folded in halves.
_HALVED = (
    *("add.f32", "max.f32", "min.f32", "mul.f32", "add.rn.f32", "add.f64", "max.f64", "min.f64", "mul.f64"),
    *("max.s32", "min.s32", "max.u32", "min.u32", "max.NaN.f32", "min.NaN.f32"),
)


class Folds:
    """Recognises and writes folds."""

    def __init__(self, write: Expressions) -> None:
        self._write, self._sheet = write, write.sheet
        write.folded, write.is_fold = self.fold, self.is_fold
        self._changing: set[Value] = set()  # variables that may go on changing
        effects = (e for e in walk(write.scopes.root) if isinstance(e, Shuffle) and e.mode == "bfly")
        self._shuffled = {e.value: e for e in effects}
        self.combines = Combines(write.graph, write.scopes)

    # ---------------------------------------------------------------------------------------------- in a thread
    def is_fold(self, value: Value) -> bool:
        """Whether an operation was done three times or more, each time on what came of it before."""
        return not self._sheet.one_by_one and self._chain(value)[1] != ()

    def _chain(self, value: Value) -> tuple[Value, tuple[Pack, ...]]:
        """What it begins with, and what each step takes in; no steps if it is no fold."""
        if value.op != "ptx" or value.data[0] not in operations.FOLDS:
            return value, ()
        steps: list[Pack] = []
        fused, at = value.data[0].startswith("fma"), value
        uses, named = self._write.scopes.uses, self._sheet.named
        while (
            at.op == "ptx"
            and at.data == value.data
            and (at is value or (uses[at] == 1 and at not in named))
            and len(steps) < _LONGEST
        ):
            if fused:
                steps.append(at.args[:2])
                at = at.args[2]
                continue
            if at.args[0] is at.args[1]:
                break
            before, taken = at.args
            same = before.op == "ptx" and before.data == value.data and uses[before] == 1
            if not same and taken.op == "ptx" and taken.data == value.data and uses[taken] == 1:
                before, taken = taken, before
            steps.append((taken,))
            at = before
        return (at, tuple(steps[::-1])) if len(steps) > 2 else (value, ())

    def fold(self, value: Value) -> bool:
        """Write a value's fold as loops; False if it is none."""
        start, steps = self._chain(value)
        if not steps or self._sheet.one_by_one:
            return False
        kind = self._write.kinds.of(value)
        for k in range(len(steps[0])):
            self._suggest(
                tuple(s[k] for s in steps) if len(steps[0]) > 1 else (start, *(s[0] for s in steps))
            )
        first = self._write.one(start, kind)
        name = self._sheet.name_for(self._ends(value), "total", kind)
        at = self._begun(value, name, kind, first, steps)
        while at < len(steps):
            end = len(steps)
            while end - at > 2 and not self._loop(value, name, kind, steps[at:end]):
                end -= 1
            if end - at <= 2:
                end = at + 1
                self._sheet.say(self.step(value, name, kind, steps[at], ""))
            at = end
        self._sheet.name(value, name, kind)
        self._changing.add(value)
        return True

    def _begun(self, value: Value, name: str, kind: str, first: Text, steps: Sequence[Pack]) -> int:
        """Declare a fold's variable, with its first step where no loop takes that in; how many steps that is."""
        mark = self._sheet.mark()
        self._sheet.say(f"{kind} {name} = {first.text};", value.place)
        after = self._sheet.mark()
        if any(self._loop(value, name, kind, steps[:end]) for end in (3, len(steps))):
            self._sheet.back(after)
            return 0
        self._sheet.back(mark)
        taken = [self._write.one(v, kind) for v in steps[0]]
        given = [*taken, first] if len(taken) == 2 else [first, *taken]
        text = operations.written(value, given, self._sheet.helpers).text
        self._sheet.say(f"{kind} {name} = {text};", value.place)
        return 1

    def _ends(self, value: Value) -> Value:
        """The warp's fold that goes on with a thread's, or the value itself."""
        while (shuffle := self._shuffled.get(value)) and (after := self._combined(shuffle)) is not None:
            value = after
        return value

    def _suggest(self, pack: Pack) -> None:
        """Values that are folded go together, unless stores say otherwise."""
        free = [v for v in pack if v.op not in LEAVES and v not in self._sheet.named]
        if len(free) == len(pack) and not any(v in self._write.packs for v in pack):
            self._write._try_array(pack)

    def _loop(self, value: Value, name: str, kind: str, steps: Sequence[Pack]) -> bool:
        mark = self._sheet.mark()
        try:
            packs = tuple(tuple(s[k] for s in steps) for k in range(len(steps[0])))
            texts = [self._write.say(p, kind) for p in packs]
        except NoFormulaError:
            self._sheet.back(mark)
            return False
        self._sheet.say(self._said(value, name, kind, texts, f"for (int i = 0; i < {len(steps)}; ++i) "))
        return True

    def step(self, value: Value, name: str, kind: str, taken: Pack, head: str) -> str:
        """A statement that takes one more value in."""
        return self._said(value, name, kind, [self._write.one(v, kind) for v in taken], head)

    def _said(self, value: Value, name: str, kind: str, taken: Sequence[Text], head: str) -> str:
        own = Text(name, PRIMARY, kind)
        given = [*taken, own] if len(taken) == 2 else [own, *taken]
        text = operations.written(value, given, self._sheet.helpers).text
        return head + shorter(name, text)

    # ------------------------------------------------------------------------------------------------ in a warp
    def _combined(self, shuffle: Shuffle) -> Value | None:
        """The operation on a value and what the other lane has of it."""
        for name in _HALVED:
            for args in ((shuffle.value, shuffle.result), (shuffle.result, shuffle.value)):
                found = self._write.graph.find("ptx", args, (name,), shuffle.value.bits)
                if found is not None and found in self._write.scopes.homes:
                    return found
        return None

    def write_halved(self, fold: Halved) -> None:
        """A loop over distances; what a thread folded goes on in its own variable where nobody else reads it.

        Raises:
            NoFormulaError: the combine has no text.
        """
        kinds, names = self.kinds(fold.combine), []
        self.write_unfolded(fold.combine, tuple(e.value for e in fold.shuffles))
        for shuffle, result, kind in zip(fold.shuffles, fold.results, kinds, strict=True):
            before = self._write.one(shuffle.value, kind)
            name, held = before.text, self._sheet.named.get(shuffle.value)
            once = self.uses(shuffle.value) == self._own(fold, shuffle.value)
            goes_on = shuffle.value in self._changing and once and held is not None and held.type == kind
            if not goes_on or self._write.scopes.defined.get(shuffle.value) not in (None, self._sheet.region):
                name = self._sheet.name_for(result or shuffle.value, "part", kind)
                self._sheet.say(f"{kind} {name} = {before.text};", shuffle.place)
            names.append(name)
        least = f"s >= {fold.last}" if fold.last > 1 else "s > 0"
        head = f"for (int s = {fold.first}; {least}; s /= 2) "
        self._sheet.say(head + self.halving(fold.combine, names), fold.shuffles[0].place)
        for name, result, kind in zip(names, fold.results, kinds, strict=True):
            if result is not None:
                self.name(result, name, kind)
                self._changing.add(result)

    def write_unfolded(self, combine: Combine, state: tuple[Value, ...]) -> None:
        """What a thread folds of its own, before lanes do: calls of their combine, as loops where these say them.

        Raises:
            NoFormulaError: the combine, or what comes in, has no text.
        """
        if len(state) < 2 or self._sheet.one_by_one:
            return
        combine, start, steps = self.combines.unfolded(combine, state)
        if len(steps) < 2:
            return
        self._write.kinds.learn(combine.results)
        kinds, names = self.kinds(combine), []
        for value, first, kind in zip(state, start, kinds, strict=True):
            text = self._write.one(first, kind).text
            names.append(self._sheet.name_for(value, "part", kind))
            self._sheet.say(f"{kind} {names[-1]} = {text};", value.place)
        at = 0
        while at < len(steps):
            end = len(steps)
            while end - at > 1 and not self._call(combine, names, steps[at:end]):
                end -= 1
            if end - at == 1 and not self._call(combine, names, steps[at:end]):
                raise NoFormulaError
            at = end
        for value, name, kind in zip(state, names, kinds, strict=True):
            self.name(value, name, kind)
            self._changing.add(value)

    def _call(self, combine: Combine, names: Sequence[str], steps: Sequence[tuple[Value, ...]]) -> bool:
        """Take in states, by a loop if they are several; False if none says them."""
        mark = self._sheet.mark()
        try:
            packs = iter(zip(*steps, strict=True))
            texts = [
                self._write.say(next(packs), kind).text if combine.reads(v) else ""
                for v, kind in zip(combine.other, self.kinds(combine), strict=True)
            ]
        except NoFormulaError:
            self._sheet.back(mark)
            return False
        head = f"for (int i = 0; i < {len(steps)}; ++i) " if len(steps) > 1 else ""
        self._sheet.say(head + self._taking(combine, names, texts))
        return True

    def write_climbed(self, scan: Climbed) -> None:
        """A call of a function that scans the lanes, with variables that it changes.

        Raises:
            NoFormulaError: the combine has no text.
        """
        kinds, names = self.kinds(scan.combine), []
        place = self._write.one(scan.place, "unsigned").text
        function = self._scanning(scan, kinds)
        for shuffle, result, kind in zip(scan.shuffles, scan.results, kinds, strict=True):
            before = self._write.one(shuffle.value, kind).text
            names.append(self._sheet.name_of((result or shuffle.value).place, "scanned", kind))
            self._sheet.say(f"{kind} {names[-1]} = {before};", shuffle.place)
        self._sheet.say(f"{function}({', '.join([*names, place])});", scan.shuffles[0].place)
        for name, result, kind in zip(names, scan.results, kinds, strict=True):
            if result is not None:
                self.name(result, name, kind)

    def name(self, result: Value, name: str, kind: str) -> None:
        """What a fold ends with is called so; what it is made of has no text any more."""
        self._sheet.name(result, name, kind)
        if self._write.sums.is_sum(result):
            self._sheet.put(self._write.sums.whole, result, True)

    def _scanning(self, scan: Climbed, kinds: Sequence[str]) -> str:
        """The name of a function that scans the lanes of a warp."""
        own, other = ([f"{n}{k}" if len(kinds) > 1 else n for k in range(len(kinds))] for n in "xy")
        given = [*(f"{kind}& {name}" for kind, name in zip(kinds, own, strict=True)), "unsigned place"]
        least = f"s / {scan.apart}" if scan.apart > 1 else "s"
        lines = [
            "// A state becomes that of all lanes up to this one, whose place among them is given.",
            f"static __device__ void @({', '.join(given)}) {{",
            f"  for (int s = {scan.first}; s <= {scan.last}; s *= 2) {{",
            *(
                f"    const {kind} {y} = __shfl_up_sync(~0u, {x}, s);"
                for kind, x, y in zip(kinds, own, other, strict=True)
            ),
            f"    if (place >= {least}) {self._taking(scan.combine, own, other)}",
            "  }",
            "}",
        ]
        return operations.added(self._sheet.helpers, "warp_scan", "\n".join(lines))

    def _own(self, fold: Halved, value: Value) -> int:
        """How often the first step of a fold reads a value of a thread's own."""
        made = self.combines.again(
            fold.combine, tuple(e.value for e in fold.shuffles), tuple(e.result for e in fold.shuffles)
        )
        assert made is not None, "it was found there"
        return 1 + sum(a is value for v in made[0] for a in v.args)

    def kinds(self, combine: Combine) -> list[str]:
        """The types of a state's values.

        Raises:
            NoFormulaError: one has none that lanes exchange.
        """
        found = [self._write.kinds.of(v) for v in combine.results]
        if any(kind not in _EXCHANGED for kind in found):
            raise NoFormulaError
        return found

    def halving(self, combine: Combine, names: Sequence[str]) -> str:
        """The statement that takes in what the lane at distance s has of the variables of these names."""
        return self._taking(combine, names, [f"__shfl_xor_sync(~0u, {name}, s)" for name in names])

    def _taking(self, combine: Combine, names: Sequence[str], others: Sequence[str]) -> str:
        """The statement that takes other values in, of these texts."""
        kinds = self.kinds(combine)
        if len(names) > 1:
            read = [text for text, v in zip(others, combine.other, strict=True) if combine.reads(v)]
            return f"{self._function(combine, kinds)}({', '.join([*names, *read])});"
        (name,), (result,), (kind,) = names, combine.results, kinds
        both = {*combine.own, *combine.other}
        if result.op == "ptx" and result.data[0] in _HALVED and {*result.args} == both:
            given = [Text(t, PRIMARY, kind) for t in (name, *others)]  # in either order the same
            return shorter(name, operations.written(result, given, self._sheet.helpers).text)
        lines, texts = self._made(combine, kinds, names, others)
        if lines or sum(a is combine.other[0] for v in combine.inner for a in v.args) > 1:
            return f"{name} = {self._function(combine, kinds)}({', '.join([name, *others])});"
        return shorter(name, texts[0])

    def _function(self, combine: Combine, kinds: Sequence[str]) -> str:
        """The name of a combine's function."""
        count = len(kinds)
        own, other = ([f"{x}{k}" if count > 1 else x for k in range(count)] for x in "ab")
        lines, texts = self._made(combine, kinds, own, other)
        if count == 1:
            head = f"static __device__ {kinds[0]} @({kinds[0]} a, {kinds[0]} b) {{"
            lines.append(f"return {texts[0]};")
        else:
            given = [f"{kind}& {name}" for kind, name in zip(kinds, own, strict=True)]
            taken = zip(kinds, other, combine.other, strict=True)
            given += [f"{kind} {name}" for kind, name, v in taken if combine.reads(v)]
            head = f"// Both states as one, in the first.\nstatic __device__ void @({', '.join(given)}) {{"
            after = []
            for k, (name, kind) in enumerate(zip(own, kinds, strict=True)):
                if texts[k] == name:
                    continue
                if any(re.search(rf"\b{name}\b", text) for text in texts[k + 1 :]):
                    lines.append(f"const {kind} next{k} = {texts[k]};")
                    after.append(f"{name} = next{k};")  # once nothing reads what was there before
                else:
                    lines.append(f"{name} = {texts[k]};")
            lines += after
        text = "\n".join([head, *(f"  {line}" for line in lines), "}"])
        return operations.added(self._sheet.helpers, "combine", text)

    def _made(
        self, combine: Combine, kinds: Sequence[str], own: Sequence[str], other: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Lines, and the texts of the results, of a combine of values with these names.

        Raises:
            NoFormulaError: something of it has no text.
        """
        scope = functions.alone(*combine.results)
        inner = Sheet(scope, {*self._sheet.reserved, *own, *other}, self._sheet.names, lambda place: "")
        inner.helpers, inner.steps = self._sheet.helpers, self._sheet.steps
        for values, texts in ((combine.own, own), (combine.other, other)):
            for value, text, kind in zip(values, texts, kinds, strict=True):
                inner.name(value, text, kind)
        write = Expressions(self._write.graph, inner, self._write.kinds, self._write.sums, Scopes(scope))
        try:
            made = [write.one(v, kind).text for v, kind in zip(combine.results, kinds, strict=True)]
        except UnreadableError as error:
            raise NoFormulaError from error
        return [line for line in inner.lines[scope] if not line.startswith("//")], made

    def uses(self, value: Value) -> int:
        """How often a value is used."""
        return self._write.scopes.uses[value]

    def may_change(self, value: Value) -> None:
        """A variable of its own holds a value."""
        self._changing.add(value)


def shorter(name: str, text: str) -> str:
    """`x += y;` for `x = x + y;`."""
    for sign in ("+", "*"):
        rest = text.removeprefix(f"{name} {sign} ")
        if rest != text and (
            (sign == "+" and " - " not in rest and " + " not in rest and "?" not in rest) or " " not in rest
        ):
            return f"{name} {sign}= {rest};"
    return f"{name} = {text};"
