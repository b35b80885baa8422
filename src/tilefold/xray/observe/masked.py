"""`wrong-fill`: suspicions of `fills`, confirmed by executing the kernel with other fills.

A fill that nothing depends on is right. Where the elements are folded by an operation whose identity is known, the kernel is
executed once more with the masked elements replaced by it in front of the fold: what it then stores is what it should store.
Memory without data is filled with numbers of both signs, then of one, then of one in an argument and of the other in the
next (of a product all results are then negative), so that every extreme shows.

Lanes that a load masks and names no `other` for are undefined: Triton puts 0 there, and may put anything. So they are filled
with two values, and what is stored may not depend on them.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilefold.xray.evidence import Evidence, given_arguments
from tilefold.xray.execution import Program
from tilefold.xray.ir import Operation, Tensor, spelled, tensors
from tilefold.xray.machine import Memory
from tilefold.xray.machine.memory import TURNS
from tilefold.xray.observe.fills import (
    Counterexample,
    Suspect,
    closure,
    factor_of,
    filled,
    identity_of,
    suspects,
)
from tilefold.xray.observe.racing import drawn_values
from tilefold.xray.observe.trials import Difference, EndlessError, Trials, UntriedError, changed, difference
from tilefold.xray.observe.values import Element, World
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import line_of

_LARGE = 1000.0
_MORE = 12  # programs
_SIGNS = (0, -1, 1, TURNS)
_BITS = {
    "f64": (0x7FF0000000000000, 64), "f32": (0x7F800000, 32), "bf16": (0x7F80, 16), "f16": (0x7C00, 16),
}  # fmt: skip
VALUES = {
    "0": 0.0, "1": 1.0, "-inf": -np.inf, "+inf": np.inf, "the least integer": -np.inf,
    "the greatest integer": np.inf, "all ones (-1)": -1.0,
}  # fmt: skip


def wrong_fill(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """Masked loads whose fill changes what a kernel stores; one observation a load."""
    known = set()
    for found in _of_folds(report, evidence, trials):
        known |= {*found.places}
        yield found
    yield from undefined_folds(report, evidence, trials, known)


def _of_folds(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """Masked loads whose elements, followed one by one, change a fold."""
    world = World(evidence.ttir, given_arguments(evidence), report.grid)
    for suspect in suspects(evidence.ttir, world):
        place = line_of(suspect.load.place)
        if place is None:
            continue
        first = suspect.examples[0]
        if evidence.execution is None:
            yield _observed(suspect, first, world.made, place, "", None)
            continue
        programs = [_program(evidence, world, first)]
        if first.rows >= 0:  # of which programs whole rows are masked, one element does not tell
            programs = [*dict.fromkeys([*programs, *evidence.execution.programs])]
        try:
            if _matters(trials, evidence, suspect.load, programs):
                yield from _confirmed(suspect, world, place, report, trials, evidence, programs)
            elif any(e.update[0] and not e.joined for e in suspect.examples):
                yield from _forgotten(suspect, place, trials, evidence, programs)
        except UntriedError as reason:
            yield _observed(suspect, first, world.made, place, "", str(reason))


def undefined_counts(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """Masked loads without a fill whose elements a histogram counts: executed with another value in them, other counts are
    stored. A histogram that counts what is filled and takes it away again is right."""
    made = evidence.ttir.made_by()
    counts = [o for o in evidence.ttir.walk() if o.name == "tt.histogram" and len(o.operands) == 1]
    for load in evidence.ttir.walk() if evidence.execution is not None else ():
        counted = next((o for o in counts if {*load.results} & closure(made, o.operands)), None)
        place, at = line_of(load.place), line_of(counted.place) if counted is not None else None
        if load.name != "tt.load" or len(load.operands) != 2 or place is None or at is None:
            continue
        with contextlib.suppress(UntriedError):
            assert evidence.execution is not None
            programs = [*evidence.execution.programs]
            theirs = trials.memory(trials.compile(refilled(evidence, load, 1.0)), programs)
            found = difference(
                evidence.compiled, theirs, trials.memory(evidence.compiled, programs), exact=True
            )
            zero = trials.memory(trials.compile(refilled(evidence, load, 0.0)), programs)
            same = (
                difference(evidence.compiled, zero, trials.memory(evidence.compiled, programs), exact=True)
                is None
            )
            if found is not None and same:
                yield Observation(
                    "wrong-fill",
                    "warning",
                    *place,
                    f"masked elements are {filled(load, made)}, and the histogram in line {at[1]} counts them: executed with "
                    f"1 in them, {found}",
                    "this Triton puts 0 there, but nothing promises it",
                    "say other=0 (tried: then nothing else is stored than now, and it is promised)",
                )


def undefined_folds(
    report: Report, evidence: Evidence, trials: Trials, known: Collection[tuple[str, int]]
) -> Iterator[Observation]:
    """Masked loads of floats without a fill, not at `known` lines, whose elements a fold takes in times 0: with infinity in
    them it is no number. Loads whose masked elements are stored one by one are left out: what differs then is no fold's."""
    loads = {
        load.results[0]: (load, fold, place)
        for load in (evidence.ttir.walk() if evidence.execution is not None else ())
        if load.name == "tt.load" and len(load.operands) == 2 and tensors(load.types)
        if tensors(load.types)[0].pointee in _BITS and (place := line_of(load.place)) and place not in known
        if (fold := _fold_of(load, evidence)) and not _stored_apart(load, evidence)
    }
    if not loads:
        return
    with contextlib.suppress(UntriedError):
        plain, every = trials.memory(evidence.compiled), [load for load, _, _ in loads.values()]
        if _left(trials, evidence, plain, every, np.inf) is None:
            return
        zero = _left(trials, evidence, plain, every, 0.0) is None
        for load, fold, place in loads.values():
            found = _left(trials, evidence, plain, [load], np.inf)
            if found is not None and zero and _mixed(trials, evidence, plain, load):
                word = 'padding_option="zero"' if _by_block(report, load) else "other=0"
                yield Observation(
                    "wrong-fill",
                    "warning",
                    *place,
                    f"masked elements are {filled(load, evidence.ttir.made_by())}, and {fold} takes them in: "
                    f"executed with inf in them, {found}",
                    "this Triton puts 0 there, but nothing promises it",
                    f"say {word} (tried: then nothing else is stored than now, and it is promised)",
                )


