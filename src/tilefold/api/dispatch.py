"""The one path of every call: request -> problem -> plan -> executable -> tensors.

    request      a validated call: computation, dims, results (`requests`)        reduce, matmul make one
    problem      dims with roles and strides (`problem`)
    plan         steps over buffers (`planner.plan`), for the backend in force
    executable   the plan, compiled; kept for calls like this one

`repeated` answers a repeated call before it is validated; one cache holds the executables of all operations.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from tilefold.api.replays import Made, Tape
from tilefold.api.requests import Request
from tilefold.errors import BackendError
from tilefold.planner.device import H200, INTERPRETED, Device, device_of
from tilefold.planner.least_time import with_least_time
from tilefold.planner.plan import Plan
from tilefold.runtime.switch import Alike, ExplainedError, forced_backend, is_explaining, whole_dims

if TYPE_CHECKING:
    from tilefold.backends.triton.call import Call
    from tilefold.backends.triton.executable import Executable
    from tilefold.planner.problem.canonical import Problem

Tensor = torch.Tensor


class _Thread(threading.local):
    """Of each thread the plan of its latest call, and the tape in force. Defaults of a class cost no exception."""

    plan: Plan | None = None
    tape: Tape | None = None


_last = _Thread()

# Executables of repeated calls, by all that a plan and its code depend on; and the sites of calls.
_executables: dict[Any, Any] = {}
_unrepeated = set[Any]()  # keys of calls that are more than their launches
MOST = 4096


def last_plan() -> Plan | None:
    """The plan of this thread's most recent fold or product, or None before the first.

    Frozen, comparable, and readable when printed; `explain_plan` gives one without running. Folds of tensors without data
    (on "meta") leave the plan before them.

    Example:
        >>> with tilefold.backend("cpu"):
        ...     most = tilefold.amax(torch.tensor([1, 2, 3]))
        >>> print(tilefold.last_plan())
        cpu: whole
          1. lanes: tiles of 3 elements
    """
    return _last.plan


def repeated(key: Any, *tensors: Tensor) -> list[Tensor] | None:
    """The results of a call like an earlier one of this key, noted as this thread's latest.

    None of the first such call, of one that has no key, and where it asks for more than was planned.
    """
    if key is None:
        return None
    try:
        executable = _executables.get(key)
    except TypeError:  # no dtype, no guarantee: the checks say so
        return None
    return None if executable is None else _latest(executable, tensors)


def _latest(executable: Any, tensors: Sequence[Tensor]) -> list[Tensor] | None:
    _last.plan = executable.plan
    return _called(executable, tensors)


def latest(executable: Executable, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The results of a GPU's executable that is known to be the call's, noted as this thread's latest."""
    made = _latest(executable, tensors)
    assert made is not None
    return made


def kept(key: Any) -> Any:
    """What answers calls of this key; None of no such call, and of a key that nothing can have."""
    try:
        return _executables.get(key)
    except TypeError:  # no dtype: the checks say so
        return None


class Site(NamedTuple):
    """Of calls that differ in nothing but their tensors' layouts the executable of the latest layout, and its key.

    Once a layout came twice in a row, with a question that costs less than a key.
    """

    key: Any
    alike: Alike | None
    executable: Any


def again(
    key_of: Callable[..., Any], tensors: Sequence[Tensor], what: Any, dim: Any, rest: tuple[Any, ...]
) -> tuple[Any, list[Tensor] | None]:
    """(the key, `repeated` of it) of a call; no key where it was not needed. `key_of` is `call_key` or `named_key`."""
    if is_dynamo_compiling() or (
        dim is not None and type(dim) is not int and (dim := whole_dims(dim)) is None
    ):
        return None, None
    site = (what, dim, rest, len(tensors))
    try:
        found: Site | None = _executables.get(site)
    except TypeError:  # no dtype, no guarantee: the checks say so
        return None, None
    if found is not None and found.alike is not None and found.alike(tensors):
        made = _latest(found.executable, tensors)
        return (key_of(tensors, what, dim, rest) if made is None else None), made
    key = key_of(tensors, what, dim, rest)
    executable = None if key is None else _executables.get(key)
    if executable is None:
        return key, None
    twice = found is not None and found.key == key
    keep(site, Site(key, Alike(tensors) if twice else None, executable))
    return key, _latest(executable, tensors)


