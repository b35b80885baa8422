"""Which steps a product's plan has: a launch of tiles, cuBLAS, or partial products and a launch that adds them."""

from __future__ import annotations

import math

from tilefold.planner.plan import Buffer, Fill, Launch, LibraryCall, Plan, Step, names
from tilefold.planner.products.epilogue import Epilogue, sums_dtype
from tilefold.planner.products.operands import Contraction
from tilefold.planner.products.packing import PACKED, packed_shape, packing_of
from tilefold.planner.products.plan import Candidate, Tiling
from tilefold.planner.sizes import power_above

# Results (1 MB of float32 a split) from which the distance between splits is no power of two. No record.
LARGE_PITCH = 1 << 18
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
        # max(0, x) may be taken of the rounded sum: it has half the bytes of a float32 sum
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
    """The names that the product reads, the launch that packs operands, and the buffers of packed operands."""
    which = [number for number, is_packed in enumerate(candidate.packed) if is_packed]
    made = tuple(Buffer(PACKED[n], packed_shape(problem, n), problem.dtypes[n]) for n in which)
    operands = tuple(PACKED[n] if n in which else OPERANDS[n] for n in (0, 1))
    reads, writes = tuple(OPERANDS[n] for n in which), tuple(buffer.name for buffer in made)
    step = Launch(
        "pack_operands", packing_of(problem, candidate.packed), reads, writes, False, candidate.overlap
    )
    return operands, (step,), made


def nothing(epilogue: Epilogue, guarantee: str) -> Plan:
    """The plan of a product without results. A row without columns folds to the identity."""
    steps = (Fill(output_names(epilogue)[1:]),) if epilogue.row is not None else ()
    return Plan("triton", steps, guarantee=guarantee, strategy="nothing", reason="no results")


def output_names(epilogue: Epilogue) -> tuple[str, ...]:
    """The names of the product's result and of the results of its rows' fold."""
    return names("output", 1 if epilogue.row is None else 1 + len(epilogue.row.program.outputs))


def output_buffers(problem: Contraction, epilogue: Epilogue) -> tuple[Buffer, ...]:
    """The buffers of the product's result and of the results of its rows' fold."""
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
    """The distance in elements between the partial products of two splits: less than twice the results, and one of few
    numbers, so that few kernels are compiled."""
    outputs = max(1, problem.outputs)
    step = power_above(outputs) if outputs <= LARGE_PITCH else power_above(outputs) // 16
    return math.ceil(outputs / step) * step
