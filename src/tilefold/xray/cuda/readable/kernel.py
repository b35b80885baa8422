"""A kernel's readable file: what it includes, the functions it uses, its signature and its body."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilefold.xray.compile.job import Compiled
from tilefold.xray.cuda.readable import source_names
from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.expressions import Expressions
from tilefold.xray.cuda.readable.folds import Folds
from tilefold.xray.cuda.readable.formulas import NoFormulaError
from tilefold.xray.cuda.readable.heading import heading
from tilefold.xray.cuda.readable.kinds import SIZES, TABLES, Kinds, table_name
from tilefold.xray.cuda.readable.lift import Lifted, lift
from tilefold.xray.cuda.readable.linear import Sums
from tilefold.xray.cuda.readable.memory import Memory
from tilefold.xray.cuda.readable.packs import found_packs
from tilefold.xray.cuda.readable.scopes import Scopes
from tilefold.xray.cuda.readable.sheet import Sheet
from tilefold.xray.cuda.readable.statements import Statements
from tilefold.xray.cuda.readable.tree import (
    Assembly,
    Atomic,
    If,
    Load,
    Loop,
    Region,
    Shuffle,
    Store,
    operands,
    regions,
    walk,
)
from tilefold.xray.cuda.readable.values import Place, Value, leaves
from tilefold.xray.ptx import Module, Variable, parse

Lines = Callable[[str, int], str]
_RESERVED = {
    "smem", "local", "lane", "warp", "tid", "vector_copy", "Vector", "min", "max", "auto", "float", "double", "int",
    "char", "short", "long", "for", "if", "else", "do", "while", "return", "new", "delete", "this", "class", "union",
    "struct", "template", "default", "case", "switch", "register", "signed", "unsigned", "void", "const", "bool", "true",
    "false", "INFINITY", "and", "or", "not", "xor", "try", "catch", "throw", "using", "namespace", "typename", "typedef",
    "static", "extern", "inline", "operator", "private", "public", "protected", "friend", "enum", "goto", "sizeof",
    "volatile", "virtual", "fmaxf", "fminf", "fmaf", "fabsf", "sqrtf", "fmax", "fmin", "fma", "fabs", "sqrt", "threadIdx",
    "blockIdx", "cvt",
}  # fmt: skip


@dataclass(frozen=True)
class Readable:
    """A file; the regions of the tree that were said one value after another, by their numbers, and how many there are."""

    text: str
    careful: tuple[int, ...]
    regions: int
    places: tuple[int, ...]  # the first line of the source in each region

    @property
    def note(self) -> str:
        """Which parts of the kernel are said one value after another; nothing where none is."""
        lines = ", ".join(f"line {self.places[k]}" for k in self.careful)
        return f"one value after another from {lines} on" if lines else ""


def readable(compiled: Compiled, lines: Lines, careful: Iterable[int] = ()) -> str:
    """The CUDA C++ that a person would have written for a kernel's PTX. `lines` gives the text of a line of a source file.

    The kernel keeps its name, the order of its parameters and its dynamic shared memory; the names are the source's.

    Raises:
        UnreadableError: something of the kernel has no readable form.
    """
    return by_regions(compiled, lines, careful).text


def by_regions(compiled: Compiled, lines: Lines, careful: Iterable[int] = ()) -> Readable:
    """The same with what is known of it. A region that loops over values cannot say is said one value after another.

    `careful` numbers regions of the tree that are to be said so from the beginning: 0 the body, then loops and arms.

    Raises:
        UnreadableError: see `readable`.
    """
    module = parse(compiled.ptx)
    found = source_names.places(compiled.ptx)
    elements = {
        k: bits for k, a in enumerate(compiled.parameters) if a.pointer and (bits := 8 * a.itemsize) == 16
    }
    lifted = lift(module, found.get, elements, source_names.waits(compiled.ptx))
    held = list(regions(lifted.body))
    alone = set(careful)
    while True:
        failing: list[Region] = []
        try:
            text = _written(compiled, module, lifted, lines, frozenset(held[k] for k in alone), failing)
        except (NoFormulaError, UnreadableError) as error:
            number = held.index(failing[0]) if failing else None
            if number is None or number in alone:
                raise _refused(error) from None
            alone.add(number)
            continue
        places = tuple(next((e.place[1] for e in walk(r) if e.place), 0) for r in held)
        return Readable(text, tuple(sorted(alone)), len(held), places)


def _refused(error: Exception) -> UnreadableError:
    if isinstance(error, UnreadableError):
        return error
    return UnreadableError(
        "cuda: neighbours must be said by a loop or alone, got others; take the plain form"
    )


def _written(
    compiled: Compiled,
    module: Module,
    lifted: Lifted,
    lines: Lines,
    careful: frozenset[Region],
    failing: list[Region],
    avoided: frozenset[str] = frozenset(),
) -> str:
    """The text. A region in which something cannot be said is added to `failing`; no variable has an avoided name."""
    sums = Sums(lifted.graph)
    scopes = Scopes(lifted.body)
    tables = [v for v in module.variables if v.space in (".global", ".const")]
    kinds = Kinds(lifted.body, compiled.parameters, sums, tables)
    signature = [kinds.parameter(k) for k in range(len(lifted.entry.parameters))]
    parameters = [name for name, _ in signature]
    taken = {*parameters, *(_RESERVED - {"lane", "warp", "tid"}), *(v.name for v in lifted.fixed), *avoided}

    def line_of(place: Place) -> str:
        return lines(module.file(place[0]), place[1])

    named = source_names.Names(compiled.ttgir)
    sheet = Sheet(lifted.body, taken, named, line_of, careful)
    sheet.steps |= set(_steps(lifted.body, scopes))
    write = Expressions(lifted.graph, sheet, kinds, sums, scopes)
    folds = Folds(write)
    memory = Memory(write, lifted.body)
    memory.constant = {*range(len(parameters))} - _stored(lifted)
    groups = (g for r in regions(lifted.body) for g in memory.grouped(r.effects, r in careful))
    loaded = [tuple(p for e in g if isinstance(e, Load) for p in e.results) for g in groups]
    write.packs |= found_packs([p for p in loaded if len(p) > 1], scopes.homes, sums)
    statements = Statements(write, folds, memory)
    try:
        statements.region(lifted.body)
    except (NoFormulaError, UnreadableError):
        failing += [] if statements.failed is None else [statements.failed]
        raise
    if shadowed := {*sheet.helpers} & (sheet.taken - _RESERVED - {*parameters} - avoided):
        return _written(compiled, module, lifted, lines, careful, failing, avoided | shadowed)
    if shadowed := {*sheet.helpers} & {lifted.entry.name, *parameters}:
        raise UnreadableError(
            f"cuda: functions and variables must have different names, got {min(shadowed)}; take the plain form"
        )
    body = [f"  {_aligned(line, memory.aligned)}" for line in _tidy(sheet.lines[lifted.body])]
    used = {leaf for v in scopes.homes for leaf in leaves(v) if leaf.op in ("shared", "local", "table")}
    for variable in tables:
        if any(leaf.data == (variable.name,) for leaf in used):
            sheet.helpers[variable.name] = _table(variable)
    texts = (*body, *sheet.helpers.values(), *(kind for _, kind in signature))
    halves = any("half" in text or "bfloat16" in text for text in texts)
    above = heading(compiled, named.tiles)
    head = _around(lifted, signature, memory, sheet, {str(leaf.data[0]) for leaf in used}, above)
    return "\n".join([*_includes(lifted, halves), *head, *body, "}"]) + "\n"


def _steps(body: Region, scopes: Scopes) -> Iterator[Value]:
    """Values that others at their own place are made of, or effects that give such."""
    yield from (a for v in scopes.homes for a in v.args if a.place == v.place)
    for effect in walk(body):
        inside = isinstance(effect, Shuffle) or (isinstance(effect, Store) and effect.space == "shared")
        yield from (v for v in operands(effect) if inside and v.place == effect.place)


def _includes(lifted: Lifted, halves: bool) -> Iterator[str]:
    """What is left out, and headers."""
    for hint in lifted.dropped:
        yield f"// A hint to caches is left out: {hint}."
    yield "#include <cmath>"
    if halves:
        yield "#include <cuda_fp16.h>\n#include <cuda_bf16.h>"
    yield ""


def _around(
    lifted: Lifted,
    signature: Sequence[tuple[str, str]],
    memory: Memory,
    sheet: Sheet,
    used: set[str],
    above: Iterator[str],
) -> Iterator[str]:
    """Everything before the kernel's statements; `above` stands between its functions and itself."""
    entry = lifted.entry
    yield from sheet.helpers.values()
    if sheet.helpers:
        yield ""
    yield from above
    parameters = [
        f"{'const ' if kind.endswith('*') and k in memory.constant else ''}{kind} {name}"
        for k, (name, kind) in enumerate(signature)
    ]
    yield f'extern "C" __global__ void __launch_bounds__({entry.threads}) {entry.name}('
    yield f"    {', '.join(parameters)}) {{"
    if "smem" in used:
        yield f"  extern __shared__ __align__(16) {memory.types['shared']} smem[];"
    for variable in lifted.fixed:
        if (name := variable.name.replace("$", "_")) in used:
            size = int(variable.type[2:]) // 8 * (variable.count or 1)
            yield f"  __shared__ __align__({variable.align}) char {name}[{size}];"
    if "local" in used:
        kind, size = memory.types["local"], lifted.local
        yield f"  alignas(16) {kind} local[{-(-size // SIZES[kind])}];"
    if sheet.tops:
        yield f"  const unsigned {', '.join(sheet.tops)};"


