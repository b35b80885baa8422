"""Requests on a CPU: planned, then run on torch's operations. Each gives its results and the plan that they were made by."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from tilefold.algebra.program import Program, is_watched, quick_form
from tilefold.algebra.whole_vectors import SERIAL
from tilefold.api.requests import (
    Chosen,
    Product,
    Rearrangement,
    Reduction,
    Request,
    RowMap,
    Scan,
    Segments,
    Selected,
)
from tilefold.backends import reference
from tilefold.backends.cpu import (
    cells,
    chosen,
    loops,
    native,
    refold,
    row_tiles,
    scans,
    segments,
    selecting,
    torch_product,
)
from tilefold.errors import BackendError
from tilefold.planner.cpu import cpu_plan, cpu_problem
from tilefold.planner.cpu_scans import cpu_scan, library_scan
from tilefold.planner.library import LibraryMap, has_own_derivative, library_fold, library_plan
from tilefold.planner.plan import LibraryCall, Plan, names
from tilefold.planner.problem.validate import GUARANTEES
from tilefold.planner.products.row import Row, without_constants
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import as_given, check_not_traced

Tensor = torch.Tensor
Made = tuple[list[Tensor], Plan]


def run(request: Request, tensors: Sequence[Tensor], backend: str) -> Made:
    """The results of a request, under "auto", "torch", "cpu" or "reference".

    Raises:
        BackendError: "torch" is forced and has no fold that is known to give the promised answers.
    """
    with as_given(tensors[0].device):
        return RUN[type(request)](request, tensors, backend)


def _multiplied(request: Product, tensors: Sequence[Tensor], backend: str) -> Made:
    """Torch's product and tiles of rows; under "reference" one product of two elements after another, and so with rows."""
    a, b, *extras = tensors
    guarantee, defined = request.guarantee, backend == "reference"
    product = torch_product.by_elements if defined else torch_product.product_of(guarantee)

    def fold_rows(value: Tensor, program: Program) -> list[Tensor]:
        check_not_traced(request.call)
        fold = _by_definition if defined else by_tiles
        return fold([value], program, (value.ndim - 1,), guarantee)[0]

    made = torch_product.multiply(a, b, extras, request.ending, request.shape, product, fold_rows)
    return made, _by_elements(guarantee) if defined else _plan_of_product(request, len(tensors), backend)


def _plan_of_product(request: Product, inputs: int, backend: str) -> Plan:
    reason = "each row by itself" if request.guarantee == "batch_invariant" else "then the epilogue"
    step = LibraryCall("torch.matmul", names("input", inputs), names("output", len(request.results)))
    on = "cpu" if backend == "cpu" else "torch"
    return Plan(on, (step,), guarantee=request.guarantee, strategy="torch.matmul", reason=reason)


def _repeated_product(request: Product, tensors: Sequence[Tensor]) -> Repeated:
    """What answers products like this one, whose extra tensors need not be expanded."""

    ending, dtype = request.ending, tensors[0].dtype
    floats = dtype in (torch.float32, torch.float64) and ending.result == dtype
    alone = ending.plain and ending.row is None and floats

    def call(*tensors: Tensor) -> list[Tensor]:
        with as_given(tensors[0].device):
            if alone and request.guarantee != "batch_invariant":
                return [torch.matmul(*tensors).contiguous()]
            return _multiplied(request, tensors, "auto")[0]

    return Repeated(_plan_of_product(request, len(tensors), "auto"), call)


def _reduced(request: Reduction, tensors: Sequence[Tensor], backend: str) -> Made:
    results, plan = _folded(request, tensors, backend)
    return [r if r.shape == request.shape else r.reshape(request.shape) for r in results], plan


def _folded(request: Reduction, tensors: Sequence[Tensor], backend: str) -> Made:
    program, dims, guarantee = request.program, request.dims, request.guarantee
    if backend == "reference":
        return _by_definition(tensors, program, dims, guarantee)
    if backend in ("auto", "torch"):
        function = library_fold(tensors, program, dims, guarantee, forced=backend == "torch")
        if function is not None:
            results = native.fold(function, tensors[0], dims, program)
            if results is not None:
                return results, library_plan(function, program, guarantee)
        if backend == "torch" and dims:  # over none, torch's operations make each element
            fields, dtypes = ", ".join(program.algebra.fields), ", ".join(str(t.dtype) for t in tensors)
            _refuse("fold", f"({fields}) of {dtypes} over dims {list(dims)}", guarantee)
    check_not_traced(request.call)
    if not dims and tensors[0].numel():
        return _each(tensors, program, guarantee)(*tensors), _EACH[guarantee]
    return refold.fold(by_tiles, tensors, program, dims, guarantee)


