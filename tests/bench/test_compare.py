from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made import RUN, case_result, measurement, suite_result

from tilefold import cli
from tilefold.bench.compare import compare_results
from tilefold.bench.results import Measurement, SuiteResult, write_results
from tilefold.errors import ArgumentError

OLD = suite_result(case_result(measurement(100.0), measurement(100.0, "torch")))


def new(ours: float, torch: float = 100.0) -> SuiteResult:
    return suite_result(case_result(measurement(ours), measurement(torch, "torch")))


def test_what_got_slower_beyond_noise_is_named() -> None:
    found = compare_results(OLD, new(110.0))
    assert found.worse == ("sum dim1 1x268435456 bf16, ours: 100.00 -> 110.00 us (+10.0%)",)
    assert (found.compared, found.faster, found.remarks) == (2, (), ())


def test_noise_and_speed_are_not_worse() -> None:
    assert compare_results(OLD, new(102.0)).worse == ()
    assert compare_results(OLD, new(80.0)).faster == (
        "sum dim1 1x268435456 bf16, ours: 100.00 -> 80.00 us (-20.0%)",
    )


def test_quartiles_that_overlap_are_noise() -> None:
    wide = suite_result(case_result(measurement(110.0, spread=0.2)))
    assert compare_results(OLD, wide).worse == ()


def test_variants_can_be_selected() -> None:
    assert compare_results(OLD, new(100.0, 150.0)).worse != ()
    assert compare_results(OLD, new(100.0, 150.0), variants=("ours",)).worse == ()


def test_what_is_wrong_now_is_worse() -> None:
    found = compare_results(
        OLD, suite_result(case_result(Measurement("ours", "wrong", "3 of 4 elements differ")))
    )
    assert found.worse == (
        "sum dim1 1x268435456 bf16, ours: timed before, wrong now (3 of 4 elements differ)",
    )


def test_what_is_missing_now_is_a_remark() -> None:
    found = compare_results(
        OLD, suite_result(case_result(measurement(100.0), Measurement("torch", "missing")))
    )
    assert found.worse == ()
    assert found.remarks == ("sum dim1 1x268435456 bf16, torch: timed before, missing now",)
    shorter = compare_results(OLD, suite_result(case_result(measurement(100.0))))
    assert shorter.remarks == ("1 timed before were not run now",)


def test_other_machines_are_said() -> None:
    other = replace(new(100.0), runs=(replace(RUN, chip="NVIDIA Y"),))
    assert compare_results(OLD, other).remarks == ("chip differs: NVIDIA X -> NVIDIA Y",)


def test_empty_launches_that_took_longer_are_forgiven() -> None:
    """One process launches in 3.3 us, the next in 4.0, whatever the kernel: 10.1 -> 10.8 us is no news then."""

    def run(median_us: float, launch_us: float, kind: str = "1") -> SuiteResult:
        case = case_result(measurement(median_us, spread=0.001))
        return suite_result(replace(case, empty_us={kind: launch_us}))

    assert compare_results(run(10.1, 3.3), run(10.8, 4.0)).worse == ()
    assert compare_results(run(10.8, 4.0), run(10.1, 3.3)).faster == ()
    assert compare_results(run(10.1, 3.3), run(10.8, 3.3)).worse != ()
    assert compare_results(run(10.1, 3.3), run(11.8, 4.0)).worse != ()
    assert compare_results(run(10.1, 4.0), run(10.8, 3.3)).worse != ()  # faster launches excuse nothing
    assert compare_results(run(10.1, 3.3), run(10.8, 5.0, kind="2")).worse != ()  # nor does one launch more


def test_of_several_kinds_of_launches_the_one_that_moved_least_forgives() -> None:
    """What all kernels of a process have in common: a kind that moved alone excuses nothing, whichever way it went."""

    def run(median_us: float, **launches_us: float) -> SuiteResult:
        case = case_result(measurement(median_us, spread=0.001))
        return suite_result(replace(case, empty_us=launches_us))

    for far in (-2.0, 2.0):
        longer = compare_results(run(10.0, one=3.0, two=5.0), run(10.7, one=3.0 + far, two=5.6))
        assert (longer.worse, longer.faster) == ((), ())
        shorter = compare_results(run(10.7, one=3.0, two=5.6), run(10.0, one=3.0 + far, two=5.0))
        assert (shorter.worse, shorter.faster) == ((), ())
        assert compare_results(run(10.0, one=3.0, two=5.0), run(10.7, one=3.0 + far, two=5.0)).worse
        assert compare_results(run(10.7, one=3.0, two=5.0), run(10.0, one=3.0 + far, two=5.0)).faster


def test_a_host_suite_is_compared_by_the_hosts_cost() -> None:
    def run(host_us: float | None, median_us: float = 5.0) -> SuiteResult:
        return suite_result(case_result(measurement(median_us, host_us=host_us)), suite="host")

    found = compare_results(run(9.0), run(14.0))
    assert found.worse == ("sum dim1 1x268435456 bf16, ours: 9.00 -> 14.00 us host (+55.6%)",)
    assert compare_results(run(9.0), run(9.0, median_us=8.0)).worse == ()
    assert compare_results(run(9.0), run(10.5)).worse == ()  # machines of one kind differ by as much


def test_a_variant_that_neither_has_is_refused() -> None:
    with pytest.raises(ArgumentError, match="--variant must be of ours; torch, got 'our'"):
        compare_results(OLD, new(100.0), variants=("our",))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ArgumentError, match="of one suite, got folds and host"):
        compare_results(OLD, suite_result(suite="host"))
    with pytest.raises(ArgumentError, match="must share a case"):
        compare_results(OLD, suite_result(case_result(measurement(1.0), shape=(2, 2))))


@pytest.mark.parametrize(("ours", "code"), [(100.5, 0), (140.0, 1)])
def test_the_command_exits_by_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: float, code: int
) -> None:
    before, _ = write_results(OLD, tmp_path / "old")
    after, _ = write_results(new(ours), tmp_path / "new")
    assert cli.run(["bench", "compare", str(before), str(after)]) == code
    assert f"2 compared: {code} worse, 0 faster" in capsys.readouterr().out


def test_a_missing_file_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