def _called(executable: Any, tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """An executable's results, noted on a tape that is in force; None of one that does not take these elements."""
    tape = _last.tape
    if tape is None:
        return executable.call(*tensors)  # type: ignore[no-any-return]  # an executable's
    with noting(None):
        return tape.call(executable, tensors)


@contextlib.contextmanager
def noting(tape: Tape | None) -> Iterator[None]:
    """Within it this thread's calls of executables are noted, or none is."""
    before, _last.tape = _last.tape, tape
    try:
        yield
    finally:
        _last.tape = before


def replayed(
    key: Any, run: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor]
) -> list[Tensor]:
    """What a call of several requests makes, whose launches answer calls of this key from now on, if there is one."""
    if key is None or key in _unrepeated or _last.tape is not None:
        return run(tensors)
    tape = Tape(tensors)
    with noting(tape):
        made = run(tensors)
    replay = tape.replay(made)
    if replay is not None:
        keep(key, replay)
    elif len(_unrepeated) < MOST:
        _unrepeated.add(key)
    return made


def planned(plan: Plan | None) -> None:
    """Have a plan be this thread's latest, if there is one."""
    if plan is not None:
        _last.plan = plan


def noted(function: Callable[..., list[Tensor]], *tensors: Tensor) -> list[Tensor]:
    """What operations of torch's make, which are the same for all tensors of these layouts: noted as an executable's call."""
    if is_dynamo_compiling() or (tape := _last.tape) is None:
        return function(*tensors)
    with noting(None):  # what is noted within is made by this
        results = function(*tensors)
    tape.note(Made(function), tensors, results)
    return results


def constant(t: Tensor) -> Tensor:
    """A tensor that is the same in every call like this one."""
    if (tape := _last.tape) is not None:
        tape.constants.append(t)
    return t


def keep(key: Any, executable: Any) -> None:
    """Have an executable answer calls of this key. A full cache begins anew."""
    if len(_executables) >= MOST:
        _executables.clear()
    _executables[key] = executable