def _each(tensors: Sequence[Tensor], program: Program, guarantee: str) -> cells.Settled:
    """The fold over no dims, of tensors like these: a function of every element."""
    placeless = guarantee == "batch_invariant"
    return cells.Settled(program, tensors, torch.get_num_threads(), placeless=placeless)


_EACH = {
    guarantee: Plan("cpu", guarantee=guarantee, strategy="each element", reason="nothing is folded")
    for guarantee in GUARANTEES
}


def by_tiles(tensors: Sequence[Tensor], program: Program, dims: tuple[int, ...], guarantee: str) -> Made:
    """A fold of tensors of one shape in a loop over tiles; results in the output dims' shape."""
    shape = [n for d, n in enumerate(tensors[0].shape) if d not in dims]
    executable = tiled(tensors, program, dims, guarantee, shape)
    return executable(tensors), executable.plan


def tiled(
    tensors: Sequence[Tensor], program: Program, dims: tuple[int, ...], guarantee: str, shape: Sequence[int]
) -> loops.Executable:
    """The loop over tiles that folds tensors like these, with results in `shape`."""
    problem = cpu_problem(tensors, program, dims, guarantee)
    plan = cpu_plan(problem, program, guarantee, torch.get_num_threads())
    return loops.Executable(plan, problem, program, shape)


class Repeated:
    """A fold of one tensor on a CPU that was planned once, for calls with tensors of the same layout.

    `call` gives None where the elements of this call ask for more than was planned: float32 does not hold their squares.
    Where it `is_differentiable`, its operations are torch's own, whose derivative is ours.
    """

    def __init__(
        self, plan: Plan, call: Callable[..., list[Tensor] | None], is_differentiable: bool = False
    ) -> None:
        self.plan, self.call, self.is_differentiable = plan, call, is_differentiable


def _repeated_library(plan: Plan, settled: native.Settled, x: Tensor) -> Repeated:
    def first(*tensors: Tensor) -> list[Tensor] | None:
        results = settled.make(*tensors)
        if results is None:
            return None
        finished = settled.finish(results)
        if all(map(operator.is_, finished, results)):
            again.call = settled.make
        return finished

    again = Repeated(plan, first, has_own_derivative(plan.strategy, x.dtype))
    return again


def repeated(request: Request, tensors: Sequence[Tensor]) -> Repeated | None:
    """What answers calls like this one by the rule of `run` under "auto": torch's own fold, else a loop over tiles."""
    if isinstance(request, RowMap):
        return _repeated_map(request, tensors)
    if isinstance(request, Scan):
        return _repeated_scan(request, tensors)
    if isinstance(request, Product):
        return _repeated_product(request, tensors)
    if isinstance(request, Selected):
        return Repeated(_plan_of_selection(request), lambda x: _selected_by_torch(request, x))
    if isinstance(request, Segments):
        return Repeated(_plan_of_segments(request), lambda *t: _segments_by_tiles(request, t))
    if isinstance(request, Chosen):
        each = _each(_of_rows(request, tensors), request.program, request.guarantee)
        return Repeated(_EACH[request.guarantee], lambda *t: _stored(request, t, each(*_of_rows(request, t))))
    if not isinstance(request, Reduction):
        return None
    program, dims, guarantee, shape = request.program, request.dims, request.guarantee, request.shape
    if not dims and tensors[0].numel():
        return Repeated(_EACH[guarantee], _each(tensors, program, guarantee))
    function = library_fold(tensors, program, dims, guarantee)
    if function is not None:
        plan = library_plan(function, program, guarantee)
        return _repeated_library(plan, native.settled_fold(function, dims, program, shape), tensors[0])
    if not is_watched(program):
        executable = tiled(tensors, program, dims, guarantee, shape)
        return Repeated(executable.plan, executable.repeated)
    watching = tiled(tensors, quick_form(program), dims, guarantee, shape)

    def call(*tensors: Tensor) -> list[Tensor] | None:
        *results, trusted = watching(tensors)
        return results if trusted.all() else None

    return Repeated(watching.plan, call)


