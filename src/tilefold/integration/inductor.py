"""tilefold inside torch.compile: a pass that fuses, and candidates for Inductor to choose among for products.

Candidates of a product: torch's own with the epilogue after it, as Inductor lowers it; one Decompose-K for each split that
divides K; and ours. Which is fastest Inductor measures when it compiles.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.api import registered
from tilefold.api.products import explain_product
from tilefold.api.registered import own_matmul as own_matmul
from tilefold.api.registered import recorded_matmul
from tilefold.api.registered import tuned_matmul as tuned_matmul
from tilefold.errors import hint_at_names
from tilefold.integration import fusion
from tilefold.planner.products import cublas
from tilefold.planner.products.epilogue import IN_TORCH, accumulator_dtype

Tensor = torch.Tensor

matmul = recorded_matmul  # `tilefold.matmul` for code that is compiled

SPLITS = tuple(1 << s for s in range(1, 9))
SPLIT_POINTS = (1, 8, 32, 128, 512)
UNBOUNDED = 1024  # rows of the product that stands for the last, open range when it is timed


@dataclass(frozen=True)
class Registered:
    """What `register` could switch on with this torch, and why something is off."""

    exact_shapes: bool
    row_ranges: bool
    aten_mm: bool
    off: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = {
            "exact shapes": self.exact_shapes,
            "ranges of rows": self.row_ranges,
            "aten.mm": self.aten_mm,
        }
        lines = [f"{name}: {'on' if on else 'off'}" for name, on in names.items()]
        return "\n".join([*lines, *(f"off: {why}" for why in self.off)])


def register(
    *,
    split_points: Sequence[int] = SPLIT_POINTS,
    unbounded: int = UNBOUNDED,
    mm: bool = False,
    fuse: bool = True,
) -> Registered:
    """Let Inductor fuse folds and maps on a GPU with their pointwise neighbours, and choose among candidates for products.

    With `fuse`, what makes a fold's tensors element by element becomes part of it, and so does what is computed of a map's
    results; folds and maps of the same tensors become one (`integration.fusion`). Results then are within the same bound of
    float64's as a fold's, but have other bits than those of plain calls: nothing is rounded in between.

    For each product of a compiled graph Inductor chooses among torch's, Decompose-K and ours.

    A product whose rows are known when it is compiled is tuned for exactly that shape. One whose rows are dynamic
    (torch.compile(..., dynamic=True), or a marked dim) is tuned for each range of rows between `split_points`, and the graph
    chooses by the rows of each call: one graph serves them all. Registering again replaces the earlier registration, but
    Inductor's cache on disk does not know of it: graphs that were compiled with other split points, or plain torch.mm before
    mm=True, are taken from there until it is emptied.

    Torch's candidates round as torch does: torch's product is rounded to its dtype before the epilogue, its partial sums as
    torch.backends.cuda.matmul allows. Products of other dtypes than floats of 16 to 64 bits, and float32 ones while torch is
    set to tf32, have no candidate but ours.

    Args:
        split_points: the last row count of each range but the last, ascending.
        unbounded: the rows with which the last, open range is timed.
        mm: whether plain torch.mm of compiled graphs takes part too, where K is large enough for us to split it.
        fuse: whether graphs that are compiled from now on are fused.

    Returns:
        A text that says which parts are on, and why a part is off: torch 2.11 cannot replace aten.mm, nor time
        candidates inside CUDA graphs.
    """
    fusion.switch(fuse)
    module, off = _custom_ops(), list[str]()
    if "benchmark_with_cudagraphs" not in inspect.signature(module.register_custom_op_autotuning).parameters:
        off.append(f"candidates are not timed inside CUDA graphs: torch {torch.__version__} cannot")
    tune(tuned_matmul, torch.ops.tilefold.matmul.default, split_points=split_points, unbounded=unbounded)
    registered.tuned = True
    plain = mm and _register_mm(module, _ranges(split_points, unbounded), off)
    return Registered(True, True, plain, tuple(off))


def tune(
    operation: Any, overload: Any, *, split_points: Sequence[int] = SPLIT_POINTS, unbounded: int = UNBOUNDED
) -> None:
    """What `register` does, of any custom operation with the arguments of `tilefold::matmul`."""
    module, table, ranges = _custom_ops(), _lowerings(), _ranges(split_points, unbounded)
    choices = _choices
    if not _keeps_arguments(module):
        choices = _choices_and_itself
        _leave_out_itself(module, f"{overload._name}_autotuned", list(split_points))
    exact = _lowering(module, operation, overload, config_generator=choices)
    ranged = _lowering(module, operation, overload, config_generator=choices, **ranges)

    def lower(a: Any, *arguments: Any, **keywords: Any) -> Any:
        if cublas.multiplies(a.get_dtype(), "ieee"):
            made = _by_rows(exact, ranged)(a, *arguments, **keywords)
            if made is not None:
                return made
        from torch._inductor.lowering import fallback_handler

        handler = fallback_handler(overload, add_to_fallback_set=False)  # type: ignore[no-untyped-call]  # torch's own
        return handler(a, *arguments, **keywords)

    table[overload] = lower


def _ranges(split_points: Sequence[int], unbounded: int) -> dict[str, Any]:
    """The options that have Inductor choose for each range of rows."""
    return {
        "dispatch_on": {"tensor_name": "a", "dim": 0, "range_upper_bound": unbounded},
        "split_points": list(split_points),
    }


def any_rows() -> Any:
    """A context in which graphs are compiled so that one row is a number of rows like any other.

    Without it torch.compile makes a graph of its own for a dynamic dim of size 1 (and 0).

    Example:
        >>> with tilefold.inductor.any_rows():
        ...     call = torch.compile(layer)
        ...     torch._dynamo.mark_dynamic(x, 0)
        ...     y = call(x)
    """
    from torch.fx.experimental import _config

    return _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]  # torch's own, made at import


def _custom_ops() -> Any:
    return importlib.import_module("torch._inductor.kernel.custom_op")


def _lowerings() -> dict[Any, Any]:
    """The table in which this version of Inductor looks up an operation of ours."""
    from torch._inductor import lowering

    table: dict[Any, Any] = (
        lowering.user_lowerings if hasattr(lowering, "user_lowerings") else lowering.lowerings
    )
    return table


def _keeps_arguments(module: Any) -> bool:
    """Whether an operation that Inductor makes a candidate itself is called with all its arguments when it wins.

    Torch 2.11 hands on its tensors alone, so that an epilogue would be lost, and makes it a candidate once in a process.
    """
    return "kwargs" not in inspect.signature(module._create_fallback_choice).parameters


def _leave_out_itself(module: Any, name: str, split_points: list[int]) -> None:
    """Have torch 2.11 believe that each tuning has had the operation itself as a candidate already."""
    from torch._inductor.select_algorithm import extern_kernels

    ranges = module._create_ranges_from_split_points(split_points)
    for end in ("", *(f"_range_{first}_{last}" for first, last in ranges)):
        setattr(extern_kernels, f"{name}{end}_fallback_default", own_matmul)


def _lowering(module: Any, operation: Any, overload: Any, **options: Any) -> Callable[..., Any]:
    """What Inductor is to do with an operation, timing candidates inside CUDA graphs on a GPU where it can."""
    made = {}
    for on_gpu in (True, False):
        extra = {"benchmark_with_cudagraphs": on_gpu}
        known = inspect.signature(module.register_custom_op_autotuning).parameters
        module.register_custom_op_autotuning(
            operation, **options, **{name: value for name, value in extra.items() if name in known}
        )
        made[on_gpu] = _lowerings()[overload]

    def lower(a: Any, *arguments: Any, **keywords: Any) -> Any:
        return made[a.get_device().type == "cuda"](a, *arguments, **keywords)

    return lower


def _by_rows(exact: Callable[..., Any], ranged: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering for rows that are known, or for those that are not; None where Inductor cannot tell them apart.

    A range is told by its rows where these are a size of their own. Those of a batch with a dynamic dim are a product, of
    which Inductor makes no input to time a range with.
    """

    def lower(a: Any, *arguments: Any, **keywords: Any) -> Any:
        rows = a.get_size()[0]
        known = getattr(rows, "is_number", True)  # ints and sympy's numbers
        if not known and not rows.is_symbol:
            return None
        # Dynamo traces what a range runs. Where it takes numbers for dynamic - all with torch.compile(dynamic=True), else one
        # that another graph of the process had differently - torch 2.11 fails on splits, which are none.
        static = torch._dynamo.config.patch(assume_static_by_default=True, automatic_dynamic_shapes=False)
        with static, _without_cached_views():
            return (exact if known else ranged)(a, *arguments, **keywords)

    return lower


