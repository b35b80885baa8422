"""Operations of torch's library: `tilefold.matmul` as one operation of a graph, which torch.compile keeps whole.

tilefold::own_matmul   the product itself
tilefold::matmul       the same after `inductor.register`: Inductor may replace it
"""

from __future__ import annotations

import torch

from tilefold.api.overloads import repeat
from tilefold.api.products import multiply
from tilefold.planner.problem.validate import is_abstract
from tilefold.planner.products.operands import as_autocast
from tilefold.runtime.modes import as_given, is_recorded

Tensor = torch.Tensor


@torch.library.custom_op("tilefold::own_matmul", mutates_args=())
def own_matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    epilogue: str | None = None,
    precision: str | None = None,
    guarantee: str = "run_to_run",
) -> Tensor:
    """`tilefold.matmul` as one operation of torch, for graphs: a [.., M, K] @ b [K, N] and a named epilogue.

    It multiplies its arguments as given: a graph holds the conversions of the torch.autocast that it was made in.
    """
    made: Tensor
    with as_given(a.device):
        made = multiply(a, b, bias, epilogue, (), None, None, precision, guarantee, None)
    return made


@torch.library.custom_op("tilefold::matmul", mutates_args=())
def tuned_matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    epilogue: str | None = None,
    precision: str | None = None,
) -> Tensor:
    """The same for "run_to_run" alone, which Inductor may replace.

    Torch 2.11 traces this function where the operation itself is the fastest candidate: the graph then holds the other one.
    """
    made: Tensor
    if torch.compiler.is_dynamo_compiling() or is_recorded() or is_abstract(a):
        made = own_matmul(a, b, bias, epilogue, precision)
    else:
        with as_given(a.device):
            made = multiply(a, b, bias, epilogue, (), None, None, precision, "run_to_run", None)
    return made


tuned = False  # whether Inductor may replace products. Graphs are guarded by it: they are compiled again after `register`

# On tensors without data `tilefold.matmul` gives one of the result's shape and dtype.
own_matmul.register_fake(own_matmul._init_fn)
tuned_matmul.register_fake(own_matmul._init_fn)
repeat(torch.ops.tilefold.own_matmul.default, follows_cublas=True)


def recorded_matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    epilogue: str | None = None,
    precision: str | None = None,
    guarantee: str = "run_to_run",
) -> Tensor:
    """`tilefold.matmul` with a named epilogue for code that is compiled: inside torch.compile that function comes here.

    After `inductor.register` Inductor may replace products [.., M, K] @ [K, N] under "run_to_run": all rows of a are one
    matrix then, which a bias of columns serves at any number of rows. Products with another bias run as ours.

    Raises:
        As `tilefold.matmul`.
    """
    made: Tensor
    a, b, bias, precision = as_autocast(a, b, bias, precision)
    one_matrix = b.ndim == 2 and (bias is None or bias.ndim < 2)
    if guarantee == "run_to_run" and tuned and one_matrix:
        rows = a[None] if a.ndim == 1 else a.flatten(0, -2)
        made = tuned_matmul(rows, b, bias, epilogue, precision)
        return made.reshape(*a.shape[:-1], b.shape[1])
    made = own_matmul(a, b, bias, epilogue, precision, guarantee)
    return made
