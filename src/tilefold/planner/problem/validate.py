"""What every fold asks of its inputs and of `out`: one clear line for each rule that is broken, before anything runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.overrides import has_torch_function

from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import FOLDABLE, GIVEN, check_foldable
from tilefold.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    GradientError,
    KindError,
    ShapeError,
    is_one_of,
    shown,
)
from tilefold.planner.problem.instead import monoid_meant, of_complex, of_nested
from tilefold.runtime.modes import is_dual, is_faked
from tilefold.runtime.switch import is_explaining

GUARANTEES = ("run_to_run", "batch_invariant", "none")


def check_is_tensor(x: Any, call: str, name: str = "the input") -> None:
    """Refuse values that are not tensors before asking them for a dtype or a shape."""
    if not isinstance(x, torch.Tensor):
        raise KindError(f"{call}: {name} must be a tensor, got {type(x).__name__}; use torch.as_tensor")


def as_inputs(inputs: Any, monoid: Monoid, call: str) -> list[torch.Tensor]:
    """The inputs as a list: a tensor alone, or a value that acts as one (`__torch_function__`), or a sequence of them.

    Raises:
        KindError: something else was given, or the monoid is not one.
    """
    check_monoid(monoid, call)
    return as_tensors(inputs, "inputs", call)


def as_tensors(given: Any, what: str, call: str) -> list[torch.Tensor]:
    """One tensor, or several, as a list.

    Raises:
        KindError: something else was given.
    """
    if isinstance(given, torch.Tensor) or has_torch_function((given,)):
        return [given]
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise KindError(
            f"{call}: {what} must be a tensor or a sequence of tensors, got {type(given).__name__}; use torch.as_tensor"
        )
    return list(given)


def check_inputs(
    tensors: Sequence[torch.Tensor],
    monoid: Monoid,
    guarantee: str,
    call: str,
    names: Sequence[str | None] = (),
    *,
    differentiable: bool = False,
) -> None:
    """Refuse inputs that no backend folds. `names` and `differentiable` as in `check_tensors`.

    Raises:
        ArgumentError, DeviceError, DtypeError, GradientError: a rule is broken; the message says which.
    """
    check_count(tensors, monoid, call)
    check_tensors(tensors, call, names=names, differentiable=differentiable)
    check_guarantee(guarantee, call)


def check_monoid(monoid: Any, call: str) -> None:
    """Refuse a value that is not a monoid, and name the monoid that may be meant.

    Raises:
        KindError: it is not.
    """
    if not isinstance(monoid, Monoid):
        raise KindError(f"{call}: a tensor is folded with a tilefold.Monoid, got {monoid_meant(monoid)}")


def check_count(tensors: Sequence[torch.Tensor], monoid: Monoid, call: str) -> None:
    """Refuse more or fewer inputs than a monoid folds.

    Raises:
        ArgumentError: there are others than `lift` takes elements.
    """
    check_monoid(monoid, call)
    if len(tensors) != monoid.algebra.inputs:
        raise ArgumentError(
            f"{call}: {monoid.name} folds {monoid.algebra.inputs} input tensor(s), got {len(tensors)}; "
            "give as many tensors as lift takes elements"
        )


def check_tensors(
    tensors: Sequence[torch.Tensor],
    call: str,
    *,
    any_dtype: bool = False,
    names: Sequence[str | None] = (),
    differentiable: bool = False,
) -> None:
    """Refuse inputs that are not plain tensors of real numbers (any, with `any_dtype`) with memory, and several devices.

    `names` are those of the arguments, for messages; an input has none. A `differentiable` call may be asked for a
    gradient, by torch.func's transforms too; another writes its results into `out`.

    Raises:
        DeviceError, DtypeError, GradientError, KindError, ShapeError: a rule is broken; the message says which.
    """
    for t, name in itertools.zip_longest(tensors, names):
        if not isinstance(t, torch.Tensor):
            rule = "inputs must be tensors" if name is None else f"`{name}` must be a tensor"
            raise KindError(f"{call}: {rule}, got {type(t).__name__}; use torch.as_tensor")
        if t.device != tensors[0].device:
            _refuse_device(t, tensors[0].device, name, call)
        check_memory(t, call, name)
        if not any_dtype:
            _check_numbers(t.dtype, call, name)
        _check_transforms(t, call, name, differentiable)


def _refuse_device(t: torch.Tensor, device: torch.device, name: str | None, call: str) -> NoReturn:
    if name is None:
        raise DeviceError(f"{call}: inputs must be on one device, got {device} and {t.device}; move one")
    raise DeviceError(
        f"{call}: `{name}` must be on the input's device {device}, got {t.device}; move it there"
    )


def check_memory(t: torch.Tensor, call: str, name: str | None = None) -> None:
    """Refuse tensors without elements of their own at strides, or with more dims than torch walks.

    Raises:
        DtypeError, KindError, ShapeError: the tensor is one of these.
    """
    what, whose = ("inputs", "their") if name is None else (f"`{name}`", "its")
    if t.layout != torch.strided or t.is_nested:
        got = (
            f"a nested tensor; {of_nested(t, call)}" if t.is_nested else f"layout {t.layout}; call to_dense()"
        )
        raise DtypeError(f"{call}: {what} must be dense (strided), got {got}")
    if _is_wrapper(t):
        kind = type(t).__name__
        fix = "fold what it wraps"
        if kind == "DTensor":
            fix = "give its local tensor, or import tilefold.distributed, by which folds and maps take it"
        raise KindError(
            f"{call}: {what} must have memory of {whose} own, got {kind}, which wraps other tensors; {fix}"
        )
    if t.ndim > 64:
        raise ShapeError(
            f"{call}: only tensors with up to 64 dims are supported, got {t.ndim}; reshape {name or 'the input'}"
        )


def _check_numbers(dtype: torch.dtype, call: str, name: str | None) -> None:
    if name is None:
        check_foldable(dtype, call)
    elif dtype not in FOLDABLE:
        fix = of_complex() if dtype.is_complex else "convert it"
        raise DtypeError(f"{call}: `{name}` must hold real numbers or bool, got {dtype}; {fix}")


def check_guarantee(guarantee: str, call: str) -> None:
    """Refuse an unknown guarantee.

    Raises:
        ArgumentError: it is none of `GUARANTEES`.
    """
    if not is_one_of(guarantee, GUARANTEES):
        raise ArgumentError(
            f"{call}: `guarantee` must be one of {', '.join(GUARANTEES)}, got {shown(guarantee)}; take one of these"
        )


def _is_wrapper(t: torch.Tensor) -> bool:
    """Whether a tensor's class says itself what operations do: its own memory, if there is any, tells nothing."""
    own = type(t) is torch.Tensor or type(t).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return not own and not _has_no_data(t)


