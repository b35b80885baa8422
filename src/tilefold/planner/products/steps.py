"""A product's plan as steps: tiles of results, cuBLAS, or partial products and a launch that sums and finishes them."""

from __future__ import annotations

import math

from tilefold.planner.plan import Buffer, Fill, Launch, LibraryCall, Plan, Step, names
from tilefold.planner.products.epilogue import Epilogue, sums_dtype
from tilefold.planner.products.operands import Contraction
from tilefold.planner.products.packing import PACKED, packed_shape, packing_of
from tilefold.planner.products.plan import Candidate, Tiling
from tilefold.planner.sizes import power_above

LARGE_PITCH = 1 << 18  # results: a power of two, 1 MB of float32 a split, is left beyond
OPERANDS = ("input0", "input1")


def product_plan(candidate: Candidate, problem: Contraction, epilogue: Epilogue) -> Plan:
    """The steps of a product that has results."""
    extras, results = names("input", len(problem.dtypes))[2:], output_names(epilogue)
    sums = sums_dtype(problem.dtypes[0])
    workspaces: tuple[Buffer, ...] = ()
    operands: tuple[str, ...] = OPERANDS
    before: tuple[Step, ...] = ()
    if any(candidate.packed):
        operands, before, workspaces = _packed(candidate, problem)
    if candidate.strategy == "whole":
        kernel = "product_whole" if epilogue.row is None else "product_rows"
        reads, chained = (*operands, *extras), candidate.chained
        early = chained or (bool(before) and candidate.overlap)
        steps: tuple[Step, ...] = (
            *before,
            Launch(kernel, _tiling(candidate), reads, results, early, chained),
        )
    elif candidate.finish is None:
        steps = (LibraryCall("finished_product", (*OPERANDS, *extras), results),)
    elif candidate.strategy == "cublas" and epilogue.only_relu and epilogue.result == problem.dtypes[0]:
        # the greater of zero and a rounded sum is the rounded greater one: half as many bytes as float32 sums
        steps = (LibraryCall("finished_product", OPERANDS, results), LibraryCall("rectified", (), results))
    else:
        if candidate.strategy == "cublas":
            first: Step = LibraryCall("wide_product", OPERANDS, ("partial0",))
        else:
            tiling = _tiling(candidate)
            early = candidate.chained or (bool(before) and candidate.overlap)
            first = Launch("product_partials", tiling, operands, ("partial0",), early, candidate.overlap)
            workspaces += (Buffer("partial0", (candidate.splits, pitch_of(problem)), sums),)
        kernel = "finish_products" if epilogue.row is None else "finish_rows"
        reads = ("partial0", *extras)
        last = Launch(kernel, candidate.finish, reads, results, candidate.overlap, candidate.chained)
        steps = (*before, first, last)
    return Plan(
        "triton", steps, output_buffers(problem, epilogue), workspaces, candidate.guarantee, candidate.strategy,
        candidate.reason,
    )  # fmt: skip


def _packed(
    candidate: Candidate, problem: Contraction
) -> tuple[tuple[str, ...], tuple[Step, ...], tuple[Buffer, ...]]:
    """What the product reads where operands are packed, the launch that packs them, and where."""
    which = [number for number, is_packed in enumerate(candidate.packed) if is_packed]
    made = tuple(Buffer(PACKED[n], packed_shape(problem, n), problem.dtypes[n]) for n in which)
    operands = tuple(PACKED[n] if n in which else OPERANDS[n] for n in (0, 1))
    reads, writes = tuple(OPERANDS[n] for n in which), tuple(buffer.name for buffer in made)
    step = Launch(
        "pack_operands", packing_of(problem, candidate.packed), reads, writes, False, candidate.overlap
    )
    return operands, (step,), made


def nothing(epilogue: Epilogue, guarantee: str) -> Plan:
    """The plan of a product without results: rows of no columns fold to the identity."""
    steps = (Fill(output_names(epilogue)[1:]),) if epilogue.row is not None else ()
    return Plan("triton", steps, guarantee=guarantee, strategy="nothing", reason="no results")


def output_names(epilogue: Epilogue) -> tuple[str, ...]:
    """The result, and what rows fold to."""
    return names("output", 1 if epilogue.row is None else 1 + len(epilogue.row.program.outputs))


def output_buffers(problem: Contraction, epilogue: Epilogue) -> tuple[Buffer, ...]:
    """The result, and what rows fold to, as buffers."""
    folded = () if epilogue.row is None else epilogue.row.program.outputs
    rows = problem.batches * problem.rows.size
    sizes = [(problem.outputs, epilogue.result), *((rows, dtype) for dtype in folded)]
    named = zip(output_names(epilogue), sizes, strict=True)
    return tuple(Buffer(name, (size,), dtype) for name, (size, dtype) in named)


def _tiling(candidate: Candidate) -> Tiling:
    assert candidate.tile is not None
    return Tiling(
        candidate.tile, candidate.splits, candidate.reserved_bytes, candidate.precision, candidate.packed
    )


def pitch_of(problem: Contraction) -> int:
    """Elements from one split's partial products to the next's: few numbers for many shapes, less than twice the results."""
    outputs = max(1, problem.outputs)
    step = power_above(outputs) if outputs <= LARGE_PITCH else power_above(outputs) // 16
    return math.ceil(outputs / step) * step
