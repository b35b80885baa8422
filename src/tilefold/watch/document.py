"""All that a page shows, as one JSON value: every number is computed here and written as the text that is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tilefold.algebra import formulas
from tilefold.algebra.algebra import PRESENT
from tilefold.algebra.dtypes import check_foldable, is_float
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.program import Program, as_written
from tilefold.errors import ArgumentError, DtypeError
from tilefold.runtime.modes import outside_modes
from tilefold.watch import scaling
from tilefold.watch.rows import Row, check_shape, draw, drawn_rows, given_rows
from tilefold.watch.stream import (
    Boundary,
    State,
    Streamed,
    boundary,
    chunk_sizes,
    combined,
    lifted,
    prefixes,
    projected,
    streamed,
    true_fold,
)

Document = dict[str, Any]
EMPTY = "none"  # a value of a state that stands for nothing yet, where a monoid has no identity
_TAME = 1e6  # beyond it the early values of a row's states would be one flat line
_FEWEST_CHANGES = 3
_DEFAULT_CHUNK = 8


def make_document(monoid: Monoid, given: Sequence[torch.Tensor] | None = None) -> Document:
    """A monoid's page as JSON: its formulas, rows, and every state of every row in chunks of every size.

    Args:
        monoid: the monoid to fold with.
        given: one 1-D tensor for each input; a row is drawn without.

    Raises:
        ArgumentError: the row is not 1-D, too long, or not one for each input.
        DtypeError: the monoid does not fold elements of this dtype.
    """
    with outside_modes():
        rows = _rows(monoid, given)
        program = as_written(monoid.total, tuple(t.dtype for t in rows[0].tensors))
        return _document(monoid, program, rows)


def _rows(monoid: Monoid, given: Sequence[torch.Tensor] | None) -> list[Row]:
    domain = monoid.algebra.domain
    if given is None:
        return drawn_rows(draw(monoid.total, lambda made: _rating(monoid, made)), domain)
    _check_given(monoid, given)
    return given_rows([t.detach().cpu().contiguous() for t in given], domain)


def _check_given(monoid: Monoid, given: Sequence[torch.Tensor]) -> None:
    inputs = monoid.algebra.inputs
    for tensor in given:
        check_shape(tensor.shape)
        try:
            check_foldable(tensor.dtype, "row")
        except DtypeError as error:
            raise DtypeError(str(error).replace("row: ", "a row: ", 1)) from None
    if len(given) != inputs:
        names = ", ".join(formulas.input_names(inputs))
        raise ArgumentError(
            f"{monoid.name} must get a row for each of its inputs ({names}), {inputs} in all, got {len(given)}; "
            "name a file for each, in this order"
        )
    lengths = [len(t) for t in given]
    if len(set(lengths)) > 1:
        raise ArgumentError(f"rows must be of one length, got {lengths}; cut them to {min(lengths)}")


def _rating(monoid: Monoid, tensors: Sequence[torch.Tensor]) -> float:
    """How much a row shows: states that change and stay of a size to draw, then whether 0 as a fill changes the answer."""
    program = as_written(monoid.total, tuple(t.dtype for t in tensors))
    stacked = [t[None] for t in tensors]
    states = prefixes(program, lifted(program, stacked))
    numbers = torch.stack([field[0, 1:].double() for field in states])
    changes = (numbers[:, 1:] != numbers[:, :-1]).any(0).sum()
    largest = float(numbers.abs().max())
    length = stacked[0].shape[1]
    zero = lifted(program, [torch.zeros_like(t[:, :1]) for t in stacked], length)
    last = [field[:, -1:] for field in states]
    pairs = zip(projected(program, last), projected(program, combined(program, last, zero)), strict=True)
    seen = any(a.item() != b.item() for a, b in pairs)
    if largest < _TAME:
        return 2.0 * bool(changes >= _FEWEST_CHANGES) + seen
    return -largest


def _document(monoid: Monoid, program: Program, rows: Sequence[Row]) -> Document:
    stacked = [torch.stack(parts) for parts in zip(*(row.tensors for row in rows), strict=True)]
    length = stacked[0].shape[1]
    sizes = chunk_sizes(length)
    fields = monoid.fields
    results = find_results(monoid)
    return {
        "name": monoid.name,
        "fields": list(fields),
        "results": list(results.names),
        "answer": list(results.answer),
        "has_identity": monoid.algebra.identity is not None,
        "inputs": list(formulas.input_names(monoid.algebra.inputs)),
        "dtypes": [str(t.dtype).removeprefix("torch.") for t in stacked],
        "exact": any(is_float(t.dtype) for t in stacked),
        "length": length,
        "sizes": sizes,
        "size": max((s for s in sizes if s <= _DEFAULT_CHUNK), default=sizes[0]),
        "extremes": scaling.extremes(monoid.algebra.combine, len(fields)),
        "scaled": [asdict(one) for one in _scaled(program)],
        "formulas": _formulas(monoid),
        "rows": _row_documents(program, rows, stacked, sizes, results),
    }


@dataclass(frozen=True)
class Results:
    """Which results are drawn beside the fields: a field's value under its own name is not drawn twice.

    `shown`: their places among the results; `names`: what they are called; `answer`: of the values drawn, fields first, those
    that a fold returns.
    """

    shown: tuple[int, ...]
    names: tuple[str, ...]
    answer: tuple[int, ...]


def find_results(monoid: Monoid) -> Results:
    """The values drawn of a monoid's results; without `project` the state is the result."""
    project, fields = monoid.algebra.project, monoid.fields
    if project is None:
        return Results((), (), tuple(range(len(fields))))
    shown, answer = list[int](), list[int]()
    names = _result_names(monoid)
    for place, name in enumerate(names):
        node = project.nodes[project.outputs[place]]
        if node.op == "input" and name == fields[node.value]:
            answer.append(node.value)
        else:
            answer.append(len(fields) + len(shown))
            shown.append(place)
    return Results(tuple(shown), tuple(names[place] for place in shown), tuple(answer))


