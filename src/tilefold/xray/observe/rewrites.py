"""A kernel's TTIR with one thing written otherwise: what an author would change in the source, where it is mechanical.

Each function gives the whole text, whose rows keep what stands in them, or raises: it is tried by `remedies`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from tilefold.xray.ir import Operation, element_bytes, spelled, tensors
from tilefold.xray.ir.syntax import MASKS, Function
from tilefold.xray.observe.fills import identity_of
from tilefold.xray.observe.masked import VALUES, literal_of, tile_type
from tilefold.xray.observe.trials import UntriedError

_FOLDS = {
    "fadd": "arith.addf", "add": "arith.addi", "max": "arith.maxsi", "min": "arith.minsi", "and": "arith.andi",
    "or": "arith.ori", "xor": "arith.xori",
}  # fmt: skip
_IDEMPOTENT = ("arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf", "arith.maxsi", "arith.minsi",
               "arith.maxui", "arith.minui", "arith.andi", "arith.ori")  # fmt: skip
_LIFTS = ("tt.splat", "tt.expand_dims", "tt.broadcast", "ttg.convert_layout")
_ZERO = ("fadd", "add", "or", "xor")


def loaded_once(ttir: str, function: Function, place: Sequence[Operation]) -> str:
    """Loads that ask for just what an earlier load asked for, or a store was given, take that one's tile, with their own fill
    for masked elements.

    Raises:
        UntriedError: none of them does.
    """
    rows = ttir.splitlines()
    earlier: dict[tuple[str, ...], str] = {}
    for operation in function.body:  # what stands in a loop is not seen behind it
        for load in operation.walk():
            if load.name != "tt.load" or not tensors(load.types):
                continue
            first = earlier.get((*load.operands[:2], load.types))
            if first is not None and load in place:
                tile, name = tensors(load.types)[0], spelled(load.results[0])
                kind, flags = tile_type(tile.shape, tile.pointee), tile_type(tile.shape, "i1")
                mask, other = f"%xray_all_{load.row}", first
                made = [f"{mask} = arith.constant dense<true> : {flags}"]
                if len(load.operands) == 3:
                    mask, other = (spelled(v) for v in load.operands[1:])
                    made = []
                made.append(f"{name} = arith.select {mask}, {first}, {other} : {flags}, {kind}")
                rows[load.row] = "\n".join(made)
        if operation.name == "tt.load":
            earlier.setdefault((*operation.operands[:2], operation.types), spelled(operation.results[0]))
        if operation.name == "tt.store":
            pointer, value, *masks = operation.operands[:3]
            earlier[(pointer, *masks, operation.types)] = spelled(value)
    return changed_text(ttir, rows, "no load before it has the same addresses and mask")


def turned(ttir: str, moves: Sequence[Operation]) -> str:
    """Loads, stores and atomics of several dims in the opposite order of dims, the tile transposed in registers.

    Raises:
        UntriedError: there are none.
    """
    rows = ttir.splitlines()
    for move in moves:
        tile = next(iter(tensors(move.types)), None)
        if tile is None or sum(n > 1 for n in tile.shape) < 2:
            continue
        here, mask, own = (tile_type(tile.shape, e) for e in (tile.element, "i1", tile.pointee))
        kinds = [here, mask, own] if move.name == "tt.load" else [here, own, mask]
        names = [spelled(v) for v in move.operands]
        others = [f"%xray_turned_{move.row}_{n}" for n in range(len(names))]
        before = [_transposed(o, v, k) for o, v, k in zip(others, names, kinds, strict=False)]
        row = rows[move.row].replace(", ".join(names), ", ".join(others), 1)
        for kind in kinds:
            row = row.replace(kind, _other_way(kind))
        after = []
        if move.results:
            name = spelled(move.results[0])
            own_name = f"%xray_turned_{move.row}"
            row = row.replace(f"{name} =", f"{own_name} =", 1)
            after = [_transposed(name, own_name, tile_type(tile.shape[::-1], tile.pointee))]
        rows[move.row] = "\n".join([*before, row, *after])
    return changed_text(ttir, rows, "the tile has one dim")


def _transposed(name: str, of: str, kind: str) -> str:
    order = ", ".join(map(str, range(len(tensors(kind)[0].shape))[::-1]))
    return f"{name} = tt.trans {of} {{order = array<i32: {order}>}} : {kind} -> {_other_way(kind)}"


def _other_way(kind: str) -> str:
    """The type of a tile whose dims stand in the opposite order."""
    (tile,) = tensors(kind)
    return tile_type(tile.shape[::-1], tile.element)


def flipped(ttir: str, loads: Sequence[Operation], width: int) -> str:
    """Tiles of one dim that are loaded from their last place to their first, loaded forwards, `width` bytes that begin at a
    multiple of it, and turned around as tl.flip does it.

    Raises:
        UntriedError: there are none.
    """
    rows = ttir.splitlines()
    for load in loads:
        tile = next(iter(tensors(load.types)), None)
        if tile is None or len(tile.shape) != 1 or tile.elements < 2 or len(load.operands) > 1:
            continue
        made, count, size = Rows(f"%xray_flipped_{load.row}"), tile.elements, element_bytes(tile.pointee)
        places, own = tile_type(tile.shape, "i32"), tile_type(tile.shape, tile.pointee)
        number = made.row(f"tt.make_range {{end = {count} : i32, start = 0 : i32}} : {places}")
        number = made.row(f"arith.addi {number}, {number} : {places}")
        last = made.row(f"arith.constant dense<{count - 1}> : {places}")
        number = made.row(f"arith.subi {number}, {last} : {places}")
        said = (
            f"{{tt.contiguity = dense<{width // size}> : tensor<1xi32>, "
            f"tt.divisibility = dense<{width}> : tensor<1xi32>}}"
        )
        pointers = tile_type(tile.shape, tile.element)
        pointer = made.row(f"tt.addptr {spelled(load.operands[0])}, {number} {said} : {pointers}, {places}")
        name, forwards, bits = spelled(load.results[0]), f"%xray_forwards_{load.row}", f"i{8 * size}"
        made.rows.append(
            rows[load.row]
            .replace(spelled(load.operands[0]), pointer, 1)
            .replace(f"{name} =", f"{forwards} =", 1)
        )
        pairs = (2,) * (count.bit_length() - 1)
        whole, flat = tile_type(pairs, bits), tile_type(tile.shape, bits)
        value = forwards if own == flat else made.row(f"tt.bitcast {forwards} : {own} -> {flat}")
        value = made.row(f"tt.reshape {value} : {flat} -> {whole}")
        for axis in range(len(pairs)):
            value = _exchanged(made, value, axis, pairs, bits)
        if own == flat:
            made.rows.append(f"{name} = tt.reshape {value} : {whole} -> {flat}")
        else:
            value = made.row(f"tt.reshape {value} : {whole} -> {flat}")
            made.rows.append(f"{name} = tt.bitcast {value} : {flat} -> {own}")
        rows[load.row] = "\n".join(made.rows)
    return changed_text(ttir, rows, "the tile has several dims, or its mask would have to be turned, too")


def _exchanged(made: Rows, value: str, axis: int, pairs: tuple[int, ...], bits: str) -> str:
    """The halves along an axis of two exchanged: each combined with the sum of both by exclusive or."""
    whole, kept = tile_type(pairs, bits), tile_type(pairs[1:], bits) if pairs[1:] else bits
    name = made.row(f'"tt.reduce"({value}) <{{axis = {axis} : i32}}> ({{')
    made.rows += [
        f"^bb0({name}_a: {bits}, {name}_b: {bits}):",
        f"{name}_c = arith.xori {name}_a, {name}_b : {bits}",
        f"tt.reduce.return {name}_c : {bits}",
        f"}}) : ({whole}) -> {kept}",
    ]
    if not pairs[1:]:
        both = made.row(f"tt.splat {name} : {bits} -> {whole}")
    else:
        one = tile_type(tuple(1 if d == axis else n for d, n in enumerate(pairs)), bits)
        both = made.row(f"tt.expand_dims {name} {{axis = {axis} : i32}} : {kept} -> {one}")
        both = made.row(f"tt.broadcast {both} : {one} -> {whole}")
    return made.row(f"arith.xori {value}, {both} : {whole}")


def split_apart(ttir: str, reductions: Sequence[Operation]) -> str:
    """Reductions of an axis as folds of its halves, again and again: reshaped to [..., 2], split, combined.

    Raises:
        UntriedError: there are none, or one is not of a single operation, or its axis is no power of two.
    """
    rows = ttir.splitlines()
    for fold in reductions:
        tile, inner = tensors(fold.types)[0], [o.name for o in fold.blocks[0].operations[:-1]]
        axis = fold.axis
        length, rest = tile.shape[axis], [n for d, n in enumerate(tile.shape) if d != axis]
        if len(inner) != 1 or len(fold.results) != 1 or length & (length - 1) or not rest:
            raise UntriedError("its fold is not written here in halves")
        made, order = (
            Rows(f"%xray_split_{fold.row}"),
            [d for d in range(len(tile.shape)) if d != axis] + [axis],
        )
        here, there = tile_type(tile.shape, tile.element), tile_type((*rest, length), tile.element)
        value = made.row(
            f"tt.trans {spelled(fold.operands[0])} {{order = array<i32: {', '.join(map(str, order))}>}} : {here} -> {there}"
        )
        while length > 1:
            length //= 2
            halves = tile_type((*rest, length, 2) if length > 1 else (*rest, 2), tile.element)
            part = tile_type((*rest, length) if length > 1 else tuple(rest), tile.element)
            value = made.row(
                f"tt.reshape {value} : {tile_type((*rest, 2 * length), tile.element)} -> {halves}"
            )
            made.rows.append(f"{value}_a, {value}_b = tt.split {value} : {halves} -> {part}")
            value = made.row(f"{inner[0]} {value}_a, {value}_b : {part}")
        last = next(n for n in range(fold.row, len(rows)) if rows[n].lstrip().startswith("}) :"))
        name = spelled(fold.results[0])
        rows[fold.row : last + 1] = ["\n".join(made.rows).replace(f"{value} =", f"{name} =")] + [""] * (
            last - fold.row
        )
    return changed_text(ttir, rows, "there is no such fold")


def folded_first(ttir: str, function: Function, atomics: Sequence[Operation]) -> str:
    """Tiles whose elements all go to one place: folded, and one atomic.

    Raises:
        UntriedError: they do not, or the operation has no fold that is written here.
    """
    rows = ttir.splitlines()
    for atomic in atomics:
        words = atomic.attributes.replace(",", " ").split()
        kind = next((w for w in words if w in _FOLDS), None)
        tile = next(iter(tensors(atomic.types)), None)
        pointer = _one_place(atomic.operands[0], function)
        if kind is None or tile is None or len(tile.shape) != 1 or pointer is None:
            raise UntriedError("its elements go to several places, or their fold is not written here")
        element, name = tile.pointee, f"%xray_{atomic.row}"
        value = 0.0 if kind in _ZERO else {"max": float("-inf"), "min": float("inf")}.get(kind, -1.0)
        whole = tile_type(tile.shape, element)
        given, mask = (spelled(v) for v in atomic.operands[1:3])
        head = rows[atomic.row].partition("%" + spelled(atomic.operands[0])[1:])[0]
        rows[atomic.row] = "\n".join(
            [
                f"{name}_fill = arith.constant dense<{literal_of(value, element)}> : {whole}",
                f"{name}_kept = arith.select {mask}, {given}, {name}_fill : {tile_type(tile.shape, 'i1')}, {whole}",
                f'{name}_fold = "tt.reduce"({name}_kept) <{{axis = 0 : i32}}> ({{',
                f"^bb0({name}_a: {element}, {name}_b: {element}):",
                f"{name}_c = {_FOLDS[kind]} {name}_a, {name}_b : {element}",
                f"tt.reduce.return {name}_c : {element}",
                f"}}) : ({whole}) -> {element}",
                f"{name}_true = arith.constant true",
                f"{head}{spelled(pointer)}, {name}_fold, {name}_true : (!tt.ptr<{element}>, {element}, i1) -> {element}",
            ]
        )
    return changed_text(ttir, rows, "there is no such atomic")


def _one_place(name: str, function: Function) -> str | None:
    """The pointer of which all elements of a tile of pointers are copies."""
    made = function.made_by()
    operation = made.get(name)
    while operation is not None and operation.name == "tt.addptr":
        offset = made.get(operation.operands[1])
        if (
            offset is None
            or offset.name != "arith.constant"
            or not re.match(r"dense<0>", offset.attributes.strip())
        ):
            return None
        operation = made.get(operation.operands[0])
    return operation.operands[0] if operation is not None and operation.name == "tt.splat" else None


def folded_behind(ttir: str, function: Function, reductions: Sequence[Operation]) -> str:
    """Loops that fold a tile in every round and combine the result with their variable, combining tiles; one fold behind.

    Raises:
        UntriedError: a loop is not at the top, or a fold has no identity that is known.
    """
    rows = ttir.splitlines()
    yielded: dict[int, list[str]] = {}  # types that each loop hands on, by its row
    for number, reduction in enumerate(reductions):
        loops = (o for o in function.body if o.name == "scf.for" and reduction in o.blocks[0].operations)
        loop = next(loops, None)
        if loop is None or identity_of(reduction)[1] not in VALUES:
            raise UntriedError(
                "the loop is inside another one, or the fold has no identity that is known here"
            )
        _fold_behind(rows, loop, reduction, number, yielded.setdefault(loop.row, []))
    return changed_text(ttir, rows, "there is no such fold")


def spread_into(reduction: Operation, loop: Operation) -> Operation | None:
    """The `tt.splat` of a loop's variable that a tile is combined with before it is folded into just that variable, by one
    operation that may take it any number of times: m = max(maximum(tile, m)). None where it is not so."""
    (block,) = loop.blocks
    inner = [o for o in reduction.blocks[0].operations if not o.name.startswith("tt.reduce.return")]
    made = {r: o for o in block.operations for r in o.results}
    yielded = next((o.operands for o in block.operations if o.name == "scf.yield"), ())
    if len(inner) != 1 or inner[0].name not in _IDEMPOTENT or len(reduction.results) != 1:
        return None
    if list(yielded).count(reduction.results[0]) != 1:
        return None
    carried = block.arguments[1:][list(yielded).index(reduction.results[0])]
    at = made.get(reduction.operands[0])
    while at is not None and at.name in ("tt.reshape", "ttg.convert_layout"):
        at = made.get(at.operands[0])
    if at is None or at.name != inner[0].name:
        return None
    splats = [
        made[v]
        for v in at.operands
        if v in made and made[v].name == "tt.splat" and made[v].operands[0] == carried
    ]
    # Read elsewhere in the round, the running value is needed as it is.
    names = {carried, *reduction.results, *(splats[0].results if splats else ())}
    users = [o for o in loop.walk() if o is not loop and names & set(o.operands) and o.name != "scf.yield"]
    return splats[0] if len(splats) == 1 and len(users) == 2 else None


def lifts(reduction: Operation, loop: Operation) -> tuple[tuple[Operation, ...], Operation | None]:
    """What gives a reduction's result the shape of a loop's variable (a dim that it keeps, a tile of one element), and what
    then uses it; None where several do."""
    found: list[Operation] = []
    while True:
        name = (found[-1] if found else reduction).results[0]
        users = [o for o in loop.walk() if o is not loop and name in o.operands]
        if len(users) != 1 or users[0].name not in _LIFTS:
            return tuple(found), users[0] if len(users) == 1 else None
        found.append(users[0])


def _fold_behind(
    rows: list[str], loop: Operation, reduction: Operation, number: int, kinds: list[str]
) -> None:
    """The rows of one loop, in which one fold waits; `kinds` are the types that it hands on."""
    (block,) = loop.blocks
    end, mark = block.operations[-1], f"%xray_{number}"
    splat, (lifted, only) = spread_into(reduction, loop), lifts(reduction, loop)
    user = only or next(o for o in block.operations if reduction.results[0] in o.operands)
    if splat is None and (only is None or user not in block.operations):
        raise UntriedError("its result is used in several places")
    joining = user.name if splat is None else reduction.blocks[0].operations[0].name
    kept = user.results[0] if splat is None else reduction.results[0]
    index = end.operands.index(kept)
    kinds.extend([] if kinds else split_types(end.types))
    tile, narrow = tensors(reduction.types)[0], kinds[index]
    kinds[index] = whole = tile_type(tile.shape, tile.element)
    variable, start = spelled(block.arguments[1:][index]), spelled(loop.carried[index])
    operand, result = spelled(reduction.operands[0]), spelled(loop.results[index])
    value = literal_of(VALUES[identity_of(reduction)[1]], tile.element)
    begun = rows[loop.row].replace(f"{variable} = {start}", f"{variable} = {mark}_wide", 1)
    rows[loop.row] = f"{mark}_wide = arith.constant dense<{value}> : {whole}\n{retyped(begun, index, whole)}"
    last = next(n for n in range(reduction.row, len(rows)) if rows[n].lstrip().startswith("}) :"))
    folding = rows[reduction.row : last + 1]
    folding[0] = folding[0].replace(spelled(reduction.results[0]), f"{mark}_folded", 1)
    folding[0] = folding[0].replace(f"({operand})", f"({result})", 1)
    if splat is not None:  # the variable's first value may be taken in every round
        rows[splat.row] = rows[splat.row].replace(f"tt.splat {variable}", f"tt.splat {start}", 1)
        rows[reduction.row : last + 1] = [""] * len(folding)
    place = user.row if splat is None else reduction.row
    rows[place] = f"{spelled(kept)} = {joining} {variable}, {operand} : {whole}"
    rows[end.row] = f"scf.yield {', '.join(map(spelled, end.operands))} : {', '.join(kinds)}"
    for n in range(end.row + 2, len(rows)):
        rows[n] = re.sub(rf"{re.escape(result)}(?![\w.$#-])", f"{mark}_all", rows[n])
    held = f"{mark}_folded"
    for n, lift in enumerate(lifted if splat is None else ()):
        wide = f"{mark}_lifted_{n}"
        given, made = re.escape(spelled(lift.operands[0])), rows[lift.row].partition("=")[2]
        folding.append(f"{wide} =" + re.sub(rf"{given}(?![\w.$#-])", held, made, count=1))
        held = wide
    after = [*folding, f"{mark}_all = {joining} {start}, {held} : {narrow}"]
    rows[end.row + 1] = "\n".join([rows[end.row + 1], *after])


def split_types(types: str) -> list[str]:
    """The types of a list, which may hold commas themselves."""
    found, depth = [""], 0
    for letter in types:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [t.strip() for t in found]


def retyped(row: str, index: int, kind: str) -> str:
    """The row of a loop with another type of one of its results."""
    head, arrow, rest = row.partition("-> (")
    held, depth = "", 1
    for letter in rest:
        depth += (letter in "<(") - (letter in ">)")
        if not depth:
            break
        held += letter
    kinds = split_types(held)
    return head + arrow + ", ".join([*kinds[:index], kind, *kinds[index + 1 :]]) + rest[len(held) :]


def promised(ttir: str, function: Function, moves: Sequence[Operation], width: int) -> str:
    """Pointers of tiles of one dim whose elements are promised to lie together, `width` bytes that begin at a multiple of it:
    what tl.max_contiguous and tl.multiple_of say.

    Raises:
        UntriedError: there are none.
    """
    rows, made = ttir.splitlines(), function.made_by()
    for move in moves:
        pointer, tile = made.get(move.operands[0]), next(iter(tensors(move.types)), None)
        if pointer is None or tile is None or pointer.name != "tt.addptr" or len(tile.shape) != 1:
            continue
        count = width // element_bytes(tile.pointee)
        said = f"{{tt.contiguity = dense<{count}> : tensor<1xi32>, tt.divisibility = dense<{width}> : tensor<1xi32>}}"
        rows[pointer.row] = rows[pointer.row].replace(" : ", f" {said} : ", 1)
    return changed_text(ttir, rows, "its pointers are not written as one sum of one dim")


def widened(ttir: str, function: Function, accesses: Sequence[Operation]) -> str:
    """Accesses whose offsets are computed in 64 bits from what they are computed from: loaded indices, arguments, programs.

    Raises:
        UntriedError: no offset of theirs has 32 bits.
    """
    rows, made = ttir.splitlines(), function.made_by()
    for access in accesses:
        wide = _Wide(made, f"%xray_wide_{access.row}")
        given, pointer = spelled(access.operands[0]), wide.pointer(access.operands[0])
        row = re.sub(rf"(?<=[(\s]){re.escape(given)}(?![\w.$#-])", pointer, rows[access.row], count=1)
        rows[access.row] = "\n".join([*wide.rows, row])
    return changed_text(ttir, rows, "no offset of its has 32 bits")


ROUND, IDLE = 0, 1  # what a loop's rounds are counted by, behind `counted_at`


def counted_at(loop: int) -> int:
    """The address at which the rounds of the `loop`-th loop are stored: no argument is there."""
    return (0x7FF0 << 48) + 64 * loop


def counted(ttir: str, function: Function, loops: Sequence[Operation]) -> str:
    """Loops that store a byte in every round, and one behind it in rounds in which all masks are false and no variable
    changes but those that addresses and masks come from.

    Raises:
        UntriedError: there is no loop.
    """
    rows = ttir.splitlines()
    for number, loop in enumerate(loops):
        made = Rows(f"%xray_loop_{number}")
        (block,) = loop.blocks
        end, moves = block.operations[-1], masked_moves(loop) or ()
        busy = [made.any(spelled(mask), _mask_type(move)) for move, mask in moves]
        reached = function.reached_from([v for move, mask in moves for v in (mask, move.operands[0])])
        kinds = split_types(end.types) if end.name == "scf.yield" and end.operands else []
        for before, after, kind in zip(block.arguments[1:], end.operands, kinds, strict=False):
            if before not in reached and "ptr" not in kind:
                busy.append(made.changed(spelled(before), spelled(after), kind))
        false = made.row("arith.constant false")
        joined = functools.reduce(lambda a, b: made.row(f"arith.ori {a}, {b} : i1"), busy, false)
        true, byte = made.row("arith.constant true"), made.row("arith.constant 1 : i8")
        idle = made.row(f"arith.xori {joined}, {true} : i1")
        for offset, mask in ((ROUND, true), (IDLE, idle)):
            pointer = made.place(counted_at(number) + offset, "i8")
            made.rows.append(f"tt.store {pointer}, {byte}, {mask} : !tt.ptr<i8>")
        rows[end.row] = "\n".join([*made.rows, rows[end.row]])
    return changed_text(ttir, rows, "there is no such loop")


def masked_moves(loop: Operation) -> list[tuple[Operation, str]] | None:
    """The loads, stores and atomics of a loop's body with their masks; None where one has none, or stands deeper in it."""
    found = []
    for operation in loop.blocks[0].operations:
        inner = [o for o in operation.walk() if o.name in _TOUCHING or "descriptor" in o.name]
        at = MASKS.get(operation.name)
        if inner and (at is None or len(operation.operands) <= at):
            return None
        if inner and at is not None:
            found.append((operation, operation.operands[at]))
    return found or None


