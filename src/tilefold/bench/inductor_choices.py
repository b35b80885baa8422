"""What Inductor chose: products compiled by torch, with the winner of each autotuning written down."""

from __future__ import annotations

import contextlib
import functools
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold import inductor
from tilefold.bench import traps
from tilefold.bench.cases import Choice
from tilefold.bench.peers import COMPILE_MODE
from tilefold.bench.products import Pair, ProductCase, finished

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
    splits = re.search(r"k_splits__(\d+)", winner)
    if splits:
        return f"decompose-k {splits[1]}"
    itself = any(part in winner for part in ("fallback", "_tuned_matmul", "_product_op"))
    return "plain" if "_plain" in winner else "the operation itself" if itself else winner


_latest: list[str] = []  # the case whose functions Dynamo holds


def compile_beside(
    case: ProductCase, product: Callable[[Pair], Tensor], **options: Any
) -> Callable[[Pair], Tensor]:
    """`torch.compile` beside the case's other compiled functions: Dynamo is reset where a new case begins.

    Dynamo keeps what it compiled by a function's code, and falls back after eight specialisations of one code: each function
    gets a code of its own, and hitting that limit is an error.
    """
    import torch._dynamo as dynamo

    if _latest != [case.name]:
        dynamo.reset()
        _latest[:] = [case.name]
    dynamo.config.fail_on_recompile_limit_hit = True
    own = types.FunctionType(
        product.__code__.replace(), product.__globals__, product.__name__, None, product.__closure__
    )
    made: Callable[[Pair], Tensor] = torch.compile(own, fullgraph=True, mode=COMPILE_MODE, **options)
    return made


def compiled_choice(case: ProductCase, x: Tensor, product: Callable[[Pair], Tensor]) -> Choice:
    """A function compiled for one shape, labelled with what Inductor chose."""
    call = OfPair(compile_beside(case, product, dynamic=False), case.pair(x))
    with choices_noted() as noted:
        call(x)
    return Choice(winners(noted), call)


def build_compiled(case: Any, x: Tensor) -> Sequence[Choice]:
    """What a user of torch would write, compiled: Inductor may split K itself, and leaves ReLU to another kernel then."""

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


def build_custom_op(ours: bool, ranges: bool = False) -> Callable[[Any, Tensor], Sequence[Choice]]:
    """Inductor's autotuning of a custom operation: a Decompose-K for each split and torch's product, and ours or not.

    With `ranges` one graph serves any number of rows; it is compiled for another number than the case's, and then called with
    all of `ROWS`, which must not compile it again.
    """

    def build(case: Any, x: Tensor) -> Sequence[Choice]:
        _registered(ours)
        operation, epilogue = inductor.tuned_matmul if ours else product_op, "relu" if case.relu else None

        def product(pair: Pair) -> Tensor:
            made: Tensor = operation(*pair, None, epilogue, None)
            return made

        return [ranged_choice(case, x, product) if ranges else compiled_choice(case, x, product)]

    return build


@functools.cache
def _registered(ours: bool) -> None:
    """Candidates for our operation, or for the bench's, once a process."""
    if ours:
        inductor.register()
    else:
        inductor.tune(product_op, torch.ops.tilefold_bench.product.default)


ROWS = (16, 1, 64, 256, 768)


def ranged_choice(case: ProductCase, x: Tensor, product: Callable[[Pair], Tensor]) -> Choice:
    """One graph for every number of rows, labelled with what each range chose."""
    a, b = case.pair(x)
    call = OfPair(compile_beside(case, product), (a, b))
    with inductor.any_rows(), choices_noted() as noted:
        for rows in ROWS:
            other = torch.randn(rows, a.shape[1], device=a.device).to(a.dtype)
            torch._dynamo.mark_dynamic(other, 0)
            with torch.compiler.set_stance("default" if rows == ROWS[0] else "fail_on_recompile"):
                call.function((other, b))
        with torch.compiler.set_stance("fail_on_recompile"):
            call(x)
    return Choice(winners(noted), call)
