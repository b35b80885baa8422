"""Medians, quartiles, geometric means, and the bound of noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Quartiles:
    """The spread of a variant's samples, in microseconds, and how many there were. None: not recorded."""

    median_us: float
    q1_us: float | None
    q3_us: float | None
    samples: int | None


def quartiles(samples_us: Sequence[float]) -> Quartiles:
    """Median and quartiles of samples, interpolated between neighbours (one sample is all three).

    Raises:
        ValueError: there are no samples, or one is not a finite positive time.
    """
    if not samples_us or not all(math.isfinite(s) and s > 0 for s in samples_us):
        raise ValueError(f"samples must be finite and positive, and at least one, got {list(samples_us)[:5]}")
    if len(samples_us) == 1:
        return Quartiles(samples_us[0], samples_us[0], samples_us[0], 1)
    q1, median, q3 = statistics.quantiles(samples_us, n=4, method="inclusive")
    return Quartiles(median, q1, q3, len(samples_us))


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log v)); NaN of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def slower(old: Quartiles, new: Quartiles, noise: float, noise_us: float) -> bool:
    """Whether `new` is slower beyond noise.

    The medians differ by more than `noise` of the old one and by more than `noise_us`, and the quartiles do not overlap
    (where both are recorded).
    """
    apart = new.median_us - old.median_us > max(noise * old.median_us, noise_us)
    if new.q1_us is None or old.q3_us is None:
        return apart
    return apart and new.q1_us > old.q3_us