def _table(variable: Variable) -> str:
    """Numbers that the module brings."""
    numbers = ", ".join(f"{n}u" if n >> 31 else str(n) for n in variable.initial)
    kind, count = TABLES[variable.type], variable.count or len(variable.initial)
    return f"static __device__ __align__({variable.align}) {kind} {table_name(variable.name)}[{count}] = {{{numbers}}};"


def _stored(lifted: Lifted) -> set[int]:
    """The parameters that something may be stored through."""
    found = set()
    for effect in walk(lifted.body):
        values = []
        if isinstance(effect, Store | Atomic):
            values = [effect.address]
        elif isinstance(effect, Assembly):
            values = list(effect.inputs)
        elif isinstance(effect, Loop):
            values = [c.first for c in effect.carried if c.first.bits == 64]
        elif isinstance(effect, If):
            values = [x for _, a, b in effect.merged for x in (a, b) if x.bits == 64]
        found |= {leaf.data[0] for v in values for leaf in leaves(v) if leaf.op == "parameter"}
    return found


_ARRAY = re.compile(
    r"(\s*)((?:float|double|int|unsigned|__half|__nv_bfloat16|long long|unsigned short) (\w+)\[\d+\].*)"
)


def _aligned(line: str, bytes_of: dict[str, int]) -> str:
    """The declaration of an array that vectors are copied from says where it may begin."""
    found = _ARRAY.fullmatch(line)
    return (
        line
        if found is None or found[3] not in bytes_of
        else f"{found[1]}alignas({bytes_of[found[3]]}) {found[2]}"
    )


_HEADING = re.compile(r"\s*// \d+:")


def _tidy(lines: list[str]) -> list[str]:
    """Headings that head nothing go."""
    kept = []
    for k, line in enumerate(lines):
        following = lines[k + 1].strip() if k + 1 < len(lines) else "}"
        if _HEADING.match(line) and (_HEADING.match(following) or following.startswith("}")):
            continue
        if line.strip():
            kept.append(line)
    return kept
