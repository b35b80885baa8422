"""Forms of a first launch with plans around the rules' one, and the time that the model expects of each: asked for once."""

from __future__ import annotations

import math
from functools import cached_property

from tilefold.planner.candidates import Wanted, base_tiles, variants_of
from tilefold.planner.cost import Constants, Known, bound_us, counts_of, fastest_reading, least_us, time_of
from tilefold.planner.device import Device
from tilefold.planner.geometry import nominal
from tilefold.planner.launched import Launched
from tilefold.planner.plan import Stage
from tilefold.planner.rules import ruled
from tilefold.planner.settled import HEAVY_FIELDS, fields_of
from tilefold.planner.view import View, alone

BEST_TILES = 5  # of which every variant is weighed (not measured: how far the search goes)
NOMINAL_RESULTS = 64  # a definition: whose plan every batch gets with "batch_invariant"


class Weighed:
    """One form of first launch on a chip. `rule` is what the rules take of it.

    With `invariant` it is weighed as a fold of the nominal number of results, so that no bit depends on the batch.
    """

    def __init__(self, launch: Launched, chip: Device, constants: Constants, invariant: bool = False) -> None:
        """Nothing is weighed yet."""
        self.launch, self.chip, self.constants, self.invariant = launch, chip, constants, invariant
        self.view: View = alone(launch.view, launch.problem) if invariant else launch.view
        self.rule = ruled(launch, self.view, chip, invariant)
        self._times_us: dict[Stage, float] = {}

    @cached_property
    def known(self) -> Known:
        """What the model keeps while it compares."""
        geometry = self.launch.geometry
        if self.invariant:
            geometry = nominal(geometry, self.view.by_rows, self.view.vector, NOMINAL_RESULTS)
        return self.launch.known(geometry)

    @cached_property
    def least_us(self) -> float:
        """What no plan is expected to be faster than."""
        return least_us(self.known, self.chip, self.constants)

    @cached_property
    def bound_us(self) -> float:
        """What the model expects no plan of this form to be faster than."""
        return self._bound_us(None)

    def _bound_us(self, tile: Stage | None) -> float:
        """The same of plans with this tile."""
        if tile is not None and tile.gathered:  # whose elements are loaded in another way
            return 0.0
        fastest = fastest_reading(not self.view.by_rows, self.constants)
        apart = self.launch.apart is not None
        return bound_us(self.known, self.chip, self.constants, fastest, apart, tile)

    def time_us(self, stage: Stage) -> float:
        """What the model expects of the plan that begins with this launch."""
        found = self._times_us.get(stage)
        if found is None:
            outputs = self.known.geometry.outputs if self.invariant else 0
            counts = counts_of(self.known, self.launch.stages(stage, outputs), self.chip)
            found = self._times_us[stage] = time_of(counts, self.chip, self.constants)
        return found

    def chosen(self, limit_us: float = math.inf) -> tuple[Stage, float]:
        """The first launch that the model expects to be fastest, of all tiles the best few and of these every variant; its
        time. The rules' own where it is expected to be nearly as fast. Not exact from the limit on."""
        rule_us = self.time_us(self.rule)
        least_doubt = self.constants.whole_rows_doubt if self._splits_rows else self.constants.doubt
        wanted_us = min((1 - least_doubt) * rule_us, limit_us)
        best = self.rule
        if wanted_us > self.bound_us:
            best = min((self.rule, *self._variants(wanted_us)), key=self.time_us)
        if self.time_us(best) > (1 - self._doubt(best)) * rule_us:
            best = self.rule
        return self.launch.stage(best), self.time_us(best)

    @cached_property
    def _splits_rows(self) -> bool:
        """Whether the rules share rows that are one dim, and whose states are small, among several programs."""
        launch = self.launch
        if self.invariant or launch.apart is not None or fields_of(launch.program) >= HEAVY_FIELDS:
            return False
        return (
            self.rule.family == "long_rows" and self.rule.splits > 1 and len(launch.problem.reduced_dims) == 1
        )

    def _doubt(self, stage: Stage) -> float:
        """The share of the rules' time that this plan must be expected to save."""
        whole = self._splits_rows and stage.family == "long_rows" and stage.splits == 1
        return self.constants.whole_rows_doubt if whole else self.constants.doubt

    def _variants(self, wanted_us: float) -> list[Stage]:
        """Every variant of the tiles that are expected to be the best few, as far as they matter: a tile none of whose
        variants can take as little as wanted is not weighed, unless it would come before one that does."""
        launch, known = self.launch, self.known
        wanted = Wanted(self.rule, self.view, launch.problem, known.geometry, known.program, self.chip)
        tiles = [tile for tile in base_tiles(wanted) if self._allowed(tile)]
        hopeful = [tile for tile in tiles if self._bound_us(tile) <= wanted_us]
        for some in (hopeful, tiles):
            found: list[Stage] = []
            unsure = False
            for tile in sorted(some, key=self.time_us)[:BEST_TILES]:
                variants = [stage for stage in variants_of(tile, wanted) if self._allowed(stage)]
                least_us = min(map(self.time_us, variants))
                unsure = unsure or self.time_us(tile) > wanted_us >= least_us
                found += variants
            if not unsure:
                break
        return found

    def _allowed(self, stage: Stage) -> bool:
        if not self.invariant:
            return True
        # Columns' lanes are shared among threads by how neighbours lie, and loads through shared memory likewise.
        alone = self.view.by_rows or stage.ordered or (stage.lanes == 1 and stage.num_stages == 1)
        return alone and not stage.gathered
