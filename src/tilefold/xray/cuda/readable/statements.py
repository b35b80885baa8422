"""The tree of effects as C++ statements, region by region."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tilefold.xray.cuda.readable import operations
from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.expressions import Expressions
from tilefold.xray.cuda.readable.folds import Folds
from tilefold.xray.cuda.readable.formulas import NoFormulaError, formula
from tilefold.xray.cuda.readable.indices import Pack
from tilefold.xray.cuda.readable.kinds import SIZES
from tilefold.xray.cuda.readable.memory import Memory, address_text
from tilefold.xray.cuda.readable.reductions import Found, block_reduction, function_of
from tilefold.xray.cuda.readable.text import OR, Text
from tilefold.xray.cuda.readable.tree import (
    Assembly,
    Atomic,
    Barrier,
    Effect,
    If,
    Load,
    Loop,
    Region,
    Shuffle,
    Store,
)
from tilefold.xray.cuda.readable.values import Value
from tilefold.xray.cuda.readable.variables import Variables

_MOST_OF_A_FOLD = 100  # groups of effects that are looked at
_SHUFFLES = {
    "bfly": "__shfl_xor_sync",
    "idx": "__shfl_sync",
    "up": "__shfl_up_sync",
    "down": "__shfl_down_sync",
}
ATOMIC = {
    "f32": "float", "f64": "double", "s32": "int", "u32": "unsigned", "b32": "int", "u64": "unsigned long long",
    "b64": "long long", "s64": "long long",
}  # fmt: skip


class Statements:
    """Writes effects."""

    def __init__(self, write: Expressions, folds: Folds, memory: Memory) -> None:
        self._write, self._sheet, self._folds, self._memory = write, write.sheet, folds, memory
        self._variables = Variables(write, memory)
        self.failed: Region | None = None  # the innermost in which something could not be said

    def region(self, region: Region) -> None:
        """All effects of a region, into its lines."""
        alone = self._sheet.one_by_one
        groups = self._memory.grouped(region.effects, alone)
        for group in groups if not alone else ():
            self._suggest(group)
        at = 0
        try:
            while at < len(groups):
                at += self._next(groups[at:])
        except (NoFormulaError, UnreadableError):
            self.failed = self.failed or region
            raise

    def _suggest(self, group: tuple[Effect, ...]) -> None:
        """Values that are stored together go together."""
        if isinstance(group[0], Store):
            values = tuple(v for e in group if isinstance(e, Store) for v in e.values)
            if len(values) > 1 and len(set(values)) == len(values):
                _together(self._write, values)

    def _next(self, groups: Sequence[tuple[Effect, ...]]) -> int:
        """One group, or all of a fold; how many groups that was."""
        group, effect = groups[0], groups[0][0]
        match effect:
            case Load():
                self._memory.load(tuple(e for e in group if isinstance(e, Load)))
                if len(group) == len(effect.results) == 1:
                    self._folds.may_change(effect.results[0])
            case Store():
                self._memory.store(tuple(e for e in group if isinstance(e, Store)))
            case Barrier(warp):
                self._sheet.say("__syncwarp();" if warp else "__syncthreads();")
            case Shuffle():
                if not self._sheet.one_by_one and (taken := self._folded(groups)):
                    return taken
                self._shuffle(effect)
            case Atomic():
                self._atomic(effect)
            case Assembly():
                self._assemblies(tuple(e for e in group if isinstance(e, Assembly)))
            case If():
                self._if(effect)
            case Loop():
                self._loop(effect)
        return 1

    def _folded(self, groups: Sequence[tuple[Effect, ...]]) -> int:
        """A fold or a scan of lanes, or a fold over all threads; how many groups it was, none where it is no such."""
        ends = [0, *itertools.accumulate(len(g) for g in groups[:_MOST_OF_A_FOLD])]
        effects = [e for g in groups[:_MOST_OF_A_FOLD] for e in g]
        mark = self._sheet.mark()
        try:
            block = block_reduction(effects, self._folds, self._write.graph, self._write.sums)
            if block is not None and block.effects in ends:
                self._reduction(block)
                return ends.index(block.effects)
            found = self._folds.combines.halved(effects)
            if found is not None:
                for fold in found[0]:
                    self._folds.write_halved(fold)
                return found[1]
            scan = self._folds.combines.climbed(effects)
            if scan is not None:
                self._folds.write_climbed(scan[0])
                return scan[1]
        except NoFormulaError:
            self._sheet.back(mark)
        return 0

    def _reduction(self, block: Found) -> None:
        place, kinds = block.begin[0].place, self._folds.kinds(block.combine)
        self._folds.write_unfolded(block.combine, tuple(e.value for e in block.begin))
        given = [self._write.one(e.value, kind).text for e, kind in zip(block.begin, kinds, strict=True)]
        function = function_of(block, self._folds, self._write.graph.threads // 32, self._sheet.helpers)
        kind = kinds[0] if len(kinds) == 1 else "char"
        memory = "smem" if self._memory.types["shared"] == kind else f"({kind}*)smem"
        names = [self._sheet.name_of(place, "all", kind) for kind in kinds]
        if len(kinds) == 1:
            self._sheet.say(f"const {kind} {names[0]} = {function}({given[0]}, {memory});", place)
        else:
            for kind, name, text in zip(kinds, names, given, strict=True):
                self._sheet.say(f"{kind} {name} = {text};", place)
            self._sheet.say(f"{function}({', '.join([*names, memory])});", place)
        for result, name, kind in zip(block.results, names, kinds, strict=True):
            if result is not None:
                self._folds.name(result, name, kind)

    # ------------------------------------------------------------------------------------------------- one effect
    def _shuffle(self, effect: Shuffle) -> None:
        kind = self._write.kinds.of(effect.result)
        value, by = self._write.one(effect.value, kind), self._write.one(effect.by, "int")
        name = self._sheet.name_for(effect.result, "other", kind, "other")
        self._sheet.say(
            f"const {kind} {name} = {_SHUFFLES[effect.mode]}(~0u, {value.text}, {by.text});", effect.place
        )
        self._sheet.name(effect.result, name, kind)

    def _atomic(self, effect: Atomic) -> None:
        kind = self._write.kinds.of(effect.values[0]) if effect.values[0].op != "const" else None
        if effect.space == "global":
            element = self._write.kinds.element(effect.address)
            kind = element if SIZES.get(element or "", 0) * 8 == effect.values[0].bits else kind
        own = ATOMIC[effect.name.rpartition(".")[2]]
        kind = own if kind is None or (kind in ("float", "double")) != (own in ("float", "double")) else kind
        if kind not in ATOMIC.values():
            raise UnreadableError(f"cuda: an atomic must be of words, got {kind}; take the plain form")
        guard = None if effect.guard is None else self._write.one(effect.guard)
        values = [self._write.one(v, kind).text for v in effect.values]
        place = address_text(self._memory.place((effect.address,), effect.space, kind))
        call = f"{operations.atomic(effect, kind, self._sheet.helpers)}({', '.join([place, *values])})"
        when = "" if guard is None else f"if ({guard.text}) "
        if effect.result is not None and effect.result in self._write.scopes.homes:
            name = self._sheet.name_for(effect.result, "before", kind)
            self._sheet.say(f"{kind} {name} = 0;", effect.place)
            self._sheet.name(effect.result, name, kind)
            call = f"{name} = {call}"
        self._sheet.say(f"{when}{call};", effect.place)

    def _assembly(self, effect: Assembly) -> None:
        if effect.name.startswith("createpolicy") and effect.results[0] not in self._write.scopes.homes:
            return  # of hints that are left out
        result = self._write.kinds.of(effect.results[0]) if effect.results else ""
        if effect.name.startswith("redux") and ".f32" not in effect.name:
            result = operations.passed(effect.results[0])  # whose registers may be no float's
        guard = None if effect.guard is None else self._write.one(effect.guard)
        parameters, given = self._given((effect,))
        name, alone = operations.assembly(effect, result, parameters, self._sheet.helpers)
        if alone:
            self._alone(effect, f"{name}({', '.join(given)})", result, guard)
            return
        if effect.held:
            given.insert(0, self._updated(effect, result))
        elif effect.results:
            array = self._sheet.name_of(None, "piece")
            zero = "" if guard is None else " = {}"
            self._sheet.say(f"{result} {array}[{len(effect.results)}]{zero};", effect.place)
            self._sheet.own(array, result, effect.results)
            given.insert(0, array)
        when = "" if guard is None else f"if ({guard.text}) "
        self._sheet.say(f"{when}{name}({', '.join(given)});", effect.place)

    def _assemblies(self, group: tuple[Assembly, ...]) -> None:
        """Calls of one instruction, as loops of as many as these say, from the first on."""
        while group:
            most, known = len(group), 1
            while known < most:
                count = most if known == 1 and most == len(group) else (known + most + 1) // 2
                mark = self._sheet.mark()
                try:
                    self._repeated(group[:count])
                    known = count
                except (NoFormulaError, UnreadableError):
                    most = count - 1
                if known < len(group):
                    self._sheet.back(mark)
            if known == 1:
                self._assembly(group[0])
            elif known < len(group):
                self._repeated(group[:known])
            group = group[known:]

    def _repeated(self, group: tuple[Assembly, ...]) -> None:
        """One loop of calls; their results are one array, in their order.

        Raises:
            NoFormulaError: no loop says them.
        """
        first, head = group[0], f"for (int i = 0; i < {len(group)}; ++i) "
        made = {v for e in group for v in e.results}
        if any(v in made for e in group for v in e.inputs):
            raise NoFormulaError
        parameters, given = self._given(group)
        result = self._write.kinds.of(first.results[0]) if first.results else ""
        if first.held:
            given.insert(0, self._updated_each(group, result))
        name, _ = operations.assembly(first, result, parameters, self._sheet.helpers)
        if first.results and not first.held:
            array, count = self._sheet.name_of(None, "piece"), len(first.results)
            self._sheet.say(f"{result} {array}[{len(group) * count}];", first.place)
            self._sheet.own(array, result, tuple(v for e in group for v in e.results))
            given.insert(0, f"{array} + {count} * i")
        self._sheet.say(f"{head}{name}({', '.join(given)});", first.place)

    def _updated_each(self, group: tuple[Assembly, ...], kind: str) -> str:
        """The place in an array that each call reads and writes; one call may go on with what another made."""
        if any(self._taken_over(effect, kind) is None for effect in group):
            raise NoFormulaError
        place = self._begins([e.held for e in group])
        assert place is not None, "each is neighbours in an array"
        return place

    def _begins(self, parts: Sequence[Pack]) -> str | None:
        """The place in one array of the first of each call's neighbours; None where they are none.

        Raises:
            NoFormulaError: no formula gives the places.
        """
        held = [self._sheet.arrays.get(p[0]) for p in parts]
        if any(h is None or self._neighbours(p) is None for h, p in zip(held, parts, strict=True)):
            return None
        known = [h for h in held if h is not None]
        if len({name for name, _ in known}) > 1:
            raise NoFormulaError
        text = formula([at for _, at in known])
        return known[0][0] + ("" if text == "0" else f" + {text}")

    def _alone(self, effect: Assembly, call: str, kind: str, guard: Text | None) -> None:
        """A variable takes the one result; of an instruction that is not done it is zero, and nobody reads that."""
        if effect.results[0] not in self._write.scopes.homes:
            self._sheet.say(f"{'' if guard is None else f'if ({guard.text}) '}{call};", effect.place)
            return
        name = self._sheet.name_for(effect.results[0], "got", kind)
        value = call if guard is None else f"{guard.at(OR)} ? {call} : 0"
        self._sheet.say(f"{kind} {name} = {value};", effect.place)
        self._sheet.name(effect.results[0], name, kind)

    def _given(self, group: tuple[Assembly, ...]) -> tuple[list[operations.Parameter], list[str]]:
        """The parameters of an instruction's wrapper, and what it is called with once, or by a loop.

        Raises:
            NoFormulaError: no loop says them.
        """
        parameters, given, at = [], [], 0
        for count in group[0].groups:
            parts, role = [e.inputs[at : at + count] for e in group], group[0].roles[at]
            at += count
            kind = self._write.kinds.of(parts[0][0])
            array = self._begins(parts) if count > 1 else None
            if array is not None and kind == operations.passed(parts[0][0]):
                parameters.append(operations.Parameter(f"const {kind}*", count, role))
                given.append(array)
                continue
            for pack in zip(*parts, strict=True):
                kind, text = self._input(pack, role)
                parameters.append(
                    operations.Parameter(kind, 1, role if kind in ("const void*", "bool") else "value")
                )
                given.append(text)
        return parameters, given

    def _input(self, pack: Pack, role: str) -> tuple[str, str]:
        """The type and the text of one input, of one call or of several; an address without a pointer is a number."""
        if role == "predicate":
            return "bool", self._write.say(pack, "bool").text
        if role in ("shared", "wide"):
            return "const void*", address_text(self._memory.place(pack, "shared", "char"))
        if role == "global" and (element := self._write.kinds.element(pack[0])) is not None:
            return "const void*", address_text(self._memory.place(pack, "global", element))
        kind = operations.passed(pack[0])
        return kind, self._write.say(pack, kind).text

    def _updated(self, effect: Assembly, kind: str) -> str:
        """A pointer to an array that holds what an instruction reads, and then its results."""
        if (place := self._taken_over(effect, kind)) is not None:
            return place
        array = self._sheet.name_of(effect.place, "total" if kind != "int" else "held", kind)
        count = len(effect.held)
        zero = all(v.op == "undefined" or v.constant == 0 for v in effect.held)
        self._sheet.say(f"{kind} {array}[{count}]{' = {}' if zero else ''};", effect.place)
        if not zero:
            self._filled(array, effect.held, kind)
        self._sheet.own(array, kind, effect.results)
        return array

    def _taken_over(self, effect: Assembly, kind: str) -> str | None:
        """A pointer to the array that holds what an instruction reads, where its results take the place of that: nobody else
        reads it. None of others."""
        once = all(self._write.scopes.uses[v] == 1 and v.op in ("variable", "result") for v in effect.held)
        place = self._neighbours(effect.held)
        if not once or place is None or self._write.kinds.of(effect.held[0]) != kind:
            return None
        for value, old in zip(effect.results, effect.held, strict=True):
            self._sheet.name(value, self._sheet.named[old].text, kind)
            self._sheet.put(self._sheet.arrays, value, self._sheet.arrays[old])
            self._sheet.put(self._sheet.instead, value, old)
        return place

    def _filled(self, array: str, values: Pack, kind: str, begin: int = 0) -> None:
        """Values into an array from an element on, by loops where these say them."""
        mark = self._sheet.mark()
        try:
            text = self._write.say(values, kind).text
            place = f"i + {begin}" if begin else "i"
            self._sheet.say(f"for (int i = 0; i < {len(values)}; ++i) {array}[{place}] = {text};")
        except NoFormulaError:
            self._sheet.back(mark)
            if half := len(values) // 4 * 2:
                self._filled(array, values[:half], kind, begin)
                self._filled(array, values[half:], kind, begin + half)
                return
            for k, value in enumerate(values, begin):
                if value.op != "undefined":
                    self._sheet.say(f"{array}[{k}] = {self._write.one(value, kind).text};")

    def _neighbours(self, values: Sequence[Value]) -> str | None:
        """A pointer to neighbours in an array; None where they are none."""
        held = [self._sheet.arrays.get(v) for v in values]
        if held[0] is None or any(h != (held[0][0], held[0][1] + k) for k, h in enumerate(held)):
            return None
        return held[0][0] + (f" + {held[0][1]}" if held[0][1] else "")

    # --------------------------------------------------------------------------------------------------- structure
    def _if(self, effect: If) -> None:
        condition = self._write.one(effect.condition)
        groups = self._variables.merged(effect)
        before = self._sheet.enter(effect.then)
        self.region(effect.then)
        self._variables.take(groups, [a for _, a, _ in effect.merged])
        self._sheet.region = before
        simple = not effect.other.effects
        if not simple:
            self._sheet.enter(effect.other)
            self.region(effect.other)
            self._variables.take(groups, [b for _, _, b in effect.merged])
            self._sheet.region = before
        self._sheet.close(effect.then, f"if ({condition.text}) {{", "}" if simple else "} else {")
        if not simple:
            self._sheet.close(effect.other, "", "}")

    def _loop(self, effect: Loop) -> None:
        groups = self._variables.carried(effect)
        counter = self._variables.counter(effect)
        before = self._sheet.enter(effect.body)
        self.region(effect.body)
        again = self._variables.turn(groups, effect, before)
        self._sheet.region = before
        if counter is None:
            self._sheet.close(effect.body, "do {", f"}} while ({again});")
        else:
            name, first = counter
            condition, step = self._variables.step(effect, name)
            self._sheet.close(effect.body, f"for ({first} {condition}; {step}) {{", "}")
        self._variables.end(groups, effect)


def _together(write: Expressions, values: Pack, depth: int = 0) -> None:
    """Remember values of one shape, down to their leaves."""
    first = values[0]
    shapes = {
        (v.op, v.data if v.op not in ("const", "result", "variable") else 0, len(v.args)) for v in values
    }
    if depth > 30 or len(set(values)) < len(values) or len(shapes) > 1 or not first.args:
        return
    for value in values:
        write.packs.setdefault(value, values)
    for args in zip(*(v.args for v in values), strict=True):
        _together(write, args, depth + 1)
