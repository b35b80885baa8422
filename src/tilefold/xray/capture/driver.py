"""Triton's driver as it answers for the chosen chip: what it is to launch comes here, after Triton has chosen and compiled.

Autotuners, heuristics, hooks, grids, tuples and descriptors are Triton's own code. What is private to it and used here: the
driver's methods, `Autotuner.do_bench`, `JITFunction.device_caches`, and what a launcher is called with.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDAOptions
from triton.backends.nvidia.driver import CudaDriver
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import Autotuner, JITFunction, _allocation

from tilefold.planner.chips import Chip
from tilefold.xray.capture import arguments, marks
from tilefold.xray.capture.cuda import properties
from tilefold.xray.capture.patches import Patches
from tilefold.xray.compile import offline
from tilefold.xray.compile.arguments import Argument
from tilefold.xray.compile.job import Compiled, Job

_OWN = {
    "grid",
    "warmup",
    "debug",
    "instrumentation_mode",
    "fpsan_homomorphic_casts",
    *CUDAOptions.__dataclass_fields__,
}
Carry = Callable[["Asked"], None]
Refuse = Callable[[Any, Exception], None]


class Asked:
    """One launch as Triton asks for it: the kernel's source and metadata, the grid, the flat arguments."""

    def __init__(
        self, launcher: Launcher, grid: tuple[int, int, int], values: tuple[Any, ...], stream: Any
    ) -> None:
        self.launcher, self.grid = launcher, grid
        self.leaves = arguments.leaves(launcher.source.signature, values, launcher.metadata)
        self.cluster = getattr(launcher.metadata, "num_ctas", 1) or 1
        self.scratch = self._allocated(stream)

    def job(self, addresses: marks.Addresses, *, keep: bool) -> Job:
        """The launch as the X-ray compiles and reports it; `keep` the values that its memory holds now."""
        source, meta = self.launcher.source, self.launcher.metadata
        options, grid = _options(meta), (self.grid[0] * self.cluster, *self.grid[1:])
        flat = all(isinstance(t, str) and not t.startswith("tensordesc") for t in source.signature.values())
        given = {
            leaf.name: arguments.described(leaf, _divisor(source, leaf), addresses, keep)
            for leaf in self.leaves
        }
        constants = {_named(source, path): value for path, value in source.constants.items()}
        if flat:  # what Triton made constants of by its value is an argument again, so that other promises can be tried
            made, constants = _with_constants(source, given, constants)
        else:
            made = tuple(given.values())
        return Job(
            source.fn, source.fn.__name__, made, tuple(constants.items()), type(self.launcher).chip, grid,
            options.pop("num_warps"), options.pop("num_stages"), tuple(options.items()),
            None if flat else source, self.cluster,
        )  # fmt: skip

    def _allocated(self, stream: Any) -> list[Any]:
        """Memory that Triton's code for the kernel asks for, of the script's allocator: for the grid; none for a profiler."""
        meta, programs = self.launcher.metadata, self.grid[0] * self.grid[1] * self.grid[2]
        size = programs * self.cluster * (getattr(meta, "global_scratch_size", 0) or 0)
        asked = _allocation._allocator.get()(size, meta.global_scratch_align, stream) if size else None
        return [asked, None]


class Launcher:
    """What Triton makes for a compiled kernel and calls to launch it."""

    carry: Carry
    chip: Chip

    def __init__(self, source: Any, metadata: Any) -> None:
        self.source, self.metadata = source, metadata
        self.compiled: Compiled | None = None

    def __call__(self, x: int, y: int, z: int, stream: Any, function: Any, *rest: Any) -> None:
        """Launch, as Triton's own launcher is asked to."""
        _, launched, enter, leave, *values = rest
        if x * y * z < 1:  # a launch of nothing
            return
        if enter is not None:
            enter(launched)
        type(self).carry(Asked(self, (int(x), int(y), int(z)), tuple(values), stream))
        if leave is not None:
            leave(launched)


