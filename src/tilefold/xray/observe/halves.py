"""`narrow-sum`: sums that are accumulated in 16 bits, beside the same accumulated in float32.

A sum of float16 or bfloat16 rounds after every addition: in a reduction or scan, in a variable that a loop adds to, in a
chain of additions, in the result of a dot. Each is executed once more with its running value in float32 and one rounding
behind it, or none where it is widened anyway. What is then stored is shown with what is stored now.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import Operation, spelled
from tilefold.xray.ir.syntax import Function
from tilefold.xray.observe.rewrites import Rows, changed_text, retyped, split_types
from tilefold.xray.observe.trials import Difference, Trials, UntriedError, difference
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import line_of

_BITS = {"f16": 10, "bf16": 7}  # of the mantissa
_NAMES = {"f16": "float16", "bf16": "bfloat16"}
_CHAIN = 4  # additions of one expression that are a sum
_LINES = 6  # that are tried
_PATH = ("arith.addf", "arith.subf", "arith.select", "tt.dot", "arith.truncf", "arith.extf", "scf.if")


@dataclass(frozen=True)
class Sum:
    """Where 16 bits are accumulated: a reduction, scan, dot or last addition of a chain, or (`index` of its variables) a
    loop."""

    operation: Operation
    what: str
    index: int = -1

    @property
    def element(self) -> str:
        """f16 or bf16."""
        kinds = split_types(self.operation.blocks[0].operations[-1].types) if self.index >= 0 else []
        return narrow_of(kinds[self.index] if kinds else self.operation.types.rpartition("->")[2])


def narrow_of(kind: str) -> str:
    """The element of a type, where it is a float of 16 bits; "" where it is none."""
    found = re.search(r"(?:^|x|\s|\()(bf16|f16)\b[^x]*$", kind.strip())
    return found[1] if found else ""


def narrow_sum(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """One observation a line whose sums come out otherwise in float32: a note where only the last bit of 16 differs."""
    by_line: dict[tuple[str, int], list[Sum]] = {}
    for one in sums(evidence.ttir):
        update = one.operation if one.index < 0 else _update(one, evidence.ttir)
        place = line_of(update.place)
        if place is not None:
            by_line.setdefault(place, []).append(one)
    for place, found in [*by_line.items()][:_LINES]:
        first = found[0]
        said = f"{first.what} is accumulated in {_NAMES[first.element]} ({_BITS[first.element]} bits of mantissa)"
        change = "accumulate in float32 and round once behind: x.to(tl.float32) in front of it, or a float32 variable"
        if evidence.execution is None:
            yield _observed(place, "note", said, f"{change}; not tried: nothing was executed")
            continue
        try:
            text = accumulated_wide(evidence.compiled.ttir, evidence.ttir, found)
            wide = trials.memory(trials.compile(text))
        except UntriedError as reason:
            yield _observed(place, "note", said, f"{change}; not tried: {reason}")
            continue
        stored = difference(evidence.compiled, trials.memory(evidence.compiled), wide, exact=True)
        if stored is not None:
            more = f" ({stored.count} elements of it differ)" if stored.count > 1 else ""
            yield _observed(
                place,
                "warning" if _apart(stored, first.element) else "note",
                f"{said}: executed, {stored.name}[{stored.element}] is {stored.ours:.6g}, and {stored.theirs:.6g} with "
                f"float32{more}",
                f"{change} (tried: that is what comes out then)",
            )


def _observed(place: tuple[str, int], severity: str, said: str, change: str) -> Observation:
    reason = "every addition rounds to 16 bits, and small terms are lost beside a large sum"
    return Observation(
        "narrow-sum", severity, *place, f"{said}, of 16 bits" if ":" not in said else said, reason, change
    )


def _apart(found: Difference, element: str) -> bool:
    """Whether two numbers are more than a last bit of the narrow type apart."""
    if not (math.isfinite(found.ours) and math.isfinite(found.theirs)):
        return True
    largest = max(abs(found.ours), abs(found.theirs))
    return abs(found.ours - found.theirs) > 2.0 ** (math.frexp(largest)[1] - 1 - _BITS[element])


def sums(function: Function) -> Iterator[Sum]:
    """Every place where floats of 16 bits are accumulated."""
    made, looped = function.made_by(), set[str]()
    for loop in function.walk():
        if loop.name != "scf.for" or not loop.results:
            continue
        end = loop.blocks[0].operations[-1]
        kinds = split_types(end.types)
        for index, (name, last) in enumerate(zip(loop.blocks[0].arguments[1:], end.operands, strict=False)):
            inside = _path(last, name, made)
            if narrow_of(kinds[index]) and any(
                made[v].name in _PATH[:2] or made[v].name == "tt.dot" for v in inside
            ):
                looped |= inside
                yield Sum(loop, "a loop's sum", index)
    added = {v for o in function.walk() if o.name == "arith.addf" for v in o.operands}
    for operation in function.walk():
        if not operation.results or operation.results[0] in looped:
            continue
        if operation.name in ("tt.reduce", "tt.scan") and len(operation.results) == 1 and _adds(operation):
            if narrow_of(operation.types.rpartition("->")[2]):
                yield Sum(operation, "a sum" if operation.name == "tt.reduce" else "a running sum")
        elif operation.name == "tt.dot" and narrow_of(operation.types.rpartition("->")[2]):
            yield Sum(operation, "a dot")
        elif (
            operation.name == "arith.addf"
            and narrow_of(operation.types)
            and operation.results[0] not in added
            and _additions(operation, made) >= _CHAIN
        ):
            yield Sum(operation, "a chain of additions")


def _adds(fold: Operation) -> bool:
    """Whether a fold is a plain sum."""
    return [o.name for o in fold.blocks[0].operations[:-1]] == ["arith.addf"]


def _additions(operation: Operation, made: Mapping[str, Operation]) -> int:
    """Additions of one expression, of values of the same type."""
    inner = (made.get(v) for v in operation.operands)
    return 1 + sum(
        _additions(o, made)
        for o in inner
        if o is not None and (o.name, o.types) == (operation.name, operation.types)
    )


def _path(last: str, name: str, made: Mapping[str, Operation]) -> set[str]:
    """Values on the way from a loop's variable to what becomes of it, through additions, choices and conversions."""
    operation = made.get(last)
    if operation is None or operation.name not in _PATH:
        return set()
    given = operation.operands[2:3] if operation.name == "tt.dot" else operation.operands
    given = _chosen(operation, last) if operation.name == "scf.if" else given
    found = set[str]().union(*(_path(v, name, made) for v in given))
    return found | {last} if found or name in given else set()


