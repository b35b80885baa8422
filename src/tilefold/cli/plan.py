"""`tilefold plan`: how a GPU would run an operation, without one."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

import tilefold
from tilefold.cli.dtypes import dtype_of
from tilefold.cli.fold_text import (
    GUARANTEES,
    FoldText,
    monoid_meant,
    monoid_named,
    read_dims,
    read_numbers,
    read_shape,
)
from tilefold.cli.parser import Parser, as_type, count, one_of
from tilefold.errors import ArgumentError, nearest
from tilefold.planner.chips import ALL, chip_of
from tilefold.planner.device import of_chip
from tilefold.planner.problem.canonical import normalize_dims

WORDS = """words of a plan:
  program           an instance of a kernel: it owns results, or a split of one
  lane              one of several states that a result's elements are folded into
  lanes first       in any order, lanes combined once at the end; "in order" where order matters
  split             a part of one result's elements; a second launch combines the states of all
  step              the elements that a program reads at a time
  absorbing blocks  a thread's neighbouring elements become one state at once
  held whole        a row is read once, and kept while it is folded and mapped
  reading ahead     the next elements are loaded while these are folded
  early             a launch begins before the one ahead ends, and waits for what it reads"""


def parser() -> Parser:
    """The command's options."""
    made = Parser(
        "plan",
        "How a GPU would run an operation, without one: its launches, the work of a program and why, bytes and time.",
        examples={
            "plan 16384x8192 --monoid logsumexp --dim 1": "rows of a bf16 matrix on an H200",
            "plan 64x256x56x56 --dim 0,2,3 --dtype fp32 --chip a100": "statistics of a batch norm",
            "plan 4096x4099 --monoid mine.py::top2 --offset 1": "a monoid of yours, a view",
            "plan 4096x65536 --operation softmax --dim 1": "any other operation",
            "plan 1x268435456 --operation scan --monoid mine.py::top2 --dim 1": "every prefix",
            "plan 8192x151936 --operation topk --k 8": "the largest of rows",
            "plan 4096x8192 --operation matmul --by 8192x512": "a product",
            "plan 4096x4096 --operation softmax --cuda softmax.cu": "its kernels in CUDA C++, to take along",
        },
        notes=WORDS,
    )
    add = made.add_argument
    add("shape", type=as_type(read_shape), metavar="SHAPE", help="sizes joined by x: 16384x8192, 64x2^20")
    add("--operation", type=as_type(_operation), default="reduce", metavar="NAME",
        help=", ".join(OPERATIONS))  # fmt: skip
    of_some = functools.partial(add, default=argparse.SUPPRESS)  # options that were not given are absent
    of_some("--monoid", type=as_type(monoid_named), metavar="NAME",
        help="of reduce, scan, segment_reduce: a name of tilefold.monoids, or FILE.py::name, which is imported "
        "(default: sum)")  # fmt: skip
    of_some("--dim", "--dims", dest="dims", type=as_type(read_dims), metavar="D[,D...]|all",
        help="the dims to fold together; of scan and topk one, of transpose two, of layer_norm and rms_norm the first "
        "that is normalized (default: the last, of transpose the last two)")  # fmt: skip
    of_some("--k", type=count, metavar="N", help="of topk: how many (default: 8)")
    of_some("--segments", type=count, metavar="N", help="of segment_reduce: how many (default: 1024)")
    of_some("--by", type=as_type(read_shape), metavar="SHAPE", help="of matmul: the second operand")
    of_some("--groups", type=count, metavar="N", help="of group_norm: how many (default: 32)")
    add("--dtype", type=as_type(dtype_of), default="bf16", metavar="DTYPE",
        help="of the elements, in any spelling: bf16, fp32, float32 ...")  # fmt: skip
    add("--strides", type=as_type(lambda text: read_numbers(text, "strides")), metavar="S,S...",
        help="of each dim, in elements; contiguous without")  # fmt: skip
    add("--offset", type=as_type(lambda text: read_numbers(text, "offset")[0]), default="0", metavar="N",
        help="elements before the first one, of memory that begins at a multiple of 16 bytes")  # fmt: skip
    add("--guarantee", choices=GUARANTEES, default="run_to_run", metavar=one_of(GUARANTEES),
        help="as of tilefold.reduce")  # fmt: skip
    add("--chip", "--target", type=as_type(chip_of), default="h200", metavar="CHIP",
        help=", ".join(f"{chip.name} ({chip.target})" for chip in ALL))  # fmt: skip
    add("--cuda", metavar="OUT.cu",
        help="write the CUDA C++ of its kernels, a file each, whose first line says what is proven")  # fmt: skip
    return made


def _operation(name: str) -> str:
    """One of the operations.

    Raises:
        ArgumentError: it is not; the message names the option or function to use.
    """
    if name in OPERATIONS:
        return name
    if name.strip("_").lower() in PRODUCTS:
        fix = "use matmul, with --by for the second operand's shape"
    else:
        fold, close = monoid_meant(name, spelt=False), nearest(name, OPERATIONS)
        fix = f"use {close}" if close else "take one of these"
        if fold:
            fix = fold.replace("use", "use --monoid", 1)
    raise ArgumentError(f"must be one of {', '.join(OPERATIONS)}, got {name!r}; {fix}")


