"""The gate: answers before times, and every kind of wrong answer refused."""

from __future__ import annotations

import re

import pytest
import torch
from made import cpu_bench, small_case, total, variant

from tilefold.bench import gate
from tilefold.bench.cases import Case, outputs_of
from tilefold.bench.measure import measure_case
from tilefold.bench.suites import folds, or_small_axis, transpose

SMALL = [*folds.cases("small"), *or_small_axis.cases("small")]


def verdict(case: Case, call) -> str | None:
    probes = gate.probes_of(case, "cpu")
    return gate.check(case, call, torch.empty_like(probes[0].x), probes)


# torch's own bf16 log-sum-exp of many short rows lies beyond the bound, as it does on a GPU.
@pytest.mark.parametrize(
    "case", [c for c in SMALL if c.operation != "logsumexp" or c.dtype == "fp32"], ids=str
)
def test_torch_passes_and_a_spoiled_answer_fails(case: Case) -> None:
    assert verdict(case, case.torch_call) is None

    def spoiled(x: torch.Tensor) -> list[torch.Tensor]:
        outputs = [t.clone() for t in outputs_of(case.torch_call(x))]
        first = outputs[-1].view(-1)[:1]
        outputs[-1].view(-1)[0] = (
            ~first[0] if first.dtype == torch.bool else first[0] + (1 if case.has_index else 4)
        )
        return outputs

    assert verdict(case, spoiled) is not None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(lambda x: total(x) + 9, "times the bound", id="off by nine"),
        pytest.param(lambda x: total(x).double(), "float64, not", id="another dtype"),
        pytest.param(lambda x: total(x)[:-1], "not \\(8,\\)", id="another shape"),
        pytest.param(lambda x: (total(x), total(x)), "2 outputs", id="two outputs"),
        pytest.param(lambda x: torch.empty(8), "times the bound", id="nothing written"),
        pytest.param(lambda x: 3.0, "no tensors", id="no tensor"),
        pytest.param(lambda x: total(x.neg_()) * -1, "input was changed", id="input overwritten"),
    ],
)
def test_a_wrong_variant_is_refused_and_never_timed(call, said: str) -> None:
    row = measure_case(cpu_bench(), small_case(), [variant(call)]).measurements[0]
    assert row.status == "wrong"
    assert row.time_us is None
    assert row.fraction is None
    assert row.host_us is None
    assert row.note is not None
    assert re.search(said, row.note)


def test_one_wrong_choice_makes_the_variant_wrong() -> None:
    from tilefold.bench.cases import Choice, Variant

    choices = [Choice("good", total), Choice("bad block", lambda x: total(x) * 2)]
    row = measure_case(cpu_bench(), small_case(), [Variant("form", lambda case, x: choices)]).measurements[0]
    assert row.status == "wrong"
    assert row.note is not None
    assert row.note.startswith("bad block: ")


def test_a_wrong_variant_does_not_hide_the_right_one() -> None:
    rows = measure_case(
        cpu_bench(), small_case(), [variant(total), variant(lambda x: x.amax(-1), "bad")]
    ).measurements
    assert [row.status for row in rows] == ["ok", "wrong"]
    assert rows[0].time_us is not None


def test_what_a_refused_variant_leaves_in_the_input_is_never_timed() -> None:
    seen: list[bool] = []

    def right(x: torch.Tensor) -> torch.Tensor:
        seen.append(bool((x == 0).any()))
        return total(x)

    rows = measure_case(
        cpu_bench(), small_case(), [variant(right), variant(lambda x: total(x.zero_()), "bad")]
    ).measurements
    assert [row.status for row in rows] == ["ok", "wrong"]
    assert not any(seen)


def test_an_output_kept_by_the_inputs_version_is_found_out() -> None:
    kept: dict[int, torch.Tensor] = {}
    note = verdict(small_case(), lambda x: kept.setdefault(x._version, total(x)))
    assert note is not None
    assert "that of an earlier call" in note


