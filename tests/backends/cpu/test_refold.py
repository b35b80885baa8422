"""Folds whose squares leave a dtype's range: as exact as torch at every magnitude, and the guarantees still hold."""

from __future__ import annotations

import functools

import pytest
import torch

import tilefold
from magnitudes import CASES, DIMS, FUNCTIONS, WATCHED, check, elements, varied
from tilefold import monoids
from tilefold.algebra.program import is_watched, quick_form, specialize
from tilefold.backends.cpu import refold

NAMES = [f"{str(dtype).removeprefix('torch.')}-{magnitude}" for dtype, magnitude in CASES]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "magnitude"), CASES, ids=NAMES)
def test_as_exact_as_torch_at_every_magnitude(dtype: torch.dtype, magnitude: str, function: str) -> None:
    x = elements(dtype, magnitude)
    for name, dims in DIMS.items():
        if name != "all" or function != "logsumexp":
            check(function, x, dims)


def test_the_issue_s_numbers() -> None:
    for scale in (1e-30, 1e-22, 1e-40, 1e30):
        x = torch.tensor([1.0, 2.0, 3.0]) * scale
        assert tilefold.std(x).item() == pytest.approx(scale, rel=3e-6 if scale > 1e-38 else 1e-4)


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("dims", [(2,), (1, 2), (0, 2), (1,)], ids=str)
def test_results_lie_where_they_belong(name: str, dims: tuple[int, ...], guarantee: str) -> None:
    x, monoid = varied(26, 5, 40), WATCHED[name]
    got = tilefold.reduce(x, monoid, dims, guarantee=guarantee)
    want = tilefold.reduce(x.double(), monoid, dims)
    for one, exact in zip(_several(got), _several(want), strict=True):
        torch.testing.assert_close(one, exact.to(one.dtype), rtol=2e-6, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("name", WATCHED)
def test_a_result_s_bits_do_not_depend_on_the_others(name: str) -> None:
    x, monoid = varied(26, 300), WATCHED[name]
    among = _several(tilefold.reduce(x, monoid, 1, guarantee="batch_invariant"))
    for row in range(26):
        alone = _several(tilefold.reduce(x[row : row + 1], monoid, 1, guarantee="batch_invariant"))
        for a, b in zip(alone, among, strict=True):
            assert torch.equal(a[0].view(-1).view(torch.uint8), b[row].view(-1).view(torch.uint8))


@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("shape", [(26, 3000), (1, 1 << 19)], ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(name: str, shape: tuple[int, int]) -> None:
    x = varied(*shape) if shape[0] > 1 else torch.randn(shape) * 1e-30
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(_several(tilefold.reduce(x, WATCHED[name], 1)))
    finally:
        torch.set_num_threads(before)
    if name == "norm(3)":
        return  # a user's pow is said to depend on it
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_long_results_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refold, "TOGETHER", 100)
    x = varied(26, 5, 40)
    torch.testing.assert_close(
        tilefold.var(x, (1, 2)), x.double().var((1, 2)).float(), rtol=1e-6, atol=0.0, equal_nan=True
    )
    expanded = torch.tensor([[1e-30], [1.0]]).expand(2, 1 << 40)[:, :200] + torch.tensor([0.0])
    assert tilefold.vector_norm(expanded, dim=1)[0].item() == pytest.approx(200**0.5 * 1e-30, rel=1e-6)


def test_the_plan_says_how_many() -> None:
    x = torch.ones(3, 4) * torch.tensor([[1e-30], [1.0], [1.0]]) * torch.arange(4.0)
    tilefold.std_mean(x, 1)
    plan = tilefold.last_plan()
    assert plan is not None
    assert plan.reason == "in units 1 of 3 results"
    tilefold.std_mean(x[1:], 1)
    plan = tilefold.last_plan()
    assert plan is not None
    assert "units" not in plan.reason


def test_the_definition_agrees() -> None:
    with tilefold.backend("reference"):
        assert tilefold.std(torch.tensor([1e-30, 2e-30, 3e-30])).item() == pytest.approx(1e-30, rel=1e-6)


def test_what_has_a_quick_form() -> None:
    assert monoids.SUM.total.quick is None
    for monoid in WATCHED.values():
        for dtype in (
            torch.int32,
            torch.float16,
            torch.float8_e5m2,
        ):  # squares of narrow dtypes have no units at all
            narrow = specialize(monoid.total, (dtype,)).algebra
            assert (narrow.quick is None) == monoid.total.quick.narrow
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float8_e8m0fnu):
            program = specialize(monoid.total, (dtype,))
            assert is_watched(program)
            assert quick_form(program).outputs == (*program.outputs, torch.bool)


@pytest.mark.parametrize("scale", [2.0**-600, 2.0**-1000, 2.0**600, 2.0**1000])
def test_float64_too(scale: float) -> None:
    x = torch.randn(3, 50, dtype=torch.float64)
    for name in ("std", "vector_norm"):
        function = getattr(tilefold, name)
        torch.testing.assert_close(
            function(x * scale, dim=1) / scale, function(x, dim=1), rtol=1e-14, atol=0.0
        )


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom:UserWarning")
def test_nothing_to_fold() -> None:
    assert tilefold.vector_norm(torch.empty(0)) == 0
    assert tilefold.var(torch.empty(3, 0), 1).isnan().all()
    assert tilefold.var(torch.empty(0, 3), 1).shape == (0,)


def _several(results: object) -> list[torch.Tensor]:
    return list(results) if isinstance(results, tuple) else [results]  # type: ignore[list-item]  # one tensor


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["std", "vector_norm"])
def test_a_trace_keeps_no_decision_about_its_elements(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of poisoned outputs: a trace cannot record how truth values are filled
    function = getattr(tilefold, name)
    with tilefold.backend("reference"):  # loops over tiles are not traced at all
        traced = torch.jit.trace(lambda x: function(x, dim=1), (torch.randn(3, 4),))
    tiny = torch.tensor([[1e-30, 2e-30, 3e-30, 4e-30]] * 3)
    torch.testing.assert_close(traced(tiny), function(tiny, dim=1), rtol=1e-6, atol=0)


OVER_ROWS = """
    sum prod mean amax amin max min argmax argmin aminmax any all count_nonzero var std logsumexp vector_norm softmax
    log_softmax cumsum cumprod cummax cummin logcumsumexp
"""
TRACED = {
    **{name: functools.partial(getattr(tilefold, name), dim=1) for name in OVER_ROWS.split()},
    "norm": lambda x: tilefold.norm(x, 1, 1),
    "layer_norm": lambda x: tilefold.layer_norm(x, (4,)),
    "rms_norm": lambda x: tilefold.rms_norm(x, (4,)),
    "group_norm": lambda x: tilefold.group_norm(x, 2),
    "transpose": lambda x: tilefold.transpose(x, 0, 1),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", TRACED)
def test_a_trace_of_torchs_own_function_gives_its_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    x, call = torch.randn(3, 4), TRACED[name]
    traced = torch.jit.trace(lambda x: call(x), (x,))
    for got, want in zip(_several(traced(x + 1)), _several(call(x + 1)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_fold_inside_functionalize_of_a_tensor_from_outside() -> None:
    x = torch.randn(3, 4)
    seen: list[torch.Tensor] = []
    torch.func.functionalize(lambda t: (seen.append(tilefold.std(x)), t)[1])(x)
    assert len(seen) == 1
