"""A minute of random cases in every run of the tests; `make fuzz SECONDS=600` takes as long as asked.

The same cases each time ("derandomized"), so that a red run is repeated by running it again. New ones are `make fuzz`'s.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from fuzz.kinds import CPU, Kind

pytestmark = [
    # numpy, under Triton's interpreter, warns of what a kernel computes for lanes that it masks
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("kind", CPU.values(), ids=lambda kind: kind.name.replace(" ", "-"))
def test_random_cases_agree_with_the_definition(kind: Kind) -> None:
    @settings(
        max_examples=kind.few, derandomize=True, database=None, deadline=None, report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )  # fmt: skip
    @given(kind.cases)
    def cases(case: object) -> None:
        kind.check(case)

    cases()
