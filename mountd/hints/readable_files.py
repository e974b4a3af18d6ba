"""Which files of a plan may be fetched for it: those that whoever has sent the order may read at the source.

Root and the owner of the mount need not be asked for. For others the source is asked as that user, once for each file
and job, a few files at a time just before they are fetched; what is refused counts as missing, as what is not there.
Event loop only; fetches nothing.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence

from hfs.mountd.base.errors import HfsError, SourceError, SourceTimeout, VersionChanged
from hfs.mountd.core.caller import Credentials
from hfs.mountd.hints.epoch_plan import EpochPlan
from hfs.mountd.hints.followed_plans import FollowedPlans
from hfs.mountd.hints.plan_changes import PlanChanges
from hfs.mountd.namespace import Namespace, Node, Permissions

log = logging.getLogger(__name__)


class ReadableFiles:
    """Event loop only."""

    def __init__(
        self, namespace: Namespace, permissions: Permissions, plans: FollowedPlans, changes: PlanChanges
    ) -> None:
        self._namespace = namespace
        self._permissions = permissions
        self._plans = plans
        self._changes = changes

    async def of(self, plan: EpochPlan, units: Sequence[int], left: set[int]) -> Sequence[int]:
        """Those of `units` that may be fetched. Takes those that may not be from `left`; what could not be asked now
        stays there. Never raises HfsError."""
        reader, readable = plan.reader, plan.readable
        if reader is None or readable is None:
            return units
        number_of = {unit: plan.layout.place(unit)[0] for unit in units}
        asked = sorted({number for number in number_of.values() if not readable[number]})
        if asked:
            try:
                answers = await self._ask(reader, [plan.layout.path(number) for number in asked])
            except HfsError as error:
                log.debug("asking as user %d: %s", reader.uid, error)
                self._changes.hold_back()
                return [unit for unit in units if readable[number_of[unit]]]
            readable[asked] = answers
        for unit in units:
            if not readable[number_of[unit]] and unit in left:
                left.discard(unit)
                path = plan.layout.path(number_of[unit])
                self._plans.failed(plan, unit, path, SourceError(errno.EACCES, f"read as user {reader.uid}"))
        return [unit for unit in units if readable[number_of[unit]]]

    async def _ask(self, reader: Credentials, paths: Sequence[bytes]) -> list[bool]:
        """Whether `reader` may read each. Raises SourceTimeout and what else says nothing about that."""
        directories: dict[bytes, Node | None] = {}
        places: list[tuple[Node, bytes] | None] = []
        for path in paths:
            head, _, name = path.rpartition(b"/")
            if head not in directories:
                directories[head] = await self._directory(head)
            directory = directories[head]
            places.append((directory, name) if directory is not None and name else None)
        answers = iter(await self._permissions.readable(reader, [place for place in places if place is not None]))
        return [place is not None and next(answers) for place in places]

    async def _directory(self, path: bytes) -> Node | None:
        try:
            return await self._namespace.lookups.resolve(path)
        except SourceTimeout:
            raise
        except (SourceError, VersionChanged):
            return None
