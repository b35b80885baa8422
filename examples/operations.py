"""Reductions and online algorithms on whole tensors: any axis, any length, states of several fields.

A row longer than a tile is folded tile by tile; the state makes that exact. What the last tile lacks is the identity, which
the library puts there, never the user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from shown import console, label, say, show_plan, show_table

import tilefold
from tilefold import monoids
from tilefold.algebra.program import specialize

CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (tilefold.sum, torch.sum),
    "max": (tilefold.amax, torch.amax),
    "min": (tilefold.amin, torch.amin),
    "cumsum": (tilefold.cumsum, torch.cumsum),
    "argmax": (tilefold.argmax, torch.argmax),
}
IDENTITIES = {
    "sum": "SUM",
    "max": "MAX",
    "min": "MIN",
    "product": "PROD",
    "or": "BITWISE_OR",
    "and": "BITWISE_AND",
}
SHORT, LONG = (32768, 1024), (8, 1 << 22)


def error_of(ours: Callable[..., Any], theirs: Callable[..., Any], x: torch.Tensor, dim: int) -> str:
    """The largest difference from torch's answer in float64; none where elements are compared only."""
    got, want = ours(x, dim=dim), theirs(x.double(), dim=dim)
    assert got.shape == want.shape
    error = float((got.double() - want).abs().max())
    assert error < 1e-2, error
    return "equal" if error == 0 else f"{error:.0e}"


def any_axis() -> None:
    """Each operation over each dim and over rows of several lengths."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6, 1009, 5, generator=draw)
    rows = [torch.randn(n, generator=draw) for n in (1, 33, 100_003)]
    cells = [
        [name, *(error_of(*pair, x, dim) for dim in range(3)), *(error_of(*pair, row, 0) for row in rows)]
        for name, pair in CALLS.items()
    ]
    label("Any axis and length, fp32 [6, 1009, 5] and rows: the largest difference from torch in float64")
    show_table(["", "dim 0", "dim 1", "dim 2", *(f"row of {len(row)}" for row in rows)], cells)


def tuple_state() -> None:
    """A state of several fields, folded by the generic reduce."""
    x = torch.randn(64, 1009, generator=torch.Generator().manual_seed(1)) + 1000
    count, mean, squares = tilefold.reduce(x, monoids.WELFORD, dim=1)
    variance, center = torch.var_mean(x.double(), dim=1)
    errors = (mean - center).abs().max(), (squares / (count - 1) - variance).abs().max()
    assert max(errors) < 1e-2
    label("A generic reduce whose state is a tuple")
    say(
        f"tilefold.reduce(x, WELFORD, dim=1): a state of ({', '.join(monoids.WELFORD.fields)}). Of rows about 1000 the mean "
        f"is within {errors[0]:.0e} of float64's, the variance within {errors[1]:.0e}."
    )


def softmax() -> None:
    """Rows that fit on the chip, read once, and rows that do not."""
    draw = torch.Generator().manual_seed(2)
    label("Softmax: short rows in one pass, long rows by the online recurrence")
    for shape in ((64, 1000), (2, 300_000)):
        x = 8 * torch.randn(shape, generator=draw)
        want = torch.softmax(x.double(), 1)
        error = float(((tilefold.softmax(x, 1).double() - want) / want).abs().max())
        assert error < 1e-4, error
        console.print(f"{list(shape)} here: within {error:.0e} of float64's, relative")
    for title, shape in (("short", SHORT), ("long", LONG)):
        x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        plan = tilefold.explain_plan(x, tilefold.softmax, 1)
        show_plan(f"The {title} one's plan on an H200: {shape[0]} rows of {shape[1]} bf16", plan)
    say(
        "The short rows stay on chip between the fold and the result. Of the long ones a first read gives (m, l), tile by "
        "tile and then from program to program; the second comes from the L2."
    )


def identities() -> None:
    """What a tile is filled with behind a row's end."""
    rows = []
    for name, which in IDENTITIES.items():
        monoid = getattr(monoids, which)
        whole = which.startswith("BITWISE")
        dtypes = (torch.int32, torch.uint8) if whole else (torch.float32, torch.int8)
        found = [specialize(monoid.total, (dtype,)).identity[0] for dtype in dtypes]
        rows.append(
            [name, *(f"{value} ({str(dtype)[6:]})" for value, dtype in zip(found, dtypes, strict=True))]
        )
    negative = -1 - torch.rand(3, 1009)
    assert torch.equal(tilefold.amax(negative, 1), negative.amax(1))
    label("Identities, which the library fills the last tile with; a caller never gives a fill")
    show_table(["", "of floats, or 32 bits", "of 8 bits"], rows, texts=3)


def main() -> None:
    """All of it."""
    any_axis()
    tuple_state()
    softmax()
    identities()


if __name__ == "__main__":
    main()