def _repeated_map(request: RowMap, tensors: Sequence[Tensor]) -> Repeated | None:
    """What answers maps like this one: torch's own, else a loop that folds rows and one that maps."""
    known, guarantee = _known_map(request), request.guarantee
    if known is not None:
        settled = native.settled_map(known.function, known.arguments, known.rows)
        return _repeated_library(known.plan(len(tensors), guarantee), settled, tensors[0])
    program, shape = request.row.program, request.shape
    if 0 in shape:
        return None
    n, watched = program.algebra.inputs, is_watched(program)
    program = quick_form(program) if watched else program
    folding = tiled(tensors[:n], program, request.dims, guarantee, _kept(request))
    row, places = without_constants(request.row, program)
    small = _small_map(request, row, tensors, places) if math.prod(shape) < SERIAL else None

    def call(*tensors: Tensor) -> list[Tensor] | None:
        if small is not None:
            first = [t if t.shape == shape else t.expand(shape) for t in tensors[:n]]
            folded = folding(first)
            if watched and not folded.pop().all():
                return None
            made, sums = small([*first, *(folded[p] for p in places), *tensors[n:]])
            return [*made, *row_tiles.map_rows(request.row, folded), *sums]
        expanded = [t if t.shape == shape else t.expand(shape) for t in tensors]
        folded = folding(expanded[:n])
        if watched and not folded.pop().all():
            return None
        return _map_by_tiles(request, row, expanded, folded, places)

    return Repeated(_then_mapped(folding.plan), call)


def _small_map(
    request: RowMap, row: Row, tensors: Sequence[Tensor], places: Sequence[int]
) -> row_tiles.Small:
    """What maps few elements, whose inputs come expanded and whose extra tensors as they are."""
    n, kept = request.row.program.algebra.inputs, _kept(request)
    first = [t.expand(request.shape) for t in tensors[:n]]
    rows = [(kept, torch.empty(kept, device="meta").stride())] * len(places)
    layouts = [*((t.shape, t.stride()) for t in first), *rows, *((t.shape, t.stride()) for t in tensors[n:])]
    alone = request.guarantee == "batch_invariant"
    return row_tiles.Small(row, layouts, request.shape, placeless=alone, dims=request.dims)


def _kept(request: RowMap) -> list[int]:
    """The shape of rows' results beside the elements."""
    return [1 if d in request.dims else size for d, size in enumerate(request.shape)]


def _map_by_tiles(
    request: RowMap,
    row: Row,
    tensors: Sequence[Tensor],
    folded: Sequence[Tensor],
    places: Sequence[int] | None = None,
) -> list[Tensor]:
    """Every element by `row`, which takes those of the fold's results that are at `places`, or all; then what is of rows."""
    n, alone = row.program.algebra.inputs, request.guarantee == "batch_invariant"
    taken = folded if places is None else [folded[p] for p in places]
    operands = [*tensors[:n], *(f.expand(request.shape) for f in taken), *tensors[n:]]
    made, sums = row_tiles.map_tiles(
        row, operands, torch.get_num_threads(), placeless=alone, dims=request.dims
    )
    return [*made, *row_tiles.map_rows(request.row, folded), *sums]


def _then_mapped(plan: Plan) -> Plan:
    reason = "; ".join(filter(None, (plan.strategy, plan.reason)))
    return replace(plan, strategy="fold and map", reason=reason)


def _known_map(request: RowMap) -> LibraryMap | None:
    """Torch's function for it, where one row's bits need not be the same beside others.

    A trace would hold what one that asks its results decided for the elements at hand.
    """
    library = request.library
    if (
        library is None
        or library.rows != len(request.row.of_rows)
        or request.guarantee == "batch_invariant"
        or 0 in request.shape
    ):
        return None
    return None if library.asks and torch._C._is_tracing() else library


