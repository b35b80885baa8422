"""From typed graphs to Triton device functions: the source that the kernels find their functions in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefold.algebra import typing
from tilefold.algebra.dtypes import element_dtype, is_float
from tilefold.algebra.expression import Graph
from tilefold.algebra.program import Program, Scaled
from tilefold.algebra.proofs.symmetry import ordered_fields
from tilefold.algebra.typing import TypedGraph
from tilefold.backends.triton import axes
from tilefold.backends.triton.prelude import prelude
from tilefold.backends.triton.words import STORED_DTYPES, TL_DTYPES, converted, literal
from tilefold.backends.triton.writer import TILE, Writer, for_tiles


def _function(name: str, parameters: Sequence[str], lines: Sequence[str], results: Sequence[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"def {name}({', '.join(parameters)}):\n{body}    return ({', '.join(results)},)\n"


def _of_graph(
    name: str,
    graph: TypedGraph,
    names: Sequence[str],
    results: Sequence[torch.dtype],
    interpret: bool,
    *,
    before: Sequence[str] = (),
    stored: bool = True,
    like: str = "",
) -> str:
    """A function of values of one shape, that of `like` (the first), behind the lines `before`: a graph's outputs in the
    dtypes of `results`, as they are `stored` or as registers have them."""
    writer = Writer(graph, names, [False] * len(names), interpret)
    made = writer.results(results, stored, like or names[0])
    return _function(name, names, [*before, *writer.lines], made)


def emit(
    program: Program, *, index: torch.dtype, from_partials: bool = False, interpret: bool = False
) -> str:
    """The device functions of a program as Triton source. With `from_partials`, LIFT takes a stored state."""
    n, k = len(program.state), program.algebra.inputs
    a, b = [f"a{i}" for i in range(n)], [f"b{i}" for i in range(n)]
    x = [f"x{i}" for i in range(k)]
    parts = [
        _of_graph("COMBINE", program.combine, [*a, *b], program.state, interpret, stored=False),
        _of_graph("COMBINE_LATER", program.combine_later, [*a, *b], program.state, interpret, stored=False),
        _emit_combine_symmetric(program, a, b),
        _of_graph("PROJECT", program.project, a, program.outputs, interpret),
        *_emit_identity(program, a),
        f"def TO_INDEX(x):\n    return x.to({TL_DTYPES[index]})\n",
    ]
    if from_partials:
        parts.append(_function("LIFT", [*a, "i"], [], a))
        parts += _no_absorb(a, b)
        return "\n\n".join([*parts, prelude()])
    reads = [f"{name} = {_read(name, program.elements[p], interpret)}" for p, name in enumerate(x)]
    parts.append(
        _of_graph("LIFT", program.lift, [*x, "i"], program.state, interpret, before=reads, stored=False)
    )
    if program.absorb is None:
        parts += _no_absorb(a, x)
    else:
        parts += _emit_absorb(program, a, x, reads, interpret)
    return "\n\n".join([*parts, prelude()])


def emit_epilogue(
    typed: TypedGraph, elements: Sequence[torch.dtype], result: torch.dtype, interpret: bool
) -> str:
    """EPILOGUE(accumulator, *extras as loaded) -> (result,), of a product."""
    # sums that are no int64 yet are float64, exact
    before = ["a0 = a0.to(tl.int64)"] if typed.input_dtypes[0] == torch.int64 else []
    names = [f"x{i}" for i in range(len(elements))]
    before += [f"{x} = {_read(x, element, interpret)}" for x, element in zip(names, elements, strict=True)]
    made = _of_graph("EPILOGUE", typed, ["a0", *names], [result], interpret, before=before)
    return f"{made}\n\n{prelude()}"


def emit_row(program: Program, apply: TypedGraph, result: torch.dtype, *, interpret: bool) -> str:
    """A row's fold: LIFT, COMBINE, COMBINE_SYMMETRIC, OR_IDENTITY, PROJECT, TO_INDEX, and APPLY(value, *its results)."""
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    applied = emit_apply(apply, (program.elements[0], *program.outputs), [result], interpret)
    return f"{emit(program, index=index, interpret=interpret)}\n\n{applied}"


