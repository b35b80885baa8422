"""The function that is written for a plan on a GPU: what it allocates, in which order it launches, what it returns.

There is no GPU here. Memory is the CPU's, and each launch is executed from its PTX by the X-ray's machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tilefold
from backends.machines import Machine, stand_in
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.api import dispatch
from tilefold.api.requests import Product, Reduction, Request, Scan
from tilefold.backends.steps import run_steps
from tilefold.backends.triton import executable as executables
from tilefold.backends.triton.executable import Executable
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.plan import Candidate, Finish, Tile
from tilefold.planner.products.steps import product_plan

Tensor = torch.Tensor


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return stand_in(monkeypatch)


def run(
    machine: Machine, request: Request, tensors: Sequence[Tensor], plan: Plan | None = None, **given: Any
) -> list[Tensor]:
    """A request on the machine, by its own plan for an H200 or another one."""
    problem, chosen = request.plan(tensors, H200, library=False)
    plan = plan or chosen
    calls = calls_of(plan, problem, request.computation)
    made = Executable(plan, calls, request.computation, len(tensors), request.results, 0)
    for tensor in tensors:
        machine.hold(tensor)
    return made(tensors, **given)


def reduction(x: Tensor, monoid: tilefold.Monoid, dims: tuple[int, ...], keepdim: bool = False) -> Reduction:
    program = programs.specialize(monoid.total, (x.dtype,))
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    return Reduction(program, dims, "run_to_run", tuple(shape))


@pytest.mark.parametrize("keepdim", [False, True])
def test_one_launch(machine: Machine, keepdim: bool) -> None:
    x = torch.randn(6, 300)
    (got,) = run(machine, reduction(x, monoids.SUM, (1,), keepdim), [x])
    torch.testing.assert_close(got, x.sum(1, keepdim=keepdim))
    assert machine.launched == ["fold_lanes"]


def test_two_launches_meet_in_a_workspace_and_give_several_results(machine: Machine) -> None:
    x = torch.randn(1, 1 << 17)
    values, positions = run(machine, reduction(x, monoids.MAX_WITH_INDEX, (1,)), [x])
    want = x.max(1)
    assert torch.equal(values, want.values)
    assert torch.equal(positions, want.indices)
    assert machine.launched == ["fold_lanes", "fold_lanes"]


def test_an_ordered_fold(machine: Machine) -> None:
    x = torch.randn(3, 200)
    (got,) = run(machine, reduction(x, monoids.LAST, (1,)), [x])
    assert torch.equal(got, x[:, -1])


def test_nothing_is_filled_with_the_identity(machine: Machine) -> None:
    x = torch.empty(4, 0)
    (got,) = run(machine, reduction(x, monoids.SUM, (1,)), [x])
    assert got.tolist() == [0, 0, 0, 0]
    assert machine.launched == []


def test_results_go_where_they_are_wanted(machine: Machine) -> None:
    x, out = torch.randn(6, 300), machine.hold(torch.full((6,), 9.0))
    (got,) = run(machine, reduction(x, monoids.MAX, (1,)), [x], outputs=[out])
    assert got is out
    assert torch.equal(out, x.amax(1))


def test_shared_lines_count_from_zero(machine: Machine) -> None:
    x = torch.randint(-5, 6, (2, 5000), dtype=torch.int32)
    program = programs.specialize(monoids.SUM.total, (torch.int32,))
    request = Scan(program, 1, False, False, 0, True, "run_to_run", (2, 5000))
    prefixes, state = run(machine, request, [x])
    assert machine.launched == ["scan_tiles"]
    assert torch.equal(prefixes, x.cumsum(1))
    assert torch.equal(state, x.sum(1))


PLANS = {
    "whole": Candidate("whole", Tile(16, 16, 32, 1, 2)),
    "split": Candidate("split", Tile(16, 32, 32, 1, 2), 3, Finish(32, 2, 1)),
    "early": Candidate("split", Tile(16, 32, 32, 1, 2), 3, Finish(32, 2, 1), overlap=True, chained=True),
    "packed": Candidate("whole", Tile(16, 32, 32, 1, 2), overlap=True, packed=(True, True)),
}


@pytest.mark.parametrize("name", list(PLANS))
def test_products(machine: Machine, name: str) -> None:
    a, b, bias = torch.randn(19, 150).half(), torch.randn(150, 40).half(), torch.randn(19, 40)
    ending = make_epilogue("relu", torch.float32, (), torch.float16, torch.float32)
    request = Product(ending, "ieee", "run_to_run", (19, 40))
    plan = product_plan(PLANS[name], canonical_product(a, b, [bias]), ending)
    (got,) = run(machine, request, [a, b, bias], plan)
    want = torch.relu(a.double() @ b.double() + bias)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-3)
    launches = {"whole": ["product_whole"], "packed": ["pack_operands", "product_whole"]}
    assert machine.launched == launches.get(name, ["product_partials", "finish_products"])


def test_rows_of_a_product_are_results_too(machine: Machine) -> None:
    a, b = torch.randn(9, 70).half(), torch.randn(70, 24).half()
    ending = make_epilogue(None, None, (), torch.float16, torch.float32, (monoids.MAX_WITH_INDEX, None))
    request = Product(ending, "ieee", "run_to_run", (9, 24))
    plan = product_plan(Candidate("whole", Tile(16, 32, 32, 1, 2)), canonical_product(a, b, []), ending)
    logits, most, where = run(machine, request, [a, b], plan)
    torch.testing.assert_close(logits.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-3)
    assert torch.equal(most, logits.amax(1))
    assert torch.equal(where, logits.argmax(1))


def test_a_library_call_stands_among_launches(machine: Machine) -> None:
    """cuBLAS's sums, here torch's on a CPU, finished by a launch; and products that the library finishes itself."""
    a, b = torch.randn(5, 64), torch.randn(64, 24)
    ending = make_epilogue(lambda x: 2 * x, None, (), torch.float32, None)
    problem, request = canonical_product(a, b, []), Product(ending, "ieee", "run_to_run", (5, 24))
    plan = product_plan(Candidate("cublas", finish=Finish(32, 1, 1)), problem, ending)
    kept = executables.LIBRARY["wide_product"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(executables.LIBRARY, "wide_product", lambda a, b: machine.hold(kept(a, b)))  # type: ignore[arg-type]
        (got,) = run(machine, request, [a, b], plan)
    torch.testing.assert_close(got, 2 * (a @ b), rtol=1e-4, atol=1e-4)
    assert machine.launched == ["finish_products"]
    relu = make_epilogue("relu", None, (), torch.float32, None)
    plan = product_plan(Candidate("cublas", finish=Finish(32, 1, 1)), problem, relu)
    assert plan.launches == 2
    plain = make_epilogue(None, None, (), torch.float32, None)
    plan = product_plan(Candidate("cublas"), problem, plain)
    (got,) = run(machine, Product(plain, "ieee", "run_to_run", (5, 24)), [a, b], plan)
    torch.testing.assert_close(got, a @ b)


NOTHING = torch.empty(4, 0)
RUNS: dict[str, tuple[Request, list[Tensor]]] = {
    "one launch": (reduction(torch.empty(6, 300), monoids.SUM, (1,)), [torch.empty(6, 300)]),
    "two launches": (reduction(torch.empty(1, 1 << 17), monoids.MAX_WITH_INDEX, (1,)), [torch.empty(1, 1 << 17)]),
    "a fill": (reduction(NOTHING, monoids.SUM, (1,)), [NOTHING]),
    "a library call": (
        Scan(programs.specialize(monoids.SUM.total, (torch.int32,)), 1, False, False, 0, True, "run_to_run", (2, 5000)),
        [torch.empty(2, 5000, dtype=torch.int32)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(RUNS))
def test_the_plans_function_takes_the_steps_that_are_run_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function that is written for a plan, and `run_steps`: the same steps, on the same buffers."""
    request, tensors = RUNS[name]
    taken: list[tuple[str, list[int]]] = []
    kept: list[Tensor] = []

    def note(what: str, addresses: Sequence[int]) -> None:
        taken.append((what, list(addresses)))

    def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        kept.append(torch.empty(tuple(shape), dtype=dtype))
        return kept[-1]

    def named(step: str) -> Callable[..., None]:
        return lambda *tensors: note(step, [t.data_ptr() for t in tensors])

    def in_order() -> list[tuple[str, list[int]]]:
        """Each buffer by its number, in the order in which steps meet it."""
        numbers: dict[int, int] = {}
        found = [
            (what, [numbers.setdefault(a, len(numbers)) for a in addresses]) for what, addresses in taken
        ]
        taken.clear()
        return found

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(executables, "_empty", empty)
    monkeypatch.setattr(executables, "fill", lambda computation, writes: named("fill")(*writes))
    monkeypatch.setattr(
        executables, "launcher", lambda call, index: lambda stream, *addresses: note(call.kernel, addresses)
    )
    library = {function: named(function) for function in executables.LIBRARY}
    monkeypatch.setattr(executables, "LIBRARY", library)

    problem, plan = request.plan(tensors, H200, library=True)
    calls = calls_of(plan, problem, request.computation)
    Executable(plan, calls, request.computation, len(tensors), request.results, 0)(tensors)
    by_function = in_order()
    outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in request.results]
    launches = [
        lambda reads, writes, call=call: named(call.kernel)(*reads, *writes)  # type: ignore[misc]  # bound early
        for call in calls
    ]
    run_steps(plan, tensors, outputs, launches, library, lambda writes: named("fill")(*writes))
    assert by_function
    assert by_function == in_order()


def test_the_dispatcher_writes_into_a_target_that_kernels_know_and_copies_to_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = machine.hold(torch.randn(6, 300))
    request = reduction(x, monoids.SUM, (1,))

    def compiled(request: Reduction, tensors: Sequence[Tensor]) -> Executable:
        problem, plan = request.plan(tensors, H200, library=False)
        calls = calls_of(plan, problem, request.computation)
        return Executable(plan, calls, request.computation, len(tensors), request.results, 0)

    monkeypatch.setattr(dispatch, "compiled", compiled)
    direct = machine.hold(torch.empty(6))
    version = direct._version
    (got,) = dispatch._on_gpu(request, [x], None, [direct])
    assert got is direct
    assert direct._version > version
    torch.testing.assert_close(direct, x.sum(1))
    strided = torch.empty(6, 2)[:, 0]
    (got,) = dispatch._on_gpu(request, [x], None, [strided])
    assert got is strided
    torch.testing.assert_close(strided, x.sum(1))