_TOUCHING = (*MASKS, "tt.atomic_cas")


def _mask_type(move: Operation) -> str:
    """The type of a move's mask: a flag for each element."""
    tile = next(iter(tensors(move.types)), None)
    return "i1" if tile is None else tile_type(tile.shape, "i1")


class Rows:
    """Rows of TTIR, each of which makes a value."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.rows: list[str] = []

    def row(self, text: str) -> str:
        """One more value."""
        name = f"{self._prefix}_{len(self.rows)}"
        self.rows.append(f"{name} = {text}")
        return name

    def place(self, address: int, element: str) -> str:
        """A pointer to an address."""
        at = self.row(f"arith.constant {address} : i64")
        return self.row(f"tt.int_to_ptr {at} : i64 -> !tt.ptr<{element}>")

    def any(self, flags: str, kind: str) -> str:
        """Whether one of a tile's flags is set."""
        tile = next(iter(tensors(kind)), None)
        if tile is None:
            return flags
        flat = tile_type((tile.elements,), "i1")
        flags = self.row(f"tt.reshape {flags} allow_reorder : {kind} -> {flat}")
        name = f"{self._prefix}_{len(self.rows)}"
        self.rows += [f'{name} = "tt.reduce"({flags}) <{{axis = 0 : i32}}> ({{', f"^bb0({name}_a: i1, {name}_b: i1):",
                      f"{name}_c = arith.ori {name}_a, {name}_b : i1", f"tt.reduce.return {name}_c : i1",
                      f"}}) : ({flat}) -> i1"]  # fmt: skip
        return name

    def changed(self, before: str, after: str, kind: str) -> str:
        """Whether two values, or an element of two tiles, differ."""
        tile = next(iter(tensors(kind)), None)
        whole = (kind if tile is None else tile.element).startswith("i")
        made = self.row(f"arith.cmp{'i ne' if whole else 'f one'}, {before}, {after} : {kind}")
        return self.any(made, kind if tile is None else tile_type(tile.shape, "i1"))