class Driver(CudaDriver):  # type: ignore[misc]
    """The driver of a chip that is not there."""

    def __init__(self, chip: Chip, launcher: type[Launcher]) -> None:
        said = properties(chip)
        self._target, self.launcher_cls = GPUTarget("cuda", chip.architecture, 32), launcher
        shown = {
            "max_shared_mem": chip.shared_bytes_block, "multiprocessor_count": chip.sms, "warpSize": 32,
            "max_num_regs": chip.registers, "sm_clock_rate": 1000 * chip.clock_mhz, "mem_clock_rate": 0, "mem_bus_width": 0,
        }  # fmt: skip
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: shown, load_binary=lambda *given: (None, "function", 0, 0, 1024),
            unload_module=lambda module: None, set_printf_fifo_size=lambda size: None,
            cuOccupancyMaxActiveClusters=lambda *given: 1, is_stream_capturing=lambda stream: False,
        )  # fmt: skip
        self.get_device_capability = lambda device=None: (said.major, said.minor)
        self.get_current_stream = lambda device=None: 0
        self.get_current_device = lambda: 0
        self.set_current_device = lambda device: None

    def get_current_target(self) -> GPUTarget:
        """The chip."""
        return self._target

    def get_active_torch_device(self) -> torch.device:
        """Where tensors seem to be."""
        return torch.device("cuda", 0)

    def get_benchmarker(self) -> Any:
        """Nothing is timed."""
        return untimed

    def get_empty_cache_for_benchmark(self) -> Any:
        """Nothing that is worth clearing."""
        return torch.empty(1, dtype=torch.int, device="cuda")


def untimed(
    call: Callable[[], Any], *args: Any, quantiles: Any = None, return_mode: str = "mean", **given: Any
) -> Any:
    """`triton.testing.do_bench` where nothing is timed: one call, and NaN for every time."""
    call()
    if quantiles is not None:
        return [float("nan")] * len(quantiles) if len(quantiles) > 1 else float("nan")
    return [float("nan")] if return_mode == "all" else float("nan")


