"""What is folded, one value after another in a thread, or in halves over a warp: loops in the order of the PTX."""

from __future__ import annotations

from collections.abc import Sequence

from tilefold.xray.cuda.readable import operations
from tilefold.xray.cuda.readable.expressions import Expressions
from tilefold.xray.cuda.readable.formulas import NoFormulaError
from tilefold.xray.cuda.readable.indices import Pack
from tilefold.xray.cuda.readable.text import PRIMARY, Text
from tilefold.xray.cuda.readable.tree import Effect, Shuffle, walk
from tilefold.xray.cuda.readable.values import LEAVES, Value

_LONGEST = 4096
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
    def butterfly(self, effects: Sequence[Effect], least: int = 2) -> tuple[Value, int] | None:
        """(the fold of a warp, shuffles that it takes, so many at least) where effects begin with one; else None."""
        first = effects[0]
        if not isinstance(first, Shuffle) or first.mode != "bfly" or first.by.constant is None:
            return None
        found: tuple[Value, int] | None = None
        at, distance, uses = first, first.by.constant, self._write.scopes.uses
        for count in range(1, len(effects) + 1):
            after = self._combined(at)
            if after is None or uses[at.result] != 1:
                break
            if distance == 1:
                found = after, count
                break
            following = effects[count] if count < len(effects) else None
            distance //= 2
            if not isinstance(following, Shuffle) or following.mode != "bfly" or following.value is not after:
                break
            if following.by.constant != distance or uses[after] != 2:
                break
            at = following
        return found if found and found[1] >= least else None

    def _combined(self, shuffle: Shuffle) -> Value | None:
        """The operation on a value and what the other lane has of it."""
        for name in _HALVED:
            for args in ((shuffle.value, shuffle.result), (shuffle.result, shuffle.value)):
                found = self._write.graph.find("ptx", args, (name,), shuffle.value.bits)
                if found is not None and found in self._write.scopes.homes:
                    return found
        return None

    def write_butterfly(self, shuffles: Sequence[Shuffle], result: Value) -> None:
        """A loop over distances; what a thread folded goes on in its own variable where nobody else reads it."""
        first, kind = shuffles[0], self._write.kinds.of(result)
        before = self._write.one(first.value, kind)
        name = before.text
        goes_on = first.value in self._changing and self._write.scopes.uses[first.value] == 2
        if not goes_on or self._write.scopes.defined.get(first.value) not in (None, self._sheet.region):
            name = self._sheet.name_for(result, "part", kind)
            self._sheet.say(f"{kind} {name} = {before.text};", first.place)
        given = [
            Text(t, PRIMARY, kind) for t in (name, f"__shfl_xor_sync(~0u, {name}, s)")
        ]  # in either order the same
        text = operations.written(result, given, self._sheet.helpers).text
        head = f"for (int s = {first.by.constant}; s > 0; s /= 2) "
        self._sheet.say(head + shorter(name, text), first.place)
        self._sheet.name(result, name, kind)
        self._changing.add(result)

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
