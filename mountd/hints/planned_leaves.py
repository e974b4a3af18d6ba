"""Whole files that a plan names and that stay, fetched by the data plane: without a node, and opened without us.

Only where their directory is lent (`fetch.lending`), and as long as there is room; all others are fetched the usual way
(`planned_files`). Never raises HfsError. Event loop only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import trio

from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import Place, SmallPipeline, Staged
from hfs.mountd.hints.epoch_plan import EpochPlan
from hfs.mountd.hints.planned_files import PlannedFiles
from hfs.mountd.hints.space_reservation import SpaceReservation
from hfs.mountd.namespace import Namespace, Node

_MOST_LENT = 4096
"""Directories that are remembered: more than are lent at a time."""


class PlannedLeaves:
    def __init__(
        self,
        namespace: Namespace,
        pipeline: SmallPipeline,
        reservation: SpaceReservation,
        files: PlannedFiles,
        metrics: Metrics,
    ) -> None:
        """`files`: the usual way."""
        self._namespace = namespace
        self._pipeline = pipeline
        self._reservation = reservation
        self._files = files
        self._metrics = metrics
        self._lent: dict[bytes, Node] = {}
        """By path, as it was when they were lent."""

    async def stage(self, plan: EpochPlan, units: Sequence[int], left: set[int]) -> None:
        """Have these files staged, one way or the other. Takes from `left` what is not to be asked for again."""
        if usual := await self._stage_leaves(plan, units, left):
            await self._files.stage(plan, usual, left)

    async def _stage_leaves(self, plan: EpochPlan, units: Sequence[int], left: set[int]) -> list[int]:
        """Those that are to be staged the usual way; takes the others from `left`."""
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
        plan.is_fetched_apart = len(found) == len(units)
        return [unit for unit in units if unit not in found]

    async def _stage(self, plan: EpochPlan, units: Sequence[int]) -> dict[int, Staged]:
        parted = {unit: plan.path(unit).rpartition(b"/") for unit in units}
        heads = {head for head, _, _ in parted.values()}
        lent = {head: directory for head in heads if (directory := self._lent_nowait(head)) is not None}
        if len(lent) < len(heads):
            async with trio.open_nursery() as nursery:
                for head in heads - lent.keys():
                    nursery.start_soon(self._lend, plan, head, lent)
        places: dict[int, Place] = {
            unit: (lent[head], name) for unit, (head, _, name) in parted.items() if name and head in lent
        }
        outcomes = await self._pipeline.stage(list(places.values()))
        return {unit: one for unit, one in zip(places, outcomes, strict=True) if one is not None}

    def _lent_nowait(self, path: bytes) -> Node | None:
        directory = self._lent.get(path)
        return directory if directory is not None and directory.lent and directory.path == path else None

    async def _lend(self, plan: EpochPlan, path: bytes, lent: dict[bytes, Node]) -> None:
        """Have a directory lent; it goes into `lent` if it is."""
        with contextlib.suppress(HfsError):  # the usual way finds the fault
            directory = await self._namespace.links.find(path, through_links=plan.follows_links)
            await self._pipeline.lend(directory)
            if directory.lent:
                if len(self._lent) >= _MOST_LENT:
                    self._lent.clear()
                self._lent[path] = lent[path] = directory

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