_PYTHON_DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128}


def as_dtype(dtype: Any, call: str, name: str = "dtype") -> torch.dtype | None:
    """A dtype that a fold can give, or None for none; Python's types stand for dtypes as in torch.

    Raises:
        KindError, DtypeError: it is no dtype, or one of no real number.
    """
    if dtype is None:
        return None
    meant = _PYTHON_DTYPES.get(dtype, dtype) if isinstance(dtype, type) else dtype
    if not isinstance(meant, torch.dtype):
        raise KindError(
            f"{call}: `{name}` must be a torch.dtype, one of Python's bool, int and float, or None, got {shown(dtype)}; "
            "pass torch.float32, say"
        )
    if meant not in GIVEN:
        raise DtypeError(
            f"{call}: `{name}` must be a real or bool dtype, got {meant}; convert the result instead"
        )
    return meant


def check_flags(call: str, **flags: Any) -> None:
    """Refuse values that only stand for a truth value, as torch does.

    Raises:
        KindError: one is not True or False.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise KindError(
                f"{call}: `{name}` must be True or False, got one of type {type(value).__name__}; write bool(...)"
            )


def _check_transforms(t: torch.Tensor, call: str, name: str | None, differentiable: bool) -> None:
    """Refuse a call that has no derivative and no batching rule: one whose results are written into `out`."""
    what = "an input" if name is None else f"`{name}`"
    if differentiable:
        return
    where = "where results are written into `out`, got one that does; leave `out` away, or use {} where none is needed"
    if t.requires_grad and torch.is_grad_enabled():
        raise GradientError(f"{call}: {what} must not require grad {where.format('torch.no_grad()')}")
    _check_mapped(t, what, call)
    if is_dual(t):
        where = where.format("forward_ad.unpack_dual(x).primal")
        raise GradientError(f"{call}: {what} must not carry a forward derivative {where}")


def _check_mapped(t: torch.Tensor, what: str, call: str) -> None:
    check_unmapped(
        t, f"{what} must be a plain tensor where results are written into `out`", "leave `out` away", call
    )


def check_unmapped(t: torch.Tensor, rule: str, fix: str, call: str) -> None:
    """Refuse a tensor that stands for others inside of a transform.

    Raises:
        GradientError: it does.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        raise GradientError(f"{call}: {rule}, got one inside torch.func (vmap, grad, jvp); {fix}")


