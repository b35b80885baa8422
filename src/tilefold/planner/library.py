"""Which folds run on a CPU as a function of torch's. An algebra is recognised by its graphs, not by its name.

Only where the answer is the same (dtypes, NaN, ties, one rounding at the end) and torch is the faster one: it is for short
folds, where the tiles' calls cost more than torch's extra passes, and for those in the table at any length. Norms of long
rows and moments of many elements stay with the tiles: torch's float32 running sums of the first are less accurate, and it
makes the second an element after another. A "batch_invariant" fold goes to torch only if no bit depends on an order of
evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold import monoids
from tilefold.algebra import powers
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.program import Program
from tilefold.planner.plan import LibraryCall, Plan, names
from tilefold.runtime.caching import kept_outside_modes

Tensor = torch.Tensor
Dims = tuple[int, ...]
Dtypes = tuple[torch.dtype, ...]

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_EVERY = (*_HALVES, *_FLOATS, *_INTEGERS)
_SHORT = 1 << 15  # elements up to which torch's function is taken whatever its speed (not measured)


def library_fold(
    tensors: Sequence[Tensor], program: Program, dims: Dims, guarantee: str, *, forced: bool = False
) -> str | None:
    """The name of torch's function where it has exactly this fold and is not the slower one (unless `forced`), else None."""
    table = _of_sums() if program.algebra.fields[:1] == ("unit",) else _table()
    native, x = table.get(program.algebra), tensors[0]
    if native is None or program.elements != (x.dtype,) or not dims or any(x.shape[d] == 0 for d in dims):
        return None
    if not native.has(x, dims, guarantee) or not (forced or native.is_fast(x, dims)):
        return None
    return native.function


@dataclass(frozen=True)
class LibraryMap:
    """The name of torch's function that makes the same of each element and its row, and its arguments but the tensors.

    One that `asks` its results may find that float32 did not hold what they were made of, and gives none. `any_rank`: dims
    in front of all others may be added, since the arguments count from the last. `rows`: so many values a row it gives, too.
    """

    function: str
    arguments: tuple[Any, ...] = ()
    asks: bool = False
    any_rank: bool = True
    rows: int = 0

    def plan(self, inputs: int, guarantee: str) -> Plan:
        """One call of that function."""
        step = LibraryCall(self.function, names("input", inputs), names("output", 1))
        return Plan(
            "torch", (step,), guarantee=guarantee, strategy=self.function, reason="torch has this function"
        )


# Functions of torch's whose derivative, of ties and where there is none, is the one that is derived here: of each dtype; of
# floats that are computed with in their own dtype.
_DERIVED = frozenset(
    {
        "torch.sum", "torch.amax", "torch.amin", "torch.max", "torch.min", "torch.aminmax", "first", "last", "torch.cumsum",
        "torch.cummax", "torch.cummin", "torch.cummax().values", "torch.cummin().values", "torch.rms_norm",
    }
)  # fmt: skip
_DERIVED_WIDE = frozenset(
    {
        "torch.logsumexp", "torch.prod", "torch.cumprod", "torch.softmax", "torch.log_softmax", "torch.layer_norm",
        "torch.group_norm", "torch.linalg.vector_norm", "norm 1", "norm 2", "norm inf", "var 0", "var 1", "std 0", "std 1",
    }
)  # fmt: skip


def has_own_derivative(function: str, dtype: torch.dtype) -> bool:
    """Whether autograd may see through torch's function: its backward is then as fast as torch's is, and saves as little."""
    return function in _DERIVED or (function in _DERIVED_WIDE and dtype in _FLOATS)


def backward_of(library: LibraryMap, roles: tuple[str, ...], which: tuple[int, ...]) -> LibraryMap | None:
    """Torch's function for the backward of a map that is torch's; None where it has none.

    `roles` are those of the tensors that it gets (`api.map_rules`), `which` the tensors whose cotangents it gives, in order.
    """
    of_rows = {"input0", "extra0", "of_result0", "row0", "row1", "length0"}
    if library.function in ("torch.softmax", "torch.log_softmax") and set(roles) == {"result0", "of_result0"}:
        return LibraryMap(f"{library.function} backward", library.arguments[:1])
    if library.function == "torch.layer_norm" and of_rows.issuperset(roles) and not library.arguments[-1]:
        dims, _, which_given, _ = library.arguments
        if roles[:1] == ("input0",) and "of_result0" in roles:
            return LibraryMap("torch.layer_norm backward", (dims, roles, which, which_given))
    return None


def backward_of_fold(
    algebra: Algebra, elements: Dtypes, dims: Dims, guarantee: str
) -> tuple[LibraryMap, bool] | None:
    """What torch's derivative of its fold is made of, elements and a cotangent, and whether of the result, too; else None.

    `dims` count from the last.
    """
    native = _of_sums().get(algebra)
    if native is None or guarantee == "batch_invariant" or elements[0] not in _FLOATS:
        return None
    root = native.function.startswith("std")
    if not (root or native.function.startswith("var")):
        return None
    return LibraryMap(f"{native.function} backward", (dims,), asks=True), root


