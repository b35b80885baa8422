"""The report: frozen values that every renderer, check and comparison reads, and nothing else. Its JSON is versioned.

Executed numbers are sums over `Report.programs`, the programs that were executed; None where nothing was.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tilefold.errors import ArgumentError
from tilefold.runtime.notebooks import table
from tilefold.xray.compile.job import Resources
from tilefold.xray.ir.types import element_bytes

SCHEMA = 2


@dataclass(frozen=True)
class Layout:
    """How one tensor of a line is held. Along each dim: elements a thread, lanes, warps; None where the rule is unknown.

    `copies` is the redundancy factor: threads that hold the same element.
    """

    operation: str
    shape: tuple[int, ...]
    element: str
    kind: str
    elements: tuple[int, ...] | None
    lanes: tuple[int, ...] | None
    warps: tuple[int, ...] | None
    copies: int | None

    @property
    def bytes_a_thread(self) -> int:
        """Bytes that a thread holds; 0 where the layout's rule is unknown."""
        return 0 if self.elements is None else math.prod(self.elements) * element_bytes(self.element)


@dataclass(frozen=True)
class Access:
    """Instructions of one line that access one space alike; `bytes` is what a thread asks for at once.

    `instructions` counts the PTX's. Executed: `requests` are warps that issued one with an active lane. In global memory
    `sectors` of 32 bytes were touched where `ideal` would hold the bytes needed (`again` of them more than once by one
    request, of atomics whose lanes meet), lanes `asked` for so many bytes, and neighbouring lanes are usually `stride`
    bytes apart. In shared memory `passes` through the banks were made where
    `ideal` would do.
    """

    kind: str
    space: str
    bytes: int
    instructions: int
    requests: int | None = None
    sectors: int | None = None
    passes: int | None = None
    ideal: int | None = None
    asked: int | None = None
    stride: int | None = None
    again: int | None = None

    def told(self, programs: int) -> str:
        """The access in a few words, with a program's numbers."""
        served = self.passes if self.sectors is None else self.sectors
        unit = "passes" if self.sectors is None else "sectors"
        cost = "" if served is None else f": {served // programs} {unit}"
        return f"{self.space} {self.kind} of {self.bytes} bytes{cost}"


@dataclass(frozen=True)
class Work:
    """Instructions issued by warps, and the kinds among them. `lanes_off` were not active in them.

    `atomics` counts lanes, each of which is an operation of its own; `flops` are floating-point operations.
    """

    issued: int = 0
    lanes_off: int = 0
    shuffles: int = 0
    barriers: int = 0
    tensor: int = 0
    atomics: int = 0
    flops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Line:
    """A line of source and what became of it. `ptx` and `sass` count instructions, `opcodes` the PTX's by kind."""

    file: str
    line: int
    text: str
    layouts: tuple[Layout, ...]
    ptx: int
    sass: int
    opcodes: tuple[tuple[str, int], ...]
    accesses: tuple[Access, ...]
    atomics: tuple[str, ...]
    work: Work | None


@dataclass(frozen=True)
class Totals:
    """The whole kernel: static counts, then executed ones (None without an execution). Bytes are of global memory.

    `machine` counts the machine's instructions that warps issued, by opcode; None where the execution of PTX leaves open
    which way they took through the machine's code.
    """

    ptx: int
    sass: int
    work: Work | None = None
    requests: int | None = None
    sectors: int | None = None
    ideal_sectors: int | None = None
    bytes_asked: int | None = None
    bytes_moved: int | None = None
    shared_passes: int | None = None
    shared_ideal: int | None = None
    machine: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True)
class Occupancy:
    """How many programs an SM holds at once, and what would not let it hold one more."""

    blocks: int
    warps: int
    warps_at_most: int
    limits: tuple[tuple[str, int], ...]
    limiter: str

    @property
    def share(self) -> float:
        """Warps held, of those an SM can hold."""
        return self.warps / self.warps_at_most


@dataclass(frozen=True)
class Roofline:
    """The whole grid, scaled up from the executed programs, against the chip.

    `bytes_moved` are asked of L2 if no L1 keeps any, of which memory has to deliver `bytes_once`: each byte once. The grid
    keeps `sms` of the chip's busy, in `waves` of programs at a time. `memory_us` would be needed for each byte once,
    `l2_us` for all that is asked of L2, through the ports of these SMs, `compute_us` by the SM that has most programs,
    if the units that the kernel uses were always busy; none is a forecast.
    """

    programs: int
    bytes_moved: int
    bytes_once: int
    flops: int
    sms: int
    waves: float
    memory_us: float
    l2_us: float
    compute_us: float
    units: str

    @property
    def bound(self) -> str:
        """Which of them is the longest."""
        times = {"memory": self.memory_us, "L2": self.l2_us, "compute": self.compute_us}
        return max(times, key=lambda name: times[name])


