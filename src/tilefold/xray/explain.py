"""`explain`: from a kernel and its arguments to a report. `explain_file` and `explain_fold` are its other doors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefold.errors import ArgumentError
from tilefold.planner.chips import chip_of
from tilefold.xray.compile.arguments import arguments as as_written
from tilefold.xray.compile.job import Job
from tilefold.xray.report.model import Report

Grid = int | Sequence[int] | Callable[[Mapping[str, Any]], Any]


def explain(
    kernel: Any,
    args: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    *,
    grid: Grid = 1,
    num_warps: int = 4,
    num_stages: int = 3,
    target: str = "sm_90",
    programs: Sequence[tuple[int, int, int]] | None = None,
    options: Mapping[str, Any] | None = None,
    run: bool = True,
    trials: bool = True,
) -> Report:
    """Report Triton's compilation of a kernel and the results of executing it, on a machine with no GPU.

    Args:
        kernel: a function decorated with `triton.jit` (decorators that choose configurations are looked through).
        args: its arguments by name. A pointer is "*fp32", "*fp32[1000]" (elements; then accesses out of bounds are
            reported), "@rows.npy", "&other" (where another argument points), a numpy array or a tensor, of which views
            share their memory; a number is "i32:1000", "fp32:1e-6", an int (i32, or i64
            where it must be), a float (fp32) or None. "!div16" behind a text promises what divides an address or a number;
            otherwise addresses are multiples of 16 bytes and numbers speak for themselves, as Triton specialises them.
        constants: values of the parameters that are `tl.constexpr`; the rest take their defaults.
        grid: programs in up to three dims; or, as in a launch, a function of the constants and numbers by name.
        num_warps, num_stages: as in a launch. options: others of `triton.compile`, like `enable_fp_fusion`.
        target: sm_80 (A100), sm_90 (H200) or sm_100 (B200, of which nothing that uses its tensor cores is executed), or a
            chip's name, "h100" among them.
        programs: which programs of the grid to execute; by default the first, a middle and the last.
        run: False for the static part alone.
        trials: False to compile and execute nothing again, to show a fault or that a change helps; much faster.

    Returns:
        The report: frozen, plain values. Pointers without data read random bytes. What could not be executed is said in
        `notes`, and the static part is there all the same.

    Raises:
        ArgumentError: an argument, constant, target or program that does not fit.
        CompileError: Triton refuses the kernel; its message says the line.

    Example:
        >>> from tilefold import xray
        >>> report = xray.explain(copy_kernel, {"x_ptr": "*fp32", "n": 1000}, {"BLOCK": 128}, grid=8)
        >>> report.totals.bytes_moved, report.codes()
    """
    from tilefold.xray.examine import examined

    job = make_job(
        kernel, args, constants, grid=grid, num_warps=num_warps, num_stages=num_stages, target=target, options=options
    )  # fmt: skip
    return examined(job, programs, run=run, trials=trials).report


def make_job(
    kernel: Any,
    args: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    *,
    grid: Grid = 1,
    num_warps: int = 4,
    num_stages: int = 3,
    target: str = "sm_90",
    options: Mapping[str, Any] | None = None,
) -> Job:
    """What `explain` compiles: its arguments checked and complete.

    Raises:
        ArgumentError: an argument, constant or target that does not fit.
    """
    from tilefold.xray.compile import offline

    chip = chip_of(target)
    _check_launch(num_warps, num_stages)
    function = offline.jitted(kernel)
    arguments, fixed = offline.complete_constants(function, as_written(args), dict(constants or {}))
    if callable(grid):
        grid = grid({**{a.name: a.value for a in arguments if not a.pointer}, **fixed})
    return Job(
        function, function.__name__, arguments, tuple(fixed.items()), chip, _grid(grid), num_warps, num_stages,
        tuple((options or {}).items()),
    )  # fmt: skip


def explain_file(
    file: str,
    case: str | None = None,
    *,
    programs: Sequence[tuple[int, int, int]] | None = None,
    run: bool = True,
    trials: bool = True,
    **given: Any,
) -> Report:
    """The kernel of "FILE.py::kernel", with arguments as of `explain`, or with those of a case that the file offers.

    The file is imported: it runs as code.

    Raises:
        ArgumentError, CompileError: as `explain`; no such file, kernel or case; the file does not import.
    """
    from tilefold.xray.examine import examined

    return examined(file_job(file, case, **given), programs, run=run, trials=trials).report


def file_job(file: str, case: str | None = None, **given: Any) -> Job:
    """What `explain_file` compiles; what is given goes before what a case says, of `args` and `constants` name by name."""
    from tilefold.xray.compile import source

    path, name = source.split_target(file)
    module = source.load_file(Path(path))
    if case is None:
        return make_job(source.find_kernel(module, name), given.pop("args", {}), **given)
    offered = source.find_case(module, case)
    merged: dict[str, Any] = {**offered, **given}
    merged |= {
        kind: {**(offered.get(kind) or {}), **(given.get(kind) or {})} for kind in ("args", "constants")
    }
    kernel = merged.pop("kernel", None)
    return make_job(source.find_kernel(module, name) if name else kernel, merged.pop("args"), **merged)


def explain_fold(
    text: str,
    *,
    target: str = "sm_90",
    programs: Sequence[tuple[int, int, int]] | None = None,
    run: bool = True,
    trials: bool = True,
) -> list[Report]:
    """The library's own kernels of a fold like "logsumexp dim=1 16384x8192 bf16": a report a launch, in their order.

    Raises:
        ArgumentError: the text names no fold.
    """
    from tilefold.xray.compile.folds import fold_jobs
    from tilefold.xray.examine import examined

    jobs = fold_jobs(text, chip_of(target))
    return [examined(job, programs, run=run, trials=trials).report for job in jobs]


_MOST_X, _MOST_YZ = 2**31 - 1, 65535


def _grid(given: Any) -> tuple[int, int, int]:
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(sizes) <= 3 or any(type(n) is not int or n < 1 for n in sizes):
        raise ArgumentError(
            f"xray: a grid must be one to three positive numbers, got {given!r}; try 8 or 8,4"
        )
    x, y, z = (*sizes, 1, 1)[:3]
    if x > _MOST_X or max(y, z) > _MOST_YZ:
        raise ArgumentError(
            f"xray: a grid must have at most {_MOST_X} programs along x and {_MOST_YZ} along y and z, got {given!r}; "
            "a launch refuses more"
        )
    return (x, y, z)


def _check_launch(warps: int, stages: int) -> None:
    if warps not in (1, 2, 4, 8, 16, 32):
        raise ArgumentError(f"xray: the number of warps must be a power of two up to 32, got {warps}; try 4")
    if stages < 1:
        raise ArgumentError(f"xray: the number of stages must be at least 1, got {stages}; try 3")
