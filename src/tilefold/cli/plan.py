"""`tilefold plan`: how a GPU would fold a tensor, without one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tilefold.cli.parser import Parser, as_type, one_of
from tilefold.dtypes import dtype_of
from tilefold.fold_text import GUARANTEES, FoldText, monoid_named, read_dims, read_numbers, read_shape
from tilefold.xray.chips import CHIPS, chip_of, planned_chip


def parser() -> Parser:
    """The command's options."""
    made = Parser(
        "plan",
        "How a GPU would fold a tensor, without one: the launches, what a program owns, and why.",
        examples={
            "plan 16384x8192 --monoid logsumexp --dim 1": "rows of a bf16 matrix on an H200",
            "plan 64x256x56x56 --dim 0,2,3 --dtype fp32 --chip a100": "statistics of a batch norm",
            "plan 4096x4099 --monoid mine.py::top2 --offset 1": "a monoid of yours, a view",
        },
    )
    add = made.add_argument
    add("shape", type=as_type(read_shape), metavar="SHAPE", help="sizes joined by x, such as 16384x8192")
    add("--monoid", type=as_type(monoid_named), default="sum", metavar="NAME",
        help="a name of tilefold.monoids, or FILE.py::name (the file is imported)")  # fmt: skip
    add("--dim", "--dims", dest="dims", type=as_type(read_dims), default="-1", metavar="D[,D...]|all",
        help="the dims to fold together")  # fmt: skip
    add("--dtype", type=as_type(dtype_of), default="bf16", metavar="DTYPE",
        help="of the elements, in any spelling: bf16, fp32, float32 ...")  # fmt: skip
    add("--strides", type=as_type(lambda text: read_numbers(text, "strides")), metavar="S,S...",
        help="of each dim, in elements; contiguous without")  # fmt: skip
    add("--offset", type=as_type(lambda text: read_numbers(text, "offset")[0]), default="0", metavar="N",
        help="elements before the first one, of memory that begins at a multiple of 16 bytes")  # fmt: skip
    add("--guarantee", choices=GUARANTEES, default="run_to_run", metavar=one_of(GUARANTEES),
        help="as of tilefold.reduce")  # fmt: skip
    add("--chip", "--target", type=as_type(chip_of), default="h200", metavar="CHIP",
        help=", ".join(f"{chip.name} ({chip.target})" for chip in CHIPS.values()))  # fmt: skip
    return made


def run(arguments: Sequence[str]) -> int:
    """Print the plan."""
    sys.stdout.write(f"{_planned(parser().parse_args(arguments))}\n")
    return 0


def _planned(options: argparse.Namespace) -> object:
    """The plan that the options ask for."""
    from tilefold.explain import explain_plan

    fold = FoldText(
        options.monoid,
        options.shape,
        options.dtype,
        options.dims,
        options.strides,
        options.offset,
        options.guarantee,
    )
    tensors = fold.tensors()
    inputs = tensors if len(tensors) > 1 else tensors[0]
    return explain_plan(
        inputs, fold.monoid, fold.dims, guarantee=fold.guarantee, device=planned_chip(options.chip)
    )
