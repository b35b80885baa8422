"""Launches by the driver's own function, cuLaunchKernelEx, with arguments laid out once: of each call only addresses change.

Triton's launcher reads each argument of each call; this one writes addresses into memory that the driver reads. Measured with
13 parameters, an H200's host, 2026-11-27: 6.7 us for 8.2, of which the driver takes 6.4.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer
from tilefold.planner.sizes import WARP

HIDDEN = 4  # parameters behind a kernel's own that Triton may add, for scratch memory: null here

# CUlaunchAttributeID: PROGRAMMATIC_STREAM_SERIALIZATION.
_DEPENDENT = 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: 8 bytes of which four are the kind, and 64 of a value."""

    _fields_ = (("kind", ctypes.c_int), ("blank", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def direct(call: Call, kernel: Any, programs: int, otherwise: Callable[..., None]) -> Callable[..., None]:
    """A function of (stream, addresses...) that launches so many programs of a loaded kernel, or leaves it to `otherwise`.

    That is: clusters and kernels with scratch memory, always; a thread that comes while another one launches the same kernel;
    a launch that the driver refuses, as it does in a thread that has no context yet.
    """
    runner = kernel.run
    scratch = getattr(runner, "global_scratch_size", 1) or getattr(runner, "profile_scratch_size", 1)
    if call.cluster > 1 or scratch or getattr(runner, "launch_cooperative_grid", True):
        return otherwise
    try:
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError):  # no driver by that name, or an old one
        return otherwise
    passed = [leaf for leaf in calls.leaves(call.arguments) if calls.signature_of(leaf) != "constexpr"]
    words = [0 if isinstance(leaf, Pointer) else leaf & (1 << 64) - 1 for leaf in passed]
    slots = (ctypes.c_uint64 * (len(words) + HIDDEN))(
        *words, 0, 0
    )  # behind them two of Triton's own, for scratch memory
    begin = ctypes.addressof(slots)
    parameters = (ctypes.c_void_p * len(slots))(*range(begin, begin + 8 * len(slots), 8))
    attributes = (_Attribute * 1)(_Attribute(_DEPENDENT, 0, (ctypes.c_int * 16)(1)))
    config = _Config(
        (programs, *call.across), (kernel.metadata.num_warps * WARP, 1, 1), kernel.metadata.shared, None, attributes,
        int(bool(getattr(runner, "launch_pdl", False))),
    )  # fmt: skip
    places = [i for i, leaf in enumerate(passed) if isinstance(leaf, Pointer)]
    names = [f"p{i}" for i in range(len(places))]
    before = [leaf.before for leaf in passed if isinstance(leaf, Pointer)]
    written = [
        f"slots[{place}] = {name}{f' - {n}' if n else ''}"
        for place, name, n in zip(places, names, before, strict=True)
    ]
    lock = threading.Lock()
    scope = {
        "launch": launch, "config": config, "at": ctypes.byref(config), "function": ctypes.c_void_p(kernel.function),
        "parameters": parameters, "slots": slots, "take": lock.acquire, "leave": lock.release, "otherwise": otherwise,
    }  # fmt: skip
    exec(_FORM.format(names=", ".join(names), written="\n            ".join(written)), scope)  # noqa: S102  # numbers and fixed names
    return scope["call"]  # type: ignore[return-value]  # what the text defines


_FORM = """
def call(stream, {names}):
    if take(False):
        try:
            config.stream = stream
            {written}
            refused = launch(at, function, parameters, None)
        finally:
            leave()
        if not refused:
            return
    otherwise(stream, {names})
"""
