"""Cross-entropy of the rows of a product, its mean: forward, and with backward, beside the four products that this needs.

The choice says how much memory a call took beside what it was given and what it returned.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import cross_entropy, linear

import tilefold
from tilefold.bench import settings, traps
from tilefold.bench.cases import DTYPES, Case, Choice, Outputs, Suite, Tolerance, Variant, grid, maker
from tilefold.bench.layout import whole_sectors
from tilefold.bench.ours import OURS
from tilefold.bench.peers import COMPILE_MODE
from tilefold.bench.suites.gradients import check_compiled
from tilefold.bench.suites.losses import classes_of

Tensor = torch.Tensor
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
FORWARD, BOTH, PRODUCTS = OPERATIONS = (
    "linear_cross_entropy", "linear_cross_entropy with backward", "four products",
)  # fmt: skip
HEADLINE = (8192, 4096, 128256)
SHAPES, SMALL_SHAPES = (HEADLINE, (4096, 2048, 50257), (1024, 4096, 151936)), ((24, 40, 300), (7, 16, 33))
MEGABYTE = 1e6


@dataclass(frozen=True)
class LinearCase(Case):
    """The mean loss of x[N, D] @ w[V, D].T and N classes, and with backward the gradients of both; `shape` is (N, D, V).

    Or the products alone: twice the logits', and the gradients' of logits that are given. The one tensor that is drawn holds
    x and then w, whose rows have a length of about 1.
    """

    @property
    def result_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the loss, of the gradients."""
        rows, features, classes = self.shape
        gradients = ((rows, features), (classes, features))
        return {FORWARD: ((),), BOTH: ((), *gradients), PRODUCTS: gradients}[self.operation]

    @property
    def elements(self) -> int:
        """Of x and w."""
        rows, features, classes = self.shape
        return (rows + classes) * features

    @property
    def input_bytes(self) -> int:
        """X and w, once or twice, and the classes."""
        times = 1 if self.operation == FORWARD else 2
        return times * whole_sectors(self.elements * DTYPES[self.dtype].itemsize) + whole_sectors(
            8 * self.shape[0]
        )

    @property
    def operations(self) -> int:
        """A multiplication and an addition for each of N D V: of one product or of four."""
        return 2 * math.prod(self.shape) * self.operations_each

    def draw(self, device: str, seed: int = 0) -> Tensor:
        """Normal variates, none of them zero."""
        drawn = torch.randn(self.elements, device=device, generator=torch.Generator(device).manual_seed(seed))
        drawn[self.shape[0] * self.shape[1] :] *= self.shape[1] ** -0.5
        return drawn.to(DTYPES[self.dtype]).masked_fill_(drawn == 0, 1)

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Views of the tensor that holds x and w."""
        rows, features, classes = self.shape
        return x[: rows * features].view(rows, features), x[rows * features :].view(classes, features)


def called(case: LinearCase, function: Loss, drawn: Tensor) -> Outputs:
    """The loss, and the gradients where they are asked, of a function of x, w and the classes."""
    x, w = case.pair(drawn)
    target = classes_of(case.shape[0], case.shape[2], str(drawn.device))
    if case.operation == FORWARD:
        with torch.no_grad():
            return (function(x, w, target),)
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    loss = function(x, w, target)
    return loss.detach(), *torch.autograd.grad(loss, (x, w))


@functools.lru_cache(maxsize=1)
def of_logits(rows: int, classes: int, dtype: torch.dtype, device: str) -> Tensor:
    """Cotangents of logits, of the size that those of a mean loss have."""
    generator = torch.Generator(device).manual_seed(43)
    drawn = torch.randn(rows, classes, device=device, dtype=torch.bfloat16, generator=generator)
    return drawn.div_(rows * classes**0.5).to(dtype)


def four_products(case: LinearCase, drawn: Tensor) -> Outputs:
    """The gradients of x and w, and the logits, twice."""
    x, w = case.pair(drawn)
    g = of_logits(case.shape[0], case.shape[2], drawn.dtype, str(drawn.device))
    for _ in range(2):
        x @ w.T
    return g @ w, g.T @ x


def linear_case(operation: str, shape: tuple[int, ...], dtype: str) -> LinearCase:
    """A case of one of `OPERATIONS`, with torch's functions in float64 for reference."""

    def in_torch(drawn: Tensor) -> Outputs:
        if operation == PRODUCTS:
            return four_products(case, drawn)
        return called(case, lambda x, w, target: cross_entropy(linear(x, w), target), drawn)

    case = LinearCase(
        operation=operation,
        dim=None,
        shape=shape,
        dtype=dtype,
        torch_call=in_torch,
        reference=lambda drawn: in_torch(drawn.double()),
        tolerance=Tolerance(
            "8 eps of |want| and of the root of the mean square: logits up to 8 that are rounded to the dtype are off by 4 "
            "eps, and so are their exponentials, which are summed",
            lambda want, dtype: (
                (want.abs() + want.square().mean().sqrt()) * 8 * torch.finfo(dtype).eps + 1e-30
            ),
        ),
        result_dtypes=(DTYPES[dtype],) * {FORWARD: 1, BOTH: 3, PRODUCTS: 2}[operation],
        operations_each=1 if operation == FORWARD else 4,
        group=f"{operation}, {dtype}",
        headline=shape == HEADLINE,
    )
    return case