def test_one_element_that_is_no_number_is_found() -> None:
    def spoiled(x: torch.Tensor) -> torch.Tensor:
        y = total(x)
        y[3] = float("nan")
        return y

    assert verdict(small_case(), spoiled) == "the error is nan times the bound"


def test_an_answer_beyond_the_results_range_is_infinite() -> None:
    case = small_case("sum", (2, 8), "fp16")
    x, want = torch.zeros(2, 8, dtype=torch.float16), (torch.tensor([1e6, 1.0], dtype=torch.float64),)
    assert gate.fault(case, x, torch.tensor([float("inf"), 1.0]).half(), want) is None
    assert gate.fault(case, x, torch.tensor([float("inf"), float("inf")]).half(), want) is not None
    assert gate.fault(case, x, torch.tensor([65504.0, 1.0]).half(), want) is not None


def test_an_output_kept_from_an_earlier_call_is_found_out() -> None:
    kept: dict[int, torch.Tensor] = {}
    note = verdict(small_case(), lambda x: kept.setdefault(x.data_ptr(), total(x)))
    assert note is not None
    assert "that of an earlier call" in note


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_the_two_probes_have_different_answers(case: Case) -> None:
    """Else an output that is cached would pass."""
    first, second = gate.probes_of(case, "cpu")
    assert gate.fault(
        case,
        first.x,
        tuple(w.to(d) for w, d in zip(second.want, case.result_dtypes, strict=True)),
        first.want,
    )


def test_any_position_of_a_tie_is_right() -> None:
    case = small_case("argmax", (2, 4))
    x = torch.tensor([[1.0, 3, 3, 2], [5, 5, 5, 5]])
    want = (torch.tensor([1, 0]),)
    assert gate.fault(case, x, torch.tensor([2, 3]), want) is None
    assert gate.fault(case, x, torch.tensor([0, 3]), want) == "an index points at another element"
    assert gate.fault(case, x, torch.tensor([4, 3]), want) == "an index is out of range"
    assert gate.fault(
        small_case("max", (2, 4)), x, (torch.tensor([3.0, 4]), torch.tensor([1, 1])), (x[:, 1], *want)
    )


def test_a_variant_that_raises_only_while_times_are_taken_fails_alone() -> None:
    calls = [0]

    def tiring(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] > 6:
            raise RuntimeError("tired")
        return total(x)

    variants = [variant(total), variant(tiring, "tiring"), variant(total, "gone"), variant(total, "last")]
    rows = measure_case(cpu_bench(missing=frozenset({"gone"})), small_case(), variants).measurements
    assert [row.status for row in rows] == ["ok", "error", "missing", "ok"]
    assert rows[1].note == "RuntimeError: tired"
    assert rows[0].time_us is not None
    assert rows[3].host_us is not None


def test_a_variant_that_raises_is_a_row_that_says_so() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no\nluck")

    row = measure_case(cpu_bench(), small_case(), [variant(broken)]).measurements[0]
    assert (row.status, row.note) == ("error", "RuntimeError: no luck")


@pytest.mark.parametrize("lies", ["a view", "padded rows"])
def test_a_transpose_must_be_contiguous(lies: str) -> None:
    """A view of the input costs nothing, and rows of a padded length begin at sectors where those asked for do not."""
    case = transpose.transpose_case((0, 1), (20, 33), "fp32")

    def call(x: torch.Tensor) -> torch.Tensor:
        if lies == "a view":
            return x.T
        padded = x.new_empty(33, 32)[:, :20]
        return padded.copy_(x.T)

    assert verdict(case, lambda x: x.T.contiguous()) is None
    assert "not those of a contiguous tensor" in str(verdict(case, call))


def test_a_cpu_has_no_graphs() -> None:
    """A variant that could be in one is timed without, and nothing is said of it."""
    (row,) = measure_case(cpu_bench(), small_case(), [variant(total, graphs=True)]).measurements
    assert (row.status, row.graph_us, row.note) == ("ok", None, None)
