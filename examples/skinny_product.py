"""The skinny matmul: a product is a fold over K, and what happens to a result rides on the fold's store.

Sixteen columns of a table of word embeddings against sixteen others: few results, each of tens of thousands of products, with
which a matmul made for squares leaves most of a GPU idle. The cosine and each row's strongest partner come in the same store.
"""

from __future__ import annotations

import torch
from real_data import embeddings

import tilefold
from tilefold import math, monoids


# --8<-- the monoid
def cosine(x, norm, other):  # type: ignore[no-untyped-def]
    """How alike two columns are: 1 along each other, 0 at right angles."""
    return math.abs(x) / (norm * other)


strongest = (monoids.MAX_WITH_INDEX, None)  # a fold of each row; None: the results stay
# -->8--

COLUMNS = 16


def call() -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, object]]:
    """The operands of `tilefold.matmul` and what follows the product: both are read where they lie, by strides."""
    table = embeddings()
    first, second = table[:, :COLUMNS].t(), table[:, COLUMNS : 2 * COLUMNS]
    norms = tilefold.norm(first, dim=1, keepdim=True), tilefold.norm(second, dim=0)
    return (first, second), {"epilogue": cosine, "epilogue_args": norms, "row": strongest}


def main() -> list[int]:
    """For each of the first columns the one of the second that it goes with; returns their places."""
    (first, second), follows = call()
    alike, best = tilefold.matmul(first, second, **follows)  # type: ignore[arg-type]  # a dictionary of options
    a, b = first.double(), second.double()  # the independent answer
    expected = (a @ b).abs() / (a.norm(dim=1, keepdim=True) * b.norm(dim=0))
    torch.testing.assert_close(alike.double(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(best.values, alike.amax(1))
    rows, inner = first.shape
    print(f"[{rows}, {inner}] @ [{inner}, {second.shape[1]}]: of {rows} columns,")
    for row in best.values.topk(3).indices.tolist():
        print(
            f"  column {row:2} goes with column {COLUMNS + int(best.indices[row])}, cosine {float(best.values[row]):.3f}"
        )
    print("float64 gives the same to 4 digits.")
    return [int(n) for n in best.indices]


if __name__ == "__main__":
    main()
