"""What every test gets: seeds, poisoned outputs, hypothesis profiles, and no GPU test without a GPU."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from hypothesis import register_random, settings

import tilefold
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
