"""`out-of-bounds`: how many lanes reach out of an array, and how far."""

from __future__ import annotations

import pytest

from tilefold import xray
from xray.observe.planted import copy_beyond


@pytest.mark.parametrize(("held", "lanes"), [(1024, 0), (1023, 1), (1021, 1), (1020, 1), (1019, 2)])
def test_a_vector_that_straddles_an_array_s_end_is_outside(held: int, lanes: int) -> None:
    """Vectors of four: the last one begins in the array wherever it does not hold all of it."""
    args = {"x_ptr": f"*fp32[{held}]", "y_ptr": "*fp32[1024]", "n": held}
    report = xray.explain(copy_beyond, args, {"BLOCK": 1024})
    found = [dict(o.numbers) for o in report.observations if o.code == "out-of-bounds"]
    assert found == [{"lanes": lanes, "element": 1023, "size": held}] * (lanes > 0)
