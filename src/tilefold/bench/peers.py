"""Peers of tilefold, each behind a small adapter. A peer that cannot be imported is named as missing.

torch and torch.compile run any case. cupy, jax and cuda.compute know the folds below by name. A suite may have a variant of a
peer's name for its own operations: quack's maps and top-k, cuda.compute's scans and segments.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.bench import machine, traps
from tilefold.bench.cases import Call, Case, Choice, Variant

Build = Callable[[Case, torch.Tensor], Sequence[Choice]]
JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"  # where JAX keeps compiled code; nowhere without
COMPILE_MODE = "max-autotune-no-cudagraphs"


@dataclass(frozen=True)
class Peer:
    """A competitor: the module that must import, the distribution that has its version, its variant.

    `attribute` is a name that the module must have: some import without the driver or the library that they need.
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    variant: Variant
    attribute: str = "__name__"

    @property
    def trouble(self) -> str | None:
        """Why it cannot be used, or None: one that is installed but broken is as missing as one that is not."""
        try:
            getattr(imported(self.module), self.attribute)
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return None

    @property
    def version(self) -> str | None:
        """Its version, or None if it cannot be used."""
        if self.trouble:
            return None
        there = {name: machine.version_of(name) for name in self.distributions}
        return next((version for version in there.values() if version), "unknown")


def imported(module: str) -> Any:
    """A peer's module, whatever must be so before it can be imported."""
    if module == "cuda.compute":
        # numba-cuda uses names that numpy 2 has removed.
        numpy = importlib.import_module("numpy")
        if not hasattr(numpy, "row_stack"):
            setattr(numpy, "row_stack", numpy.vstack)  # noqa: B010  # numpy's own types know no such name
    return importlib.import_module(module)


def known_peers() -> dict[str, Peer]:
    """Every peer by the name that `--against` takes."""
    compiled = Variant("compile", build_compiled, warms=True, graphs=True, check=traps.check_compiled)
    in_jax = Variant(
        "jax",
        build_jax,
        warms=JAX_CACHE in os.environ,
        note="runs on a stream of its own, so its time includes the host's wait",
    )
    of_cupy, of_cub = ("cupy-cuda13x", "cupy-cuda12x", "cupy"), ("cuda-cccl",)
    cub = Variant("cuda.compute", build_cuda_compute, gpu_only=True)
    liger, quack = (Variant(name, build_nothing, gpu_only=True) for name in ("liger", "quack"))
    peers = (
        Peer("torch", "torch", ("torch",), Variant("torch", build_torch, graphs=True)),
        Peer("compile", "torch", ("torch",), compiled),
        Peer("cupy", "cupy", of_cupy, Variant("cupy", build_cupy, gpu_only=True)),
        Peer("jax", "jax", ("jax",), in_jax),
        Peer("cuda.compute", "cuda.compute", of_cub, cub, "make_reduce_into"),
        Peer("liger", "liger_kernel", ("liger-kernel",), liger),
        Peer("quack", "quack", ("quack-kernels",), quack),
    )
    return {peer.name: peer for peer in peers}


