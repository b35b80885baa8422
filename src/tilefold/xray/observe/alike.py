"""Programs of a grid that do the same, told from the TTIR: their rounds, their branches, where their masks end and how their
addresses lie in a line of memory.

What programs ask of memory, and issue, is then the same for all of a class, so that one of each is enough to count a grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilefold.xray.ir import Function, Operation, tensors
from tilefold.xray.ir.programs import ENDS, Numbers, Programs
from tilefold.xray.ir.syntax import MASKS
from tilefold.xray.machine.types import Array
from tilefold.xray.reach import reached

_LINE = 128  # bytes; sectors and vectors divide it
_MOST = 1 << 16  # programs of a grid that are told apart
_BRANCHES = {"scf.if": slice(1), "scf.for": slice(3)}  # operands that decide what is executed
# Whose results say of a tile's ends nothing about what is between.
_BENT = tuple(
    f"arith.{name}"
    for name in ("divsi", "divui", "remsi", "remui", "andi", "ori", "xori", "minsi", "maxsi", "minui", "maxui", "shrsi",
                 "shrui", "select")
)  # fmt: skip
_OWN = ("tt.get_program_id", "tt.load", "tt.atomic_rmw")  # what differs from program to program
_ROUNDS = 2  # of the ends, those of the first rounds
# Whose results nothing but an execution tells.
_OF_DATA = (
    "tt.load", "tt.atomic_rmw", "tt.reduce", "tt.scan", "tt.gather", "tt.histogram", "arith.cmpf", "arith.fptosi",
)  # fmt: skip
_UNTOLD = ("scf.while", "tt.atomic_cas", "cf.cond_br")


def classes(
    function: Function, known: Mapping[str, int], grid: tuple[int, int, int], sizes: Mapping[str, int]
) -> Array | None:
    """The class of each program, x fastest; None where it depends on memory, or on what is not computed here.

    `known` gives integer arguments and `sizes` the bytes of pointers' elements, by their names in the TTIR.
    """
    operations = [*function.walk()]
    if grid[0] * grid[1] * grid[2] > _MOST or any(
        o.name in _UNTOLD or "descriptor" in o.name for o in operations
    ):
        return None
    worlds = [Programs(function, known, grid, ends=ends) for ends in ENDS]
    deciding = [v for o in operations for v in _deciding(o)]
    reached = function.reached_from(deciding)
    if any(o.name in _OF_DATA and reached & set(o.results) for o in operations):
        return None
    columns: list[Numbers] = []
    even = all(_goes_evenly(o, function, reached) for o in operations if o.name == "scf.for")
    for operation in operations:
        for values in _told(operation, worlds, reached, sizes, even=even):
            if any(v is None for v in values):
                return None
            columns += [np.broadcast_to(v, (worlds[0].count,)) for v in values if v is not None]
    if not columns:
        return np.zeros(worlds[0].count, np.int64)
    found: Array = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)[1].ravel()
    return found


def _deciding(operation: Operation) -> tuple[str, ...]:
    """Operands that decide what a program executes and asks for: addresses, masks, conditions, bounds."""
    if operation.name in _BRANCHES:
        return operation.operands[_BRANCHES[operation.name]]
    at = MASKS.get(operation.name)
    return () if at is None else (*operation.operands[:1], *operation.operands[at : at + 1])


def _told(
    operation: Operation, worlds: list[Programs], reached: set[str], sizes: Mapping[str, int], *, even: bool
) -> Iterator[list[Numbers | None]]:
    """Numbers, one a program, that tell programs apart; None among them where one is not known. Where loops go on `even`ly,
    in all programs by the same steps, those of the first rounds will do."""
    if operation.name in MASKS:
        places = [w.places.get(operation.operands[0]) for w in worlds]
        places = places[:_ROUNDS] if None in places[_ROUNDS:] and even else places
        yield [None if p is None else p.offset * sizes.get(p.argument, 1) % _LINE for p in places]
    elif operation.name == "scf.for":
        yield [w.numbers(v) for w in worlds for v in operation.operands[:3]]
    elif operation.name == "scf.if":
        truths = [w.truth(operation.operands[0]) for w in worlds]
        yield [None if t is None else t.astype(np.int64) for t in truths]
    elif not reached & set(operation.results):
        return
    elif operation.name == "arith.cmpi":
        sides = [[w.numbers(v) for v in operation.operands[:2]] for w in worlds]
        apart = [None if a is None or b is None else a - b for a, b in sides]
        yield apart[:_ROUNDS] if any(a is None for a in apart[_ROUNDS:]) and even else _compared(apart)
    elif operation.name in _BENT and tensors(operation.types) and not _of_flags(operation):
        given = operation.operands[1:] if operation.name == "arith.select" else operation.operands
        yield [w.numbers(v) for w in worlds for v in given]


def _goes_evenly(loop: Operation, function: Function, wanted: set[str]) -> bool:
    """Whether what a loop's variables change by, as far as they decide anything, is the same in all programs."""
    made, (block,) = function.made_by(), loop.blocks
    yielded = next((o.operands for o in block.operations if o.name == "scf.yield"), ())
    given = [v for name, v in zip(block.arguments[1:], yielded, strict=False) if name in wanted]
    found = reached(given, lambda v: (*made[v].operands, *made[v].carried) if v in made else ())
    return not any(v in made and made[v].name in _OWN for v in found)


def _compared(apart: list[Numbers | None]) -> list[Numbers | None]:
    """How far two sides are apart at the ends of ranges and loops; where one is the greater at all ends, only which."""
    if any(a is None for a in apart):
        return [None]
    held = np.stack([a for a in apart if a is not None])
    return [*np.where((np.sign(held) == np.sign(held[0])).all(0) & (held != 0).all(0), np.sign(held), held)]


def _of_flags(operation: Operation) -> bool:
    return tensors(operation.types)[-1].element == "i1"