def run(
    request: Request, tensors: Sequence[Tensor], key: Any = None, targets: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """The results of a validated request, in `targets` where these are given.

    `tensors` have memory of their own values (none negates lazily). The executable is kept under `key` if there is one.

    Raises:
        BackendError, DtypeError, ShapeError: the backend in force lacks the operation, or the chip lacks a dtype.
    """
    if is_explaining():
        raise ExplainedError(request, tensors)
    chosen = _backend_of(request, tensors)
    if chosen == "triton":
        return _on_gpu(request, tensors, key, targets)
    if chosen == "interpret":
        results = _interpreted(request, tensors)
    else:
        results = _on_cpu(request, tensors, chosen, key)
    return results if targets is None else _copied(results, targets)


def then(request: Request, tensors: Sequence[Tensor], key: Any = None) -> list[Tensor]:
    """`run` of what finishes an earlier request's results, whose plan stays this thread's latest."""
    plan = last_plan()
    made = run(request, tensors, key)
    _last.plan = plan
    return made


def _backend_of(request: Request, tensors: Sequence[Tensor]) -> str:
    """The backend that runs a call: the forced one if the operation has it; on a GPU nothing else stands in for Triton."""
    forced = forced_backend()
    if forced not in request.backends:
        names = ", ".join(f'"{name}"' for name in request.backends)
        raise BackendError(
            f'{request.call}: the backend in force must be one that it has ({names}), got "{forced}"; run it under one of '
            "these: with tilefold.backend(...), or by TILEFOLD_BACKEND"
        )
    on_gpu = tensors[0].is_cuda
    if forced == "triton" and not on_gpu:
        raise BackendError(
            f'backend: "triton" runs on CUDA tensors, got {tensors[0].device}; move the tensors there or use '
            f'backend("{request.on_cpu}")'
        )
    return "triton" if forced == "auto" and on_gpu else forced


def plan_for(request: Request, tensors: Sequence[Tensor], device: Device | None = None) -> Plan:
    """How a request would run on a chip: the tensors' own, or an H200 where they are on none."""
    chip = device or (device_of(tensors[0].device.index) if tensors[0].is_cuda else H200)
    request.dtypes(tensors)
    return with_least_time(request.plan(tensors, chip, library=True)[1], tensors, request.results, chip)


def _on_gpu(
    request: Request, tensors: Sequence[Tensor], key: Any, targets: Sequence[Tensor] | None
) -> list[Tensor]:
    executable: Executable | None = _executables.get(key) if key is not None else None
    if executable is None:
        executable = compiled(request, tensors)
        if key is not None:
            keep(key, executable)
    _last.plan = executable.plan
    if targets is None:
        made = _called(executable, tensors)
        assert made is not None
        return made
    if not all(map(_is_written_at_once, targets)):
        return _copied(executable(tensors), targets)
    torch.autograd.graph.increment_version([t for t in targets if not t.is_inference()])
    return executable(tensors, targets)


def compiled(
    request: Request, tensors: Sequence[Tensor], planned: tuple[Problem, Plan] | None = None
) -> Executable:
    """A request on its tensors' GPU, planned (unless a plan of its problem is given) and compiled.

    Raises:
        BackendError, DtypeError, ShapeError: the chip cannot run it.
    """
    from tilefold.backends.triton.executable import Executable

    index = tensors[0].device.index
    device = device_of(index)
    plan, calls = lowered(request, tensors, device, planned)
    plan = with_least_time(plan, tensors, request.results, device)
    return Executable(plan, calls, request.computation, len(tensors), request.results, index)


def lowered(
    request: Request,
    tensors: Sequence[Tensor],
    device: Device,
    planned: tuple[Problem, Plan] | None = None,
    *,
    interpret: bool = False,
) -> tuple[Plan, list[Call]]:
    """The plan of a request on a chip and the kernel calls of its launches, in order; nothing is compiled or run.

    Planned, unless a plan of its problem is given. `interpret`: for Triton's interpreter, without torch's own kernels.

    Raises:
        BackendError, DtypeError, ShapeError: the chip cannot run it.
    """
    from tilefold.backends.triton.call import check_dtypes
    from tilefold.backends.triton.lower import calls_of

    check_dtypes(request.dtypes(tensors), device, request.call)
    problem, plan = planned or request.plan(tensors, device, library=not interpret)
    return plan, calls_of(plan, problem, request.computation, interpret=interpret)


def _on_cpu(request: Request, tensors: Sequence[Tensor], backend: str, key: Any) -> list[Tensor]:
    from tilefold.api import on_cpu

    if key is not None and backend == "auto":
        again = on_cpu.repeated(request, tensors)
        if again is not None:
            keep(key, again)
            made = _called(again, tensors)
            if made is not None:
                _last.plan = again.plan
                return made
    results, _last.plan = on_cpu.run(request, tensors, backend)
    return results


def _interpreted(request: Request, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same kernels under Triton's interpreter, on CPU tensors, as an H200 would be planned without cuBLAS."""
    from tilefold.backends.triton.executable import interpret

    plan, calls = lowered(request, tensors, INTERPRETED, interpret=True)
    results = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in request.results]
    interpret(plan, calls, request.computation, tensors, results)
    _last.plan = replace(plan, backend="interpret")
    return results


def _is_written_at_once(target: Tensor) -> bool:
    """Whether kernels may write into a target: of the layout they know. Others are copied to."""
    return target.is_contiguous() and target.data_ptr() % 16 == 0 and not target.is_neg()


def _copied(results: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
    for target, result in zip(targets, results, strict=True):
        target.copy_(result)
    return list(targets)
