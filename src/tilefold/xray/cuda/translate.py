"""A PTX module as CUDA C++: one statement an instruction, the kernel's source lines between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from tilefold.errors import XrayError
from tilefold.xray.cuda import carry, floats, flow, integers, memory
from tilefold.xray.cuda.assembly import assembly
from tilefold.xray.cuda.names import UNSIGNED, Names
from tilefold.xray.ptx.syntax import (
    Entry,
    Instruction,
    Label,
    Location,
    Module,
    Parameter,
    Register,
    Variable,
    registers_of,
)

Lines = Callable[[str, int], str]

_PRELUDE = """\
#include <cstdint>

// Registers hold bits, as PTX's do. What memory holds may be seen as any type.
#define MAY_ALIAS __attribute__((may_alias))
typedef uint8_t MAY_ALIAS Held8;
typedef uint16_t MAY_ALIAS Held16;
typedef uint32_t MAY_ALIAS Held32;
typedef uint64_t MAY_ALIAS Held64;
"""
_FUNCTIONS = """\
[[maybe_unused]] static __device__ __forceinline__ float as_f32(uint32_t x) { return __uint_as_float(x); }
[[maybe_unused]] static __device__ __forceinline__ double as_f64(uint64_t x) { return __longlong_as_double((long long)x); }
[[maybe_unused]] static __device__ __forceinline__ uint32_t bits(float x) { return __float_as_uint(x); }
[[maybe_unused]] static __device__ __forceinline__ uint64_t bits(double x) { return (uint64_t)__double_as_longlong(x); }
"""
_ARRAY = "struct __align__(64) Bytes { uint8_t held[128]; };"
_ASSERTION = (
    'extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);\n'
)


def translate(module: Module, *, lines: Lines | None = None) -> str:
    """The CUDA C++ that a module of one kernel amounts to; nvcc accepts it for the module's target.

    One statement stands for each instruction; comments before it say from which source line it comes. Registers are
    integers of their width. Where C++ has no word, inline PTX stands. The kernel keeps its name, the order of its parameters
    and its dynamic shared memory. `lines` gives the text of a line of a source file; by default the file is read where it
    still exists.

    Compiled with `nvcc -fmad=false`, it gives the same bits.

    Raises:
        XrayError: the module has not one kernel.
    """
    if len(module.entries) != 1:
        raise XrayError(f"cuda: a module must have one kernel, got {len(module.entries)}")
    (entry,) = module.entries
    names = Names(module, entry)
    body = [
        _signature(names, entry),
        "{",
        *_declarations(names, module, entry),
        "",
        *_body(names, module, entry, lines or read_line),
        "}",
    ]
    return "\n".join([*_prelude(names, module, entry), *body]) + "\n"


def _prelude(names: Names, module: Module, entry: Entry) -> Iterator[str]:
    """The text before the kernel: types, functions, the module's variables."""
    yield f"// {entry.name} for {module.target[0]}, {entry.threads} threads a block: what its PTX says, in CUDA C++."
    yield _PRELUDE + "\n".join(_vectors())
    yield _FUNCTIONS
    if any("__assertfail" in d for d in module.declarations):
        yield _ASSERTION
    if any(p.count for p in entry.parameters):
        yield _ARRAY
    for variable in module.variables:
        if variable.space in (".global", ".const"):
            yield _global(names, variable)


def read_line(path: str, line: int) -> str:
    """A line of a file, stripped; empty where there is none."""
    held = _held_lines(path)
    return held[line - 1].strip() if 0 < line <= len(held) else ""