def emit_apply(
    apply: TypedGraph,
    taken: Sequence[torch.dtype],
    results: Sequence[torch.dtype],
    interpret: bool,
    wide: bool = False,
    order: Sequence[int] = (),
) -> str:
    """APPLY of elements, a row's results and extras, as they are stored -> the stored value of each element.

    With `wide` floats of 16 bits come and go as float32. `order`: in which the function takes the extras.
    """
    names = [f"x{i}" for i in range(len(taken))]
    stored = [(x, dtype) for x, dtype in zip(names, taken, strict=True) if not (wide and _is_half(dtype))]
    reads = [f"{x} = {_read(x, dtype, interpret)}" for x, dtype in stored]
    writer = Writer(apply, names, [False] * len(names), interpret)
    if wide:
        results = [torch.float32 if _is_half(dtype) else dtype for dtype in results]
    first = len(names) - len(order)
    given = [*names[:first], *(names[first + i] for i in order)]
    return _function("APPLY", given, [*reads, *writer.lines], writer.results(results, True, "x0"))


def _is_half(dtype: torch.dtype) -> bool:
    return dtype in (torch.float16, torch.bfloat16)


def emit_blocks(program: Program, tiles: int, masks: Sequence[int], interpret: bool) -> str:
    """ROW_BEGIN(how many elements count, a mask a tile, tiles of each input) -> the state of all elements of these tiles.

    Only the tiles in `masks` have elements that do not count; where none do, the state is undefined.
    """
    assert program.begin is not None
    x = [f"x{i}{TILE}" for i in range(program.algebra.inputs)]
    reads = [f"{name} = {_read(name, program.elements[p], interpret)}" for p, name in enumerate(x)]
    writer = Writer(program.begin, [*x, "i"], [True] * len(x) + [False], interpret, tiles=tiles, masks=masks)
    lines = [each for line in reads for each in for_tiles(line, tiles)]
    lines += ["like = WHOLE_BLOCK_FIRST(x0_0)", *writer.lines]
    results = writer.results(program.state, False, "like")
    taken = [f"mask_{t}" for t in range(tiles)] + [each for name in x for each in for_tiles(name, tiles)]
    return _function("ROW_BEGIN", ["counted", *taken], lines, results)


def emit_lanes(program: Program, tiles: int, interpret: bool, last: bool = False) -> str:
    """LANE_BEGIN and LANE_ABSORB, also _MASKED: the state of a thread's elements, `tiles` of each input, a tensor each.

    They take masks, of all elements or the `last` alone, then states, then the elements, floats of 16 bits as float32. Where
    the monoid absorbs no blocks, elements are combined one by one.
    """
    n, k = len(program.state), program.algebra.inputs
    a, x = [f"a{i}" for i in range(n)], [f"x{i}{TILE}" for i in range(k)]
    which = range(tiles - 1 if last else 0, tiles)
    masks = [f"mask_{t}" for t in which]
    xs = [each for name in x for each in for_tiles(name, tiles)]
    functions = []
    for name, states in (("LANE_BEGIN", []), ("LANE_ABSORB", a)):
        for masked in (False, True):
            lines, results = _lane(program, states, x, tiles, which if masked else (), interpret)
            taken = [*(masks if masked else []), *states, *xs]
            functions.append(_function(name + "_MASKED" * masked, taken, lines, results))
    return "\n\n".join(functions)


def emit_scaled(scaled: Scaled, interpret: bool) -> str:
    """PROJECT_SCALED and NEXT_SCALE of (scale, *state): the results, and the scale to fold with again, the same if none."""
    state = scaled.program.state
    names = ["scale", *(f"a{i}" for i in range(len(state)))]
    graphs = (("PROJECT_SCALED", scaled.project), ("NEXT_SCALE", scaled.following))
    return "\n\n".join(
        _of_graph(name, graph, names, graph.output_dtypes, interpret, like="a0") for name, graph in graphs
    )


