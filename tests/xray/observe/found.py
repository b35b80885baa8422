"""All that the X-ray observes of the planted kernels, written down: a change that means to alter no observation is compared.

PYTHONPATH=src:tests python tests/xray/observe/found.py writes found.txt anew, with the Triton that constraints.txt pins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xray.observe.planted import FILLS, PLANTED, Plant
from xray.observe.test_planted import explain

WRITTEN = Path(__file__).with_name("found.txt")


def lines() -> Iterator[str]:
    """Of each kernel and its clean twin: each observation's place, words and numbers, and what is at stake."""
    kernels = {
        f"{code}, {which}": plant
        for code, two in PLANTED.items()
        for which, plant in zip(("fault", "twin"), two, strict=True)
    }
    for name, plant in {**kernels, **{name: plant for name, (plant, _) in FILLS.items()}}.items():
        yield f"======== {name}"
        yield from _observed(plant)


def _observed(plant: Plant) -> Iterator[str]:
    first = plant.kernel.fn.__code__.co_firstlineno
    for o in explain(plant).observations:
        yield f"{o.code}: {o.severity}, lines {[line - first for line in o.lines]}"
        yield from (f"    {said}" for said in (o.evidence, o.reason, o.change))
        stakes = [o.bytes_at_stake, o.cycles_at_stake, float(f"{o.us_at_stake:.4g}"), o.estimated_from]
        yield f"    {stakes} {dict(o.numbers)}"


if __name__ == "__main__":
    WRITTEN.write_text("\n".join(lines()) + "\n", encoding="utf-8")
