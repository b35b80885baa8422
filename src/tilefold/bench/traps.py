"""What makes a figure wrong without anybody noticing, caught: each guard here has a test that springs its trap."""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch

from tilefold.bench.timing import between_events, own_stream
from tilefold.errors import TilefoldError

WARM = "warm: the input may lie in the CPU's caches, which are not flushed"


class TrapError(TilefoldError, RuntimeError):
    """A figure would be wrong unnoticed."""


def fresh_compile(
    call: Callable[..., Any], dynamic: bool | None = False, **options: Any
) -> Callable[..., Any]:
    """`torch.compile` of a function with code of its own, by default for one shape only; a graph break raises.

    Dynamo keeps compiled code by a function's code. After eight specialisations of one code it would run the function
    eagerly from then on, and only log it: too many raise. What else was compiled stays, as a reset would not leave it.
    """
    import torch._dynamo as dynamo

    # For the whole process: it is never right for a peer to slow down quietly.
    dynamo.config.fail_on_recompile_limit_hit = True
    code, named = call.__code__.replace(), call.__name__
    own = types.FunctionType(code, call.__globals__, named, call.__defaults__, call.__closure__)
    compiled: Callable[..., Any] = torch.compile(own, dynamic=dynamic, fullgraph=True, **options)
    return compiled


def check_compiled(
    call: Callable[..., Any], x: torch.Tensor, compiled: Callable[..., Any] | None = None
) -> None:
    """Raise unless a compiled function runs compiled, for this input, and for nothing else: `call`, or one that it calls.

    Raises:
        TrapError: Dynamo holds no code for it (it fell back to eager), code for other shapes too, or none for this one.
    """
    entries = len(_cache_entries(compiled or call))
    if entries == 0:
        raise TrapError(
            "compile: a compiled function must run so, got none of its code: it fell back to eager; see TORCH_LOGS=dynamo"
        )
    if entries > 1:
        raise TrapError(
            f"compile: a function must be compiled for one input only, got {entries} specialisations (beyond Dynamo's limit "
            "it runs eagerly); compile it anew for each shape"
        )
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            call(x)
    except RuntimeError as error:
        if "recompile" not in str(error):
            raise
        raise TrapError(
            "compile: a function must be compiled for the input that is timed, got one specialised on another shape; "
            "compile it anew"
        ) from None


def _cache_entries(call: Callable[..., Any]) -> list[Any]:
    """Dynamo's code for a function."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list, innermost_fn

    found: list[Any] = _debug_get_cache_entry_list(innermost_fn(call).__code__)
    return found


class ChoiceError(TrapError):
    """Something was compiled or chosen while times were taken; `of` says by which variants."""

    def __init__(self, caught: Mapping[str, Sequence[str]]) -> None:
        """Keep the names beside the sentence."""
        self.of = tuple(caught)
        said = ", ".join(sorted({what for found in caught.values() for what in found}))
        super().__init__(
            f"timing: nothing may be compiled or chosen while times are taken, got: {said}; "
            "call the variant until it has settled"
        )


class Watched:
    """The variant whose turn it is while times are taken, and its other activity."""

    def __init__(self) -> None:
        """Nobody's turn yet."""
        self.at_work = ""
        self.caught: dict[str, list[str]] = {}
        self._graphs = _graphs()

    def turn(self, name: str) -> None:
        """From now on it is this variant's turn."""
        if _graphs() != self._graphs:
            self.note("Dynamo compiled a graph")
            self._graphs = _graphs()
        self.at_work = name

    def note(self, what: str) -> None:
        """Whose turn it is did this."""
        self.caught.setdefault(self.at_work, []).append(what)


@contextlib.contextmanager
def nothing_chosen() -> Iterator[Watched]:
    """Within it, times are taken: raise if anything is compiled, or an autotuner measures its candidates.

    Raises:
        ChoiceError: Dynamo compiled a graph, Inductor or Triton tuned, or Triton compiled a kernel.
    """
    watched = Watched()
    with contextlib.ExitStack() as stack:
        for owner, name, what in _choosers():
            stack.enter_context(mock.patch.object(owner, name, _noting(getattr(owner, name), what, watched)))
        yield watched
        watched.turn("")
    if watched.caught:
        raise ChoiceError(watched.caught)


def _choosers() -> list[tuple[Any, str, str]]:
    """Where torch and Triton measure candidates, and where Triton compiles."""
    from torch._inductor.runtime import benchmarking

    found: list[tuple[Any, str, str]] = [
        (getattr(benchmarking, "Benchmarker", None), "benchmark", "Inductor's autotuner ran"),
        (getattr(benchmarking, "InductorBenchmarker", None), "benchmark_gpu", "Inductor's autotuner ran"),
    ]
    with contextlib.suppress(ImportError):
        import triton

        found.append((triton.runtime.autotuner.Autotuner, "_bench", "Triton's autotuner ran"))
        found.append((triton.runtime.JITFunction, "_do_compile", "Triton compiled a kernel"))
    return [entry for entry in found if hasattr(entry[0], entry[1])]


def _noting(function: Callable[..., Any], what: str, watched: Watched) -> Callable[..., Any]:
    def noting(*arguments: Any, **keywords: Any) -> Any:
        watched.note(what)
        return function(*arguments, **keywords)

    return noting