def build_torch(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """Torch's own call."""
    return [] if case.torch_call is None else [Choice("eager", case.torch_call)]


def build_compiled(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """The same compiled, tuned for this one shape."""
    in_torch = case.torch_call
    if in_torch is None:
        return []

    def fold(x: torch.Tensor) -> Any:
        return in_torch(x)

    return [Choice(COMPILE_MODE, traps.fresh_compile(fold, mode=COMPILE_MODE))]


def build_nothing(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """It has none of the folds."""
    return []


# ----------------------------------------------------------------------------------------------------------- cupy

# Of each fold: lift, combine, project and the identity.
CUPY_FOLDS = {
    "sum": ("x", "a + b", "y = a", "0"),
    "amax": (
        "x",
        "max(a, b)",
        "y = a",
        "__int_as_float(0xff800000)",
    ),  # minus infinity: NVRTC has no name for it
    "vector_norm": ("(float)x * x", "a + b", "y = sqrt(a)", "0"),
    "all": ("x != 0", "a && b", "y = a", "1"),
    "bitwise_or": ("x", "a | b", "y = a", "0"),
}


def build_cupy(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """A ReductionKernel over the same memory, on torch's stream; none where cupy has not the dtype (bf16) or the fold."""
    if case.operation not in CUPY_FOLDS or case.dtype == "bf16":
        return []
    cupy = importlib.import_module("cupy")
    element = {"fp32": "float32", "fp16": "float16", "int32": "int32", "int64": "int64"}[case.dtype]
    stored = "bool" if case.operation == "all" else element
    lift, combine, store, identity = CUPY_FOLDS[case.operation]
    kernel = cupy.ReductionKernel(f"{element} x", f"{stored} y", lift, combine, store, identity, "fold")
    source = cupy.from_dlpack(x)

    def stream() -> Any:
        if hasattr(cupy.cuda.Stream, "from_external"):  # cupy 14; ExternalStream warns there
            return cupy.cuda.Stream.from_external(torch.cuda.current_stream())
        return cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)

    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(case.result_shape, dtype=case.result_dtypes[0], device=x.device)
        with stream():
            kernel(source, out=cupy.asarray(out), axis=case.dim)
        return out

    return [Choice("ReductionKernel", call)]


# ------------------------------------------------------------------------------------------------------------ jax


def _jax_folds(jnp: Any, jax: Any) -> dict[str, Callable[[Any, int | None], Any]]:
    """The folds under torch's names."""
    return {
        "sum": lambda x, dim: jnp.sum(x, dim),
        "amax": lambda x, dim: jnp.max(x, dim),
        "argmax": lambda x, dim: jnp.argmax(x, dim),
        "logsumexp": lambda x, dim: jax.scipy.special.logsumexp(x, dim),
        "var": lambda x, dim: jnp.var(x, dim, ddof=1),
        "all": lambda x, dim: jnp.all(x, dim),
        "aminmax": lambda x, dim: (jnp.min(x, dim), jnp.max(x, dim)),
        "vector_norm": lambda x, dim: jnp.linalg.norm(x, axis=dim),
        "cumsum": lambda x, dim: jnp.cumsum(x, dim),
        "logcumsumexp": lambda x, dim: jax.lax.cumlogsumexp(x, axis=dim),
        "affine": lambda x, dim: jax.lax.associative_scan(_after, (x[0], x[1]), axis=dim - 1)[1],
        "bitwise_or": lambda x, dim: jax.lax.reduce(x, x.dtype.type(0), jax.lax.bitwise_or, (dim,)),
    }


def _after(f: Any, g: Any) -> tuple[Any, Any]:
    """The map g after the map f, each x -> a x + b."""
    return f[0] * g[0], g[0] * f[1] + g[1]


def build_jax(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """`jax.jit` over the same memory; none for a fold or dtype that it has not (64-bit integers are off by default)."""
    # Read when its device is first used: it would take three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = importlib.import_module("jax")
    if JAX_CACHE in os.environ:  # else it keeps only code that took a second to compile
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    folds = _jax_folds(importlib.import_module("jax.numpy"), jax)
    if case.operation not in folds or case.dtype in ("int64", "fp64") or isinstance(case.dim, tuple):
        return []
    in_jax, dim = folds[case.operation], case.dim
    fold = jax.jit(lambda x: in_jax(x, dim))

    def call(x: torch.Tensor) -> Any:
        results = jax.block_until_ready(fold(jax.dlpack.from_dlpack(x)))
        several = results if isinstance(results, tuple) else (results,)
        outputs = [torch.utils.dlpack.from_dlpack(r) for r in several]
        # Its positions are int32; torch's are int64.
        return tuple(t.to(d) for t, d in zip(outputs, case.result_dtypes, strict=True))

    return [Choice("jit", call)]


# --------------------------------------------------------------------------------------------------- cuda.compute


@dataclass(frozen=True)
class StreamOfTorch:
    """Torch's current stream as cuda.compute asks for one: a version of the protocol, and the handle."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version 0."""
        return 0, self.handle


def build_cuda_compute(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """CUB's reduction of a whole array of float32; none for rows and columns, or for other folds.

    `reduce_into`, the same in one word, looks itself up and allocates from the driver at each call.
    """
    whole = isinstance(case.dim, int) and case.shape[case.dim] == case.elements and case.layout is None
    if not whole or case.operation not in ("sum", "amax") or case.dtype != "fp32":
        return []
    compute = imported("cuda.compute")
    numpy = importlib.import_module("numpy")
    kind = compute.OpKind.PLUS if case.operation == "sum" else compute.OpKind.MAXIMUM
    first = numpy.array([0.0 if case.operation == "sum" else -numpy.inf], dtype=numpy.float32)
    given, count = {"op": kind, "h_init": first}, {"num_items": x.numel()}
    return [Choice("make_reduce_into", cub_call(compute.make_reduce_into, case, x, given, count))]


def cub_call(
    make: Callable[..., Any], case: Case, x: torch.Tensor, given: Mapping[str, Any], count: Mapping[str, int]
) -> Call:
    """A call of one of CUB's algorithms, `given` what it takes beside memory, and `count` how many there are.

    Compiled here, its scratch memory allocated here: a call launches, no more.
    """

    def arguments(x: torch.Tensor, out: torch.Tensor) -> dict[str, Any]:
        return {"d_in": x.view(-1), "d_out": out.view(-1), **given}

    def launched(x: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor | None) -> int:
        stream = StreamOfTorch(torch.cuda.current_stream().cuda_stream)
        needed: int = made(temp_storage=scratch, stream=stream, **count, **arguments(x, out))
        return needed

    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(case.result_shape, dtype=x.dtype, device=x.device)
        launched(x, out, scratch)
        return out

    out = torch.empty(case.result_shape, dtype=x.dtype, device=x.device)
    made = make(**arguments(x, out))
    # An address of 0 would ask for the size again.
    scratch = torch.empty(max(launched(x, out, None), 1), dtype=torch.uint8, device=x.device)
    return call
