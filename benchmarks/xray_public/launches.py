"""Triton's launch replaced: what a package's wrapper launches on a CPU's tensors is compiled, reported and executed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import checkouts
import numpy as np
import torch
from triton.runtime import Autotuner, Heuristics, JITFunction

from tilefold import xray
from tilefold.errors import CompileError, ExecutionError, TilefoldError, UnknownInstructionError
from tilefold.xray import Report
from tilefold.xray.compile.arguments import Argument
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.execution import Execution, execute
from tilefold.xray.explain import make_job
from tilefold.xray.machine import all_programs
from tilefold.xray.ptx import parse
from tilefold.xray.report.model import Observation

# Options of a launch that mean nothing to the code, or stand elsewhere.
_IGNORED = ("warmup", "stream", "device", "grid", "num_ctas", "ir_override", "maxnreg")
_LARGEST_GRID = 512


@dataclass
class Launch:
    """One launch: what was launched, and what came of it. Empty texts are good news."""

    kernel: str
    grid: tuple[int, ...] = ()
    num_warps: int = 4
    arguments: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    reported: bool = False
    executed: bool = False
    observations: list[str] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    instructions: int = 0
    seconds: float = 0.0
    unknown: str = ""
    outside: str = ""
    error: str = ""


class LaunchError(Exception):
    """A launch that could not be carried out; the wrapper that launched ends here."""


class RefusedError(LaunchError):
    """Triton does not compile this configuration of the kernel."""


@contextmanager
def recorded(*, notes: bool = False) -> Iterator[list[Launch]]:
    """Within, launches are executed by the X-ray's interpreter on the host's memory, and listed; their claims with notes if
    asked for."""
    made: list[Launch] = []
    tune = lambda tuner, *args, **given: _first_configuration(made, tuner, args, given)
    replaced: list[tuple[Any, Callable[..., Any]]] = [
        (JITFunction, lambda kernel, *args, **given: _launch(made, kernel, args, given, notes)),
        (Autotuner, tune),
        (Heuristics, _with_heuristics),
        *_of_flag_gems(tune),
        *_of_inductor(),
    ]
    before = [(owner, owner.run) for owner, _ in replaced]
    try:
        for owner, run in replaced:
            owner.run = run
        yield made
    finally:
        for owner, run in before:
            owner.run = run


def _launch(
    made: list[Launch], kernel: Any, args: tuple[Any, ...], given: Mapping[str, Any], notes: bool
) -> None:
    start, launch = time.perf_counter(), Launch(kernel.__name__)
    made.append(launch)
    try:
        _carry_out(launch, kernel, args, given, notes)
    except UnknownInstructionError as error:
        launch.unknown = str(error)
    except CompileError as error:
        launch.error = str(error)
        raise RefusedError(launch.error) from None
    except ExecutionError as error:
        launch.error = str(error)
        if "of shared memory" in launch.error:  # as Triton's launch refuses it
            raise RefusedError(launch.error) from None
    except TilefoldError as error:
        launch.error = str(error)
    launch.seconds = round(time.perf_counter() - start, 2)
    if launch.unknown or launch.error:
        raise LaunchError(launch.unknown or launch.error)


def _carry_out(
    launch: Launch, kernel: Any, args: tuple[Any, ...], given: Mapping[str, Any], notes: bool
) -> None:
    bound = {p.name: p.default for p in kernel.params if p.has_default}
    bound |= dict(zip(kernel.arg_names, args, strict=False))
    bound |= {n: v for n, v in given.items() if n in kernel.arg_names}
    options = {n: v for n, v in given.items() if n not in kernel.arg_names and n not in _IGNORED}
    grid = given["grid"](bound) if callable(given["grid"]) else given["grid"]
    launch.grid = tuple(int(n) for n in ([grid] if isinstance(grid, int) else grid))
    constants = {p.name: bound[p.name] for p in kernel.params if p.is_constexpr}
    passed = {p.name: _plain(bound[p.name]) for p in kernel.params if not p.is_constexpr}
    launch.num_warps = options.pop("num_warps", 4)
    settings: dict[str, Any] = {
        "grid": launch.grid, "num_warps": launch.num_warps, "num_stages": options.pop("num_stages", 3),
        "options": {n: v for n, v in options.items() if v is not None},
    }  # fmt: skip
    report = xray.explain(kernel, passed, constants, **settings)
    launch.reported = True
    launch.arguments, launch.constants = list(report.arguments), list(report.constants)
    launch.observations = list(report.codes())
    launch.claims = [claim(o) for o in report.observations if notes or o.severity != "note"]
    _execute(launch, report, make_job(kernel, passed, constants, **settings), passed)


def claim(found: Observation) -> dict[str, Any]:
    """An observation, without the line's text: that is another's."""
    return {
        "code": found.code, "severity": found.severity, "file": checkouts.place(found.file), "line": found.line,
        "also": [line for _, line in found.also], "evidence": found.evidence, "reason": found.reason, "change": found.change,
    }  # fmt: skip


def _execute(launch: Launch, report: Report, job: Any, passed: Mapping[str, Any]) -> None:
    """Every program of the grid, and what they wrote put into the tensors."""
    programs = all_programs(job.grid)
    if len(programs) > _LARGEST_GRID:
        launch.error = (
            f"a grid of {len(programs)} programs, more than the {_LARGEST_GRID} that this table executes"
        )
        raise LaunchError(launch.error)
    compiled = compile_job(job)
    done = execute(compiled, parse(compiled.ptx), programs)
    launch.executed = True
    launch.instructions = sum(o.instructions for o in done.outcomes)
    if done.memory.faults:
        fault = done.memory.faults[0]
        launch.outside = (
            f"{fault.threads} threads outside of {fault.nearest} in {done.kernel.place(fault.instruction)}"
        )
    for number, argument in enumerate(compiled.parameters):
        if argument.pointer:
            _write_back(done, number, argument, passed[argument.name])


def _write_back(done: Execution, number: int, argument: Argument, tensor: torch.Tensor) -> None:
    """Only bytes that changed: arguments may share their memory on the host."""
    assert argument.data is not None
    first = tensor.storage_offset() - argument.before
    held = (
        torch.as_strided(tensor.detach(), (argument.before + (argument.size or 0),), (1,), first)
        .view(torch.uint8)
        .numpy()
    )
    earlier = argument.data.view(np.uint8)
    now = done.memory.read(f"{number}:{argument.name}", np.uint8, before=argument.shift)[: len(earlier)]
    held[now != earlier] = now[now != earlier]


def _plain(value: Any) -> Any:
    """Numbers of numpy and sympy as Python's."""
    if value is None or isinstance(value, (bool, int, float, str, torch.Tensor)):
        return value
    if hasattr(value, "_data_ptr") and isinstance(value._base, torch.Tensor):  # FlagGems' view of a tensor
        base = value._base
        start = base.storage_offset() + value.offset
        size = base.untyped_storage().nbytes() // base.element_size() - start
        return torch.as_strided(base.detach(), (size,), (1,), start).view(value.dtype)
    return int(value) if hasattr(value, "__index__") else value