def _chosen(branch: Operation, name: str) -> tuple[str, ...]:
    """What the two ways of a branch hand on as one of its results."""
    return tuple(block.operations[-1].operands[branch.results.index(name)] for block in branch.blocks)


def _update(one: Sum, function: Function) -> Operation:
    """The operation that makes the next value of a loop's variable; where a branch does, the addition in it."""
    made, (block,) = function.made_by(), one.operation.blocks
    last, name = block.operations[-1].operands[one.index], block.arguments[1:][one.index]
    added = (made[v] for v in sorted(_path(last, name, made)) if made[v].name in _PATH[:2])
    return next(added, made[last]) if made[last].name == "scf.if" else made[last]


def accumulated_wide(ttir: str, function: Function, found: Sequence[Sum]) -> str:
    """The TTIR in which these sums are kept in float32 and rounded where they are used.

    Raises:
        UntriedError: there is none.
    """
    rows, made = ttir.splitlines(), function.made_by()
    for number, one in enumerate(found):
        prefix = f"%xray_sum_{number}"
        if one.index >= 0:
            _widen_loop(rows, one, made, prefix)
        elif one.operation.blocks:
            _widen_fold(rows, one.operation, prefix)
        else:
            wide = _Wide(prefix, made, {})
            (name,) = one.operation.results
            kind = one.operation.types.rpartition("-> ")[2]
            result = wide.value(name, kind)
            rows[one.operation.row] = "\n".join([*wide.rows, _rounded(spelled(name), result, kind)])
            _forward(rows, spelled(name), result, kind, one.operation.row + 1)
    return changed_text(ttir, rows, "there is no such sum")


def wide_of(kind: str) -> str:
    """A type with elements of float32 in the place of 16 bits."""
    return re.sub(r"(?<![\w])(bf16|f16)\b|(?<=x)(bf16|f16)\b", "f32", kind)


def _rounded(name: str, of: str, kind: str) -> str:
    return f"{name} = arith.truncf {of} : {wide_of(kind)} to {kind}"


def _forward(rows: list[str], name: str, wide: str, kind: str, start: int) -> None:
    """Where the rounded value is widened again, the value that was not rounded."""
    pattern = re.compile(
        rf"arith\.extf {re.escape(name)} : {re.escape(kind)} to {re.escape(wide_of(kind))}(?![\w>])"
    )
    for n in range(start, len(rows)):
        rows[n] = pattern.sub(f"arith.bitcast {wide} : {wide_of(kind)} to {wide_of(kind)}", rows[n])


def _widen_fold(rows: list[str], fold: Operation, prefix: str) -> None:
    """A reduction or scan of float32, of which the result is rounded."""
    name, operand = spelled(fold.results[0]), spelled(fold.operands[0])
    given, kind = (part.strip("() ") for part in fold.types.rsplit("->", 1))
    last = next(n for n in range(fold.row, len(rows)) if rows[n].lstrip().startswith("}) :"))
    for n in range(fold.row, last + 1):
        rows[n] = wide_of(rows[n])
    rows[fold.row] = f"{prefix}_in = arith.extf {operand} : {given} to {wide_of(given)}\n" + rows[
        fold.row
    ].replace(f"({operand})", f"({prefix}_in)", 1).replace(f"{name} =", f"{prefix} =", 1)
    rows[last] += "\n" + _rounded(name, prefix, kind)
    _forward(rows, name, prefix, kind, last + 1)