def _result_names(monoid: Monoid) -> list[str]:
    """What results are called: as `project` names them, or by their number where there are several."""
    assert monoid.algebra.project is not None
    names, count = getattr(monoid.outputs, "_fields", None), len(monoid.algebra.project.outputs)
    return list(names) if names else ["result"] if count == 1 else [f"result {i}" for i in range(count)]


def _formulas(monoid: Monoid) -> list[Document]:
    """The symbols for an element, for two neighbours, and for the result."""
    algebra = monoid.algebra
    named = ", ".join(formulas.input_names(algebra.inputs))
    at = " at position i" if algebra.index else ""
    elements = "an element" if algebra.inputs == 1 else "elements"
    project = formulas.project_formulas(algebra, _result_names(monoid)) if algebra.project else []
    parts = [
        (f"Lift: {elements} {named}{at} as a state", formulas.lift_formulas(algebra)),
        ("Combine: the state so far (old) and a chunk's own", formulas.combine_formulas(algebra)),
        ("Project: what the last state says", [line for line in project if line.name != line.text]),
    ]
    return [{"title": title, "lines": [asdict(line) for line in lines]} for title, lines in parts if lines]


def _scaled(program: Program) -> list[scaling.Scaled]:
    return [] if program.algebra.fields[-1] == PRESENT else scaling.scaled_fields(program)


# ------------------------------------------------------------------------------------------------------ the rows


def _row_documents(
    program: Program,
    rows: Sequence[Row],
    stacked: Sequence[torch.Tensor],
    sizes: Sequence[int],
    drawn: Results,
) -> list[Document]:
    exact, state, results = true_fold(program, stacked)
    truth = _state_texts(exact, state), _chosen(_texts(results, exact.outputs), drawn.shown)
    documents: list[Document] = [
        {
            "key": row.key,
            "label": row.label,
            "about": row.about,
            "elements": [_column(t, t.dtype) for t in row.tensors],
            "truth": {"state": truth[0][place][0], "results": truth[1][place][0]},
            "streams": {},
        }
        for place, row in enumerate(rows)
    ]
    for size in sizes:
        right = streamed(program, stacked, size)
        wrong = boundary(program, stacked, size, right)
        for document, stream in zip(documents, _streams(program, right, wrong, drawn), strict=True):
            document["streams"][str(size)] = stream
    return documents