def library_plan(function: str, program: Program, guarantee: str) -> Plan:
    """A fold by one function of torch's."""
    results = names("output", len(program.outputs))
    step = LibraryCall(function, ("input0",), results)
    return Plan("torch", (step,), guarantee=guarantee, strategy=function, reason="torch has this fold")


def _always(x: Tensor, dims: Dims) -> bool:
    return True


def _whole(x: Tensor, dims: Dims) -> bool:
    return len(dims) == x.ndim


def _whole_or_rows(x: Tensor, dims: Dims) -> bool:
    return len(dims) == x.ndim or x.stride(dims[-1]) == 1


def _never(x: Tensor, dims: Dims) -> bool:
    return False


def _short_rows(x: Tensor, dims: Dims) -> bool:
    """Rows of neighbours of which torch adds up few terms one after another in each part of a vector."""
    return len(dims) == 1 and x.stride(dims[0]) == 1 and x.shape[dims[0]] <= 1024


def _several(x: Tensor, dims: Dims) -> bool:
    return x.numel() > 0 and any(x.shape[d] > 1 for d in dims)


@dataclass(frozen=True)
class Native:
    """The name of torch's function for one algebra, and where its answer is this library's.

    `exact` are the dtypes for which no bit depends on an order of evaluation. `takes` "several" dims,
    "one or all", or "one", `fits` which of these. `fast` tells where it is the faster one, `fast_dtypes` for which dtypes;
    folds of up to `short` elements always are.
    """

    function: str
    dtypes: Dtypes = _EVERY
    exact: Dtypes = _EVERY
    takes: str = "several"
    fast: Callable[[Tensor, Dims], bool] = _always
    fast_dtypes: Dtypes = _EVERY
    short: int = _SHORT
    fits: Callable[[Tensor, Dims], bool] = _always

    def has(self, x: Tensor, dims: Dims, guarantee: str) -> bool:
        """Whether torch has this very fold, with this guarantee."""
        dtypes = self.exact if guarantee == "batch_invariant" else self.dtypes
        whole = len(dims) == x.ndim and self.takes != "one"
        return (
            x.dtype in dtypes and (self.takes == "several" or len(dims) == 1 or whole) and self.fits(x, dims)
        )

    def is_fast(self, x: Tensor, dims: Dims) -> bool:
        """Whether torch is not slower than the lanes."""
        return x.numel() <= self.short or (x.dtype in self.fast_dtypes and self.fast(x, dims))


@kept_outside_modes(1)
def _table() -> dict[Algebra, Native]:
    sums = (*_HALVES, *_FLOATS, torch.int64)
    whole = (*_FLOATS, *_INTEGERS)  # torch multiplies halves in halves
    table = {
        monoids.SUM: Native("torch.sum", exact=_INTEGERS, fast_dtypes=sums),
        monoids.PROD: Native("torch.prod", whole, _INTEGERS, takes="one or all", fast_dtypes=sums),
        # The sign of a zero that is the largest of zeros depends on the order.
        monoids.MAX: Native("torch.amax", exact=_INTEGERS),
        monoids.MIN: Native("torch.amin", exact=_INTEGERS),
        monoids.MINMAX: Native("torch.aminmax", exact=_INTEGERS, takes="one or all", fast=_whole_or_rows),
        monoids.ARGMAX: Native("torch.argmax", takes="one or all"),
        monoids.ARGMIN: Native("torch.argmin", takes="one or all"),
        monoids.MAX_WITH_INDEX: Native("torch.max", exact=_INTEGERS, takes="one"),
        monoids.MIN_WITH_INDEX: Native("torch.min", exact=_INTEGERS, takes="one"),
        monoids.ANY: Native("torch.any"),
        monoids.ALL: Native("torch.all"),
        monoids.COUNT_NONZERO: Native("torch.count_nonzero", fast=_whole),
        monoids.LOGSUMEXP: Native("torch.logsumexp", _FLOATS, exact=(), fast=_never),
        monoids.FIRST: Native("first"),
        monoids.LAST: Native("last"),
        monoids.NORM(1): Native("norm 1", _FLOATS, exact=(), fast=_never, fits=_short_rows),
        monoids.NORM(float("inf")): Native("norm inf", _FLOATS, exact=(), fast=_never),
    }
    return {monoid.total: native for monoid, native in table.items()}


@kept_outside_modes(1)
def _of_sums() -> dict[Algebra, Native]:
    """Of monoids whose sums are in units: torch's are taken where float32, or float64 within torch, holds them.

    Torch's var is an element's division after another, in float64 (not measured: where the tiles are faster).
    """
    table = {monoids.NORM(2): Native("norm 2", _FLOATS, exact=(), fast=_never, fits=_short_rows)}
    for name, root in (("var", False), ("std", True)):
        for correction in (0, 1):
            own = Native(
                f"{name} {correction}", (torch.float32,), exact=(), fast=_never, short=1 << 14, fits=_several
            )
            table[powers.spread(float(correction), root, False)] = own
    return {monoid.total: native for monoid, native in table.items()}
