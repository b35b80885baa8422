"""Work that several threads of a program do alike."""

from __future__ import annotations

from tilefold import xray
from xray.observe.planted import PLANTED


def test_a_dot_that_warps_share_is_named_by_its_shape_and_copies() -> None:
    plant = PLANTED["repeated-dot"][0]
    report = xray.explain(plant.kernel, plant.args, plant.constants, **plant.options)
    (found,) = [o for o in report.observations if o.code == "repeated-dot"]
    assert found.evidence.startswith("a dot with a result of 16x16 is computed 2 times over by 4 warps: ")
    assert dict(found.numbers)["copies"] == 2
    assert "launch with num_warps=2" in found.change
