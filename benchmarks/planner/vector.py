"""`planner.cost` over many plans at once, in arrays: what a fit evaluates thousands of times. A test holds the two equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilefold.planner.cost import SECTORS_A_CLOCK, Constants, Counts
from tilefold.planner.device import Device
from tilefold.planner.geometry import LINE, SECTOR

Array = Any  # an array of numbers, one a launch or one a plan


class Plans:
    """Counted plans as arrays over all their launches."""

    def __init__(self, plans: Sequence[tuple[Counts, ...]], device: Device) -> None:
        """Lay out what `Constants` do not change."""
        launches = [one for plan in plans for one in plan]
        self.plan = np.repeat(np.arange(len(plans)), [len(plan) for plan in plans])
        self.later = np.array([float(len(plan) - 1) for plan in plans])
        self.bandwidth = device.gb_per_s / 4800.0 * 1e3
        self.overlaps = device.overlaps
        self.reads = np.array([one.reads for one in launches])
        self.straddles = np.array(
            [one.reads and one.stage.align > 1 and not one.stage.ordered for one in launches]
        )
        self.copied = np.array([one.traffic.copied > 0 for one in launches])
        self.columns = np.array([one.stage.family == "columns" for one in launches])
        self.passes = np.array([one.traffic.passes for one in launches])
        self.whole_results = np.array([one.stage.splits == 1 for one in launches])
        self.prefetch = np.array([one.stage.prefetch for one in launches])
        self.stages = np.array([max(2, one.stage.num_stages) for one in launches])
        self.warps, self.programs, self.tiles, self.instructions = (
            np.array(values, dtype=float)
            for values in zip(
                *((o.stage.num_warps, o.programs, o.tiles, o.instructions) for o in launches), strict=True
            )
        )
        self.bytes, self.sectors, self.lines, self.unique = (
            np.array(values, dtype=float)
            for values in zip(
                *((o.traffic.bytes, o.traffic.sectors, o.traffic.lines, o.traffic.unique) for o in launches),
                strict=True,
            )
        )
        self.row_bytes = np.array([float(max(SECTOR, one.row_bytes)) for one in launches])
        self.sms = float(device.sms)
        self.at_once = np.array([float(one.held * device.sms) for one in launches])
        self.whole, self.rest = np.divmod(self.programs, self.at_once)
        # What an SM does takes as long as on the SM that holds most of the last wave's programs.
        self.most = np.ceil(self.rest / self.sms) * self.sms / np.maximum(self.rest, 1.0)

    def times_us(self, constants: Constants) -> Array:
        """The time of each plan, as `cost_of` says it."""
        each = self._waves_us(self._needs_us(constants), self._alone_us(constants), constants)
        columns = constants.copying_columns * constants.copying_warps ** np.maximum(
            0.0, np.log2(self.warps) - 1
        )
        columns *= np.where(
            self.whole_results, 1 + constants.copying_whole / np.maximum(self.tiles, 1.0), 1.0
        )
        copying = np.where(self.columns, columns, constants.copying_rows)
        each *= np.where(self.copied, copying, np.where(self.prefetch, constants.reading_ahead, 1.0))
        second = constants.overlapped_us if self.overlaps else constants.second_us
        return constants.launch_us + np.bincount(self.plan, each) + second * self.later

    def _alone_us(self, c: Constants) -> Array:
        latency = np.where(self.reads, c.latency_us, c.l2_latency_us)
        clocks = np.maximum(c.dependent_clocks, self.warps / c.issue_per_clock)
        issued = self.instructions * clocks / c.clock_mhz
        begun = np.where(self.reads, c.start_us, c.second_start_us)
        each = issued / np.maximum(self.tiles, 1.0)
        hidden = np.maximum(0.0, np.where(self.copied, latency / (self.stages - 1), latency) - each)
        waited = np.where(self.copied | self.prefetch, hidden, latency)
        return begun + issued + latency + np.maximum(0.0, self.tiles - 1) * waited

    def _needs_us(self, c: Constants) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """What all programs need of the chip, and of all SMs."""
        clocks = c.clock_mhz * self.sms
        memory = np.where(self.reads, self.bytes * (1 + c.row_bytes / self.row_bytes), 0.0)
        again = np.maximum(0.0, self.sectors - self.unique)
        sectors = self.unique + c.refetched * again
        fetched = SECTOR * sectors
        pieces = np.maximum(0.0, np.minimum(self.lines, sectors) - self.unique * SECTOR / LINE)
        pieces_us = np.where(self.straddles, pieces, 0.0) / c.pieces_per_us
        return (
            (memory / (c.memory_gb_per_s * self.bandwidth), fetched / c.l2_gb_per_s / 1e3 + pieces_us),
            (
                fetched / (c.sm_gb_per_s * self.sms) / 1e3,
                (np.maximum(self.lines, self.sectors / SECTORS_A_CLOCK) + self.passes) / clocks,
                self.instructions * self.warps * self.programs / (c.issue_per_clock * clocks),
                self.programs / self.sms * c.program_us,
            ),
        )

    def _waves_us(self, needs: tuple[tuple[Array, ...], ...], alone: Array, c: Constants) -> Array:
        power, root = c.overlap, 1 / c.overlap
        chip, sm = (sum(need**power for need in some) for some in needs)
        alone_power = alone**power
        each = ((chip + sm) * (self.at_once / self.programs) ** power + alone_power) ** root
        share = (self.rest / self.programs) ** power
        tail = np.where(self.whole > 0, c.tail, 1.0) ** power
        last = ((chip + sm * self.most**power) * share + tail * alone_power) ** root
        return self.whole * each + np.where(self.rest > 0, last, 0.0)
