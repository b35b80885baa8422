"""Arguments that something is promised to divide: which could be, how one says so, and the TTIR in which it is said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tilefold.xray.evidence import Evidence
from tilefold.xray.reach import reached
from tilefold.xray.report.static import line_of

WHOLE = 16  # bytes that one thread can move at once
MADE_OF = {
    "load": ("load", "copy"),
    "store": ("store",),
    "atomic_rmw": ("atomic_rmw",),
}  # what a load or store of the TTIR may become
Place = tuple[str, int, str]  # file, line, load or store
_DIVIDING = ("arith.divsi", "arith.divui")  # a remainder alone wraps around
_SCALING = ("arith.muli", "arith.extsi", "arith.trunci", "tt.splat", "tt.broadcast", "tt.expand_dims")


def divided(evidence: Evidence, promise: Mapping[str, int]) -> str:
    """How the compiler comes to know of divisors that the values have, or that nobody gave a value of."""
    pointers = {a.name for a in evidence.compiled.parameters if a.pointer}
    held = numbers_given(evidence)
    begin = [n for n in promise if n in pointers]
    numbers = {n: d for n, d in promise.items() if n not in pointers}
    said = [f"let {' and '.join(begin)} begin at a multiple of {promise[begin[0]]} bytes"] if begin else []
    passed = [n for n, d in numbers.items() if d == WHOLE]
    told = {n: d for n, d in numbers.items() if d < WHOLE}
    if passed:
        said.append(f"pass multiples of {WHOLE} for {' and '.join(passed)}")
    if told:
        given = ", ".join(f"{n} is {held[n]}" for n in told if n in held)
        said.append(
            f"say at the top of the kernel {'; '.join(f'{n} = {n} // {d} * {d}' for n, d in told.items())}"
            f" (tl.multiple_of of an argument itself is lost{f'; {given}' if given else ''}), which is right only where "
            f"{_are_multiples(told)}"
        )
    return ", and ".join(said)


def numbers_given(evidence: Evidence) -> dict[str, int]:
    """The arguments that are whole numbers other than 0."""
    parameters = evidence.compiled.parameters
    return {a.name: a.value for a in parameters if isinstance(a.value, int) and not a.pointer and a.value}


def divisors_of(evidence: Evidence, names: Sequence[str]) -> dict[str, int]:
    """The greatest power of two that divides each of these arguments, `WHOLE` at most: of those that have one."""
    held = numbers_given(evidence)
    found = {n: divisor_of(held.get(n, 0), WHOLE) for n in names}
    return {n: d for n, d in found.items() if d > 1}


def divisor_of(value: int, most: int) -> int:
    """The greatest power of two that divides a number, `most` at most; that of one that nobody gave."""
    return min(value & -value, most) if value else most


def multiples(promise: Mapping[str, int]) -> str:
    """Arguments with their divisors, in words."""
    by_divisor: dict[int, list[str]] = {}
    for name, divisor in promise.items():
        by_divisor.setdefault(divisor, []).append(name)
    return " and ".join(f"{' and '.join(names)} a multiple of {d}" for d, names in by_divisor.items())


def _are_multiples(promise: Mapping[str, int]) -> str:
    return ", ".join(f"{name} is a multiple of {divisor}" for name, divisor in promise.items())


def unpromised(evidence: Evidence, places: set[Place]) -> list[str]:
    """Arguments of the TTIR that nothing is promised to divide, integers and pointers, on which these accesses' addresses or
    masks depend."""
    head = next(row for row in evidence.compiled.ttir.splitlines() if "tt.func public" in row)
    used: set[str] = set()
    for operation in evidence.ttir.walk():
        line, kind = line_of(operation.place), operation.name.removeprefix("tt.")
        if line is not None and any((*line, k) in places for k in MADE_OF.get(kind, ())):
            used |= set(operation.operands[:1] + operation.operands[1 if kind == "load" else 2 :][:1])
    reached = evidence.ttir.reached_from(used)
    return [
        found[1]
        for found in re.finditer(r"%([\w.$-]+): (?:!tt\.ptr<[^>]*>|i32|i64)( \{[^}]*\})?", head)
        if "divisibility = 16" not in (found[2] or "") and f"%{found[1]}" in reached
    ]


def dividing(evidence: Evidence) -> set[str]:
    """Arguments that something is divided by, or by a product of: lengths that places are counted in, no strides. A number of
    tiles, a quotient itself, is none."""
    return _given_to(evidence, _DIVIDING, slice(1, None))


def _given_to(evidence: Evidence, operations: Sequence[str], operands: slice) -> set[str]:
    """Arguments that reach operands of some operations as they are, or multiplied."""
    made = evidence.ttir.made_by()

    def scaled(name: str) -> tuple[str, ...]:
        return made[name].operands if name in made and made[name].name in _SCALING else ()

    given = [v for o in evidence.ttir.walk() if o.name in operations for v in o.operands[operands]]
    found = {*reached(given, scaled)}
    return {a.name for name, a in evidence.parameters if name in found}


def promising_each(ttir: str, promise: Mapping[str, int]) -> str:
    """The TTIR in which a number of its own divides each of these arguments."""
    for name, divisor in promise.items():
        ttir = promising(ttir, [name], divisor)
    return ttir


def promising(ttir: str, names: list[str], divisor: int) -> str:
    """The TTIR in which a number divides these arguments."""
    for name in names:
        pattern = rf"(%{re.escape(name)}: (?:!tt\.ptr<[^>]*>|i32|i64))(?: \{{[^}}]*\}})?"
        ttir = re.sub(pattern, rf"\1 {{tt.divisibility = {divisor} : i32}}", ttir, count=1)
    return ttir