@contextlib.contextmanager
def _without_cached_views() -> Iterator[None]:
    """Tensors without data are made anew: before torch 2.13 keeps a view it asks if rows are one, which is too late then.

    Candidates that split K would be left out of every range.
    """
    from torch._inductor.virtualized import V

    mode = V.fake_mode
    before, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = before


def _register_mm(module: Any, ranges: dict[str, Any], off: list[str]) -> bool:
    """Let torch.mm of compiled graphs be one of the same candidates."""
    operation = torch.ops.aten.mm.default
    ranges = {**ranges, "dispatch_on": {**ranges["dispatch_on"], "tensor_name": "self"}}
    try:
        exact, ranged = (
            _lowering(
                module, operation, operation, config_generator=_mm_choices, name="tilefold_mm", **options
            )
            for options in ({}, ranges)
        )
    except TypeError:
        off.append(f"aten.mm cannot be replaced in torch {torch.__version__}; newer versions can")
        return False
    _lowerings()[operation] = _by_rows(exact, ranged)
    return True


def _choices(tensors: dict[str, Tensor]) -> list[Any]:
    """Candidates of `tilefold::matmul` besides itself, which Inductor adds: torch's own, and each split of K."""
    config, depth = _custom_ops().CustomOpConfig, int(tensors["a"].shape[-1])
    return [config(_plain), *(config(decomposed, k_splits=s) for s in SPLITS if divides(s, depth))]


