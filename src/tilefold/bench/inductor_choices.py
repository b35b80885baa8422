"""What Inductor chose: products compiled by torch, with the winner of each autotuning written down."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.bench import traps
from tilefold.bench.cases import Choice
from tilefold.bench.peers import COMPILE_MODE
from tilefold.bench.product_cases import Pair, ProductCase, finished
from tilefold.integration import inductor

Tensor = torch.Tensor


@dataclass(frozen=True)
class OfPair:
    """A compiled function of (a, b) called with the views that were made for it: slicing is not what is timed."""

    function: Callable[[Pair], Tensor]
    pair: Pair

    def __call__(self, x: Tensor) -> Tensor:
        """The product of the tensor's two parts."""
        return self.function(self.pair)


def check_compiled(call: Any, x: Tensor) -> None:
    """As `traps.check_compiled`, of the function that was compiled."""
    traps.check_compiled(call.function, call.pair)


@contextlib.contextmanager
def choices_noted() -> Iterator[list[tuple[str, str]]]:
    """Within it, (what was tuned, the winner) is noted for each autotuning, none hidden by a cache of whole graphs."""
    from torch._inductor import select_algorithm

    noted: list[tuple[str, str]] = []

    def note(timings: dict[Any, float], name: str, *rest: Any) -> None:
        if timings:
            noted.append((name, min(timings, key=lambda choice: timings[choice]).name))

    graphs = torch._inductor.config.patch(fx_graph_cache=False)
    select_algorithm.add_feedback_saver(note)
    try:
        with graphs, torch._functorch.config.patch(enable_autograd_cache=False):
            yield noted
    finally:
        select_algorithm.clear_feedback_savers()  # type: ignore[no-untyped-call]  # torch's own


def winners(noted: Sequence[tuple[str, str]]) -> str:
    """The choices as a plan's text: those of our operations by range, else the first product's."""
    ours = [(name, winner) for name, winner in noted if "autotuned" in name or "range" in name]
    if not ours:
        return noted[0][1] if noted else "one candidate"
    return "; ".join(f"{_range(name)}{_short(winner)}" for name, winner in ours)


def _range(name: str) -> str:
    found = re.search(r"range_(\d+)_(\w+)$", name)
    return f"M {found[1]}-{found[2]}: " if found else ""


def _short(winner: str) -> str:
    """A candidate's name in a word: Inductor's own hold the operation and all its arguments."""
    splits = re.search(r"k_splits_+(\d+)", winner)  # torch 2.11 writes one underscore
    if splits:
        return f"decompose-k {splits[1]}"
    itself = any(part in winner for part in ("fallback", "_tuned_matmul", "_product_op"))
    return "plain" if "_plain" in winner else "the operation itself" if itself else winner


Build = Callable[[Any, Tensor], Sequence[Choice]]


def chosen_in_graphs(build: Build) -> Build:
    """A variant's way to build its choices, Inductor's candidates measured as `traps.tuned_in_graphs` says."""

    def built(case: Any, x: Tensor) -> Sequence[Choice]:
        with traps.tuned_in_graphs() if x.is_cuda else contextlib.nullcontext():
            return build(case, x)

    return built


def compiled_only(build: Build) -> Build:
    """The same in a worker, whose choice is not used: no candidate is measured."""

    def compiled(case: Any, x: Tensor) -> Sequence[Choice]:
        with traps.unmeasured():
            return build(case, x)

    return compiled


def compiled_choice(case: ProductCase, x: Tensor, product: Callable[[Pair], Tensor]) -> Choice:
    """A function compiled for one shape, labelled with what Inductor chose."""
    call = OfPair(traps.fresh_compile(product, mode=COMPILE_MODE), case.pair(x))
    with choices_noted() as noted:
        call(x)
    return Choice(winners(noted), call)


def build_compiled(case: Any, x: Tensor) -> Sequence[Choice]:
    """Torch's own product, compiled: Inductor may split K itself, and leaves ReLU to another kernel then."""

    def product(pair: Pair) -> Tensor:
        return finished(*pair, case.relu)

    return [compiled_choice(case, x, product)]


@torch.library.custom_op("tilefold_bench::product", mutates_args=())
def product_op(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    epilogue: str | None = None,
    precision: str | None = None,
) -> Tensor:
    """The product of torch as an operation of its own, for Inductor to replace by Decompose-K."""
    return finished(a, b, epilogue == "relu")


@product_op.register_fake
def _(a: Tensor, b: Tensor, bias: Any = None, epilogue: Any = None, precision: Any = None) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def build_custom_op(ours: bool) -> Build:
    """Inductor's autotuning of a custom operation: a Decompose-K for each split and torch's product, and ours or not."""

    def build(case: Any, x: Tensor) -> Sequence[Choice]:
        return [compiled_choice(case, x, _custom_product(ours, case.relu))]

    return build


def build_ranges(ours: bool) -> Build:
    """The same in one graph for every number of rows, which serves all cases of one depth and width."""

    def build(case: Any, x: Tensor) -> Sequence[Choice]:
        a, b = case.pair(x)
        function, label = _ranged(ours, case.relu, *b.shape, b.dtype, b.device)
        call = OfPair(function, (a, b))
        with torch.compiler.set_stance("fail_on_recompile"):
            call(x)
        return [Choice(label, call)]

    return build


def compile_ranges(ours: bool) -> Build:
    """The graph of all cases, compiled for one of them."""
    build = build_ranges(ours)
    return lambda case, x: build(case, x) if case.shape[0] == min(ROWS) else []


def _custom_product(ours: bool, relu: bool) -> Callable[[Pair], Tensor]:
    _registered(ours)
    operation, epilogue = inductor.tuned_matmul if ours else product_op, "relu" if relu else None

    def product(pair: Pair) -> Tensor:
        made: Tensor = operation(*pair, None, epilogue, None)
        return made

    return product


@functools.cache
def _registered(ours: bool) -> None:
    """Candidates for our operation, or for the bench's, once a process."""
    if ours:
        inductor.register()
    else:
        inductor.tune(product_op, torch.ops.tilefold_bench.product.default)


ROWS = (16, 1, 64, 256, 768)


@functools.lru_cache(maxsize=8)
def _ranged(
    ours: bool, relu: bool, depth: int, columns: int, dtype: torch.dtype, device: torch.device
) -> tuple[Callable[[Pair], Tensor], str]:
    """One graph for every number of rows, with what each range chose: all of `ROWS` are called, one of them compiles."""
    function = traps.fresh_compile(_custom_product(ours, relu), dynamic=None, mode=COMPILE_MODE)
    b = torch.randn(depth, columns, device=device).to(dtype)
    with inductor.any_rows(), choices_noted() as noted:
        for rows in ROWS:
            a = torch.randn(rows, depth, device=device).to(dtype)
            torch._dynamo.mark_dynamic(a, 0)
            with torch.compiler.set_stance("default" if rows == ROWS[0] else "fail_on_recompile"):
                function((a, b))
    return function, winners(noted)