# Without remainders and bits: a hash is meant to wrap.
_ARITHMETIC = tuple(f"arith.{name}" for name in ("addi", "subi", "muli", "shli", "minsi", "maxsi"))
_MOVED = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans")


class _Wide(Rows):
    """Rows that compute a pointer once more, with offsets of 64 bits."""

    def __init__(self, made: Mapping[str, Operation], prefix: str) -> None:
        super().__init__(prefix)
        self._made, self._names = made, dict[str, str]()

    def pointer(self, name: str) -> str:
        """The value that stands for a pointer, or a tile of them: itself where no offset of 32 bits leads to it."""
        operation = self._made.get(name)
        if operation is None or name in self._names:
            return self._names.get(name, spelled(name))
        base = self.pointer(operation.operands[0]) if operation.name in (*_MOVED, "tt.addptr") else ""
        if operation.name == "tt.addptr":
            kind, offsets = split_types(operation.types)
            offset = self._offset(operation.operands[1], offsets)
            if offset or base != spelled(operation.operands[0]):
                given = offset or spelled(operation.operands[1])
                kinds = f"{kind}, {_of_64(offsets) if offset else offsets}"
                self._names[name] = self.row(f"tt.addptr {base}, {given} : {kinds}")
        elif base and base != spelled(operation.operands[0]):
            self._names[name] = self.row(f"{operation.name} {_with(operation, base)} : {operation.types}")
        return self._names.get(name, spelled(name))

    def _offset(self, name: str, kind: str) -> str:
        """An offset in 64 bits; "" where it has them."""
        operation = self._made.get(name)
        if operation is not None and operation.name == "arith.extsi":
            kind, name = operation.types.partition(" to ")[0], operation.operands[0]
        elif operation is not None and operation.name in _MOVED and "i64" in kind:
            inner = self._offset(operation.operands[0], operation.types.partition(" -> ")[0])
            return (
                self.row(f"{operation.name} {_with(operation, inner)} : {operation.types}") if inner else ""
            )
        return self._value(name, kind) if _of_64(kind) != kind else ""

    def _value(self, name: str, kind: str) -> str:
        """A value of 32 bits, computed in 64."""
        if name in self._names:
            return self._names[name]
        operation = self._made.get(name)
        if operation is not None and operation.name in _ARITHMETIC:
            operands = ", ".join(self._value(v, kind) for v in operation.operands)
            made = f"{operation.name} {operands} : {_of_64(kind)}"
        elif operation is not None and operation.name in _MOVED:
            inner = self._value(operation.operands[0], operation.types.partition(" -> ")[0])
            made = f"{operation.name} {_with(operation, inner)} : {_of_64(operation.types)}"
        else:
            made = f"arith.extsi {spelled(name)} : {kind} to {_of_64(kind)}"
        self._names[name] = self.row(made)
        return self._names[name]


def _with(operation: Operation, operand: str) -> str:
    """What stands between name and types, with another operand."""
    return operation.attributes.replace(spelled(operation.operands[0]), operand, 1)


def _of_64(types: str) -> str:
    return re.sub(r"\bi32\b|(?<=x)i32\b", "i64", types)


def changed_text(ttir: str, rows: Sequence[str], otherwise: str) -> str:
    """The rows as a text.

    Raises:
        UntriedError: it is the same, and why.
    """
    text = "\n".join(rows)
    if text == "\n".join(ttir.splitlines()):
        raise UntriedError(otherwise)
    return text