@functools.lru_cache(maxsize=32)
def _held_lines(path: str) -> tuple[str, ...]:
    try:
        return tuple(Path(path).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return ()


def _vectors() -> Iterator[str]:
    """Types of neighbours that move together."""
    for bits in UNSIGNED:
        for count in (2, 4, 8):
            if bits * count <= 256 and count <= 4:
                fields = ", ".join("xyzw"[:count])
                align = bits * count // 8
                yield f"struct MAY_ALIAS __align__({align}) Held{bits}x{count} {{ uint{bits}_t {fields}; }};"


def _global(names: Names, variable: Variable) -> str:
    """A variable of the module."""
    array = f"[{variable.count or len(variable.initial)}]" if variable.count is not None else ""
    numbers = ", ".join(map(str, variable.initial))
    initial = f" = {{{numbers}}}" if variable.initial else ""
    kind = UNSIGNED[int(variable.type[2:])]
    return f"static __device__ __align__({variable.align}) {kind} {names.register(variable.name)}{array}{initial};"


def _signature(names: Names, entry: Entry) -> str:
    parameters = ",\n    ".join(_parameter(names, p) for p in entry.parameters)
    return f'extern "C" __global__ void __launch_bounds__({entry.threads}) {entry.name}(\n    {parameters})'


def _parameter(names: Names, parameter: Parameter) -> str:
    name = names.parameters[parameter.name]
    if parameter.count:
        return f"const __grid_constant__ Bytes {name}"
    return f"{UNSIGNED[int(parameter.type.lstrip('.busf'))]} {name}"


def _declarations(names: Names, module: Module, entry: Entry) -> Iterator[str]:
    """Memory of the block and of the thread, then every register that some instruction names."""
    for variable in (*module.variables, *entry.variables):
        name, kind = names.register(variable.name), UNSIGNED[int(variable.type[2:])]
        count = "" if variable.count == 0 else str(variable.count or 1)
        if variable.space == ".shared":
            linkage = "extern " if ".extern" in variable.linkage else ""
            yield f"    {linkage}__shared__ __align__({variable.align}) {kind} {name}[{count}];"
        elif variable.space == ".local":
            yield f"    __align__({variable.align}) {kind} {name}[{count}];"
    used = dict.fromkeys(r for i in entry.instructions for r in _registers(i) if r in names.widths)
    for width, kind in ((0, "bool"), *UNSIGNED.items()):
        held = [names.register(n) for n in used if names.widths[n] == width]
        for first in range(0, len(held), 12):
            yield f"    {kind} {', '.join(held[first : first + 12])};"
    if any(i.opcode in ("addc", "subc", "madc") or i.has("cc") for i in entry.instructions):
        yield "    uint32_t carry = 0;"


def _registers(instruction: Instruction) -> Iterator[str]:
    """Every register that an instruction names."""
    if instruction.guard is not None:
        yield instruction.guard.register
    for operand in instruction.operands:
        yield from registers_of(operand)


def _body(names: Names, module: Module, entry: Entry, lines: Lines) -> Iterator[str]:
    place: Location | None = None
    text = ""
    for item in entry.body:
        if isinstance(item, Label):
            if item.name in entry.targets:
                yield f"{names.label(item.name)}:;"
            continue
        if item.location is not None and item.location != place:
            place = item.location
            text, before = _place(module, place, lines), text
            if text != before:
                yield f"    // {text}"
        yield f"    {statement(names, item)}"


def _place(module: Module, place: Location, lines: Lines) -> str:
    """`kernels.py:12: x = tl.load(...)`, with the call that inlined it."""
    path = module.file(place.file)
    text = f"{Path(path).name}:{place.line}"
    source = lines(path, place.line).rstrip("\\")  # which would continue a comment
    text += f": {source}" if source else ""
    return text if place.inlined_at is None else f"{text} <- {_place(module, place.inlined_at, lines)}"


def statement(names: Names, instruction: Instruction) -> str:
    """One instruction, under its guard."""
    text = None
    if all(speakable(names, r) for r in _registers(instruction)):
        for group in (flow, carry, memory, integers, floats):
            text = group.statement(names, instruction)
            if text is not None:
                break
    text = assembly(names, instruction) if text is None else text
    if instruction.guard is None:
        return text
    guard = names.value(Register(instruction.guard.register, instruction.guard.negated), "pred")
    return f"if ({guard}) {text}"


def speakable(names: Names, register: str) -> bool:
    """Whether C++ has a name for the register."""
    return register in names.widths or register.rpartition(".")[0] in (
        "%tid",
        "%ntid",
        "%ctaid",
        "%nctaid",
    )