def cases(size: str = "full") -> tuple[Case, ...]:
    """All operations of every shape, in bf16; headline cases first."""
    return grid(linear_case, OPERATIONS, SHAPES if size == "full" else SMALL_SHAPES, ("bf16",))


def choices(case: Case, label: str, function: Loss, drawn: Tensor) -> Sequence[Choice]:
    """The one way to run a loss, with its memory on a GPU; of the products none."""
    assert isinstance(case, LinearCase)
    if case.operation == PRODUCTS:
        return []
    call = functools.partial(called, case, function)
    return [Choice(f"{label}, {_memory_mb(call, drawn):.0f} MB" if drawn.is_cuda else label, call)]


def _memory_mb(call: Callable[[Tensor], Outputs], drawn: Tensor) -> float:
    """The most memory that a call holds beside what was there before and its results; what it prepares once left out."""
    call(drawn)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made = sum(t.nbytes for t in call(drawn))
    return (torch.cuda.max_memory_allocated() - before - made) / MEGABYTE


def build_ours(case: Case, x: Tensor) -> Sequence[Choice]:
    """Tilefold's function, and autograd."""
    return choices(case, "default", lambda *given: tilefold.linear_cross_entropy(*given), x)  # type: ignore[arg-type]


def build_torch(case: Case, x: Tensor) -> Sequence[Choice]:
    """Torch's functions, and the products."""
    assert isinstance(case, LinearCase)
    if case.operation == PRODUCTS:
        return [Choice("eager", functools.partial(four_products, case))]
    return choices(case, "eager", lambda x, w, target: cross_entropy(linear(x, w), target), x)


def build_compiled(case: Case, x: Tensor) -> Sequence[Choice]:
    """Torch's functions compiled, and the backward that this makes."""
    function = traps.fresh_compile(
        lambda x, w, target: cross_entropy(linear(x, w), target), mode=COMPILE_MODE
    )
    return choices(case, COMPILE_MODE, function, x)


def build_liger(case: Case, x: Tensor) -> Sequence[Choice]:
    """Liger's, whose forward makes the gradients, and whose float32 loss becomes one of x's dtype."""
    function = importlib.import_module(
        "liger_kernel.transformers.functional"
    ).liger_fused_linear_cross_entropy
    return choices(case, "fused", lambda x, w, target: function(x, w, target).to(x.dtype), x)


SUITE = Suite(
    "linear-losses",
    str(__doc__).strip(),
    cases,
    (
        replace(OURS, build=build_ours, graphs=False),
        Variant("torch", build_torch),
        Variant("compile", build_compiled, warms=True, check=check_compiled),
        Variant("liger", build_liger, gpu_only=True, warms=True, asked_only=True),
        *settings.variants_of(build_ours),
    ),
    against=("torch", "compile", "liger"),
    make=maker(linear_case, OPERATIONS, 3),
    products=True,
)
