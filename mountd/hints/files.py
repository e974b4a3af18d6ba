"""Whole files that an order names: found, fetched and staged, many at a time.

What it gives back says for each path what it leads to now; a file that cannot be had is an error among the results,
never one that is raised. The work is done by `small_files`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mountd.base.errors import HfsError, SourceError
from mountd.cache import Cache, StagedFile
from mountd.fetch import Become, Fetcher, Place, Small, SmallFiles
from mountd.namespace import Node

__all__ = ["HintsFile", "HintsFiles"]


@dataclass(frozen=True, slots=True)
class HintsFile:
    """What one path leads to. `fetched`: its bytes came from the source just now, and are staged or on their way."""

    node: Node
    file: StagedFile
    fetched: bool
    at_owner: bool = False
    """Another node, its owner, has it staged, and its reader gets it there."""


class HintsFiles:
    """Event loop only."""

    def __init__(self, cache: Cache, fetcher: Fetcher, small_files: SmallFiles) -> None:
        self._cache = cache
        self._fetcher = fetcher
        self._small_files = small_files

    async def stage(
        self, paths: Sequence[bytes], stays: Sequence[bool], wanted: Callable[[bytes], bool]
    ) -> list[HintsFile | HfsError]:
        """Stage what is not, or hold it in memory where it is not to stay, or finds no room after all.

        A file of several chunks is found only, and so is one that is not `wanted` any more when its turn comes.
        """

        def is_wanted(place: Place) -> bool:
            directory, name = place
            return wanted(b"/".join(filter(None, (directory.path, name))))

        results: dict[bytes, HintsFile | HfsError] = {}
        for stay in dict.fromkeys(stays):
            some = [path for path, its in zip(paths, stays, strict=True) if its == stay]
            # Not into the page cache: what is needed soon is put there when it is.
            for path, outcome in zip(
                some,
                await self._small_files.stage_paths(some, push=False, stage=stay, hold=True, wanted=is_wanted),
                strict=True,
            ):
                try:
                    results[path] = (
                        outcome if isinstance(outcome, HfsError) else await self._result(path, outcome, stay)
                    )
                except HfsError as error:
                    results[path] = error
        return [results[path] for path in paths]

    async def _result(self, path: bytes, small: Small, stay: bool) -> HintsFile:
        node = small.node
        if node.version is None:
            raise SourceError(22, f"{path!r} is no regular file")
        file = self._cache.files.get_nowait(node.version, path) or await self._cache.files.get(node.version, path)
        fetched = small.become is Become.FETCHED
        if not file.complete:
            fetched |= self._fetcher.held_nowait(node.version, 0) is not None  # since a moment ago
        if small.become is Become.LARGE and file.present.count == 1:
            fetched = await self._fetcher.ahead(node, file, 0, stage=stay)
        at_owner = stay and not file.complete and not self._fetcher.caches_locally(path, 0)
        return HintsFile(node, file, fetched, at_owner)