def _mapped(request: RowMap, tensors: Sequence[Tensor], backend: str) -> Made:
    """Rows folded, then every element and its row's results and extras as one tile after another."""
    row, guarantee, n = request.row, request.guarantee, request.row.program.algebra.inputs
    if not tensors[0].numel():
        empty = [torch.zeros(shape, dtype=dtype, device="cpu") for shape, dtype in request.results]
        if row.rows is not None:
            folded = by_tiles(tensors[:n], row.program, request.dims, guarantee)[0]
            first = len(row.results)
            empty[first : first + len(row.of_rows)] = row_tiles.map_rows(
                row, [f.reshape(_kept(request)) for f in folded]
            )
        return empty, Plan(request.on_cpu, guarantee=guarantee, strategy="nothing", reason="no elements")
    if backend in ("auto", "torch"):
        known = _known_map(request)
        if known is not None:
            made = native.settled_map(known.function, known.arguments, known.rows)(*tensors)
            if made is not None:
                return made, known.plan(len(tensors), guarantee)
        if backend == "torch":
            _refuse("function", f"{request.call} over dims {list(request.dims)}", guarantee)
    check_not_traced(request.call)
    if backend == "reference":
        folded, plan = _by_definition(tensors[:n], row.program, request.dims, guarantee)
    else:
        folded, plan = refold.fold(by_tiles, tensors[:n], row.program, request.dims, guarantee)
    folded, plan = [f.reshape(_kept(request)) for f in folded], _then_mapped(plan)
    if backend == "reference":
        rows = [f.expand(request.shape) for f in folded]
        made = row_tiles.map_by_definition(row, [*tensors[:n], *rows, *tensors[n:]])
        whole, summed = made[: len(row.results)], made[len(row.results) :]
        outer = tuple(d for d in range(len(request.shape)) if d not in request.dims)
        return [
            *whole,
            *row_tiles.map_rows(row, folded),
            *(reference.summed(t, outer) for t in summed),
        ], plan
    return _map_by_tiles(request, row, tensors, folded), plan


def _by_definition(
    tensors: Sequence[Tensor], program: Program, dims: tuple[int, ...], guarantee: str
) -> Made:
    plan = _by_elements(guarantee)
    return reference.fold(tensors, program, dims), plan


def _by_elements(guarantee: str) -> Plan:
    """The plan of whatever is computed as it is defined."""
    return Plan("reference", guarantee=guarantee, reason="one element after another")


def _refuse(what: str, got: str, guarantee: str) -> NoReturn:
    """Say that torch has nothing for a call for which it is forced."""
    raise BackendError(
        f"backend: torch's own {what} must be known to give the promised answers (accuracy, dtypes, guarantee), got "
        f'{got}, "{guarantee}", without one; use "cpu" or "auto"'
    )


def _rearranged(request: Rearrangement, tensors: Sequence[Tensor], backend: str) -> Made:
    (x,) = tensors
    if backend == "reference":
        plan = _by_elements(request.guarantee)
        return [reference.copied(x)], plan
    step = LibraryCall("torch.clone", ("input0",), ("output0",))
    plan = Plan("torch", (step,), guarantee=request.guarantee, strategy="torch.clone", reason="torch copies")
    return [x.clone(memory_format=torch.contiguous_format)], plan


def _selected(request: Selected, tensors: Sequence[Tensor], backend: str) -> Made:
    (x,) = tensors
    check_not_traced(request.call)
    if backend != "reference":
        return _selected_by_torch(request, x), _plan_of_selection(request)
    made = selecting.by_definition(x, request.dim, request.k, request.largest)
    return [t.view(request.shape) for t in made], _by_elements(request.guarantee)


def _selected_by_torch(request: Selected, x: Tensor) -> list[Tensor]:
    return [t.view(request.shape) for t in selecting.select(x, request.dim, request.k, request.largest)]


def _plan_of_selection(request: Selected) -> Plan:
    step = LibraryCall("torch.topk", ("input0",), names("output", 2))
    reason = "and ties settled by lower index"
    return Plan("torch", (step,), guarantee=request.guarantee, strategy="torch.topk", reason=reason)


def _of_rows(request: Chosen, tensors: Sequence[Tensor]) -> list[Tensor]:
    """What the function takes: rows' values, their index, and the elements at it."""
    first, tables = tensors[: request.index + 1], tensors[request.index + 1 :]
    return [*first, *([] if request.stored else chosen.read(tables, first[-1], request.dim))]


def _stored(request: Chosen, tensors: Sequence[Tensor], made: list[Tensor]) -> list[Tensor]:
    """The results of rows, or none, where the one is stored in the last tensor."""
    if not request.stored:
        return made
    target, index = tensors[-1], tensors[request.index]
    target.scatter_(request.dim, chosen.places(index, target.shape[request.dim]), made[0])
    return []


def _chosen(request: Chosen, tensors: Sequence[Tensor], backend: str) -> Made:
    function = Reduction(request.program, (), request.guarantee, request.shape)
    made, plan = _reduced(function, _of_rows(request, tensors), backend)
    return _stored(request, tensors, made), plan