def _left(
    trials: Trials, evidence: Evidence, plain: Memory, loads: Sequence[Operation], value: float
) -> Difference | None:
    """What the kernel leaves otherwise where loads fill masked elements with a value."""
    rows = evidence.compiled.ttir.splitlines()
    for load in loads:
        rows[load.row] = _refilled_rows(evidence, load, value)[load.row].replace(
            "%xray_fill", f"%xray_fill_{load.row}"
        )
    theirs = trials.memory(trials.compile("\n".join(rows)))
    return difference(evidence.compiled, theirs, plain)


def _mixed(trials: Trials, evidence: Evidence, plain: Memory, load: Operation) -> bool:
    """Whether what masked elements change depends on the others, too: a row that is masked as a whole is nobody's."""
    tile, mask, result = tensors(load.types)[0], spelled(load.operands[1]), spelled(load.results[0])
    kind = tile_type(tile.shape, tile.pointee)
    rows = evidence.compiled.ttir.splitlines()
    here = re.sub(rf"^(\s*){re.escape(result)}(?=\s*=)", r"\1%xray_loaded", rows[load.row], count=1)
    rows[load.row] = (
        f"%xray_other = arith.constant dense<{literal_of(np.inf, tile.pointee)}> : {kind}\n{here}\n"
        f"{result} = arith.select {mask}, %xray_other, %xray_loaded : {tile_type(tile.shape, 'i1')}, {kind}"
    )
    undefined = trials.memory(trials.compile(refilled(evidence, load, np.inf)))
    others = trials.memory(trials.compile("\n".join(rows)))
    return bool(changed(evidence.compiled, plain, undefined) & changed(evidence.compiled, plain, others))


def _fold_of(load: Operation, evidence: Evidence) -> str:
    """The first fold or product that a load's elements reach, in words; nothing where they reach none."""
    for fold in evidence.ttir.walk():
        place = line_of(fold.place)
        if fold.name not in ("tt.reduce", "tt.dot") or place is None:
            continue
        if load.results[0] in evidence.ttir.reached_from(fold.operands):
            return f"the {identity_of(fold)[0]} in line {place[1]}"
    return ""


