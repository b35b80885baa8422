"""Backwards of norms as their kernels were compiled: what they move, and what they make, executed from their PTX."""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tilefold
from asked import executed
from tilefold import monoids
from tilefold.api.dispatch import plan_for
from tilefold.api.map_rules import rules_of
from tilefold.api.reduce_map import kept
from tilefold.api.requests import RowMap
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.lower import calls_of
from tilefold.functional.normalized import _norms, _shares
from tilefold.planner import groups
from tilefold.planner.chips import NAMED
from tilefold.planner.device import of_chip
from tilefold.planner.products.row import make_row_map
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.machine.races import races
from xray.running import run_plan

BF16, FP32 = torch.bfloat16, torch.float32
H100 = of_chip(NAMED["h100"])


def backward_of(
    name: str,
    shape: tuple[int, int],
    dtype: torch.dtype,
    wrt: tuple[int, ...],
    device: str,
    guarantee: str = "run_to_run",
) -> tuple[RowMap, dict[str, torch.Tensor]]:
    """What the backward of a norm, or of softmax, asks for, with tensors by their roles."""
    if name == "softmax":
        (monoid, function), parameters = kept(_shares, False), 0
    else:
        parameters = 1 + (name == "layer_norm")
        monoid, function = kept(_norms, name, shape[1], 1e-5, (True, parameters == 2), False)
    rules = rules_of(monoid, function, (dtype,), (dtype,) * parameters)
    backward = rules.backward(wrt, (True, *[False] * rules.rows))
    generator = torch.Generator().manual_seed(0)

    def tensor(kind: str) -> torch.Tensor:
        sizes = {"extra": shape[1:], "row": (shape[0], 1), "length": ()}
        size = sizes.get(kind, shape)
        if device == "meta":
            return torch.empty(size, dtype=FP32 if kind in ("row", "length") else dtype, device=device)
        made = torch.rand(size, generator=generator)
        return (
            torch.full((), float(shape[1])) if kind == "length" else made if kind == "row" else made.to(dtype)
        )

    roles = [rules.values[p] for p in backward.reads]
    tensors = {f"{kind}{i}": tensor(kind).expand(shape) for kind, i in roles}
    places = tuple(p for p, i in enumerate(wrt) if not i), tuple(p for p, i in enumerate(wrt) if i)
    row = make_row_map(
        backward.summed().total,
        backward.of_row(*places, (dtype,)),
        tuple(t.dtype for t in tensors.values()),
        (),
    )
    return RowMap(row, (1,), guarantee, shape), tensors