class Tuning:
    """An autotuner's search: the first configuration that compiles wins, or, with `every`, all are tried.

    While a configuration is tried `now` is its text, and launches are compiled but not carried out.
    """

    def __init__(self, every: bool) -> None:
        self.every, self.now = every, ""
        self.tried: list[tuple[str, Job | None]] = []
        self._found = False

    def prune(self, original: Callable[..., Any], tuner: Any, given: Any) -> Any:
        """A search begins."""
        self._found, self.tried = False, []
        return original(tuner, given)

    def bench(self, original: Callable[..., Any], tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
        """Try one configuration: three equal times if it compiles, infinity if it does not or another one has."""
        if self._found and not self.every:
            return [float("inf")] * 3
        self.now = str(config)
        try:
            times = original(tuner, *args, config=config, **meta)
        finally:
            self.now = ""
        if times[0] == float("inf"):
            self.tried.append((str(config), None))
        self._found |= times[0] != float("inf")
        return times


def stand_in(
    patches: Patches,
    chip: Chip,
    tuning: Tuning,
    carry: Carry,
    refuse: Refuse,
    unknown: Callable[[tuple[str, ...]], None],
) -> None:
    """Have Triton launch through `carry`, as long as `patches` hold; `refuse` is told of what does not compile, `unknown` of
    options that Triton does not know."""
    launcher = type("Launcher", (Launcher,), {"carry": staticmethod(carry), "chip": chip})
    caches: dict[int, tuple[Any, Any]] = {}
    run, prune, bench = JITFunction.run, Autotuner.prune_configs, Autotuner._bench

    def run_here(self: Any, *args: Any, **given: Any) -> Any:
        strange = tuple(
            f"{n}={given.pop(n)!r}" for n in [*given] if n not in _OWN and n not in self.arg_names
        )
        unknown(strange)
        held = self.device_caches
        self.device_caches = caches.setdefault(id(self), (self, defaultdict(self.create_binder)))[1]
        try:
            with offline.cache_of(self):
                return run(self, *args, **given)
        except Exception as error:
            refuse(self, error)
            raise
        finally:
            self.device_caches = held

    searches: dict[int, tuple[Any, Any]] = {}
    search = Autotuner.run

    def search_here(self: Any, *args: Any, **given: Any) -> Any:
        held = self.cache
        self.cache = searches.setdefault(id(self), (self, {}))[1]
        try:
            return search(self, *args, **given)
        finally:
            self.cache = held

    # Triton's default of fusing a*b+c changes with 3.10, and 3.9 warns; as for `offline` it is on, unless the script says no.
    if "TRITON_DEFAULT_FP_FUSION" not in os.environ:
        os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
        patches.callback(os.environ.pop, "TRITON_DEFAULT_FP_FUSION", None)
    active = triton.runtime.driver._active
    patches.callback(setattr, triton.runtime.driver, "_active", active)
    triton.runtime.driver.set_active(Driver(chip, launcher))
    patches.enter_context(offline.without_machine_code())
    patches.put(CudaDriver, "is_active", staticmethod(lambda: True))
    patches.put(JITFunction, "run", run_here)
    patches.put(Autotuner, "run", search_here)
    patches.put(
        Autotuner,
        "do_bench",
        property(lambda self: lambda call, quantiles=None: (call(), [1.0] * 3)[1], _nothing),
    )
    patches.put(Autotuner, "prune_configs", lambda self, given: tuning.prune(prune, self, given))
    patches.put(Autotuner, "_bench", lambda self, *a, **g: tuning.bench(bench, self, *a, **g))
    for name in ("n_regs", "n_spills"):
        patches.put(CompiledKernel, name, property(functools.partial(_occupied, name), _nothing))
    for name in ("do_bench", "do_bench_cudagraph"):
        patches.put(triton.testing, name, untimed)


def _nothing(*given: Any) -> None:
    """An attribute that is set to no effect."""


def _occupied(name: str, kernel: Any) -> int:
    """Registers or bytes spilled of a kernel, assembled when a script asks for it."""
    launcher = kernel.run
    found = offline.resources(compiled_of(launcher))
    return found.registers if name == "n_regs" else found.spilled // 4


def compiled_of(launcher: Launcher, job: Job | None = None) -> Compiled:
    """The texts of a launcher's kernel: compiled before, so read from Triton's cache."""
    if launcher.compiled is None:
        if job is None:
            source, options = launcher.source, _options(launcher.metadata)
            job = Job(
                source.fn, source.fn.__name__, (), (), type(launcher).chip, num_warps=options.pop("num_warps"),
                num_stages=options.pop("num_stages"), options=tuple(options.items()), source=source,
            )  # fmt: skip
        launcher.compiled = offline.compile_job(job)
    return launcher.compiled


def _options(metadata: Any) -> dict[str, Any]:
    """The options that a kernel was compiled with: all that differ from what Triton takes by itself."""
    fields = CUDAOptions.__dataclass_fields__
    kept = {n: getattr(metadata, n) for n in fields if hasattr(metadata, n)}
    plain = {
        n: tuple(v) if isinstance(v, list) else v for n, v in kept.items() if n not in ("extern_libs", "arch")
    }
    always = ("num_warps", "num_stages", "enable_fp_fusion")
    return {n: v for n, v in plain.items() if n in always or v != fields[n].default}


def _divisor(source: ASTSource, leaf: arguments.Leaf) -> int:
    """What is promised to divide an argument."""
    promised = source.attrs.get(leaf.path) or ()
    return next((int(n) for name, n in promised if name == "tt.divisibility"), 1)


def _named(source: ASTSource, path: Any) -> str:
    """A constant's name, by its place among the parameters."""
    first, *rest = path if isinstance(path, tuple) else (path,)
    name = source.fn.arg_names[first] if isinstance(first, int) else first
    return ".".join([name, *map(str, rest)])


def _with_constants(
    source: ASTSource, given: Mapping[str, Argument], constants: dict[str, Any]
) -> tuple[tuple[Argument, ...], dict[str, Any]]:
    """Arguments with those that are None or 1 among them, and the constants that remain."""
    fixed, made = dict(constants), []
    for parameter in source.fn.params:
        name = parameter.name
        if name in given:
            made.append(given[name])
        elif (
            not parameter.is_constexpr and name in fixed and (fixed[name] is None or type(fixed[name]) is int)
        ):
            value = fixed.pop(name)
            made.append(Argument(name, "none") if value is None else Argument(name, "i32", value=value))
    return tuple(made), fixed