def check_out(
    out: torch.Tensor | Sequence[torch.Tensor] | None,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int],
    tensors: Sequence[torch.Tensor],
    call: str,
    *,
    in_place: bool = False,
) -> Sequence[torch.Tensor] | None:
    """The tensors to write into, one for each result, or None. `in_place`: one may be an input, exactly.

    Raises:
        ArgumentError, KindError, DtypeError, ShapeError, DeviceError, GradientError: they are not what the results need, or
            nothing could hold these.
    """
    if out is None:
        if any(is_beyond_memory(shape, dtype.itemsize) for dtype in dtypes):
            raise ShapeError(
                f"{call}: a result must have fewer than 2**63 bytes, got the shape {list(shape)}; call it for parts"
            )
        return None
    several = isinstance(out, Sequence) and not isinstance(out, torch.Tensor | str | bytes)
    targets: list[Any] = list(out) if several else [out]
    for target in targets:
        if not isinstance(target, torch.Tensor):
            raise KindError(
                f"{call}: `out` must be a tensor, or a sequence of them, got {type(target).__name__}; pass torch.empty(...)"
            )
    if len(targets) != len(dtypes):
        raise ArgumentError(
            f"{call}: `out` must have one tensor for each of {len(dtypes)} results, got {len(targets)}; "
            "pass that many"
        )
    for target, dtype in zip(targets, dtypes, strict=True):
        _check_target(target, dtype, shape, tensors, call, in_place)
    if any(overlap(a, b) for a, b in itertools.combinations(targets, 2)):
        raise ShapeError(
            f"{call}: the tensors of `out` must not overlap, got memory of both; use a fresh tensor for each"
        )
    return targets


def is_beyond_memory(shape: Sequence[int], itemsize: int = 1) -> bool:
    """Whether so many elements have addresses beyond int64. Sizes that torch.jit or torch.export record are not asked."""
    return all(type(n) is int for n in shape) and math.prod(shape) * itemsize >= 2**63


def check_apart(targets: Sequence[torch.Tensor] | None, others: Sequence[Any], name: str, call: str) -> None:
    """Refuse an `out` that shares memory with another argument.

    Raises:
        ShapeError: it does.
    """
    tensors = [t for t in others if isinstance(t, torch.Tensor)]
    if any(overlap(target, t) for target in targets or () for t in tensors):
        raise ShapeError(f"{call}: `out` must not overlap `{name}`, got memory of both; use a fresh tensor")


