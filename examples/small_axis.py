"""OR, AND and XOR of integers, which torch does not reduce with: over any axis, and over a short last one in several forms.

`Y[m, n] = OR over k of A[m, n, k]` with 4 to 16 values a result: which form of a kernel is fastest depends on compiler and
chip, and the library chooses it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from shown import committed, has_triton, label, measured_on, say, show_table

import tilefold
from tilefold.bench.results import CaseResult
from tilefold.bench.summary import fractions, median_us

OPERATIONS = {
    "OR": (tilefold.bitwise_or, np.bitwise_or),
    "AND": (tilefold.bitwise_and, np.bitwise_and),
    "XOR": (tilefold.bitwise_xor, np.bitwise_xor),
}
DIMS = (0, 1, 2, (0, 2), None)
SHAPE = (16, 32, 8)  # [M, N, K] of the forms that are executed
FORMS = {
    "or_reduce_3d": ("tl.reduce of a 3-D tile", "reduce 3-D", {"BLOCK": 16}),
    "or_loads": ("K unrolled loads", "unrolled loads", {"BLOCK": 16}),
    "or_reduce_flat": ("tl.reduce of flat rows", "reduce flat", {"BLOCK": 64}),
}


def any_axis() -> None:
    """Each operation over each dim, beside numpy's answers."""
    x = torch.randint(-(2**31), 2**31 - 1, (6, 40, 16), dtype=torch.int32)
    rows = []
    for name, (ours, theirs) in OPERATIONS.items():
        said = [name]
        for dim in DIMS:
            got = ours(x, dim=dim)
            want = theirs.reduce(x.numpy(), axis=dim)
            assert np.array_equal(got.numpy(), want), (name, dim)
            said.append(str(list(got.shape)))
        rows.append(said)
    label("OR, AND, XOR of int32 [6, 40, 16] over any axis: shapes of the results, whose bits are numpy's")
    show_table(["", *(f"dim {dim}" for dim in DIMS)], rows)


def executed(name: str, constants: dict[str, Any], x: torch.Tensor) -> list[str]:
    """One form, executed from its PTX: its results are tilefold's; instructions of a warp and bytes for all programs."""
    from tilefold.bench.kernels import or_forms
    from tilefold.xray.compile.offline import compile_job
    from tilefold.xray.execution import execute
    from tilefold.xray.explain import make_job
    from tilefold.xray.machine import all_programs
    from tilefold.xray.machine.counts import global_cost
    from tilefold.xray.ptx import parse

    kernel, (m, n, k), block = getattr(or_forms, name), x.shape, constants["BLOCK"]
    flat = "R" in kernel.arg_names
    sizes = {"R": m * n} if flat else {"M": m, "N": n}
    grid = (-(-m * n // block), 1, 1) if flat else (-(-m // block), -(-n // block), 1)
    arguments = {"x_ptr": x, "y_ptr": torch.zeros(m, n, dtype=x.dtype), **sizes}
    compiled = compile_job(make_job(kernel, arguments, {"K": k, **constants}, grid=grid))
    done = execute(compiled, parse(compiled.ptx), list(all_programs(grid)))
    got = torch.from_numpy(done.memory.read("1:y_ptr", np.int64)).view(m, n)
    assert torch.equal(got, tilefold.bitwise_or(x, 2)), name
    accesses = [[a for a in found if a.space == "global"] for found in done.accesses().values()]
    sectors = sum(global_cost(found).sectors for found in accesses)
    return [str(int(done.warps().sum())), str(32 * sectors)]


def forms() -> None:
    """The forms of a kernel, executed here and timed elsewhere."""
    label(f"Forms of one kernel, int64 {list(SHAPE)} over the last axis")
    if not has_triton():
        return
    x = torch.randint(-(2**62), 2**62, SHAPE)
    rows = [[title, *executed(name, constants, x)] for name, (title, _, constants) in FORMS.items()]
    show_table(["executed here from its PTX: tilefold's bits", "instructions", "bytes moved"], rows)
    say(
        f"{8 * (x.numel() + x[..., 0].numel())} bytes is the least: {x.numel()} values are read, a result for every "
        f"{SHAPE[2]} of them is written."
    )


def table() -> None:
    """The committed run: every shape of the table."""
    results = committed("or-small-axis")
    columns = {"tilefold": "ours", **{v: v for _, v, _ in FORMS.values()}, "compile": "compile"}
    label(f"{measured_on(results)}; limit: the bytes at a copy's speed, and a launch")

    def line(case: CaseResult) -> list[str]:
        limit = next(m.limit_us for m in case.measurements if m.limit_us)
        times = [f"{median_us(case, variant) or 0:.1f}" for variant in columns.values()]
        return [f"{'x'.join(map(str, case.shape))}", f"{limit:.1f}", *times, f"{fractions([case])[0]:.2f}"]

    head = ["int64", "limit", "tilefold", "3-D", "loads", "flat", "compile", "of limit"]
    show_table(head, [line(case) for case in results.cases if case.dtype == "int64"])
    large, small = ([c for c in results.cases if (c.floor_us >= 30) == big] for big in (True, False))
    say(
        f"int32 too, shapes whose bytes alone take 30 us and more reach {min(fractions(large)):.2f} of the limit at least, "
        f"smaller ones {min(fractions(small)):.2f}. One command makes this table anew:"
    )
    say("tilefold bench or-small-axis --against torch,compile", indent="  ")


def main() -> None:
    """All of it."""
    any_axis()
    forms()
    table()


if __name__ == "__main__":
    main()
