"""The CPU's suite beyond folds: the library's answers pass the gate, and wrong ones do not."""

from __future__ import annotations

import pytest
import torch

from tilefold.bench import gate
from tilefold.bench.cases import DTYPES, outputs_of
from tilefold.bench.cpu_operations import OPERATIONS, SHAPES, operation_case
from tilefold.bench.operations import OPERATIONS as FOLDS
from tilefold.bench.operations import in_tilefold, make_fold
from tilefold.bench.suites import cpu


@pytest.mark.parametrize("shape", [*SHAPES["small"], (64, 64)], ids=str)
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_our_answer_passes_and_another_does_not(name: str, shape: tuple[int, int]) -> None:
    case = operation_case(name, shape)
    for seed in (0, 1):
        x = case.draw("cpu", seed)
        want = case.reference(x)
        (choice,) = cpu.build_ours(case, x)
        assert gate.fault(case, x, choice.call(x), want) is None
        if case.torch_call is not None and not case.has_index:
            assert gate.fault(case, x, case.torch_call(x), want) is None
    wrong = [r.clone() for r in outputs_of(choice.call(x))]
    wrong[0].view(-1)[-1] += 40
    assert gate.fault(case, x, wrong, want) is not None


def test_a_case_of_another_shape_is_made() -> None:
    made = cpu.make_case("softmax", 1, (3, 5), "fp32", None)
    assert made is not None
    assert made.name == "softmax dim1 3x5 fp32"
    assert cpu.make_case("softmax", 0, (3, 5), "fp32", None) is None
    assert cpu.make_case("sum", 1, (3, 5), "bf16", None) is None


@pytest.mark.parametrize("name", FOLDS)
def test_folds_of_the_table_are_of_what_it_says(name: str) -> None:
    """Our answer and torch's pass; of floats, and over several dims, there is a case unless torch has none."""
    for dim in (1, (0, 2)):
        for dtype in ("fp32", "int32"):
            case = make_fold(name, dim, (6, 5, 4), dtype)
            if case is None:
                if dtype == "fp32" or (dim == 1 and name in ("var", "vector_norm")):
                    with pytest.raises((RuntimeError, TypeError)):
                        FOLDS[name].in_torch(torch.ones(6, 5, 4, dtype=DTYPES[dtype]), dim)
                continue
            x = case.draw("cpu")
            want = case.reference(x)
            for found in (in_tilefold(case)(x), case.torch_call(x)):
                assert gate.fault(case, x, outputs_of(found), want) is None, case.name