def _stored_apart(load: Operation, evidence: Evidence) -> bool:
    """Whether elements of a load are stored one by one, under another mask than theirs."""
    made = evidence.ttir.made_by()
    return any(
        o.operands[2:3] != load.operands[1:2] and load.results[0] in closure(made, o.operands[1:2])
        for o in evidence.ttir.walk()
        if o.name in ("tt.store", "tt.atomic_rmw")
    )


def _confirmed(
    suspect: Suspect, world: World, place: tuple[str, int], report: Report, trials: Trials, evidence: Evidence,
    programs: list[Program],
) -> Iterator[Observation]:  # fmt: skip
    """The observation with what the program stores and what it should; none if that is the same.

    Raises:
        UntriedError: nothing can be said of what it should store.
    """
    right = corrected(evidence, suspect.load, suspect.examples)
    shown = _shown(trials, evidence, right, programs)
    example = suspect.examples[0]
    if shown is None:
        undefined = _undefined(suspect, trials, evidence, programs)
        if undefined is not None:
            enough = _enough(suspect, example, right, report, trials, evidence, programs)
            yield _of_undefined(
                suspect, example, world.made, place, undefined, programs, enough=enough,
                block=_by_block(report, suspect.load),
            )  # fmt: skip
        return
    if len(suspect.examples) > 1:  # which of the folds it is
        alone = ((e, corrected(evidence, suspect.load, (e,))) for e in suspect.examples)
        example = next((e for e, text in alone if _shown(trials, evidence, text, programs)), example)
    found = f"executed, {_said(programs)} {shown}"
    enough = _enough(suspect, example, right, report, trials, evidence, programs)
    observed = _observed(suspect, example, world.made, place, found, None, enough=enough)
    if _of_signs(suspect, right, trials, evidence, programs):
        said = f"{observed.evidence}; where no whole number is negative, nothing else is stored (tried)"
        observed = replace(observed, severity="warning", evidence=said)
    yield observed


def _said(programs: Sequence[Program]) -> str:
    """Who stores."""
    names = [str(p) for p in programs]
    one = f"program {names[0]} stores"
    return one if len(names) == 1 else f"programs {', '.join(names[:-1])} and {names[-1]} store"


def _of_signs(
    suspect: Suspect, right: str, trials: Trials, evidence: Evidence, programs: list[Program]
) -> bool:  # fmt: skip
    """Whether only negative whole numbers, which nobody gave, come out otherwise: lengths and counts have none."""
    drawn = set(suspect.load.results) & drawn_values(evidence)
    if not drawn or tensors(suspect.load.types)[0].pointee in _BITS:
        return False
    ours, theirs = (trials.memory(k, programs, 1) for k in (evidence.compiled, trials.compile(right)))
    return difference(evidence.compiled, ours, theirs) is None


def _enough(
    suspect: Suspect, example: Counterexample, right: str, report: Report, trials: Trials, evidence: Evidence,
    programs: list[Program],
) -> str | None:  # fmt: skip
    """A fill with which the kernel stores what the corrected one does: the identity of the fold, or what becomes that on the
    way to it (an exponential makes 0 of -inf); nothing where none was found, None where not all could be tried."""
    names: Sequence[str] = (identity_of(example.folding)[1], "-inf", "0", "+inf")
    if _by_block(report, suspect.load):
        # A block pointer fills with zero or NaN, whatever would be right; what it fills now is no other one.
        names = () if len(suspect.load.operands) > 2 else ("0",)
    wanted = [n for n in dict.fromkeys(names) if n in VALUES]
    for name in list(wanted):
        with contextlib.suppress(UntriedError):
            if not _shown(trials, evidence, right, programs, refilled(evidence, suspect.load, VALUES[name])):
                return name
            wanted.remove(name)
    return None if wanted else ""


