"""A kernel call made ready on a device: compiled once, loaded, and launched by a function of stream and addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.compiler import make_backend
from triton.runtime import driver

from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer
from tilefold.backends.triton.driver import direct
from tilefold.planner.device import PORTABLE, device_of

_compiled: dict[tuple[Call, int], Any] = {}
# Shapes that differ in nothing but numbers share a kernel on the device.
_loaded: dict[tuple[Any, ...], Any] = {}


def compiled(call: Call, index: int) -> Any:
    """The kernel of a call, loaded on CUDA device `index`."""
    found = _compiled.get((call, index))
    if found is None:
        options = sorted(calls.options_of(call).items())
        key = (call.source, calls.source_of(call).hash(), *options, call.shared_bytes, call.cluster, index)
        found = _loaded.get(key)
        if found is None:
            with torch.cuda.device(index):
                found = calls.compile_for(call, device_of(index).capability)
                if call.shared_bytes or call.cluster > 1:
                    _demand(found, call.shared_bytes, call.cluster)
                found._init_handles()
                if call.cluster > PORTABLE:
                    _permit(found, call.cluster)
            _loaded[key] = found
        _compiled[call, index] = found
    return found


def _demand(kernel: Any, shared_bytes: int, cluster: int) -> None:
    """Have a kernel that is not loaded yet launched with so much shared memory at least, and so many programs together.

    Triton's `num_ctas` would also share out one program's tensors among a cluster; here each has its own, and only the launch
    knows of clusters.
    """
    asked = max(shared_bytes, kernel.metadata.shared)
    kernel.metadata = kernel.metadata._replace(shared=asked, num_ctas=cluster)
    kernel.packed_metadata = make_backend(kernel.metadata.target).pack_metadata(kernel.metadata)


def _permit(kernel: Any, cluster: int) -> None:
    """Allow a loaded kernel's clusters beyond what every chip starts. Triton does so when it is asked how many fit."""
    shared = kernel.metadata.shared
    driver.active.utils.cuOccupancyMaxActiveClusters(kernel.function, shared, cluster)


def _persistent(call: Call, kernel: Any, clusters: int) -> int:
    """How many clusters are launched of persistent programs: no more than the device runs at once.

    That number is the driver's for programs of 128 threads: it holds where shared memory, not threads, decides.
    """
    shared = kernel.metadata.shared
    fit: int = driver.active.utils.cuOccupancyMaxActiveClusters(kernel.function, shared, call.cluster)
    return max(1, min(clusters, fit))


def launcher(call: Call, index: int) -> Callable[..., None]:
    """A function of (stream, addresses...) that launches `call` on device `index`: its arguments laid out in advance."""
    kernel = compiled(call, index)
    runner = kernel.run
    pointers = [leaf for leaf in calls.leaves(call.arguments) if isinstance(leaf, Pointer)]
    names = iter([f"p{i}" for i in range(len(pointers))])
    arguments = ", ".join(_layout(a, names) for a in call.arguments)
    constants = ", ".join(_written(value) for _, value in call.constants)
    scope = {"launch": runner, "function": kernel.function, "metadata": kernel.packed_metadata}
    clusters = call.grid // call.cluster
    if call.persistent:
        clusters = _persistent(call, kernel, clusters)
    head = f"launch({clusters}, {call.across[0]}, {call.across[1]}, stream, function, "
    if hasattr(runner, "launch") and not runner.global_scratch_size and not runner.profile_scratch_size:
        scope["launch"] = runner.launch  # past the wrapper that would allocate scratch memory
        head += f"{runner.launch_cooperative_grid!r}, {runner.launch_pdl!r}, None, None, "
    parameters = ", ".join(f"p{i}" for i in range(len(pointers)))
    text = f"lambda stream, {parameters}: {head}metadata, None, None, None, {arguments}, {constants})"
    return direct(call, kernel, clusters * call.cluster, eval(text, scope))  # noqa: S307  # numbers and fixed names only


def _written(constant: Any) -> str:
    """A constant as source text: a record as a tuple."""
    if isinstance(constant, tuple):
        return "(" + "".join(f"{_written(c)}, " for c in constant) + ")"
    return repr(constant)


def _layout(argument: Any, names: Any) -> str:
    """The nested arguments as source text, each `Pointer` a name."""
    if isinstance(argument, tuple):
        return "(" + "".join(f"{_layout(a, names)}, " for a in argument) + ")"
    if isinstance(argument, Pointer):
        return f"{next(names)} - {argument.before}" if argument.before else str(next(names))
    return repr(int(argument))