@dataclass(frozen=True)
class Observation:
    """Something worth knowing. `code` is one of docs/xray.md's closed list; severity is error, warning or note.

    `evidence` states numbers, `numbers` holds them; `reason` says why, `change` what to do. `bytes_at_stake` (moved
    needlessly) and `cycles_at_stake` (of a warp's issue slots) are estimates for the whole grid, scaled up from the executed
    programs; `us_at_stake` is the time of both on the SMs that the grid fills. Observations come in its order, errors first.
    `estimated_from`: of how many programs, where not all kinds of programs were executed; 0 where the stake is that of all.
    `also` are further places (file, line) with the same cause.
    """

    code: str
    severity: str
    file: str
    line: int
    evidence: str
    reason: str
    change: str
    bytes_at_stake: int = 0
    cycles_at_stake: int = 0
    numbers: tuple[tuple[str, int | float | str], ...] = ()
    also: tuple[tuple[str, int], ...] = ()
    us_at_stake: float = 0.0
    estimated_from: int = 0

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Its place, and its others."""
        return ((self.file, self.line), *self.also)

    @property
    def lines(self) -> tuple[int, ...]:
        """Its line, and those of its other places."""
        return tuple(line for _, line in self.places)

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to do about it: shown only where everything is asked for."""
        return self.severity == "note" and self.change.startswith("nothing to do")


@dataclass(frozen=True)
class Report:
    """The report of one kernel for one chip: its compiled texts, and the results of executing some programs.

    `notes` say what the report could not do and why; `cluster` neighbours of the grid's programs start together.
    """

    schema: int
    kernel: str
    target: str
    chip: str
    triton: str
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    programs: tuple[tuple[int, int, int], ...]
    lines: tuple[Line, ...]
    totals: Totals
    resources: Resources
    occupancy: Occupancy
    roofline: Roofline | None
    observations: tuple[Observation, ...]
    notes: tuple[str, ...]
    cluster: int = 1

    @property
    def executed(self) -> bool:
        """Whether programs were executed, so that numbers of their work are there."""
        return bool(self.programs)

    def codes(self) -> tuple[str, ...]:
        """The codes of the observations, in their order."""
        return tuple(o.code for o in self.observations)

    def _repr_html_(self) -> str:
        """What notebooks show: the launch, lines (numbers are a program's), observations; `--html` writes a whole page."""
        grid = "x".join(map(str, self.grid))
        warps = f"{self.num_warps} warp{'s' * (self.num_warps > 1)}"
        launch = f"{self.kernel}: {self.target} ({self.chip}), {warps}, grid {grid}, Triton {self.triton}"
        n = max(len(self.programs), 1)
        lines = [
            (x.line, x.text, x.sass, "" if x.work is None else x.work.issued // n, "\n".join(a.told(n) for a in x.accesses))
            for x in self.lines if x.line
        ]  # fmt: skip
        found = [
            (o.code, o.severity, ", ".join(map(str, o.lines)), f"{o.us_at_stake:.3g}",
             "\n".join((o.evidence, o.reason, o.change)))
            for o in self.observations if not o.quiet
        ]  # fmt: skip
        parts = [table(launch, lines, ("line", "source", "code", "issued", "memory"))]
        parts += [table("Observations", found, ("code", "", "lines", "us at stake", ""))] if found else []
        return "".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; keys are the fields' names, `schema` counts their versions."""
        return asdict(self)


def from_json(document: dict[str, Any]) -> Report:
    """A report as `as_json` wrote it.

    Raises:
        ArgumentError: the document is of another schema, or no report.
    """
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        raise ArgumentError(f"xray: a report's schema must be {SCHEMA}, got {found!r}; make the report again")
    try:
        report: Report = _revive(Report, document)
    except (KeyError, TypeError) as error:
        raise ArgumentError(
            f"xray: a report must have all fields of schema {SCHEMA}, got {error!r}"
        ) from None
    return report


def _revive(kind: Any, value: Any) -> Any:
    """A value of JSON as the annotated type: dataclasses and tuples again."""
    if get_origin(kind) in (Union, UnionType):
        if value is None:
            return None
        kind = next((k for k in get_args(kind) if is_dataclass(k) or get_origin(k) is tuple), None)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        # What later reports of the same schema have more is optional.
        given = [f for f in fields(kind) if f.name in value or f.default is MISSING]
        return kind(**{f.name: _revive(hints[f.name], value[f.name]) for f in given})
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            return tuple(_revive(inner[0], v) for v in value)
        return tuple(_revive(k, v) for k, v in zip(inner, value, strict=True))
    return value
