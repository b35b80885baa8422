"""The library's kernels as readable CUDA, family by family: `make cuda-families`, CUDA_FAMILIES="word ..." for some.

Every launch of calls that reach each kernel is executed twice, on the same tensors: from Triton's PTX, and from what nvcc
makes of the readable file, in each order in which warps may take turns; then on inputs near 1, of which products stay in
range. All bytes of all results must be the same. Prints a row a launch, and puts it into tests/xray/cuda/families.json,
which the table in docs/xray-cuda.md is made of.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import torch

import asked
import tilefold
from backends.test_operations_offline import SMALL as OPERATIONS
from backends.test_operations_offline import device_of, drawn
from backends.triton_cases import SMALL as FOLDS
from tilefold import monoids
from tilefold.backends.triton.call import Call
from tilefold.planner.chips import chip_of
from tilefold.xray.compile.folds import job_of
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.cuda import compile_ptx
from tilefold.xray.cuda.readable import UnreadableError, by_regions
from tilefold.xray.cuda.translate import read_line
from tilefold.xray.machine import Outcome, load
from tilefold.xray.machine.run import Turns
from tilefold.xray.ptx import parse
from xray import running
from xray.test_folds import folded
from xray.test_library_products import PLANS, filled, plain

RESULTS = Path(__file__).with_name("families.json")
run_call = running.run_call


class Both:
    """Runs launches both ways; `rows` tells of each."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(
        self,
        call: Call,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        architecture: int,
        through: running.Through = running.kernel_of,
        named: Sequence[torch.Tensor] = (),
    ) -> list[Outcome]:
        """`running.run_call`."""
        made = compile_job(job_of(call, call.kernel, chip_of(f"sm_{architecture}")))
        row: dict[str, Any] = {
            "kernel": call.kernel,
            "ptx": len(made.ptx.splitlines()),
            "lines": 0,
            "alone": "",
            "bits": "",
        }
        self.rows.append(row)
        try:
            written = by_regions(made, read_line)
            row["lines"] = len(
                written.text[written.text.find('extern "C" __global__') :].strip().splitlines()
            )
            row["alone"] = written.note
            module = parse(compile_ptx(written.text, parse(made.ptx).target[0]))

            def leaves(from_cuda: bool, turns: Turns = "together") -> list[torch.Tensor]:
                """The bytes of all results; every tensor is as before."""
                how = (lambda x: load(module, shared=x.metadata.shared)) if from_cuda else through
                with as_before([*inputs, *outputs, *named]):
                    with mock.patch.object(
                        running, "execute", functools.partial(running.execute, turns=turns)
                    ):
                        run_call(call, inputs, outputs, architecture, how, named)
                    return [bits(t) for t in outputs]

            want = leaves(False)
            same = all(equal(leaves(True, turns), want) for turns in get_args(Turns))
            with as_before(inputs):
                near_one(inputs)
                same = same and equal(leaves(True), leaves(False))
            row["bits"] = "yes" if same else "no"
        except UnreadableError as error:
            row["bits"] = f"plain: {error}"
        except Exception as error:
            row["bits"] = f"{type(error).__name__}: {error}"[:300]
        return run_call(call, inputs, outputs, architecture, through, named)


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether all bytes are."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@contextmanager
def as_before(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Tensors hold what they held when this ends."""
    before = [t.untyped_storage().clone() for t in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        tensor.untyped_storage().copy_(old)


def near_one(tensors: Sequence[torch.Tensor]) -> None:
    """Fill those of floats with numbers near 1 of both signs, of which products stay in range."""
    generator = torch.Generator().manual_seed(7)
    for tensor in (t for t in tensors if t.is_floating_point()):
        whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        signs = torch.randint(0, 2, whole.shape, generator=generator) * 2 - 1
        whole.copy_(signs * (1 + torch.randn(whole.shape, generator=generator) / 64))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).clone()


def operation(name: str) -> None:
    """A small call of the tests of all operations."""
    small = OPERATIONS[name]
    chip = replace(device_of("sm_90"), sms=small.sms, **({"cluster": 1} if small.alone else {}))
    request, tensors, _ = asked.asked(small.call, chip)
    asked.run(request, tensors, chip)


def fold(name: str, monoid: str, dtype: torch.dtype, architecture: int) -> None:
    """A fold of the tests of all folds."""
    folded(next(c for c in FOLDS if c.name == name), monoid, dtype, architecture)


def product(plan: str, dtype: torch.dtype, architecture: int) -> None:
    """A product of any plan."""
    a, b = filled(19, 150, dtype=dtype), filled(150, 40, dtype=dtype, seed=1)
    chosen = replace(PLANS[plan], overlap=PLANS[plan].overlap and architecture >= 90)
    running.product(chosen, a, b, [], plain(dtype), architecture)


def called(call: Callable[[], Any]) -> None:
    """Any other call."""
    asked.by_ptx(call)


F32, BF16 = torch.float32, torch.bfloat16
CALLS: dict[str, Callable[[], None]] = {name: functools.partial(operation, name) for name in OPERATIONS}
CALLS |= {
    f"{monoid} of {case}, sm_{architecture}": functools.partial(fold, case, monoid, dtype, architecture)
    for case, monoid, dtype, architecture in (
        ("tiny axis", "sum", F32, 90), ("small axis 8", "logsumexp", F32, 80), ("row of 256", "sum", BF16, 90),
        ("row of 100", "argmax", F32, 90), ("columns", "sum", F32, 90), ("middle", "welford", F32, 90),
        ("all", "sum", torch.int32, 80), ("transposed", "logsumexp", F32, 90), ("strided", "sum", F32, 80),
        ("expanded", "sum", F32, 90), ("rows of 300 from odd places", "welford", F32, 90),
        ("rows of 2100 from odd places", "argmax", BF16, 90), ("odd columns", "sum", BF16, 90),
        ("three reduced dims apart", "sum", F32, 90), ("rows of 300 from odd places", "last", F32, 80),
        ("rows of 2100 from odd places", "pair", F32, 90),
    )
}  # fmt: skip
CALLS |= {
    f"product, {plan}, {str(dtype).removeprefix('torch.')}, sm_{chip}": functools.partial(product, plan, dtype, chip)
    for plan, dtype, chip in (
        ("whole", BF16, 80), ("split", BF16, 90), ("four warps", BF16, 90), ("overlapping", BF16, 90), ("split", F32, 80),
        ("four warps", torch.float8_e5m2, 90), ("whole", torch.int16, 90), ("split", torch.int8, 80),
        ("split", torch.float64, 80),
    )
}  # fmt: skip
CALLS |= {
    "split rows": lambda: called(lambda: tilefold.reduce(drawn(1, 300_000), monoids.LOGSUMEXP, 1)),
    "split columns": lambda: called(lambda: tilefold.reduce(drawn(20_000, 8), monoids.SUM, 0)),
    "a row that is held": lambda: called(lambda: tilefold.reduce(drawn(1, 5000), monoids.WELFORD, 1)),
}


def main(words: Sequence[str]) -> None:
    """Each call's launches."""
    rows = []
    for name, call in CALLS.items():
        if words and name not in words and not any(w in name.split() for w in words):
            continue
        both = Both()
        with mock.patch.object(asked, "run_call", both), mock.patch.object(running, "run_call", both):
            call()
        rows += [{"call": name, **row} for row in both.rows]
        for row in both.rows:
            print(json.dumps({"call": name, **row}), flush=True)
    again = {row["call"] for row in rows}
    held = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    rows = [*(row for row in held if row["call"] not in again), *rows]
    rows.sort(key=lambda row: [*CALLS].index(row["call"]))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