def _streams(program: Program, right: Streamed, wrong: Boundary | None, drawn: Results) -> list[Document]:
    """Each row's states in chunks of one size."""
    made = _steps(program, right.own, right.after, right.own_results, right.results, drawn.shown)
    made_wrong: Sequence[Document | None] = [None] * len(made)
    if wrong is not None:
        after = [torch.cat([a[:, -2:-1], b], dim=1) for a, b in zip(right.after, wrong.after, strict=True)]
        made_wrong = _steps(program, wrong.own, after, wrong.own_results, wrong.results, drawn.shown)
    for one, other in zip(made, made_wrong, strict=True):
        one["wrong"] = other
        if other is not None:
            # Shown digits decide: a difference in the last bit of a float is not a wrong answer.
            other["changed"] = any(_drawn(other)[k] != _drawn(one)[k] for k in drawn.answer)
    return made


def _drawn(stream: Document) -> list[str]:
    """The values after the last chunk: fields, then results."""
    last: list[str] = stream["after"][-1] + stream["results"][-1]
    return last


def _steps(
    program: Program, own: State, after: State, own_results: State, results: State, shown: Sequence[int]
) -> list[Document]:
    """Texts by row, step and field."""
    before, chunks = [field[:, :-1] for field in after], own
    scales = {one.field: scaling.factors(program, one.field, before, chunks) for one in _scaled(program)}
    parts = {
        "own": _state_texts(program, own),
        "after": _state_texts(program, after),
        "own_results": _chosen(_texts(own_results, program.outputs), shown),
        "results": _chosen(_texts(results, program.outputs), shown),
    }
    return [
        {
            **{name: texts[row] for name, texts in parts.items()},
            "factors": {
                field: [_column(side[row], torch.float32) for side in sides]
                for field, sides in scales.items()
            },
        }
        for row in range(own[0].shape[0])
    ]


def _state_texts(program: Program, state: State) -> list[list[list[str]]]:
    """By row, place and field, without the flag of a monoid that has no identity."""
    texts = _texts(state, program.state)
    if program.algebra.fields[-1] != PRESENT:
        return texts
    return [
        [one[:-1] if one[-1] == "True" else [EMPTY] * (len(one) - 1) for one in places] for places in texts
    ]


def _texts(tensors: State, dtypes: Sequence[torch.dtype]) -> list[list[list[str]]]:
    """By row, place and tensor."""
    columns = [[_column(row, dtype) for row in tensor] for tensor, dtype in zip(tensors, dtypes, strict=True)]
    return [[list(values) for values in zip(*parts, strict=True)] for parts in zip(*columns, strict=True)]


def _chosen(texts: list[list[list[str]]], shown: Sequence[int]) -> list[list[list[str]]]:
    """Of every place those results that are shown."""
    return [[[one[i] for i in shown] for one in places] for places in texts]


def _column(tensor: torch.Tensor, dtype: torch.dtype) -> list[str]:
    return [number_text(value, dtype) for value in tensor.tolist()]


def number_text(value: float, dtype: torch.dtype) -> str:
    """A value as it is shown: whole numbers in full, floats to six digits; uint64 from the int64 of the same bits.

    >>> number_text(-1, torch.uint64), number_text(0.1, torch.float32), number_text(-math.inf, torch.float32)
    ('18446744073709551615', '0.1', '-inf')
    """
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value) % (1 << 64) if dtype == torch.uint64 else int(value))
    return f"{value:.6g}" if math.isfinite(value) else f"{value}"