def _lane(
    program: Program,
    states: Sequence[str],
    x: Sequence[str],
    tiles: int,
    which: Sequence[int],
    interpret: bool,
) -> tuple[list[str], list[str]]:
    """The lines and the results of one of `emit_lanes`' functions; `which` elements are masked."""
    n = len(program.state)
    if program.begin is None or program.absorb is None:
        return _one_by_one(states, x, tiles, which, n)
    stored = [(name, d) for name, d in zip(x, program.elements, strict=True) if not _is_half(d)]
    reads = [f"{name} = {_read(name, dtype, interpret)}" for name, dtype in stored]
    lines = [each for line in reads for each in for_tiles(line, tiles)]
    graph, names = (program.absorb, [*states, *x, "i"]) if states else (program.begin, [*x, "i"])
    blocks = [False] * len(states) + [True] * len(x) + [False]
    writer = Writer(graph, names, blocks, interpret, tiles=tiles, masks=which, lanes=True)
    if which:
        counts = [
            *([str(tiles - len(which))] * (len(which) < tiles)),
            *(f"mask_{t}.to(tl.int32)" for t in which),
        ]
        lines.append(f"counted = {' + '.join(counts)}")
    lines += ["like = x0_0", *writer.lines]
    results = writer.results(program.state, False, "like")
    if len(which) == tiles:
        lines.append("old = IDENTITY(like.shape)")
        old = states or [f"old[{i}]" for i in range(n)]
        results = [f"tl.where(counted != 0, {new}, {was})" for new, was in zip(results, old, strict=True)]
    return lines, results


def _one_by_one(
    states: Sequence[str], x: Sequence[str], tiles: int, which: Sequence[int], fields: int
) -> tuple[list[str], list[str]]:
    """Each element lifted, and combined with the state before it."""
    lines = [f"state = ({', '.join(states)},)"] if states else []
    for t in range(tiles):
        lifted = f"LIFT({', '.join(name.replace(TILE, f'_{t}') for name in x)}, 0)"
        if t in which:
            lifted = f"OR_IDENTITY(mask_{t}, *{lifted})"
        lines.append(f"state = COMBINE(*state, *{lifted})" if states or t else f"state = {lifted}")
    return lines, [f"state[{i}]" for i in range(fields)]


_FIRST_OF_ROW = """\
def FIRST_OF_ROW(x):
    lane = tl.broadcast_to(tl.arange(0, x.shape[1])[None, :], x.shape)
    return tl.reduce((x, lane), 1, FIRST_LANE)[0]
"""


def emit_across(program: Program, tiles: int, masked: bool, interpret: bool) -> str:
    """ROW_ACROSS(elements of a row, over rows; a mask, of the last; tensors of each input) -> the rows' states.

    A row's elements are those of its threads, [rows, threads], `tiles` of each input: they are absorbed as one block.
    """
    assert program.begin is not None
    x = [f"x{i}{TILE}" for i in range(program.algebra.inputs)]
    stored = [(name, d) for name, d in zip(x, program.elements, strict=True) if not _is_half(d)]
    reads = [f"{name} = {_read(name, dtype, interpret)}" for name, dtype in stored]
    lines = [each for line in reads for each in for_tiles(line, tiles)]
    blocks = [True] * len(x) + [False]
    writer = Writer(
        program.begin, [*x, "i"], blocks, interpret, masked=True, tiles=tiles, masks=[tiles - 1] if masked else [],
        lanes=True, across=True,
    )  # fmt: skip
    taken = [f"mask_{tiles - 1}", *(each for name in x for each in for_tiles(name, tiles))]
    results = writer.results(program.state, False, "counted")
    return (
        f"{_FIRST_OF_ROW}\n\n{_function('ROW_ACROSS', ['counted', *taken], [*lines, *writer.lines], results)}"
    )


