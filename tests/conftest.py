"""What every test gets: seeds, poisoned outputs, hypothesis profiles, and no GPU test without a GPU."""

from __future__ import annotations

import functools
import os
import random

import numpy as np
import pytest
import torch
from hypothesis import register_random, settings

import tilefold
from guarded import guard
from tilefold.planner import rings, spans

SEED = 20260101

# The ways library code asks for memory that nobody has written yet.
ALLOCATORS = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch, "empty_permuted"),
    (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)

# Workers share the cores, and torch on all of them in each would be slower, not faster.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


class TorchGenerator:
    """torch's default generator under the names that hypothesis expects of a source of randomness."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


# Hypothesis keeps a weak reference only, so the object needs a name of its own.
TORCH_GENERATOR = TorchGenerator()
register_random(TORCH_GENERATOR)

# No deadline: the first call of an operation pays for torch's and Triton's start, and CI has two slow cores.
settings.register_profile("default", deadline=None)
# CI repeats itself: the same examples each run, so that a red run can be had again.
settings.register_profile(
    "ci", deadline=None, derandomize=True, max_examples=60, print_blob=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def tells_zeros_apart(compare):
    """`torch.testing.assert_close`, which fails as well where zeros would pass for the numbers that are expected.

    Its default absolute tolerance accepts 0 for 2e-30: a comparison that names none may hold no number so small. To one that
    names its own a tenth of them may be, as what is left over where signs cancel.
    """

    @functools.wraps(compare)
    def compared(actual, expected, *, rtol=None, atol=None, **options):
        compare(actual, expected, rtol=rtol, atol=atol, **options)
        for want in expected if isinstance(expected, list | tuple) else (expected,):
            if not isinstance(want, torch.Tensor) or not want.is_floating_point() or want.is_meta:
                continue
            numbers = want.detach().double().abs()
            numbers = numbers[(numbers > 0) & numbers.isfinite()]
            default = 1e-7 if want.dtype == torch.float64 else 1e-5  # as torch documents it
            share, floor = (0.0, default) if atol is None else (0.1, atol)
            lost = int((numbers <= floor).sum())
            assert lost <= share * len(numbers), (
                f"zeros would pass for {lost} of {len(numbers)} numbers; give an `atol` below them, or 0"
            )

    return compared


def without_a_floor(approx):
    """`pytest.approx`, which takes no number for another because both are small, but where a test says `abs`."""

    @functools.wraps(approx)
    def compared(expected, rel=None, abs=None, nan_ok=False):
        rel = 1e-6 if rel is None and abs is None else rel
        return approx(expected, rel, 0.0 if abs is None else abs, nan_ok)

    return compared


guard()
torch.testing.assert_close = tells_zeros_apart(torch.testing.assert_close)
pytest.approx = without_a_floor(pytest.approx)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    no_device = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(no_device)


@pytest.fixture(autouse=True)
def seeds() -> None:
    """The same numbers in every test, whatever ran before it and in which worker."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what `torch.empty` and its kin return, so that an element that no kernel wrote shows.

    Fresh memory is often zero, the very answer of a sum that was never stored.
    """
    for owner, name in ALLOCATORS:
        monkeypatch.setattr(owner, name, poisoning(getattr(owner, name)))


def poisoning(allocate):
    """The allocator with a poisoned result."""

    def poisoned(*args, **kwargs):
        return poison(allocate(*args, **kwargs))

    return poisoned


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with NaN, or with the largest integer, or with True."""
    if tensor.is_floating_point() or tensor.is_complex():
        value: float | int | bool = float("nan")
    elif tensor.dtype == torch.bool:
        value = True
    else:
        value = torch.iinfo(tensor.dtype).max
    with torch.no_grad():
        return tensor.fill_(value)


@pytest.fixture(params=["auto", "cpu"])
def cpu(request):
    """The two ways of a user on a CPU: whatever is best, and the lanes forced."""
    with tilefold.backend(request.param):
        yield request.param


@pytest.fixture
def in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of maps are held in registers; `test_rings` and `test_spans` have those in shared memory."""
    monkeypatch.setattr(rings, "ELEMENTS", ())
    monkeypatch.setattr(spans, "ELEMENTS", ())
