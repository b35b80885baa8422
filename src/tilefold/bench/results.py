"""The results of a run: frozen values, one JSON (versioned) and one CSV a suite, and their merging.

A file may hold several runs of one suite (its parts); each case says which run it is from, since limits belong to a run.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import tempfile
import types
import typing
import uuid
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

    `dim` is the reduced dim where there is one, `dims` are all of them. `empty_us` are empty launches by kind, measured in
    turns with the variants; none where bytes alone take long.
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
    dims: tuple[int, ...] = ()

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


def writable_folder(folder: Path) -> None:
    """Make a folder for files, before hours go into what they are to hold.

    Raises:
        FileError: it is none, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(
            f"bench: --out must be a folder that can be written, got {folder} ({error.strerror or error}); name another"
        ) from None


def write_results(result: SuiteResult, folder: Path) -> tuple[Path, Path]:
    """SUITE.json and SUITE.csv in `folder`, which is made; a reader never sees half a file, even with another writer.

    Raises:
        FileError: the folder or a file cannot be written.
    """
    writable_folder(folder)
    text = json.dumps(asdict(result), indent=1, allow_nan=False) + "\n"
    as_json, as_csv = folder / f"{result.suite}.json", folder / f"{result.suite}.csv"
    try:
        _write_whole(as_json, text)
        _write_whole(as_csv, _csv_text(result))
    except OSError as error:
        raise FileError(
            f"bench: results must be writable, got {error.strerror or error} in {folder}; make room or name another --out"
        ) from None
    return as_json, as_csv


def _write_whole(path: Path, text: str) -> None:
    """By a file of this writer's own, which takes the place of the old one at once."""
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        # What an error message may hold and UTF-8 has not (half a surrogate pair) is no reason to lose a run.
        half.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


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


def _csv_text(result: SuiteResult) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, CSV_COLUMNS)
    writer.writeheader()
    writer.writerows(csv_rows(result))
    return text.getvalue()


def read_results(path: Path) -> SuiteResult:
    """Results from a JSON file.

    Raises:
        FileError: the file is missing, is no JSON, has another schema, or holds what no run can have left.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(
            f"bench: {path}: results must be a readable JSON file, got {error}; name one"
        ) from None
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        raise FileError(f"bench: {path}: `schema` must be {SCHEMA}, got {found!r}; measure again")
    try:
        result: SuiteResult = _built(SuiteResult, document)
        _check_sense(result)
    except (TypeError, ValueError) as error:
        raise FileError(
            f"bench: {path}: results must have the fields of schema {SCHEMA}, got {error}; measure again"
        ) from None
    return result


def _built(kind: Any, value: Any) -> Any:
    """A value of an annotated type from plain data: dataclasses, tuples of one kind, optional ones, and scalars."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        types_of = typing.get_type_hints(kind)
        given = _plain(dict, value)
        unknown = sorted(set(given) - set(types_of))
        if unknown:
            raise ValueError(f"unknown fields {unknown}")
        return kind(**{name: _built(types_of[name], item) for name, item in given.items()})  # type: ignore[operator]  # a dataclass
    if origin is types.UnionType:
        return None if value is None else _built(next(k for k in inner if k is not types.NoneType), value)
    if origin is tuple:
        items = _plain(list, value)
        if inner[-1] is not Ellipsis and len(items) != len(inner):
            raise ValueError(f"{len(items)} values, not {len(inner)}")
        return tuple(_built(inner[0], item) for item in items)
    if origin is dict:
        return {key: _built(inner[1], item) for key, item in _plain(dict, value).items()}
    return value if kind is Any else _scalar(kind, value)


def _plain(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:60]!r} is no {'object' if kind is dict else 'list'}")
    return value


def _scalar(kind: Any, value: Any) -> Any:
    """A string, number or truth value; no number may be one that JSON has not (Python reads NaN and 1e999)."""
    right = type(value) is kind or (kind is float and type(value) is int)
    if not right:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{value!r} where a number must be finite")
    return value


def _check_sense(result: SuiteResult) -> None:
    """Raise where a case is of no run, or a time is none: what is made from results divides by them."""
    for case in result.cases:
        if not 0 <= case.run < len(result.runs):
            raise ValueError(f"{case.name} of run {case.run}, of {len(result.runs)} runs")
        for m in case.measurements:
            times = [m.graph_us, m.host_us, m.fraction]
            times += [m.time_us.median_us, m.time_us.q1_us, m.time_us.q3_us] if m.time_us else []
            if not all(time > 0 for time in times if time is not None):
                raise ValueError(f"{case.name}, {m.variant}: a time or fraction that is not positive")


def merge_results(results: Sequence[SuiteResult]) -> SuiteResult:
    """Several files of one suite as one: a later file's case replaces an earlier one's if it was run.

    Runs are kept of which a case is left.

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
    left = sorted({case.run for case in merged.values()})
    cases = (dataclasses.replace(case, run=left.index(case.run)) for case in merged.values())
    return SuiteResult(SCHEMA, suites[0], tuple(runs[run] for run in left), tuple(cases))