def emit_sums(program: Program, interpret: bool) -> str:
    """The functions of `algebra.Sums`, and NO_BASE of no element: BASE, JOINED, TERM, TOTAL, REBASED, NEAR, SHOWN.

    EITHER(mask, results, others): of two projections.
    """
    sums, state = program.algebra.sums, program.state
    assert sums is not None
    k, real = program.algebra.inputs, torch.float32
    x, a = [f"x{i}" for i in range(k)], [f"a{i}" for i in range(len(state))]
    reads = [f"{name} = {_read(name, program.elements[p], interpret)}" for p, name in enumerate(x)]
    elements = program.lift.input_dtypes[:k]
    one, outputs = [real], program.outputs
    rows: list[tuple[str, Graph, list[str], Sequence[torch.dtype], Sequence[torch.dtype]]] = [
        ("BASE", sums.base, x, elements, one),
        ("JOINED", sums.joined, ["a", "b"], [real, real], one),
        ("TERM", sums.term, [*x, "base"], [*elements, real], one),
        ("TOTAL", sums.total, ["base", "total"], [real, real], state),
        ("REBASED", sums.rebased, [*a, "base"], [*state, real], [real] * 3),
        ("NEAR", sums.near, [*a, "first", "top"], [*state, real, real], [torch.bool]),
        ("SHOWN", sums.shown, ["top", "total"], [real, real], outputs),
    ]
    nothing = f"tl.full(like.shape, {literal(sums.nothing, real)}, tl.float32)"
    p, q = ([f"{name}{i}" for i in range(len(outputs))] for name in "pq")
    chosen = [f"tl.where(mask, {y}, {z})" for y, z in zip(p, q, strict=True)]
    made = [_function("NO_BASE", ["like"], [], [nothing]), _function("EITHER", ["mask", *p, *q], [], chosen)]
    for name, graph, names, taken, given in rows:
        before = reads if "x0" in names else ()
        made.append(
            _of_graph(
                name, typing.infer(graph, taken), names, given, interpret, before=before, stored=name == "SHOWN",
                like=names[-1],
            )
        )  # fmt: skip
    return "\n\n".join(made)


def emit_rebase(rebase: TypedGraph | None, outputs: Sequence[torch.dtype], interpret: bool) -> str:
    """REBASE of what some of a row's elements fold to and what the row folds to -> what APPLY takes beside those elements."""
    own, whole = ([f"{name}{i}" for i in range(len(outputs))] for name in "pq")
    if rebase is None:
        return _function("REBASE", [*own, *whole], [], whole)
    return _of_graph("REBASE", rebase, [*own, *whole], outputs, interpret)


def emit_rows(rows: TypedGraph | None, outputs: Sequence[torch.dtype], interpret: bool) -> str:
    """OF_ROWS of what a row folds to -> what is stored of it."""
    names = [f"p{i}" for i in range(len(outputs))]
    if rows is None:
        return _function("OF_ROWS", names, [], names)
    return _of_graph("OF_ROWS", rows, names, rows.output_dtypes, interpret)


# Triton 3.6 fails on float64 factors that it sees to be converted from fewer bits: it looks for how they were loaded, but not
# past what may have effects.
_AS_FLOAT64 = (
    'tl.inline_asm_elementwise("cvt.rn.f64.s16 $0, $1;", "=d,h", [x.to(tl.int16)], tl.float64, '
    "is_pure=False, pack=1)"
)


def emit_products(operand: torch.dtype, accumulator: torch.dtype, interpret: bool) -> str:
    """ZEROS(shape) -> (accumulator,) and OPERAND(element as loaded) -> (factor,), of a product.

    Integers that are summed as floats are multiplied as such. Triton's interpreter multiplies the bits of narrow floats: it
    gets them widened, which changes no product.
    """
    zeros = f"tl.full(shape, 0, {TL_DTYPES[accumulator]})"
    whole = not is_float(operand) and is_float(accumulator)
    widened = interpret and (whole or (is_float(operand) and operand.itemsize < accumulator.itemsize))
    factor = f"convert(x, {TL_DTYPES[accumulator]})" if widened else _AS_FLOAT64 if whole else "x"
    return f"{_function('ZEROS', ['shape: tl.constexpr'], [], [zeros])}\n\n{_function('OPERAND', ['x'], [], [factor])}"


def _no_absorb(a: Sequence[str], x: Sequence[str]) -> list[str]:
    """Functions that the kernels name but a fold without `absorb` never calls."""
    given = {"BEGIN": [*x, "i"], "BEGIN_MASKED": ["mask", *x, "i"]}
    given |= {"ABSORB": [*a, *x, "i"], "ABSORB_MASKED": ["mask", *a, *x, "i"]}
    return [_function(name, parameters, [], [parameters[-1]]) for name, parameters in given.items()]