def _choices_and_itself(tensors: dict[str, Tensor]) -> list[Any]:
    """The same and the operation itself, as the function that it calls, where Inductor must not add it."""
    return [*_choices(tensors), _custom_ops().CustomOpConfig()]


def _mm_choices(tensors: dict[str, Tensor]) -> list[Any]:
    """Candidates of `aten::mm`: ours and each split of K; none where our plan would be torch's product anyway.

    Unknown rows count as one: a product that is not split for one row is not split for more.
    """
    a, b = tensors.values()
    (rows, depth), columns = a.shape, b.shape[1]
    if not (isinstance(depth, int) and isinstance(columns, int)):
        return []
    shapes = (rows if isinstance(rows, int) else 1, depth), (depth, columns)
    whole = [torch.empty(shape, dtype=a.dtype, device="meta") for shape in shapes]
    if not cublas.multiplies(a.dtype, "ieee") or explain_product(*whole).strategy == "cublas":
        return []
    config = _custom_ops().CustomOpConfig
    return [config(_ours), *(config(decomposed, k_splits=s) for s in SPLITS if divides(s, int(depth)))]


def divides(splits: int, depth: int) -> bool:
    """Whether splits are even, and none so short that its product is all overhead."""
    return depth % splits == 0 and depth // splits >= 32


def _ours(a: Tensor, b: Tensor) -> Tensor:
    made: Tensor = own_matmul(a, b)
    return made


def _plain(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    epilogue: str | None = None,
    precision: str | None = None,
) -> Tensor:
    """Torch's product and what comes after it, for Inductor to fuse."""
    return _finished(torch.mm(a, b), bias, epilogue).to(a.dtype)


def decomposed(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    epilogue: str | None = None,
    precision: str | None = None,
    k_splits: int = 1,
) -> Tensor:
    """`k_splits` partial products as one batched product with float32 sums, which are added and finished."""
    rows, depth = a.shape
    left = a.reshape(rows, k_splits, depth // k_splits).permute(1, 0, 2)
    right = b.reshape(k_splits, depth // k_splits, b.shape[1])
    wide = accumulator_dtype(a.dtype)
    if a.is_cuda and a.dtype != wide:
        partials = torch.bmm(left, right, out_dtype=wide)
    else:
        partials = torch.bmm(left.to(wide), right.to(wide))
    return _finished(partials.sum(0), bias, epilogue).to(a.dtype)


def _finished(x: Tensor, bias: Tensor | None, epilogue: str | None) -> Tensor:
    """A product with its bias and epilogue."""
    x = x if bias is None else x + bias
    return x if epilogue is None else IN_TORCH[epilogue](x)


hint_at_names(__name__)
