"""Variables of loops and ifs: declared before, assigned at the end of each region, neighbours as arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilefold.xray.cuda.readable.expressions import Expressions
from tilefold.xray.cuda.readable.folds import shorter
from tilefold.xray.cuda.readable.formulas import NoFormulaError
from tilefold.xray.cuda.readable.indices import Pack
from tilefold.xray.cuda.readable.memory import Memory, address_text
from tilefold.xray.cuda.readable.text import PRIMARY, Text
from tilefold.xray.cuda.readable.tree import If, Loop, Region
from tilefold.xray.cuda.readable.values import LEAVES, Value


@dataclass(frozen=True)
class Group:
    """Variables of one name, by their places among the effect's; several are an array."""

    name: str
    kind: str
    members: tuple[int, ...]

    def text(self, k: int) -> str:
        """The k-th of them."""
        return self.name if len(self.members) == 1 else f"{self.name}[{k}]"


class Variables:
    """Declares and assigns."""

    def __init__(self, write: Expressions, memory: Memory) -> None:
        self._write, self._sheet, self._memory = write, write.sheet, memory
        self._kept: set[Value] = set()  # variables whose values of the round before have a name of their own

    # ------------------------------------------------------------------------------------------------------- ifs
    def merged(self, effect: If) -> list[Group]:
        """Declare the variables that an if gives values; without a second region they begin with its values."""
        found = []
        variables = [v for v, _, _ in effect.merged]
        for members in self._together(
            variables, [a for _, a, _ in effect.merged], [b for _, _, b in effect.merged]
        ):
            first = effect.merged[members[0]]
            group = self._named(variables, members, *first[1:])
            others = tuple(effect.merged[m][2] for m in members)
            self._declare(group, None if effect.other.effects else others)
            self._held(group, variables)
            found.append(group)
        return found

    def take(self, groups: Sequence[Group], values: Sequence[Value]) -> None:
        """Assign at the end of a region what it gives."""
        for group in groups:
            self._assign(group, tuple(values[m] for m in group.members))

    # ------------------------------------------------------------------------------------------------------ loops
    def carried(self, effect: Loop) -> list[Group]:
        """Declare a loop's variables with their first values."""
        found = []
        inside = [c.inside for c in effect.carried]
        counter = None if effect.counter is None else effect.carried.index(effect.counter.carried)
        for members in self._together(
            inside, [c.next for c in effect.carried], [c.first for c in effect.carried]
        ):
            if members == (counter,):
                continue
            first = effect.carried[members[0]]
            group = self._named(inside, members, first.next, first.first)
            self._declare(group, tuple(effect.carried[m].first for m in members))
            self._held(group, inside)
            found.append(group)
        return found

    def counter(self, effect: Loop) -> tuple[str, str] | None:
        """(name, first part of a `for`) of a loop's counter, a number without a sign; None of a loop that does not count."""
        if effect.counter is None:
            return None
        carried = effect.counter.carried
        kind = {32: "unsigned", 64: "unsigned long long"}[carried.inside.bits]
        name = self._sheet.counter_name(carried.next.place)
        first = f"{kind} {name} = {self._text(carried.first, kind)};"
        if carried.behind in self._write.scopes.homes:
            self._sheet.say(first, effect.place)
            first = ";"
            self._sheet.name(carried.behind, name, kind)
        self._sheet.name(carried.inside, name, kind)
        return name, first

    def step(self, effect: Loop, name: str) -> tuple[str, str]:
        """The other parts of a `for`: the condition before a round, and the step."""
        assert effect.counter is not None, "asked of loops that count"
        carried = effect.counter.carried
        number = carried.next.args[1].constant or 0
        bits = carried.inside.bits
        negative = number >> (bits - 1)
        kind = self._sheet.named[carried.inside].type
        if carried.next in self._sheet.named:  # the number of the next round, inside of this one
            self._sheet.put(self._sheet.named, carried.next, Text(name, PRIMARY, kind))
        else:
            self._sheet.name(carried.next, name, kind)
        condition = self._write.expression((effect.condition,)).text
        by = (1 << bits) - number if negative else number
        step = (
            f"{'--' if negative else '++'}{name}" if by == 1 else f"{name} {'-' if negative else '+'}= {by}"
        )
        return condition, step

    def turn(self, groups: Sequence[Group], effect: Loop, outside: Region) -> str:
        """Assign the next values, none before the others have read what it replaces; the condition to go on."""
        waiting, named = list(groups), list[Value]()
        while waiting:
            free = next((g for g in waiting if not self._is_read(g, waiting, effect)), None)
            if free is None:
                self._keep(waiting[0], effect)
                continue
            values = tuple(effect.carried[m].next for m in free.members)
            self._assign(free, values)
            waiting.remove(free)
            for k, value in enumerate(values):
                changes = (
                    self._write.scopes.deepest((value,)) is effect.body
                )  # else others may say it outside
                if changes and value.op != "undefined" and value not in self._sheet.named:
                    self._sheet.name(value, free.text(k), free.kind)
                    named.append(value)
        condition = "" if effect.counter is not None else self._write.one(effect.condition).text
        for (
            value
        ) in named:  # which others may read too, where the variable holds something else or is not there
            self._sheet.forget(value)
        return condition and self._visible(condition, groups, effect, outside)

    def end(self, groups: Sequence[Group], effect: Loop) -> None:
        """Behind the loop its variables are what its last round left."""
        for group in groups:
            self._held(group, [c.behind for c in effect.carried])

    def _is_read(self, group: Group, waiting: Sequence[Group], effect: Loop) -> bool:
        """Whether another assignment that is still to come, or the condition, reads what the group's variables hold now."""
        replaced = {effect.carried[m].inside for m in group.members}
        made = {effect.carried[m].next for m in group.members}
        others = [effect.carried[m].next for g in waiting if g is not group for m in g.members]
        before = set[Value]()  # what is replaced when the group's own next value is said
        for m in group.members:
            if before & self._leaves(effect.carried[m].next, set()):
                return True
            before.add(effect.carried[m].inside)
        return any(replaced & self._leaves(v, made) for v in (*others, effect.condition))

    def _leaves(self, value: Value, stop: set[Value]) -> set[Value]:
        """The variables that the text of a value will read."""
        found, seen, waiting = set[Value](), set[Value](), [value]
        while waiting:
            at = waiting.pop()
            if at in seen or at in stop:
                continue
            seen.add(at)
            if at in self._sheet.instead:
                waiting.append(self._sheet.instead[at])
            elif at.op == "variable" and at not in self._kept:
                found.add(at)
            elif (
                at not in self._sheet.named
            ):  # a sum is said by its terms, whatever has a name on the way there
                sums = self._write.sums
                waiting += [v for v, _ in sums.of(at).terms] if sums.is_sum(at) else at.args
        return found

    def _keep(self, group: Group, effect: Loop) -> None:
        """The variables' present values under names of their own."""
        for k, m in enumerate(group.members):
            name = self._sheet.fresh("old")
            self._sheet.say(f"const {group.kind} {name} = {group.text(k)};")
            inside = effect.carried[m].inside
            if inside in self._sheet.arrays:
                self._sheet.arrays.pop(inside)
            self._sheet.name(inside, name, group.kind)
            self._kept.add(inside)

    def _visible(self, condition: str, groups: Sequence[Group], effect: Loop, outside: Region) -> str:
        """The condition, by way of a variable outside of the loop where it reads one that its body declares."""
        own = {g.name for g in groups}
        declared = {
            n
            for line in self._sheet.lines[effect.body]
            for n in re.findall(r"^(?:const )?[\w ]+\*? (\w+)(?:\[\d+\])?(?: =|;)", line)
        }
        if not set(re.findall(r"[A-Za-z_]\w*", condition)) & (declared - own):
            return condition
        name = self._sheet.fresh("again")
        self._sheet.say(f"bool {name};", None, outside)
        self._sheet.say(f"{name} = {condition};")
        return name

    # --------------------------------------------------------------------------------------------------- both
    def _together(
        self, variables: Sequence[Value], values: Sequence[Value], others: Sequence[Value]
    ) -> list[tuple[int, ...]]:
        """Places of variables of one type whose values are made in one way."""
        groups: dict[object, list[int]] = {}
        for k, (variable, value, other) in enumerate(zip(variables, values, others, strict=True)):
            kind = self._write.kinds.of(variable)
            shape = [
                (v.op, v.data if v.op == "ptx" else 0, tuple(a.op for a in v.args)) for v in (value, other)
            ]
            shape[1] = (shape[1][0], shape[1][1], ())
            made = self._changed(value, variables)
            key = (
                (kind, *shape, *map(self._origin, (made, other)))
                if kind == "float" and not self._sheet.one_by_one
                else k
            )
            groups.setdefault(key, []).append(k)
        return [tuple(g) for g in groups.values()]

    def _named(self, variables: Sequence[Value], members: tuple[int, ...], *values: Value) -> Group:
        """A group by the name of what it takes first, of the values that may be that."""
        kind = self._write.kinds.of(variables[members[0]])
        default = {"float": "total", "int": "at", "bool": "on"}.get(kind, "held")
        changed = [self._changed(v, variables) for v in values]
        made = next((v.place for v in changed if v.op not in LEAVES), None)
        called = next((x for v in values if (x := self._called(v))), None)
        if kind.endswith("*"):
            bases = (self._write.kinds.base(v) for v in values)
            said = [b for b in bases if b and (b.op == "parameter" or b in self._sheet.named)]
            pointer = self._write.one(said[0]).text if said else ""
            made, called = None, f"{pointer.removesuffix('_ptr')}_at" if pointer.isidentifier() else None
        return Group(self._sheet.name_of(made, called or default, kind), kind, members)

    def _changed(self, value: Value, variables: Sequence[Value]) -> Value:
        """What a choice gives a variable that it else leaves as it is; any other value itself."""
        if value.op == "select" and (arms := {*value.args[1:]} & {*variables}):
            return next((a for a in value.args[1:] if a not in arms), value)
        return value

    def _called(self, value: Value) -> str:
        """The name of a value, or of the array that it is in, without a number behind it; nothing where it has none."""
        text = self._sheet.named[value].text if value in self._sheet.named else ""
        found = re.fullmatch(r"([A-Za-z]\w*?)(?:_\d+)?(?:\[\d+\])?", text)
        return found[1] if found else ""

    def _origin(self, value: Value) -> object:
        """What values have in common that belong to one tile: the name of their array, or where they are made."""
        if value in self._sheet.arrays:
            return self._sheet.arrays[value][0]
        return self._called(value) or (value.place if value.op != "const" else None)

    def _held(self, group: Group, values: Sequence[Value]) -> None:
        pack = tuple(values[m] for m in group.members)
        if len(pack) > 1:
            self._sheet.own(group.name, group.kind, pack)
        else:
            self._sheet.name(pack[0], group.name, group.kind)

    def _declare(self, group: Group, values: Pack | None) -> None:
        if len(group.members) > 1:
            zero = values is not None and all(v.constant == 0 for v in values)
            self._sheet.say(f"{group.kind} {group.name}[{len(group.members)}]{' = {}' if zero else ''};")
            if values is not None and not zero:
                self._assign(group, values)
        elif values is None or values[0].op == "undefined":
            self._sheet.say(f"{group.kind} {group.name};")
        else:
            self._sheet.say(f"{group.kind} {group.name} = {self._text(values[0], group.kind)};")

    def _assign(self, group: Group, values: Pack, begin: int = 0) -> None:
        """Values into a group's variables from one on, by loops where these say them."""
        if len(values) > 1:
            mark = self._sheet.mark()
            place = f"{group.name}[{f'i + {begin}' if begin else 'i'}]"
            try:
                text = (
                    self._write.expression(values)
                    if self._is_plain(values)
                    else self._write.say(values, group.kind)
                )
                if text.text != place:
                    step = shorter(place, text.to(group.kind).text)
                    self._sheet.say(f"for (int i = 0; i < {len(values)}; ++i) {step}")
                return
            except NoFormulaError:
                self._sheet.back(mark)
            if half := len(values) // 4 * 2:
                self._assign(group, values[:half], begin)
                self._assign(group, values[half:], begin + half)
                return
        for k, value in enumerate(values, begin):
            if value.op != "undefined":
                text_of = self._text(value, group.kind)
                if text_of != group.text(k):
                    self._sheet.say(shorter(group.text(k), text_of))

    def _is_plain(self, values: Pack) -> bool:
        """Whether an expression says values that nothing has named yet."""
        return all(v.op not in LEAVES and v not in self._sheet.named for v in values) and len(
            set(values)
        ) == len(values)

    def _text(self, value: Value, kind: str) -> str:
        if kind.endswith("*") and value not in self._sheet.named:
            return address_text(self._memory.place((value,), "global", kind[:-1]))
        if self._is_plain((value,)) and not self._write.is_fold(value) and self._is_here(value):
            return self._write.expression((value,)).to(kind).text
        return self._write.one(value, kind).text

    def _is_here(self, value: Value) -> bool:
        return self._write.scopes.homes.get(value) is self._sheet.region
