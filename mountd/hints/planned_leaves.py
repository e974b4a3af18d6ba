"""Whole files that a plan names and that stay, fetched by the data plane: without a node, and opened without us.

Only where their directory is lent (`fetch.lending`), and as long as there is room; all others are fetched the usual way
(`planned_files`). Never raises HfsError. Event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

from mountd.base.errors import HfsError
from mountd.core.metrics import Metrics
from mountd.fetch import Place, SmallPipeline, Staged
from mountd.hints.epoch_plan import EpochPlan
from mountd.hints.space_reservation import SpaceReservation
from mountd.namespace import Namespace


class PlannedLeaves:
    def __init__(
        self, namespace: Namespace, pipeline: SmallPipeline, reservation: SpaceReservation, metrics: Metrics
    ) -> None:
        self._namespace = namespace
        self._pipeline = pipeline
        self._reservation = reservation
        self._metrics = metrics

    async def stage(self, plan: EpochPlan, units: Sequence[int], left: set[int]) -> list[int]:
        """Have these files staged. Those that are not; takes the others from `left`."""
        if not self._pipeline.on or self._reservation.is_tight:
            return list(units)
        stays = await self._reservation.stays(plan, units)
        try:
            found = await self._stage(plan, [unit for unit, stay in zip(units, stays.each, strict=True) if stay])
        finally:
            self._reservation.settled(stays)
        for unit, one in found.items():
            left.discard(unit)
            self._note(plan, unit, one)
        return [unit for unit in units if unit not in found]

    async def _stage(self, plan: EpochPlan, units: Sequence[int]) -> dict[int, Staged]:
        places: dict[int, Place] = {}
        for unit in units:
            head, _, name = plan.layout.path(unit).rpartition(b"/")
            try:
                directory = await self._namespace.lookups.resolve(head)
            except HfsError:
                continue  # the usual way finds the fault
            if name and directory.children is not None:
                places[unit] = directory, name
        outcomes = await self._pipeline.stage(list(places.values()))
        return {unit: one for unit, one in zip(places, outcomes, strict=True) if one is not None}

    def _note(self, plan: EpochPlan, unit: int, one: Staged) -> None:
        if one.size:
            plan.looked_at(one.size)
        if one.number and plan.objects is not None:
            plan.objects[unit] = one.number
        plan.ready.add(unit)
        if one.fetched and one.size is not None:
            plan.schedule.arrived(unit, one.size)
            self._metrics.add("hinted_bytes", one.size)
        else:
            plan.schedule.here(unit, one.size or plan.mean_bytes)
