"""Dots off the tensor cores, dots of rounded operands, approximations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import tensors
from tilefold.xray.ir.syntax import Operation, Tensor
from tilefold.xray.report.model import Line, Observation, Report
from tilefold.xray.report.static import line_of

_SLOWER = 4  # cycles by which an mma.sync takes longer: it reaches two thirds of the rate, 8 cycles each
_FASTER = {90: "wgmma", 100: "tcgen05"}
# Operations that move elements, and those that widen them, with the types that 10 bits of mantissa hold.
_MOVING = ("tt.trans", "tt.reshape", "tt.expand_dims", "tt.broadcast", "tt.splat", "ttg.convert_layout")
_WIDENING = {
    "arith.extf": ("bf16", "f16"), "tt.fp_to_fp": ("bf16", "f16"), "arith.sitofp": ("i8", "i1"),
    "arith.uitofp": ("i8", "i1"),
}  # fmt: skip
_EXACT = {
    "div": "nothing to do, unless the last bit matters: tl.div_rn divides with one rounding",
    "sqrt": "nothing to do, unless the last bit matters: tl.sqrt_rn takes the root with one rounding",
    "ex2": "nothing to do: within 2 ulp; a libdevice call costs several times as much",
    "lg2": "nothing to do: within 2 ulp of the fraction; a libdevice call costs several times as much",
}


def _dots(evidence: Evidence) -> Iterator[tuple[Operation, str, int, tuple[Tensor, ...]]]:
    for operation in evidence.ttir.walk():
        place = line_of(operation.place)
        if operation.name == "tt.dot" and place is not None:
            yield operation, *place, tensors(operation.types)


def no_tensor_core(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Dots without a tensor-core instruction, and with an older one than the chip has."""
    lines = {(x.file, x.line): x for x in report.lines}
    for operation, file, line, kinds in _dots(evidence):
        found = lines.get((file, line))
        if found is None or len(kinds) < 2:
            continue
        opcodes = {o.split(".")[0] for o, _ in found.opcodes}
        if not opcodes & {"mma", "wgmma", "tcgen05"}:
            yield _off(operation, found, kinds)
        elif "mma" in opcodes and (better := _possible(report, evidence, kinds)) is not None:
            yield _older(found, kinds, better, report.num_warps)


def _off(operation: Operation, line: Line, kinds: tuple[Tensor, ...]) -> Observation:
    element = kinds[0].element
    precise = element == "f32" and "tf32" not in operation.attributes
    m, k, n = kinds[0].shape[-2], kinds[0].shape[-1], kinds[1].shape[-1]
    return Observation(
        "no-tensor-core",
        "warning",
        line.file,
        line.line,
        f"a dot of {m}x{k} and {k}x{n} {element} has no tensor-core instruction",
        'its operands are float32 and the precision asked for is "ieee"' if precise
        else f"the compiler has no tensor-core form for {element} in this shape",
        'say input_precision="tf32" (10 bits of mantissa) or "tf32x3" (nearly all), or give 16-bit operands' if precise
        else "give operands of 16 or 8 bits; nothing to do where this type is needed",
        cycles_at_stake=line.work.issued if line.work else 2 * m * n * k // 64,
        numbers=(("m", m), ("n", n), ("k", k)),
    )  # fmt: skip


def _possible(report: Report, evidence: Evidence, kinds: tuple[Tensor, ...]) -> str | None:
    """The faster instruction that this tile could have with another number of warps, if any."""
    faster = _FASTER.get(evidence.compiled.job.chip.architecture)
    m, n = kinds[0].shape[-2], kinds[1].shape[-1]
    if faster is None or kinds[0].element in ("f64", "i8") or m < 64 or n < 8:
        return None
    return faster if report.num_warps % 4 else None


def _older(line: Line, kinds: tuple[Tensor, ...], faster: str, warps: int) -> Observation:
    m, n = kinds[0].shape[-2], kinds[1].shape[-1]
    return Observation(
        "older-tensor-core",
        "warning",
        line.file,
        line.line,
        f"a dot with a result of {m}x{n} takes mma.sync where {faster} would be possible",
        f"{faster} is issued by four warps together, and the program has {warps}",
        "launch with num_warps=4 or 8",
        cycles_at_stake=(line.work.tensor if line.work else 1) * _SLOWER,
        numbers=(("warps", warps),),
    )


def tf32_dot(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Dots of float32 whose operands the tensor core reads with 10 bits of mantissa."""
    for operation, file, line, kinds in _dots(evidence):
        if kinds and kinds[0].element == "f32" and _precision(operation) == "tf32":
            if all(_exact_in_tf32(v, evidence) for v in operation.operands[:2]):
                continue
            yield Observation(
                "tf32-dot",
                "warning",
                file,
                line,
                f"a dot of float32 {'x'.join(map(str, kinds[0].shape))} is computed in tf32",
                "tf32 keeps 10 of 23 bits of the operands' mantissas; it is Triton's default for float32",
                'say input_precision="ieee" (exact, slow) or "tf32x3" (three products); nothing to do where it is meant',
                numbers=(("mantissa_bits", 10),),
            )


def _exact_in_tf32(name: str, evidence: Evidence) -> bool:
    """Whether an operand was widened from a type whose mantissa tf32 holds whole, and only moved since."""
    made = evidence.ttir.made_by()
    while (operation := made.get(name)) is not None and operation.name in _MOVING:
        name = operation.operands[0]
    if operation is None or operation.name not in _WIDENING:
        return False
    narrow = tensors(operation.types)[0].element
    return narrow in _WIDENING[operation.name] or (
        operation.name in ("arith.extf", "tt.fp_to_fp") and narrow.startswith("f8")
    )


def _precision(operation: Operation) -> str:
    _, _, behind = operation.attributes.partition("inputPrecision = ")
    return behind.split(",")[0].split("}")[0].strip()


def approximate_math(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Instructions whose result is not the rounded one; one observation an opcode, at its most used line."""
    where: dict[str, dict[tuple[str, int], int]] = defaultdict(lambda: defaultdict(int))
    for instruction in evidence.entry.instructions:
        if instruction.has("approx") or instruction.has("full"):
            place = evidence.places.line(instruction) or ("", 0)
            where[instruction.name][place] += 1
    for name, places in where.items():
        file, line = max(places, key=lambda p: places[p])
        more = f" and {len(places) - 1} more lines" if len(places) > 1 else ""
        opcode = name.split(".")[0]
        yield Observation(
            "approximate-math",
            "note",
            file,
            line,
            f"{sum(places.values())} x {name}, here{more}",
            "the chip's approximation: a few last bits may differ from the correctly rounded result",
            _EXACT.get(opcode, "nothing to do, unless bits must equal another machine's"),
            numbers=(("instructions", sum(places.values())),),
        )
