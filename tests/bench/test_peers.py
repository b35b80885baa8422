"""Peers: how they are found, what is said of one that is broken, and cuda.compute's adapter on a module of its shape."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import cpu_bench, small_case, total, variant

from tilefold.bench import gate, peers
from tilefold.bench.cases import Choice, Variant
from tilefold.bench.measure import measure_case
from tilefold.bench.peers import known_peers


def module_that(raises: str, folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text(f"raise {raises}\n")


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        ("ImportError('libcuda.so.1: cannot open\\nshared object file')",
         "ImportError: libcuda.so.1: cannot open shared object file"),
        ("SystemExit('no licence')", "SystemExit: no licence"),
        ("RuntimeError('Unsupported CUDA version: None')", "RuntimeError: Unsupported CUDA version: None"),
    ],
    ids=["import", "exit", "runtime"],
)  # fmt: skip
def test_a_peer_that_raises_at_import_is_missing_and_says_why(
    raises: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_that(raises, tmp_path, "quack")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "quack", raising=False)
    quack = known_peers()["quack"]
    assert (quack.version, quack.trouble) == (None, said)


def test_every_variant_of_a_peer_has_its_name() -> None:
    for name, peer in known_peers().items():
        assert peer.name == peer.variant.name == name


# --------------------------------------------------------------------------------------------------- cuda.compute


class OpKind(IntEnum):
    """As cuda.compute 1.1.1 has it, the two that the adapter names."""

    PLUS = 2
    MAXIMUM = 23


def get_dtype(array: Any) -> np.dtype[Any]:
    """As `_utils.protocols.get_dtype`: `.dtype` where numpy can read it, else by the array interface.

    A CPU's tensor has none; its numpy view stands for it.
    """
    try:
        return np.dtype(array.dtype)
    except TypeError:
        return np.asarray(array).dtype


def fake_compute(streams: list[int], sizes: list[int]) -> Any:
    """`make_reduce_into` with the parameters of cuda.compute 1.1.1, all by keyword, folding on numpy."""

    def make_reduce_into(*, d_in: Any, d_out: Any, op: Any, h_init: Any, **kwargs: Any) -> Callable[..., int]:
        assert isinstance(op, OpKind)
        assert not kwargs
        # `to_cccl_value` takes `h_init.data.cast("B")`.
        assert isinstance(h_init, np.ndarray)
        assert h_init.data.cast("B").nbytes == 4
        assert {get_dtype(d_in), get_dtype(d_out), h_init.dtype} == {np.dtype(np.float32)}
        assert d_in.is_contiguous()

        def reducer(
            *,
            temp_storage: Any,
            d_in: Any,
            d_out: Any,
            num_items: int,
            op: Any,
            h_init: Any,
            stream: Any = None,
        ) -> int:
            # `validate_and_get_stream`: a version and a handle, by the protocol.
            version, handle, *_ = stream.__cuda_stream__()
            assert version == 0
            assert isinstance(handle, int)
            streams.append(handle)
            size = 0 if temp_storage is None else temp_storage.nbytes
            address = 0 if temp_storage is None else temp_storage.data_ptr()
            sizes.append(size)
            if not address:
                return 1000
            assert size >= 1000
            folded = {OpKind.PLUS: np.add, OpKind.MAXIMUM: np.maximum}[op]
            np.asarray(d_out)[0] = folded.reduce(np.asarray(d_in)[:num_items], initial=h_init[0])
            return size

        return reducer

    made = types.ModuleType("cuda.compute")
    made.OpKind, made.make_reduce_into = OpKind, make_reduce_into  # type: ignore[attr-defined]  # a module of the test's
    return made


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """cuda.compute as a module that notes streams and sizes, and a device's current stream."""
    streams: list[int] = []
    sizes: list[int] = []
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.compute", fake_compute(streams, sizes))
    current = types.SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    return streams, sizes


@pytest.mark.parametrize("operation", ["sum", "amax"])
@pytest.mark.parametrize("shape", [(1, 1 << 16), (1, 3)])
def test_cuda_compute_folds_a_whole_array(
    operation: str, shape: tuple[int, ...], compute: tuple[list[int], list[int]]
) -> None:
    case = small_case(operation, shape)
    probes = gate.probes_of(case, "cpu")
    x = probes[0].x.clone()
    (choice,) = peers.build_cuda_compute(case, x)
    assert gate.check(case, choice.call, x, probes) is None
    streams, sizes = compute
    assert set(streams) == {77}  # torch's current stream, at the time of the call
    assert sizes == [0, 1000, 1000]  # the size is asked for once, before anything is timed


