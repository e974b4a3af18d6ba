"""Which files of a plan may be fetched for it: those that whoever has sent the order may read at the source.

Root and the owner of the mount need not be asked for. For others the source is asked as that user, once for each file
and job, a few files at a time just before they are fetched; what is refused counts as missing, as what is not there. Of
a link what it names is judged, and the way to that, each time.
Event loop only; fetches nothing.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence

import trio

from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import HfsError, SourceError, SourceTimeout, VersionChanged, ungrouped
from hfs.mountd.hints.epoch_plan import EpochPlan
from hfs.mountd.hints.followed_plans import FollowedPlans
from hfs.mountd.hints.plan_changes import PlanChanges
from hfs.mountd.namespace import LeadsOut, Namespace, Node, Permissions

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
        if self._permissions.is_own(reader):
            plan.readable = None
            return units
        number_of = {unit: plan.layout.place(unit)[0] for unit in units}
        asked = sorted({number for number in number_of.values() if not readable[number]})
        found: dict[int, bool | bytes | SourceError] = {}
        try:
            if asked:
                paths = [plan.layout.path(number) for number in asked]
                found = dict(zip(asked, await self._ask(reader, paths), strict=True))
        except HfsError as error:
            log.debug("asking as user %d: %s", reader.uid, error)
            self._changes.hold_back()
            return [unit for unit in units if readable[number_of[unit]]]
        may: list[int] = []
        for unit in units:
            number = number_of[unit]
            answer = found.get(number, True)
            if isinstance(answer, SourceError) or not answer:
                left.discard(unit)
                why_not = answer or SourceError(errno.EACCES, f"read as user {reader.uid}")
                self._plans.failed(plan, unit, plan.layout.path(number), why_not)
                continue
            if isinstance(answer, bytes):
                plan.named[unit] = answer  # and asked again the next time: another may stand there
            else:
                readable[number] = True
            may.append(unit)
        return may

    async def _ask(self, reader: Credentials, paths: Sequence[bytes]) -> list[bool | bytes | SourceError]:
        """Whether `reader` may read each; of what is a link, or lies behind one, what it names, if he may read that;
        LeadsOut. Raises SourceTimeout and what else says nothing about that."""
        directories: dict[bytes, Node | None] = {}
        places: dict[bytes, tuple[Node, bytes]] = {}
        for path in paths:
            head, _, name = path.rpartition(b"/")
            if head not in directories:
                directories[head] = await self._directory(head)
            directory = directories[head]
            if directory is not None and name:
                places[path] = directory, name
        answers = dict(zip(places, await self._permissions.readable(reader, list(places.values())), strict=True))
        links = [path for path in paths if answers.get(path) is None]
        named = await self._ask_links(reader, links) if links else {}
        return [named[path] if answers.get(path) is None else bool(answers[path]) for path in paths]

    async def _ask_links(self, reader: Credentials, paths: Sequence[bytes]) -> dict[bytes, bool | bytes | SourceError]:
        """The same, where links are followed."""
        ways: dict[bytes, list[tuple[bytes, bytes]]] = {path: [] for path in paths}
        ends: dict[bytes, Node | LeadsOut] = {}

        async def follow(path: bytes) -> None:
            try:
                ends[path] = await self._namespace.links.follow(path, way=ways[path])
            except LeadsOut as error:
                ends[path] = error
            except SourceTimeout:
                raise
            except (SourceError, VersionChanged):
                pass

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for path in ways:
                    nursery.start_soon(follow, path)
        may_go = await self._permissions.may_go(reader, [ways[path] for path in ends])
        there = {path: end for (path, end), may in zip(ends.items(), may_go, strict=True) if may}
        files = {
            path: (end.parent, end.name)
            for path, end in there.items()
            if isinstance(end, Node) and end.version is not None and end.parent is not None
        }
        answers = dict(zip(files, await self._permissions.readable(reader, list(files.values())), strict=True))
        found: dict[bytes, bool | bytes | SourceError] = dict.fromkeys(paths, False)
        for path, end in there.items():
            if isinstance(end, LeadsOut):
                found[path] = end
            elif answers.get(path):
                found[path] = end.path
        return found

    async def _directory(self, path: bytes) -> Node | None:
        try:
            node = await self._namespace.lookups.resolve(path)
            return node if node.children is not None else None
        except SourceTimeout:
            raise
        except (SourceError, VersionChanged):
            return None