def _emit_absorb(
    program: Program, a: Sequence[str], x: Sequence[str], reads: Sequence[str], interpret: bool
) -> list[str]:
    """BEGIN and ABSORB for whole blocks; the masked ones count only elements under the mask, and none leave the state."""
    assert program.absorb is not None
    assert program.begin is not None
    begin, absorb = (program.begin, [*x, "i"], 0), (program.absorb, [*a, *x, "i"], len(a))
    like = f"tl.reduce(tl.reduce(x0, 0, BLOCK_FIRST), {axes.UNROLL_OF_RUNS}, BLOCK_FIRST)"
    empty = "IDENTITY(like.shape)"
    functions = []
    for name, (graph, names, states) in (("BEGIN", begin), ("ABSORB", absorb)):
        blocks = [False] * states + [True] * (len(names) - states)
        head = [*reads, f"like = {like if not states else 'a0'}"]
        whole, part = (Writer(graph, names, blocks, interpret, masked=masked) for masked in (False, True))
        results = whole.results(program.state, False, "like")
        functions.append(_function(name, names, [*head, *whole.lines], results))
        tail = ["some = ANY_OF(mask)"] + ([] if states else [f"old = {empty}"])
        old = a if states else [f"old[{i}]" for i in range(len(a))]
        results = part.results(program.state, False, "like")
        kept = [f"tl.where(some, {new}, {was})" for new, was in zip(results, old, strict=True)]
        functions.append(_function(f"{name}_MASKED", ["mask", *names], [*head, *part.lines, *tail], kept))
    return functions


def _read(name: str, element: torch.dtype, interpret: bool) -> str:
    """An element as loaded -> the dtype it is read as -> the dtype lift sees."""
    seen = element_dtype(element)
    if element == torch.bool:
        return f"is_nonzero({name}).to(tl.int32)"
    loaded = f"{name}.to({STORED_DTYPES[element]})"
    # The tensor may be of another dtype, one of 8 bits too.
    if interpret or element not in TL_DTYPES or not is_float(element) or element == torch.float64:
        loaded = f"convert({name}, {STORED_DTYPES[element]})"
    return converted(loaded, element, seen, stored=False, interpret=interpret)


def _emit_combine_symmetric(program: Program, a: Sequence[str], b: Sequence[str]) -> str:
    """COMBINE_SYMMETRIC: COMBINE where threads exchange states, with the same bits whichever of two threads computes it.

    The fields whose order may be told from the result are put into the order of their own bits first.
    """
    ordered, lines = ordered_fields(program), list[str]()
    for f in reversed(ordered):
        left, right = (_bits_of(name, program.state[f]) for name in (a[f], b[f]))
        rest = f" | (({right} == {left}) & swap)" if lines else ""
        lines.append(f"swap = ({right} < {left}){rest}")
    for x, y in ((a[f], b[f]) for f in ordered):
        lines.append(f"{x}, {y} = tl.where(swap, {y}, {x}), tl.where(swap, {x}, {y})")
    body = "".join(f"    {line}\n" for line in lines)
    parameters = ", ".join([*a, *b])
    return f"def COMBINE_SYMMETRIC({parameters}):\n{body}    return COMBINE({parameters})\n"


def _bits_of(name: str, dtype: torch.dtype) -> str:
    """A field as whole numbers, of which no two that differ are equal."""
    if not is_float(dtype):
        return name
    return f"{name}.to(tl.int{8 * dtype.itemsize}, bitcast=True)"


def _emit_identity(program: Program, a: Sequence[str]) -> list[str]:
    values = [(literal(v, d), TL_DTYPES[d]) for v, d in zip(program.identity, program.state, strict=True)]
    return [
        _function("IDENTITY", ["shape: tl.constexpr"], [], [f"tl.full(shape, {v}, {t})" for v, t in values]),
        _function(
            "OR_IDENTITY", ["mask", *a], [],
            [f"tl.where(mask, {name}, tl.full([], {v}, {t}))" for name, (v, t) in zip(a, values, strict=True)],
        ),
    ]  # fmt: skip