def _scanned(request: Scan, tensors: Sequence[Tensor], backend: str) -> Made:
    program, dim, guarantee = request.program, request.dim, request.guarantee
    inputs, init = tensors[: len(tensors) - request.inits], tensors[len(tensors) - request.inits :]
    if backend in ("auto", "torch"):
        function = _library_scan(request, inputs)
        if function is not None:
            made = _settled_scan(function, request)(inputs[0])
            assert made is not None
            return made, library_plan(function, program, guarantee)
        if backend == "torch":
            _refuse("scan", f"({', '.join(program.algebra.fields)}) over dim {dim}", guarantee)
    check_not_traced(request.call)
    if backend == "reference":
        results, state = reference.scan(
            inputs, init, program, dim, exclusive=request.exclusive, reverse=request.reverse
        )
        return (results + state if request.state else results), _by_elements(guarantee)
    plan = _scan_plan(request)
    return _scan_by_tiles(request, inputs, plan)(inputs, init), plan


def _scan_plan(request: Scan) -> Plan:
    inner = math.prod(request.shape[request.dim + 1 :])
    rows, threads = math.prod(request.rows), torch.get_num_threads()
    return cpu_scan(request.shape[request.dim], rows, request.guarantee, threads, inner)


def _library_scan(request: Scan, inputs: Sequence[Tensor]) -> str | None:
    """Torch's function for it, which takes no state and gives none."""
    if request.inits or request.state:
        return None
    way = {"exclusive": request.exclusive, "reverse": request.reverse}
    return library_scan(inputs, request.program, request.guarantee, **way)


def _settled_scan(function: str, request: Scan) -> native.Settled:
    return native.settled_scan(
        function, request.dim, request.program, exclusive=request.exclusive, reverse=request.reverse
    )


def _scan_by_tiles(request: Scan, inputs: Sequence[Tensor], plan: Plan) -> scans.Settled:
    return scans.Settled(
        request.program, request.shape, [t.dtype for t in inputs], request.dim, plan.launched[0].settings,
        exclusive=request.exclusive, reverse=request.reverse, alone=request.guarantee == "batch_invariant",
        state=request.state,
    )  # fmt: skip


def _repeated_scan(request: Scan, tensors: Sequence[Tensor]) -> Repeated:
    """What answers scans like this one: torch's own, else the loop over tiles."""
    n = len(tensors) - request.inits
    function = _library_scan(request, tensors)
    if function is not None:
        own = library_plan(function, request.program, request.guarantee)
        return _repeated_library(own, _settled_scan(function, request), tensors[0])
    plan = _scan_plan(request)
    settled = _scan_by_tiles(request, tensors[:n], plan)
    return Repeated(plan, lambda *tensors: settled(tensors[:n], tensors[n:]))


def _segmented(request: Segments, tensors: Sequence[Tensor], backend: str) -> Made:
    *inputs, offsets = tensors
    check_not_traced(request.call)
    if backend != "reference":
        return _segments_by_tiles(request, tensors), _plan_of_segments(request)
    made = segments.by_definition(inputs, offsets, request.program, request.dim)
    return made, replace(_plan_of_segments(request), backend="reference")


def _plan_of_segments(request: Segments) -> Plan:
    return Plan("cpu", guarantee=request.guarantee, strategy="segments")


def _segments_by_tiles(request: Segments, tensors: Sequence[Tensor]) -> list[Tensor]:
    *inputs, offsets = tensors
    program, dim, guarantee = request.program, request.dim, request.guarantee

    def rows(tensors: Sequence[Tensor], program: Program, dim: int) -> list[Tensor]:
        layouts = tuple((tuple(t.shape), t.stride(), t.dtype) for t in tensors)
        return _pieces(program, layouts, dim, guarantee, torch.get_num_threads())(tensors)

    return segments.fold(inputs, offsets, program, dim, guarantee, rows)


@kept_outside_modes(256)
def _pieces(
    program: Program, layouts: Sequence[tuple[Any, Any, torch.dtype]], dim: int, guarantee: str, threads: int
) -> loops.Executable:
    """The loop for pieces of some layouts: those of one length come in every call, and several times in one.

    `threads` are torch's, for which it is planned.
    """
    tensors = [
        torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in layouts
    ]
    return tiled(tensors, program, (dim,), guarantee, [n for d, n in enumerate(layouts[0][0]) if d != dim])


# How each kind of request runs: functions of (request, tensors, backend).
RUN: dict[type[Request], Callable[..., Made]] = {
    Reduction: _reduced,
    Product: _multiplied,
    Rearrangement: _rearranged,
    Selected: _selected,
    Scan: _scanned,
    RowMap: _mapped,
    Segments: _segmented,
    Chosen: _chosen,
}
