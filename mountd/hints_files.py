"""Whole files that an order names: found, fetched and staged, some at a time.

Called by `hints`. What it gives back says for each path what it leads to now; a file that cannot be had is an error
among the results, never one that is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mountd.errors import HfsError, SourceError
from mountd.fetcher import Fetcher
from mountd.namespace import Namespace
from mountd.node import Node
from mountd.staging import Staging
from mountd.staging_file import StagedFile

__all__ = ["HintsFile", "HintsFiles"]


@dataclass(frozen=True, slots=True)
class HintsFile:
    """What one path leads to. `fetched`: its bytes came from the source just now, and are staged or on their way."""

    node: Node
    file: StagedFile
    fetched: bool


class HintsFiles:
    """See the file's story. Event loop only."""

    def __init__(self, namespace: Namespace, staging: Staging, fetcher: Fetcher) -> None:
        self._namespace = namespace
        self._staging = staging
        self._fetcher = fetcher

    async def stage(self, paths: Sequence[bytes], stays: Sequence[bool]) -> list[HintsFile | HfsError]:
        """Stage what is not, or hold it in memory where it is not to stay. A file of several chunks is found only."""
        results: list[HintsFile | HfsError] = []
        for path, stay in zip(paths, stays, strict=True):
            try:
                results.append(await self._stage(path, stay))
            except HfsError as error:
                results.append(error)
        return results

    async def _stage(self, path: bytes, stay: bool) -> HintsFile:
        node = await self._namespace.resolve(path)
        if node.version is None:
            raise SourceError(22, f"{path!r} is no regular file")
        file = self._staging.file_nowait(node.version, path) or await self._staging.file(node.version, path)
        if file.complete or file.present.count > 1:
            return HintsFile(node, file, fetched=False)
        fetched = await self._fetcher.ahead(node, file, 0, stage=stay)
        return HintsFile(node, file, fetched)