def _check_target(
    target: torch.Tensor,
    dtype: torch.dtype,
    shape: Sequence[int],
    tensors: Sequence[torch.Tensor],
    call: str,
    in_place: bool,
) -> None:
    _check_mapped(target, "`out`", call)
    if target.layout != torch.strided or target.is_nested or _is_wrapper(target):
        kind = type(target).__name__ if target.layout == torch.strided else f"layout {target.layout}"
        raise KindError(
            f"{call}: `out` must be dense (strided), with memory of its own, got {kind}; pass torch.empty(...)"
        )
    if target.dtype != dtype:
        only = f", as {call} only supports bool tensor for result" if dtype == torch.bool else ""
        raise DtypeError(
            f"{call}: `out` must have the result's dtype {dtype}{only}, got {target.dtype}; pass another out, or a "
            "dtype= where it is taken"
        )
    if list(target.shape) != list(shape):
        raise ShapeError(
            f"{call}: `out` must have the result's shape {list(shape)}, got {list(target.shape)}; make it so"
        )
    if target.device != tensors[0].device:
        raise DeviceError(
            f"{call}: `out` must be on the inputs' device {tensors[0].device}, got {target.device}; make it there"
        )
    if _has_no_data(target) and not any(map(is_abstract, tensors)):
        raise KindError(
            f"{call}: `out` must hold data as the inputs do, got a {type(target).__name__}; pass torch.empty(...)"
        )
    if target.requires_grad and torch.is_grad_enabled():
        raise GradientError(
            f"{call}: `out` must not require grad, got one that does; use torch.no_grad(), or leave `out` away"
        )
    _check_mode(target, call)
    if _overlaps_itself(target):
        raise ShapeError(
            f"{call}: `out` must not overlap itself (more than one element refers to a single memory location), got strides "
            f"{list(target.stride())}; use a fresh tensor"
        )
    if any(overlap(target, t) and not (in_place and _is_exactly(target, t)) for t in tensors):
        but = " other than exactly" if in_place else ""
        raise ShapeError(
            f"{call}: `out` must not overlap an input{but}, got memory of one; use a fresh tensor"
        )


def _check_mode(target: torch.Tensor, call: str) -> None:
    if target.is_inference() and not torch.is_inference_mode_enabled():
        raise GradientError(
            f"{call}: `out` must not be an inference tensor outside of inference mode, where torch writes into none, got "
            "one; use torch.inference_mode(), or make it outside"
        )


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the bytes from first to last element overlap. Neighbours in one buffer do not; interleaved ones count as if."""
    if a.numel() == 0 or b.numel() == 0 or _has_no_data(a) or _has_no_data(b):
        return False
    (first_a, last_a), (first_b, last_b) = _extent(a), _extent(b)
    return first_a < last_b and first_b < last_a


def _is_exactly(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether each element of one tensor is the same place's of the other."""
    same = a.shape == b.shape and a.dtype == b.dtype and a.data_ptr() == b.data_ptr()
    return same and all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


def _extent(t: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte and of the one after the last."""
    reach = sum(stride * (size - 1) for stride, size in zip(t.stride(), t.shape, strict=True))
    return t.data_ptr(), t.data_ptr() + (reach + 1) * t.element_size()


def _overlaps_itself(t: torch.Tensor) -> bool:
    """Whether two places of a tensor may be one in memory: a stride must step over all that smaller ones reach."""
    reach = 0
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def is_abstract(t: torch.Tensor) -> bool:
    """Whether operations give a tensor a shape but no data: on the meta device, of torch's fake ones, or in their mode.

    Calls that are explained need no data.
    """
    return (_has_no_data(t) or is_faked()) and not is_explaining()


def _has_no_data(t: torch.Tensor) -> bool:
    if t.device.type == "meta":
        return True
    if type(t) is torch.Tensor:
        return False
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(t, FakeTensor)


def plain(t: torch.Tensor) -> torch.Tensor:
    """The tensor without the Python class that it may have: backends know plain ones, `overrides` puts a class on again."""
    return t if type(t) is torch.Tensor else t.as_subclass(torch.Tensor)


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors with elements are views of one storage, or may be: those of functionalize do not say."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    try:
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    except RuntimeError:
        return True