def _forgotten(
    suspect: Suspect, place: tuple[str, int], trials: Trials, evidence: Evidence, programs: list[Program]
) -> Iterator[Observation]:
    """A loop's variable that a masked round overwrites, whatever the fill; none if nothing else is stored where it is kept.

    What is found early and forgotten late is not found in every row: some more programs are tried.
    """
    examples = [e for e in suspect.examples if e.update[0] and not e.joined]
    right, (count, *_) = corrected(evidence, suspect.load, examples), evidence.compiled.job.grid
    others = [(n, 0, 0) for n in range(0, count, max(1, count // _MORE))]
    shown = _shown(trials, evidence, right, programs)
    if shown is None and len(others) > 1:
        programs = others
        shown = _shown(trials, evidence, right, programs)
    if shown is None:
        return
    several = f"programs {programs[0]} to {programs[-1]} ({len(programs)} of them) store"
    said = several if len(programs) > 1 else f"program {programs[0]} stores"
    at = line_of(examples[0].folding.place) or place
    yield Observation(
        "wrong-fill",
        "error",
        *at,
        f"where the mask of the load in line {place[1]} is false, a loop's variable forgets what it held: {examples[0]}; "
        f"executed, {said} {shown}",
        "a round that is masked must leave what the rounds before it found",
        "keep the variable there: tl.where(mask, new, old) (tried: then it stores what it should)",
        also=() if at == place else (place,),
    )


def _undefined(
    suspect: Suspect, trials: Trials, evidence: Evidence, programs: list[Program]
) -> tuple[float, Difference] | None:
    """A value of lanes that are undefined with which the folds store something else, and what."""
    if len(suspect.load.operands) > 2:
        return None
    large = (_LARGE, -_LARGE) if tensors(suspect.load.types)[0].pointee in _BITS else (np.inf, -np.inf)
    # What is undefined may be infinite, and times the 0 that the other factor has there it is then no number.
    for value in dict.fromkeys((*large, np.inf)):
        ours, theirs = (
            trials.memory(trials.compile(text), programs)
            for text in (
                refilled(evidence, suspect.load, value),
                corrected(evidence, suspect.load, suspect.examples, value),
            )
        )
        found = difference(evidence.compiled, ours, theirs)
        if found is not None:
            return value, found
    return None


def _by_block(report: Report, load: Operation) -> bool:
    """Whether a load is that of a block pointer."""
    place = line_of(load.place)
    return any("boundary_check" in x.text for x in report.lines if (x.file, x.line) == place)


def _shown(
    trials: Trials, evidence: Evidence, right: str, programs: list[Program], tried: str | None = None
) -> Difference | None:
    """Where the kernel (or `tried` in its place) stores something else than the corrected one; with numbers if there are."""
    corrected_kernel = trials.compile(right)
    kernel = evidence.compiled if tried is None else trials.compile(tried)
    first = None
    for sign in _SIGNS:
        ours, theirs = (trials.memory(k, programs, sign) for k in (kernel, corrected_kernel))
        found = difference(evidence.compiled, ours, theirs)
        if found is not None and np.isfinite([found.ours, found.theirs]).all():
            return found
        first = first or found
    return first


def _matters(trials: Trials, evidence: Evidence, load: Operation, programs: list[Program]) -> bool:
    """Whether another fill changes anything in memory."""
    plain = trials.memory(evidence.compiled, programs)
    # Infinities show in every extreme; in a product they may all become NaN, which an extreme drops.
    floating = tensors(load.types)[0].pointee in _BITS
    return any(
        _stores_other(trials, evidence, plain, refilled(evidence, load, v), programs)
        for v in (np.inf, -np.inf, *((_LARGE, -_LARGE) if floating else ()))
    )


def _stores_other(
    trials: Trials, evidence: Evidence, plain: Memory, text: str, programs: list[Program]
) -> bool:
    """Whether a variant leaves other memory behind, or does not end."""
    try:
        theirs = trials.memory(trials.compile(text), programs)
    except EndlessError:
        return True
    return difference(evidence.compiled, plain, theirs, exact=True) is not None


def _program(evidence: Evidence, world: World, example: Counterexample) -> Program:
    """The program of the draw that raised the suspicion."""
    found = [0, 0, 0]
    for operation in evidence.ttir.walk():
        if operation.name == "tt.get_program_id":
            axis = "xyz".index(operation.attributes.strip()[0])
            found[axis] = int(Element(world, example.seed, 0).value(operation.results[0]))
    return (found[0], found[1], found[2])


def refilled(evidence: Evidence, load: Operation, value: float) -> str:
    """The TTIR in which a load fills masked elements with another value.

    Raises:
        UntriedError: the type has no such value, or none that is known here.
    """
    return "\n".join(_refilled_rows(evidence, load, value))


def _refilled_rows(evidence: Evidence, load: Operation, value: float) -> list[str]:
    rows = evidence.compiled.ttir.splitlines()
    tile = tensors(load.types)[0]
    named = [spelled(v) for v in load.operands]
    filling = ", ".join([*named[:2], "%xray_fill"])
    given = f"%xray_fill = arith.constant dense<{literal_of(value, tile.pointee)}> : {tile_type(tile.shape, tile.pointee)}"
    # In one row, so that rows keep their numbers.
    rows[load.row] = f"{given}\n{rows[load.row].replace(', '.join(named), filling, 1)}"
    return rows


def corrected(
    evidence: Evidence, load: Operation, examples: Sequence[Counterexample], fill: float | None = None
) -> str:
    """The TTIR in which masked elements are the identity in front of their folds, and leave loops' variables as they were;
    with `fill` the load fills them with that.

    Raises:
        UntriedError: that is not known of one of them.
    """
    rows = evidence.compiled.ttir.splitlines() if fill is None else _refilled_rows(evidence, load, fill)
    before: dict[int, list[str]] = {}
    for number, example in enumerate(examples):
        if not tensors(example.folding.types):
            raise UntriedError("the folded value is not a tile")
        of_fold = example.folding.name in ("tt.reduce", "tt.dot")
        keep = _in_join if example.joined else _in_fold if of_fold else _in_update
        at, made = keep(rows, evidence, load, example, f"%xray_kept_{number}")
        before.setdefault(at, []).extend(made)
    return "\n".join(row for n, text in enumerate(rows) for row in (*before.get(n, ()), text))


def _in_fold(
    rows: list[str], evidence: Evidence, load: Operation, example: Counterexample, kept: str
) -> tuple[int, list[str]]:
    """The row of a fold, which then takes `kept`, and rows in front of it: masked elements are its identity.

    A fold of all dims makes one dim of them first, in any order: masked elements are told apart in front of that.
    """
    fold, made_by = example.folding, evidence.ttir.made_by()
    factor = factor_of(load, fold, made_by) or 0 if fold.name == "tt.dot" else 0
    flat = _flattened(fold, evidence) if fold.name == "tt.reduce" else None
    tile = tensors(fold.types)[factor] if flat is None else tensors(flat.types)[0]
    source = fold.operands[factor] if flat is None else flat.operands[0]
    identity = identity_of(fold)[1]
    if not identity:
        raise UntriedError("the fold has no identity that is known here")
    if any(_reorders(made_by.get(v)) for v in closure(made_by, (source,))):
        raise UntriedError("its elements are in another order than the mask's")
    name, taken = spelled(fold.operands[factor]), kept if flat is None else f"{kept}_flat"
    rows[fold.row] = re.sub(rf"(?<=[(\s]){re.escape(name)}(?![\w.$#-])", taken, rows[fold.row], count=1)
    value = literal_of(VALUES[identity], tile.element)
    made = [f"{kept}_fill = arith.constant dense<{value}> : {tile_type(tile.shape, tile.element)}"]
    made += _selected(evidence, load, example, tile, kept, spelled(source), f"{kept}_fill")
    if flat is not None:
        made.append(f"{kept}_flat = tt.reshape {kept} {flat.attributes.partition(' ')[2]} : {flat.types}")
    return fold.row, made


def _in_join(
    rows: list[str], evidence: Evidence, load: Operation, example: Counterexample, kept: str
) -> tuple[int, list[str]]:
    """The row behind which tiles are taken together, and rows in front of it: masked elements leave the other tile's."""
    row, (after, other) = example.folding.row, (spelled(v) for v in example.update)
    rows[row] = re.sub(rf"^(\s*){re.escape(after)}(?=\s*=)", rf"\1{kept}_taken", rows[row], count=1)
    if f"{kept}_taken" not in rows[row]:
        raise UntriedError("its row makes several values")
    tile, mask = tensors(example.folding.types)[-1], f"{kept}_mask"
    kind = tile_type(tile.shape, tile.element)
    made = _mask_of(evidence, load, tile.shape, mask, example)
    select = f"arith.select {mask}, {kept}_taken, {other} : {tile_type(tile.shape, 'i1')}, {kind}"
    return row + 1, [*made, f"{after} = {select}"]


def _in_update(
    rows: list[str], evidence: Evidence, load: Operation, example: Counterexample, kept: str
) -> tuple[int, list[str]]:
    """The row in which a loop hands `kept` on, and rows in front of it: masked elements are what they were."""
    row = example.folding.row
    at = next((n for n in range(row + 1, len(rows)) if rows[n].strip().startswith("scf.yield")), -1)
    if at < 0:
        raise UntriedError("the loop hands nothing on")
    after, name = (spelled(v) for v in example.update)
    rows[at] = re.sub(rf"{re.escape(after)}(?![\w.$-])", kept, rows[at], count=1)
    tile = tensors(example.folding.types)[-1]  # an update may be a choice, by a tile of flags
    return at, _selected(evidence, load, example, tile, kept, after, name)


def _selected(
    evidence: Evidence,
    load: Operation,
    example: Counterexample,
    tile: Tensor,
    kept: str,
    name: str,
    other: str,
) -> list[str]:
    """Rows that make `kept`: a value where the load's mask is true, else another one."""
    mask, kind = f"{kept}_mask", tile_type(tile.shape, tile.element)
    types = f"{tile_type(tile.shape, 'i1')}, {kind}"
    made = _mask_of(evidence, load, tile.shape, mask, example)
    return [*made, f"{kept} = arith.select {mask}, {name}, {other} : {types}"]


def _flattened(fold: Operation, evidence: Evidence) -> Operation | None:
    """The change of shape right in front of a fold, if there is one that leaves the order open."""
    source = evidence.ttir.made_by().get(fold.operands[0])
    return source if _reorders(source) else None


def _reorders(operation: Operation | None) -> bool:
    """Whether elements may stand elsewhere behind an operation."""
    return (
        operation is not None and operation.name == "tt.reshape" and "allow_reorder" in operation.attributes
    )


def _mask_of(
    evidence: Evidence, load: Operation, shape: tuple[int, ...], kept: str, example: Counterexample
) -> list[str]:
    """TTIR that makes the mask of a load for a tile of another shape: what was broadcast, broadcast again, or turned first
    (a square tile does not show by its shape that it was turned); of rows that were folded, which have an element that is
    not masked.

    Raises:
        UntriedError: it does not fit.
    """
    mask, wanted = load.operands[1], tile_type(shape, "i1")
    loaded, rows = tensors(load.types)[0].shape, example.rows
    if rows >= 0 and shape == loaded[:rows] + loaded[rows + 1 :]:
        return [
            f'{kept} = "tt.reduce"({spelled(mask)}) <{{axis = {rows} : i32}}> ({{',
            f"^bb0({kept}_a: i1, {kept}_b: i1):",
            f"{kept}_c = arith.ori {kept}_a, {kept}_b : i1",
            f"tt.reduce.return {kept}_c : i1",
            f"}}) : ({tile_type(loaded, 'i1')}) -> {wanted}",
        ]
    if loaded == shape and not example.turned:
        return [f"{kept} = arith.andi {spelled(mask)}, {spelled(mask)} : {wanted}"]
    if shape == (math.prod(loaded),):
        return [f"{kept} = tt.reshape {spelled(mask)} : {tile_type(loaded, 'i1')} -> {wanted}"]
    if example.along >= 0 and len(shape) == 2 and loaded == (shape[example.along],):
        column = (loaded[0], 1) if example.along == 0 else (1, loaded[0])
        types = f"{tile_type(loaded, 'i1')} -> {tile_type(column, 'i1')}"
        return [
            f"{kept}_lifted = tt.expand_dims {spelled(mask)} {{axis = {1 - example.along} : i32}} : {types}",
            f"{kept} = tt.broadcast {kept}_lifted : {tile_type(column, 'i1')} -> {wanted}",
        ]
    source = evidence.ttir.made_by().get(mask)
    if source is not None and source.name == "tt.broadcast":
        given = tensors(source.types)[0].shape
        name, fits = spelled(source.operands[0]), len(given) == len(shape)
        if fits and not example.turned and all(a in (1, b) for a, b in zip(given, shape, strict=True)):
            return [f"{kept} = tt.broadcast {name} : {tile_type(given, 'i1')} -> {wanted}"]
        if fits and len(given) == 2 and all(a in (1, b) for a, b in zip(given[::-1], shape, strict=True)):
            types = f"{tile_type(given, 'i1')} -> {tile_type(given[::-1], 'i1')}"
            return [
                f"{kept}_turned = tt.trans {name} {{order = array<i32: 1, 0>}} : {types}",
                f"{kept} = tt.broadcast {kept}_turned : {tile_type(given[::-1], 'i1')} -> {wanted}",
            ]
    raise UntriedError("its mask has another shape than the folded tile")


def tile_type(shape: tuple[int, ...], element: str) -> str:
    """A tile's type as MLIR writes it."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def literal_of(value: float, element: str) -> str:
    """A number as MLIR writes it; of integers the extremes for infinities.

    Raises:
        UntriedError: an element type that is not known here.
    """
    if element in _BITS:
        if np.isfinite(value):
            return f"{value:.6e}"
        infinity, size = _BITS[element]
        return f"0x{infinity | (1 << size - 1 if value < 0 else 0):0{size // 4}X}"
    if not re.fullmatch(r"i\d+", element) or element == "i1":
        raise UntriedError(f"a fill of {element} is not written here")
    bits = int(element[1:])
    if np.isfinite(value):
        return str(int(value))
    return str(-(2 ** (bits - 1)) if value < 0 else 2 ** (bits - 1) - 1)


def _observed(
    suspect: Suspect, example: Counterexample, made: Mapping[str, Operation], place: tuple[str, int], shown: str,
    untried: str | None, *, enough: str | None = "",
) -> Observation:  # fmt: skip
    folding = example.folding
    what, identity = identity_of(folding)
    at = line_of(folding.place)
    fold = f"the {what} in line {at[1]}" if at else f"a {what}"
    identity = identity or "the value that leaves the others as they are"
    simple = f"say other={identity}"
    before = "fill with tl.where(mask, x, identity) in front of the reduction"
    if shown:
        change = (
            f"say other={enough} (tried: then it stores what it should)"
            if enough
            else f"{before} (tried: then it stores what it should)"
        )
    else:
        # The shortest edit first; the other where it is not enough.
        short = f"{simple}, or " if identity in VALUES else ""
        change = f"{short}{before}; not tried: {untried or 'nothing was executed'}"
    numbers: list[tuple[str, Any]] = [
        ("identity", identity), ("got", float(example.got)), ("wanted", float(example.wanted)),
    ]  # fmt: skip
    return Observation(
        "wrong-fill",
        _severity(suspect, example, shown, untried),
        *place,
        f"masked elements are {filled(suspect.load, made)}, and {fold} takes them in: "
        + (
            f"{shown} (of drawn numbers, {example})"
            if shown
            else f"{example} (drawn numbers, not of an execution)"
        ),
        f"masked elements must not change the result: the identity of this {what} is {identity}",
        change,
        numbers=tuple(numbers),
    )


def _severity(suspect: Suspect, example: Counterexample, shown: str, untried: str | None) -> str:
    """Executed an error; otherwise a suspicion. One of a kernel that is too long to be tried is a warning; one whose fold
    could not be written otherwise, or of lanes that are undefined, or without numbers, as of a sort, is a note."""
    if shown:
        return "error"
    named = len(suspect.load.operands) > 2
    long = untried is None or untried.startswith(("trials would take", "more than", "no trials"))
    return "warning" if named and long and np.isfinite([example.got, example.wanted]).all() else "note"


def _of_undefined(
    suspect: Suspect, example: Counterexample, made: Mapping[str, Operation], place: tuple[str, int],
    found: tuple[float, Difference], programs: Sequence[Program], *, enough: str | None, block: bool,
) -> Observation:  # fmt: skip
    value, shown = found
    what, identity = identity_of(example.folding)
    at = line_of(example.folding.place)
    fold = f"the {what} in line {at[1]}" if at else f"a {what}"
    integer = tensors(suspect.load.types)[0].pointee not in _BITS
    quoted = '"zero"'
    refuted = f"padding_option={quoted}" if block else f"other={identity}" if identity in VALUES else ""
    held = f"the {'greatest' if value > 0 else 'least'} integer" if integer else f"{value:g}"
    return Observation(
        "wrong-fill",
        "warning",
        *place,
        f"masked elements are {filled(suspect.load, made)}, and {fold} takes them in: executed with {held} in them, "
        f"{_said(programs)} {shown}",
        f"this Triton puts 0 there, which may do for this {what}, but nothing promises it",
        f"say {'padding_option=' + quoted if block else 'other=' + enough} (tried: then nothing else is stored than now, and "
        "it is promised)"
        if enough
        else "take masked elements out in front of it with tl.where"
        + (f"; {refuted} is not enough: tried" if enough is not None and refuted else ""),
        numbers=(("identity", identity),),
    )