def _graphs() -> int:
    """Graphs that Dynamo compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


# What Inductor's autotuner spends on a candidate. By default it flushes 100 times and then measures for up to 25 ms; a fifth
# of that tells candidates apart as far as their times differ by more than the device's own spread.
TUNING = {"memory_warmup_iters": 20, "max_benchmark_duration": 5}
SLOW_CANDIDATE_MS = 5.0
# Written before each sample of a candidate: 60 us on an H200, which hide a busy host. Inductor writes what the L2 holds.
TUNING_FLUSH_BYTES = 1 << 28


@contextlib.contextmanager
def tuned_one_at_a_time(lock: Any) -> Iterator[None]:
    """Within it, Inductor's autotuner holds `lock` while it measures: processes may compile together, never tune together.

    Candidates timed beside other processes' kernels would be chosen by chance, and so they would by a host whose cores all
    compile. The lock can be taken again by who holds it: a candidate that is a compiled graph tunes kernels of its own when
    it is first called.
    """
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    measure = _quick(InductorBenchmarker.benchmark_gpu, lambda call: call)

    def alone(*arguments: Any, **keywords: Any) -> Any:
        with lock:
            return measure(*arguments, **keywords)

    # Asked for by one name in torch 2.11, and by the other, a method, since 2.13.
    sizes: dict[str, Any] = {
        "L2_cache_size": TUNING_FLUSH_BYTES,
        "get_device_cache_size": lambda *asked: TUNING_FLUSH_BYTES,
    }
    with mock.patch.multiple(InductorBenchmarker, benchmark_gpu=alone, create=True, **sizes):
        yield


@contextlib.contextmanager
def tuned_in_graphs() -> Iterator[None]:
    """Within it, Inductor's autotuner measures candidates replayed from CUDA graphs, and writes no choice to disk.

    Else a candidate of few microseconds is measured by the host's time to launch it, and chosen by how busy the host
    is; torch 2.13 can be asked for the same. A candidate that cannot be captured is measured as it is. All runs on a stream
    of its own: a Triton candidate launches on the stream that was current when it was made, and a graph records one stream.
    """
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    replayed = _quick(InductorBenchmarker.benchmark_gpu, _recorded)
    with (
        mock.patch.object(InductorBenchmarker, "benchmark_gpu", replayed),
        _no_choice_on_disk(),
        own_stream(),
    ):
        yield


def _quick(measure: Callable[..., Any], prepared: Callable[[Any], Any]) -> Callable[..., Any]:
    """Inductor's way to measure a candidate, once `prepared`, as `TUNING` says.

    One that takes longer than `SLOW_CANDIDATE_MS` is called once (some fold a whole tensor on one core for seconds).
    """

    def quick(benchmarker: Any, call: Callable[[], Any], **keywords: Any) -> Any:
        once_ms = _once_ms(call)
        if once_ms > SLOW_CANDIDATE_MS:
            return once_ms
        return measure(benchmarker, prepared(call), **{**TUNING, **keywords})

    return quick


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Within it, Inductor's autotuner calls each candidate once and believes them equal: to compile them, not to choose."""
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    def once(benchmarker: Any, call: Callable[[], Any], **keywords: Any) -> float:
        call()
        return 1.0

    with mock.patch.object(InductorBenchmarker, "benchmark_gpu", once), _no_choice_on_disk():
        yield


@contextlib.contextmanager
def _no_choice_on_disk() -> Iterator[None]:
    """Also where choices are measured: the setting is part of the kernels that are looked up."""
    import torch._inductor.config as config
    from torch._inductor.codecache import PersistentCache

    written = mock.patch.object(PersistentCache, "update_local_cache", create=True)
    with config.patch(autotune_local_cache=False), written:
        yield


def _recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """The replay of a graph of the call; the call itself where that cannot be recorded, or launches on another stream."""
    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return call
    empty = any("Graph is empty" in str(warning.message) for warning in said)
    return call if empty else graph.replay


def _once_ms(call: Callable[[], Any]) -> float:
    """The device's time of one call, in milliseconds, after one that loads it."""
    call()
    torch.cuda.synchronize()
    took_us, _ = between_events(call)
    torch.cuda.synchronize()
    return took_us() / 1e3


def check_input(x: torch.Tensor, name: str) -> None:
    """Raise if an input is zeros, or one value: such data is faster than any real one.

    Raises:
        TrapError: more than 1 % zeros, or all elements equal.
    """
    zeros = x.numel() - int(torch.count_nonzero(x))
    if zeros > x.numel() // 100:
        raise TrapError(
            f"{name}: at most 1 % of a timed input may be zero, got {zeros} of {x.numel()}; draw it"
        )
    if x.numel() > 1 and bool((x == x[(0,) * x.dim()]).all()):
        raise TrapError(f"{name}: a timed input must vary, got one value {x.numel()} times; draw it")


def cold_note(input_bytes: int, cache_bytes: int, flush_bytes: int) -> str | None:
    """The warning for an input that may have been read from a cache; None if each sample began cold.

    Raises:
        TrapError: caches are flushed, but with less than they hold.
    """
    if flush_bytes and flush_bytes < 2 * cache_bytes:
        raise TrapError(
            f"timing: a flush must write twice the cache ({2 * cache_bytes} bytes), got {flush_bytes}; write more"
        )
    if flush_bytes or input_bytes > 2 * cache_bytes > 0:
        return None
    return WARM
