"""cluster.cu compiled for a chip and launched: a cluster of CTAs shares K and meets in distributed shared memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver, nvrtc

Tensor = torch.Tensor
SOURCE = Path(__file__).with_name("cluster.cu")
STEP = 64  # of K, as in the source
SHARED_BYTES = 220 * 1024  # that one CTA may have
RESIDENT = 2  # CTAs an SM that are tried at most


@dataclass(frozen=True)
class Config:
    """What the source leaves open; see there."""

    BM: int
    BN: int
    WARPS: int
    STAGES: int
    CLUSTER: int
    FOLD_FIRST: int
    CHAINED: int

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: a pipeline for each warp, and what the CTA receives."""
        tile = self.BM * self.BN * 4
        warp = max(self.STAGES * (self.BM + self.BN) * STEP * 2, tile * self.FOLD_FIRST)
        return self.WARPS * warp + tile * (1 if self.FOLD_FIRST else self.WARPS)


def configurations(rows: int, columns: int, depth: int, sms: int) -> Iterator[tuple[Config, int]]:
    """Kernels, and how many clusters share a tile: no more CTAs than fit at once, all of K on its way where it fits."""
    tiles = [
        (m, n)
        for m, n in ((16, 16), (32, 32), (48, 16), (64, 32), (64, 64))
        if m <= rows and n <= columns and (m != 48 or rows == 48)
    ]
    ways = itertools.product(tiles, (8, 16), (4, 8, 16), (1, 2, 4, 8, 16))
    for (m, n), cluster, warps, clusters in ways:
        ctas = -(-rows // m) * -(-columns // n) * cluster * clusters
        steps = -(-depth // STEP // (cluster * clusters * warps))
        if (
            not 8 <= ctas <= RESIDENT * sms
            or depth // STEP < cluster * clusters * warps
            or m * n * warps > 1 << 15
        ):
            continue
        for first, chained in itertools.product((0, 1), (0, 1)):
            if not first and m * n > 768:  # each warp's sums would fill the owner's memory
                continue
            config = _with_most_stages(Config(m, n, warps, steps, cluster, first, chained))
            if config is not None:
                yield config, clusters


def _with_most_stages(config: Config) -> Config | None:
    """The configuration with so many steps on their way as shared memory holds, at most 8."""
    for stages in range(min(8, config.STAGES), 0, -1):
        fitting = Config(**(asdict(config) | {"STAGES": stages}))
        if fitting.shared_bytes <= SHARED_BYTES:
            return fitting
    return None


def compile_cubin(config: Config, architecture: str = "sm_90a") -> bytes:
    """The machine code of a configuration: in any process, no GPU needed."""
    program = _checked(
        nvrtc.nvrtcCreateProgram(SOURCE.read_text(encoding="utf-8").encode(), b"cluster.cu", 0, [], [])
    )
    defined = [f"-D{name}={value}" for name, value in asdict(config).items()]
    options = [option.encode() for option in (f"--gpu-architecture={architecture}", *defined)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status):
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"cluster.cu: NVRTC must accept it, got {log.decode()}")
    made = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, made))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return made


compiled: dict[Config, bytes] = {}  # what was compiled ahead


@functools.cache
def _function(config: Config) -> Any:
    """The kernel, loaded into torch's context."""
    module = _checked(driver.cuModuleLoadData(compiled.get(config) or compile_cubin(config)))
    function = _checked(driver.cuModuleGetFunction(module, b"cluster_products"))
    attributes = driver.CUfunction_attribute
    for attribute, value in (
        (attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, config.shared_bytes),
        (attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
    ):
        _checked(driver.cuFuncSetAttribute(function, attribute, value))
    return function


def launcher(config: Config, clusters: int, a: Tensor, b: Tensor) -> tuple[Callable[[], Tensor], Tensor]:
    """A call without arguments, and the counters that each call must leave at 0."""
    import ctypes

    (rows, depth), columns = a.shape, b.shape[1]
    assert depth % STEP == columns % 8 == 0
    tiles = -(-rows // config.BM) * -(-columns // config.BN)
    partials = torch.empty(clusters * tiles * config.BM * config.BN, device=a.device)
    counters = torch.zeros(tiles * config.CLUSTER, dtype=torch.int32, device=a.device)
    function, launch = _function(config), driver.CUlaunchConfig()
    launch.gridDimX, launch.gridDimY, launch.gridDimZ = tiles * clusters * config.CLUSTER, 1, 1
    launch.blockDimX, launch.blockDimY, launch.blockDimZ = 32 * config.WARPS, 1, 1
    launch.sharedMemBytes = config.shared_bytes
    if config.CHAINED:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        launch.attrs, launch.numAttrs = [attribute], 1
    types = (*(ctypes.c_void_p,) * 5, *(ctypes.c_int,) * 4)

    def call() -> Tensor:
        c = torch.empty(rows, columns, device=a.device, dtype=a.dtype)
        tensors = (a, b, c, partials, counters)
        values = (*(t.data_ptr() for t in tensors), rows, columns, depth, clusters)
        launch.hStream = torch.cuda.current_stream().cuda_stream
        _checked(driver.cuLaunchKernelEx(launch, function, (values, types), 0))
        return c

    return call, counters


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a function of the driver or of NVRTC gives, unless it failed."""
    status, *given = answer
    if int(status):
        raise RuntimeError(f"cluster: {status!r}")
    return given[0] if given else None