def run(arguments: Sequence[str]) -> int:
    """Print the plan."""
    options = _complete(parser().parse_args(arguments))
    if options.operation == "matmul" and options.by is None:
        raise ArgumentError(
            "plan: matmul must have --by, the second operand's shape, got none; like --by 8192x512"
        )
    inputs, operation, words = _call(options)
    sys.stdout.write(f"{_planned(options, inputs, operation, words)}\n")
    if options.cuda is None:
        return 0
    name = f"{options.operation} of {'x'.join(map(str, options.shape))}"
    writer = importlib.import_module("tilefold.xray.command")  # which stands above
    writer.write_call(options.cuda, inputs, operation, words, options.guarantee, name, options.chip)
    return 0


def _complete(options: argparse.Namespace) -> argparse.Namespace:
    """The options, completed by their defaults.

    Raises:
        ArgumentError: one was given that the operation does not have.
    """
    given = vars(options)
    for name, operations in TAKEN_BY.items():
        if name in given and options.operation not in operations:
            option = "--dim" if name == "dims" else f"--{name}"
            raise ArgumentError(
                f"plan: {option} must come with {', '.join(operations)}, got {options.operation}; leave it out"
            )
    dims = (-2, -1) if options.operation == "transpose" else (-1,)
    usual: dict[str, Any] = {"dims": dims, "k": 8, "segments": 1024, "groups": 32, "by": None}
    if "monoid" not in given:
        usual["monoid"] = monoid_named("sum")
    return argparse.Namespace(**usual | given)


def _fold(options: argparse.Namespace) -> FoldText:
    return FoldText(
        options.monoid,
        options.shape,
        options.dtype,
        options.dims,
        options.strides,
        options.offset,
        options.guarantee,
    )


def _planned(options: argparse.Namespace, inputs: Any, operation: object, words: dict[str, Any]) -> object:
    """The plan that the options ask for."""
    from tilefold.api.explain import explain_plan

    return explain_plan(inputs, operation, guarantee=options.guarantee, device=of_chip(options.chip), **words)


def _call(options: argparse.Namespace) -> tuple[Any, object, dict[str, Any]]:
    """The call that the options ask for: its tensors, the monoid or function, and its other arguments."""
    fold = _fold(options)
    tensors = fold.tensors()
    if options.operation == "reduce":
        return tensors if len(tensors) > 1 else tensors[0], fold.monoid, {"dim": fold.dims}
    words = OPERATIONS[options.operation](options)
    if options.operation == "matmul":
        by = torch.empty(options.by, dtype=options.dtype, device="meta")
        return (tensors[0], by), tilefold.matmul, words
    several = options.operation in OF_MONOIDS and len(tensors) > 1
    return tensors if several else tensors[0], getattr(tilefold, options.operation), words


def _one(options: argparse.Namespace) -> dict[str, Any]:
    """One dim."""
    if options.dims is None or len(options.dims) != 1:
        got = "all" if options.dims is None else ",".join(map(str, options.dims))
        raise ArgumentError(f"plan: --dim must be one dim for {options.operation}, got {got}; name one")
    return {"dim": options.dims[0]}


def _some(options: argparse.Namespace) -> dict[str, Any]:
    """One dim or several, together."""
    dims = tuple(range(len(options.shape))) if options.dims is None else options.dims
    return {"dim": dims if len(dims) > 1 else dims[0]}


def _from_dim(options: argparse.Namespace) -> dict[str, Any]:
    """All dims from one on."""
    first = normalize_dims(_one(options)["dim"], len(options.shape), "plan")[0]
    return {"normalized_shape": options.shape[first:]}


def _two(options: argparse.Namespace) -> dict[str, Any]:
    """Two dims."""
    dims: tuple[int, ...] = options.dims or ()
    if len(dims) != 2:
        raise ArgumentError(f"plan: --dim must be two dims for transpose, got {len(dims)}; write it like 0,1")
    return {"dim0": dims[0], "dim1": dims[1]}


def _segments(options: argparse.Namespace) -> dict[str, Any]:
    """Offsets without data."""
    offsets = torch.empty(options.segments + 1, dtype=torch.int64, device="meta")
    return {"monoid": options.monoid, "offsets": offsets} | _one(options)


# The arguments of each function besides its input, from the command's options.
OPERATIONS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "reduce": lambda options: {},
    **dict.fromkeys(("softmax", "log_softmax", "normalize"), _some),
    **dict.fromkeys(("layer_norm", "rms_norm"), _from_dim),
    "group_norm": lambda options: {"num_groups": options.groups},
    "scan": lambda options: {"monoid": options.monoid} | _one(options),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), _one),
    "segment_reduce": _segments,
    "topk": lambda options: {"k": options.k} | _one(options),
    "transpose": _two,
    "matmul": lambda options: {},
}
OF_MONOIDS = ("scan", "segment_reduce")
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linear", "gemm", "product")
# Which operations have the options that not all have.
TAKEN_BY: dict[str, tuple[str, ...]] = {
    "monoid": ("reduce", *OF_MONOIDS),
    "dims": tuple(name for name in OPERATIONS if name not in ("group_norm", "matmul")),
    "k": ("topk",),
    "segments": ("segment_reduce",),
    "groups": ("group_norm",),
    "by": ("matmul",),
}