def _widen_loop(rows: list[str], one: Sum, made: Mapping[str, Operation], prefix: str) -> None:
    """A loop whose variable is float32: rounded at the begin of a round for those that use it, and behind the loop."""
    loop, index = one.operation, one.index
    (block,) = loop.blocks
    end = block.operations[-1]
    kinds = split_types(end.types)
    kind = kinds[index]
    whole = wide_of(kind)
    variable, start = spelled(block.arguments[1:][index]), spelled(loop.carried[index])
    result = spelled(loop.results[index])
    head = rows[loop.row].replace(f"{variable} = {start}", f"{prefix}_now = {prefix}_begin", 1)
    rows[loop.row] = "\n".join(
        [f"{prefix}_begin = arith.extf {start} : {kind} to {whole}", retyped(head, index, whole),
         _rounded(variable, f"{prefix}_now", kind)]
    )  # fmt: skip
    _forward(rows, variable, f"{prefix}_now", kind, loop.row + 1)
    wide = _Wide(prefix, made, {block.arguments[1:][index]: f"{prefix}_now"}, rows)
    after = wide.value(end.operands[index], kind)
    yielded = [spelled(v) for v in end.operands]
    yielded[index], kinds[index] = after, whole
    rows[end.row] = "\n".join([*wide.rows, f"scf.yield {', '.join(yielded)} : {', '.join(kinds)}"])
    rows[end.row + 1] += "\n" + _rounded(f"{prefix}_all", result, kind)
    depth = 0
    for n in range(end.row + 2, len(rows)):
        depth += rows[n].count("{") - rows[n].count("}")
        if depth < 0:  # the end of what the loop stands in
            break
        rows[n] = re.sub(rf"{re.escape(result)}(?![\w.$#-])", f"{prefix}_all", rows[n])
    _forward(rows, f"{prefix}_all", result, kind, end.row + 2)


class _Wide(Rows):
    """Rows that compute a sum of 16 bits once more in float32; `known` has wide values of names."""

    def __init__(
        self,
        prefix: str,
        made: Mapping[str, Operation],
        known: Mapping[str, str],
        text: list[str] | None = None,
    ) -> None:
        """`text`: the rows of the kernel, in which branches on the way are written otherwise."""
        super().__init__(f"{prefix}_w")
        self._made, self._known, self._text = made, known, text

    def value(self, name: str, kind: str) -> str:
        """The wide value of a name of a type."""
        if name in self._known:
            return self._known[name]
        operation = self._made.get(name)
        if operation is None or not self._is_on(name):
            return (
                self.row(f"arith.extf {spelled(name)} : {kind} to {wide_of(kind)}")
                if narrow_of(kind)
                else spelled(name)
            )
        own, given = operation.types, operation.operands
        if operation.name in ("arith.addf", "arith.subf"):
            a, b = (self.value(v, own) for v in given)
            return self.row(f"{operation.name} {a}, {b} : {wide_of(own)}")
        if operation.name == "tt.dot":
            factors, _, own = own.rpartition("-> ")
            now, then = (
                ", ".join([*map(spelled, given[:2]), v])
                for v in (spelled(given[2]), self.value(given[2], own))
            )
            return self.row(
                f"tt.dot {operation.attributes.replace(now, then, 1)} : {factors}-> {wide_of(own)}"
            )
        if operation.name == "arith.select":
            flags, own = ([*split_types(own), ""] if "," in own else ["", own])[:2]
            a, b = (self.value(v, own) for v in given[1:])
            kinds = ", ".join(filter(None, [flags, wide_of(own)]))
            return self.row(f"arith.select {spelled(given[0])}, {a}, {b} : {kinds}")
        if operation.name == "scf.if":
            return self._branch(operation, name, kind)
        return self.value(given[0], own.partition(" to ")[0])  # a conversion there or back

    def _branch(self, branch: Operation, name: str, kind: str) -> str:
        """A branch that hands on wide values as one of its results: on each way what makes them stands there."""
        assert self._text is not None
        index = branch.results.index(name)
        for block in branch.blocks:
            end = block.operations[-1]
            inner = _Wide(f"{self._prefix}_{end.row}", self._made, self._known, self._text)
            given, kinds = [spelled(v) for v in end.operands], split_types(end.types)
            given[index], kinds[index] = inner.value(end.operands[index], kind), wide_of(kind)
            self._text[end.row] = "\n".join(
                [*inner.rows, f"scf.yield {', '.join(given)} : {', '.join(kinds)}"]
            )
        self._text[branch.row] = retyped(self._text[branch.row], index, wide_of(kind))
        return spelled(name)

    def _is_on(self, name: str) -> bool:
        """Whether a value is part of the sum, and no term of it."""
        if not self._known:
            return self._made[name].name in ("arith.addf", "arith.subf", "tt.dot")
        return any(_path(name, known, self._made) for known in self._known)