def _first_configuration(made: list[Launch], tuner: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """An autotuned kernel with the first configuration that its pruning leaves and that compiles."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    *configurations, last = tuner.prune_configs(given)
    for config in configurations:
        try:
            return _configured(tuner, config, args, given)
        except RefusedError:  # noqa: PERF203 - what a launch costs is seconds
            made.pop()
    return _configured(tuner, last, args, given)


def _configured(tuner: Any, config: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **given, **config.all_kwargs()})
    return tuner.fn.run(*args, **given, **config.all_kwargs())


def _with_heuristics(heuristics: Any, *args: Any, **given: Any) -> Any:
    named = dict(zip(heuristics.arg_names, args, strict=False))
    for name, value in heuristics.values.items():
        given[name] = value({**named, **given})
    return heuristics.fn.run(*args, **given)


def _of_flag_gems(tune: Callable[..., Any]) -> list[tuple[Any, Callable[..., Any]]]:
    """Its caches of kernels and configurations, where the package is installed."""
    try:
        from flag_gems.utils.libentry import LibEntry, LibTuner
    except ImportError:
        return []
    return [(LibEntry, lambda entry, *args, **given: entry.fn.run(*args, **given)), (LibTuner, tune)]


def _of_inductor() -> list[tuple[Any, Callable[..., Any]]]:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner, GridExpr

    def run(tuner: Any, *args: Any, **given: Any) -> None:
        config = tuner.configs[0]
        fixed = {
            n: v for n, v in {**tuner.triton_meta["constants"], **config.kwargs}.items() if isinstance(n, str)
        }
        named = dict(zip([n for n in tuner.fn.arg_names if n not in config.kwargs], args, strict=False))
        grid = GridExpr.from_meta(tuner.inductor_meta, config).eval_slow({**named, **config.kwargs})
        tuner.fn.run(
            grid=tuple(int(n) for n in grid),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            **(named | fixed),
        )

    return [(CachingAutotuner, run)]


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """An error if it takes longer."""

    def stop(*_: Any) -> None:
        raise LaunchError(f"not finished within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