def by_formula(name: str, values: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The cotangents of layer_norm in float64."""
    x, w, gy = (values[key].double() for key in ("input0", "extra0", "of_result0"))
    mean = values["row0"].double() if name == "layer_norm" else 0.0
    root = values["row1" if name == "layer_norm" else "row0"].double()
    z, o = (x - mean) * root, gy * w
    along = (o * z).mean(1, True) * z + (o.mean(1, True) if name == "layer_norm" else 0)
    return [root * (o - along), (gy * z).sum(0, True), gy.sum(0, True)][: 3 if name == "layer_norm" else 2]


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "softmax"])
@pytest.mark.parametrize(
    ("shape", "least"), [((16384, 8192), 0.95), ((4096, 65536), 0.95), ((5000, 4104), 0.9)], ids=str
)
def test_bytes_are_compulsory_and_nothing_is_spilled(
    name: str, shape: tuple[int, int], least: float, tmp_path: Path
) -> None:
    """Two tensors read once and one written once, the parameters' gradients in the same pass; vectors of 16 bytes."""
    wrt = {"layer_norm": (0, 1, 2), "rms_norm": (0, 1), "softmax": (0,)}[name]
    request, tensors = backward_of(name, shape, BF16, wrt, "meta")
    problem, plan = request.plan(list(tensors.values()), H100, library=False)
    moved = plan_for(request, list(tensors.values()), H100).moved_bytes
    assert 3 * 2 * shape[0] * shape[1] >= least * moved
    for call in calls_of(plan, problem, request.computation):
        compiled = calls.compile_for(call, 90)
        (tmp_path / "cubin").write_bytes(compiled.asm["cubin"])
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(tmp_path / "cubin")]
        usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
        assert re.findall(r"STACK:(\d+)", usage) == ["0"], call.kernel
        if call.kernel.startswith("map"):
            assert re.search(r"st\.global[.\w:]*v4\.b32", compiled.asm["ptx"])
        if call.kernel == "map_groups":  # two turns are on their way at a time, and all clusters run at once
            stage: Any = plan.stages[0]
            assert "cp.async.wait_group" in compiled.asm["ptx"]
            assert stage.stages == 3
            assert stage.groups * stage.cluster <= (132 if stage.cluster <= 2 else 120)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    ("shape", "dtype", "cluster"),
    [((11, 512), BF16, 1), ((9, 264), FP32, 1), ((9, 512), BF16, 2), ((5, 1024), BF16, 4)],
    ids=str,
)
def test_each_sector_is_read_once(
    name: str, shape: tuple[int, int], dtype: torch.dtype, cluster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of elements; each group's programs read the parameters once more, each warp what is of a row, and the groups' sums are
    written and read once."""
    monkeypatch.setattr(groups, "TILE", 1)
    monkeypatch.setattr(groups, "WARPS_OF_AN_SM", 1)
    if cluster > 1:
        monkeypatch.setattr(groups, "SHARE", 1)
        monkeypatch.setattr(groups, "MAX_WARPS", 1)
        monkeypatch.setattr(groups, "MOST", shape[1] // cluster // 32)
    request, values = backward_of(name, shape, dtype, (0, 1, 2)[: 3 if name == "layer_norm" else 2], "cpu")
    tensors = list(values.values())
    problem, plan = request.plan(tensors, replace(H100, sms=4), library=False)
    stage: Any = plan.stages[0]
    assert (stage.cluster, plan.strategy) == (cluster, "groups")
    assert shape[0] > 2 * stage.groups  # a group has several rows
    results = [torch.empty(size, dtype=d) for size, d in request.results]
    outcomes = run_plan(plan, problem, request.computation, tensors, results, 90)
    for got, want in zip(results, by_formula(name, values), strict=True):
        torch.testing.assert_close(
            got.double(),
            want,
            rtol=torch.finfo(got.dtype).eps,
            atol=64 * torch.finfo(FP32).eps * want.abs().max().item(),
        )
    assert not any(race.differing for o in outcomes for race in races(o))
    elements, columns = shape[0] * shape[1] * dtype.itemsize // 32, shape[1] * stage.groups
    sums = len(plan.workspaces) * columns * 4 // 32
    loads = global_cost(a for o in outcomes for a in o.accesses if a.kind != "store").sectors
    stores = global_cost(a for o in outcomes for a in o.accesses if a.kind == "store").sectors
    a_row = 3 * stage.num_warps * cluster  # its values, and the length: of one sector each
    beside = columns * dtype.itemsize // 32 + a_row * (shape[0] + 2 * stage.groups)
    assert 2 * elements <= loads <= 2 * elements + sums + beside
    assert stores <= elements + sums + len(plan.workspaces) * shape[1] * 4 // 32


@pytest.mark.parametrize("length", [40, 264, 1024])
def test_a_row_has_the_same_bits_beside_fewer_rows(length: int) -> None:
    """Its gradient, with "batch_invariant"."""
    request, values = backward_of("layer_norm", (70, length), FP32, (0, 1, 2), "cpu", "batch_invariant")

    def made(first: int, rows: int) -> torch.Tensor:
        some = replace(request, shape=(rows, length))
        tensors = [t[first : first + rows] for t in values.values()]
        problem, plan = some.plan(tensors, H100, library=False)
        results = [torch.empty(size, dtype=d) for size, d in some.results]
        run_plan(plan, problem, some.computation, tensors, results, 90)
        return results[0]

    assert torch.equal(made(0, 70)[37:38], made(37, 1))


LOGSUMEXP, MAX = monoids.LOGSUMEXP, monoids.MAX
HELD = [  # short rows, one program's, a cluster's, odd ones, by each kernel that stores what rows fold to
    (LOGSUMEXP, (40, 256), BF16, 1, "map_rings"),
    (LOGSUMEXP, (3, 9000), FP32, 0, "map_blocks"),
    (LOGSUMEXP, (5, 8192), BF16, 1, "map_rings"),
    (LOGSUMEXP, (2, 50257), FP32, 2, "map_rings"),
    (LOGSUMEXP, (2, 131072), FP32, 1, "map_blocks"),
    (MAX, (3, 9000), FP32, 1, "map_rings"),
    (MAX, (3, 131072), BF16, 0, "map_blocks"),
    (MAX, (300, 40), BF16, 1, "map_blocks"),
]


@pytest.mark.parametrize(("monoid", "shape", "dtype", "weights", "kernel"), HELD, ids=str)
@pytest.mark.parametrize("stores", [False, True])
def test_rows_have_values_of_their_own_and_store_some(
    monoid: tilefold.Monoid,
    shape: tuple[int, int],
    dtype: torch.dtype,
    weights: int,
    kernel: str,
    stores: bool,
) -> None:
    """In the one launch that reads them, in whichever order extra tensors are given."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(of)

    x, beside = drawn(*shape), [drawn(shape[1]).expand(shape) for _ in range(weights)]
    rows = [drawn(shape[0], 1).expand(shape), drawn(shape[0], 1, of=FP32).expand(shape)]
    extras = [*beside[:1], rows[0], *beside[1:], rows[1]]

    def apply(v: Any, total: Any, *given: Any) -> Any:
        factor, *others = given
        return (v - total) * factor + functools.reduce(lambda a, b: a + b, others)

    names = ", ".join(f"e{i}" for i in range(len(extras)))
    function = eval(f"lambda v, total, {names}: apply(v, total, {names})", {"apply": apply})
    call = functools.partial(
        tilefold.reduce_map, x, monoid, function, 1, extras=extras,
        **({"rows": lambda total: total * 2.0} if stores else {}),
    )  # fmt: skip
    results, plan = executed(call)
    if stores:
        assert [step.kernel for step in plan.launched] == [kernel]
    total = (torch.amax if monoid is MAX else torch.logsumexp)(x.double(), 1, keepdim=True)
    want = apply(x.double(), total, *(e.double() for e in extras))
    torch.testing.assert_close(results[0].double(), want, rtol=torch.finfo(dtype).eps, atol=1e-5)
    if stores:
        torch.testing.assert_close(results[1].double(), 2 * total, rtol=1e-5, atol=1e-5)


def test_rows_are_stored_by_the_programs_that_hold_them() -> None:
    """In the one launch that reads them, by one program of a cluster."""
    x = torch.randn(3, 9000)
    call = functools.partial(
        tilefold.reduce_map, x, monoids.LOGSUMEXP, lambda v, total: v - total, 1, rows=lambda total: total
    )
    results, plan = executed(call)
    want = torch.logsumexp(x.double(), 1, keepdim=True)
    torch.testing.assert_close(results[1].double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[0].double(), x.double() - want, rtol=1e-5, atol=1e-5)
    assert (plan.strategy, plan.launches) == ("whole", 1)


@pytest.mark.parametrize("shape", [(0, 65), (65, 0), (0, 2), (0, 64)], ids=str)
@pytest.mark.parametrize("dims", [2, 1])
def test_what_has_no_elements_is_not_read(shape: tuple[int, int], dims: int) -> None:
    """Such tensors may have no memory: a program that read one of them would fail."""
    x = torch.empty(shape[0], 1).expand(shape) if shape[0] else torch.empty(0, 1).expand(shape)
    weight = torch.ones(1).expand(shape[-dims:])
    results, plan = executed(lambda: tilefold.rms_norm(x, shape[-dims:], weight, 1e-5))
    assert results[0].shape == torch.Size(shape)
    assert "map_groups" in {step.kernel for step in plan.launched} or plan.strategy == "nothing"
