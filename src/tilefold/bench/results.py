"""What a run leaves: frozen values, one JSON (versioned) and one CSV a suite, and their merging.

A file may hold several runs of one suite (its parts); each case says which run it is from, since limits belong to a run.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import types
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilefold.bench.statistics import Quartiles
from tilefold.errors import ArgumentError, FileError

SCHEMA = 3

OK, WRONG, ERROR, MISSING, NEEDS_GPU, NOT_RUN, NO_SUCH = (
    "ok", "wrong", "error", "missing", "needs a GPU", "not run", "no such fold",
)  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """One variant of one case. Without status "ok" there are no times.

    Times are in microseconds: `time_us` on the device with a cold L2 (on a CPU: by its clock), `graph_us` in a CUDA
    graph, `host_us` until the call returns. `limit_us` is the least that a call of `launches` launches could take, and
    `fraction` is limit over time. `plan` is the chosen plan or configuration.
    """

    variant: str
    status: str = NOT_RUN
    note: str | None = None
    time_us: Quartiles | None = None
    graph_us: float | None = None
    host_us: float | None = None
    launches: int | None = None
    limit_us: float | None = None
    fraction: float | None = None
    plan: str | None = None


@dataclass(frozen=True)
class CaseResult:
    """One case, what it costs at least, and its variants, ours first. `run` is the run's place in the file.

    `empty_us` are empty launches by kind, measured in turns with the variants; none where bytes alone take long.
    """

    name: str
    operation: str
    dim: int | None
    shape: tuple[int, ...]
    dtype: str
    group: str
    headline: bool
    compulsory_bytes: int
    operations: int
    floor_us: float
    tolerance: str
    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    empty_us: dict[str, float] = field(default_factory=dict, hash=False)
    run: int = 0

    def of(self, variant: str) -> Measurement | None:
        """The measurement of a variant."""
        return next((m for m in self.measurements if m.variant == variant), None)


@dataclass(frozen=True)
class Run:
    """Where, when and how figures were made, and the limits of that run. None: not recorded, or there is none.

    `peers` maps each peer asked for to its version, None where it is missing. `copy_again_gb_per_s` is the copy once
    more at the end; `empty_us` the empty launches by kind. `clocks_mhz` are the lowest and the highest SM clock seen.
    """

    chip: str
    driver: str | None
    torch: str | None
    triton: str | None
    python: str | None
    tilefold: str | None
    commit: str | None
    date: str | None
    command: str | None
    copy_gb_per_s: float | None
    copy_again_gb_per_s: float | None
    empty_us: dict[str, float]
    peers: dict[str, str | None]
    settings: dict[str, Any]
    clocks_mhz: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteResult:
    """All of one suite's results."""

    schema: int
    suite: str
    runs: tuple[Run, ...]
    cases: tuple[CaseResult, ...]

    @property
    def variants(self) -> list[str]:
        """Every variant that any case has, in order of appearance."""
        return list(dict.fromkeys(m.variant for case in self.cases for m in case.measurements))


# ------------------------------------------------------------------------------------------------------ files


def write_results(result: SuiteResult, folder: Path) -> tuple[Path, Path]:
    """SUITE.json and SUITE.csv in `folder`, which is made; a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_csv = folder / f"{result.suite}.json", folder / f"{result.suite}.csv"
    text = json.dumps(asdict(result), indent=1, allow_nan=False) + "\n"
    for path, write in (
        (as_json, lambda p: p.write_text(text, encoding="utf-8")),
        (as_csv, _csv_writer(result)),
    ):
        half = path.with_suffix(path.suffix + ".part")
        write(half)
        half.replace(path)
    return as_json, as_csv


CSV_COLUMNS = (
    "suite", "case", "operation", "dim", "shape", "dtype", "group", "headline", "compulsory_bytes", "operations",
    "floor_us", "variant", "status", "median_us", "q1_us", "q3_us", "samples", "graph_us", "host_us", "launches",
    "limit_us", "fraction", "plan", "note", "case_notes", "run", "chip", "driver", "torch", "triton", "commit", "date",
)  # fmt: skip


def csv_rows(result: SuiteResult) -> list[dict[str, Any]]:
    """One row a variant of a case, with the columns of `CSV_COLUMNS`; None where there is nothing."""
    return [
        {
            **{key: getattr(case, key) for key in ("operation", "dim", "dtype", "group", "headline")},
            **{key: getattr(case, key) for key in ("compulsory_bytes", "operations", "floor_us", "run")},
            **{key: getattr(m, key) for key in ("variant", "status", "graph_us", "host_us", "launches")},
            **{key: getattr(m, key) for key in ("limit_us", "fraction", "plan", "note")},
            **{key: getattr(m.time_us, key, None) for key in ("median_us", "q1_us", "q3_us", "samples")},
            **{key: getattr(result.runs[case.run], key) for key in ("chip", "driver", "torch", "triton")},
            **{key: getattr(result.runs[case.run], key) for key in ("commit", "date")},
            "suite": result.suite,
            "case": case.name,
            "shape": "x".join(map(str, case.shape)),
            "case_notes": "; ".join(case.notes),
        }
        for case in result.cases
        for m in case.measurements
    ]


def _csv_writer(result: SuiteResult) -> Any:
    def write(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, CSV_COLUMNS)
            writer.writeheader()
            writer.writerows(csv_rows(result))

    return write


def read_results(path: Path) -> SuiteResult:
    """Results from a JSON file.

    Raises:
        FileError: the file is missing, is no JSON, or has another schema.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"bench: {path}: results must be a readable JSON file, got {error}; name one"
        ) from None
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        raise FileError(f"bench: {path}: `schema` must be {SCHEMA}, got {found!r}; measure again")
    try:
        result: SuiteResult = _built(SuiteResult, document)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"bench: {path}: results must have the fields of schema {SCHEMA}, got {error!r}; measure again"
        ) from None
    return result


def _built(kind: Any, value: Any) -> Any:
    """A value of an annotated type from plain data: dataclasses, tuples of one kind, optional ones, and scalars."""
    if dataclasses.is_dataclass(kind):
        types_of = typing.get_type_hints(kind)
        unknown = sorted(set(value) - set(types_of))
        if unknown:
            raise ValueError(f"unknown fields {unknown}")
        return kind(**{name: _built(types_of[name], item) for name, item in value.items()})  # type: ignore[operator]  # a dataclass
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _built(next(k for k in inner if k is not types.NoneType), value)
    if origin is tuple:
        return tuple(_built(inner[0], item) for item in value)
    if origin is dict:
        return {key: _built(inner[1], item) for key, item in value.items()}
    if kind is Any or isinstance(value, kind) or (kind is float and isinstance(value, int)):
        return value
    raise TypeError(f"{value!r} is no {kind.__name__}")


def merge_results(results: Sequence[SuiteResult]) -> SuiteResult:
    """Several files of one suite as one: a later file's case replaces an earlier one's if it was run; all runs are kept.

    Raises:
        ArgumentError: there are none, or they are of different suites.
    """
    suites = sorted({result.suite for result in results})
    if len(suites) != 1:
        raise ArgumentError(
            f"bench: files to merge must be of one suite, got {', '.join(suites) or 'none'}; name some"
        )
    merged: dict[str, CaseResult] = {}
    runs: list[Run] = []
    for result in results:
        for case in result.cases:
            if case.name not in merged or any(m.status != NOT_RUN for m in case.measurements):
                merged[case.name] = dataclasses.replace(case, run=case.run + len(runs))
        runs += result.runs
    return SuiteResult(SCHEMA, suites[0], tuple(runs), tuple(merged.values()))