@pytest.mark.parametrize(
    ("operation", "shape", "dtype"),
    [("sum", (8, 256), "fp32"), ("sum", (1, 256), "bf16"), ("logsumexp", (1, 256), "fp32")],
)
def test_cuda_compute_has_no_other_fold(operation: str, shape: tuple[int, ...], dtype: str) -> None:
    case = small_case(operation, shape, dtype)
    assert peers.build_cuda_compute(case, case.draw("cpu")) == []


def test_cuda_compute_without_its_bindings_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports all the same, and says so only of an attribute."""
    bare = types.ModuleType("cuda.compute")

    def missing(name: str) -> None:
        raise AttributeError(f"Cannot access 'cuda.compute.{name}' because CUDA bindings are not available.")

    bare.__getattr__ = missing  # type: ignore[method-assign]  # PEP 562, as the package does it
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.compute", bare)
    peer = known_peers()["cuda.compute"]
    assert peer.version is None
    assert peer.trouble is not None
    assert "bindings are not available" in peer.trouble


def test_what_numba_names_is_there_before_cuda_compute_is_imported(
    monkeypatch: pytest.MonkeyPatch, compute: object
) -> None:
    monkeypatch.delattr(np, "row_stack", raising=False)
    if hasattr(np, "row_stack"):
        pytest.skip("this numpy still has it, behind a warning")
    try:
        peers.imported("cuda.compute")
        assert np.row_stack is np.vstack
    finally:
        if "row_stack" in vars(np):
            del np.row_stack


class Reduction:
    """cupy.ReductionKernel, of C expressions that are Python's too once a word is changed."""

    def __init__(
        self, taken: str, given: str, lift: str, combine: str, store: str, identity: str, name: str
    ) -> None:
        assert given.endswith(" y")
        self.given, self.lift, self.combine, self.store = given.split()[0], lift, combine, store
        self.identity = -np.inf if identity == "__int_as_float(0xff800000)" else int(identity)

    def __call__(self, source: np.ndarray, *, out: np.ndarray, axis: int) -> None:
        assert out.dtype == self.given
        a: Any = np.full(np.delete(source.shape, axis), self.identity)
        for x in np.moveaxis(source, axis, 0):
            a = self._value(self.combine, a=a, b=self._value(self.lift, x=x))
        out[...] = self._value(self.store.removeprefix("y = "), a=a)

    @staticmethod
    def _value(text: str, **known: Any) -> Any:
        text = text.replace("(float)", "").replace("a && b", "np.logical_and(a, b)")
        return eval(text, {"np": np, "max": np.maximum, "sqrt": np.sqrt, **known})


def fake_cupy(streams: list[int]) -> Any:
    @contextmanager
    def stream(number: int) -> Iterator[None]:
        streams.append(number)
        yield

    cupy: Any = types.ModuleType("cupy")
    cupy.ReductionKernel = Reduction
    cupy.from_dlpack = cupy.asarray = lambda tensor: tensor.numpy()
    cupy.cuda = types.SimpleNamespace(ExternalStream=stream, Stream=types.SimpleNamespace())
    return cupy


@pytest.mark.parametrize("shape", [(5, 33), (3, 4, 7)], ids=str)
@pytest.mark.parametrize(
    ("operation", "dtype"),
    [("sum", "fp32"), ("amax", "fp16"), ("vector_norm", "fp32"), ("all", "int32"), ("bitwise_or", "int64")],
)
def test_cupy_folds_along_a_dim(
    operation: str, dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[int] = []
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(streams))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=77))
    case = small_case(operation, shape, dtype)
    probes = gate.probes_of(case, "cpu")
    x = probes[0].x.clone()
    (choice,) = peers.build_cupy(case, x)
    assert gate.check(case, choice.call, x, probes) is None
    assert set(streams) == {77}


def test_cupy_has_no_other_fold() -> None:
    for case in (small_case("logsumexp"), small_case("sum", dtype="bf16")):
        assert peers.build_cupy(case, case.draw("cpu")) == []


# ------------------------------------------------------------------------------------------------- at build, at call


def broken_at(stage: str) -> Any:
    def build(case: Any, x: torch.Tensor) -> list[Choice]:
        if stage == "build":
            raise KeyError("fp8")
        return [Choice("only", call)]

    def call(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    return Variant("peer", build)


@pytest.mark.parametrize(
    ("stage", "said"), [("build", "KeyError: 'fp8'"), ("call", "OutOfMemoryError: no room")]
)
def test_a_peer_that_raises_is_an_error_beside_the_others(stage: str, said: str) -> None:
    ours, theirs = measure_case(cpu_bench(), small_case(), [variant(total), broken_at(stage)]).measurements
    assert ours.status == "ok"
    assert (theirs.status, theirs.note, theirs.time_us) == ("error", said, None)
