"""What follows from second looks at the source: bytes that were in doubt are committed, or their version is given up.
Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.version import Version
from hfs.mountd.namespace.namespace import Namespace


class SecondLookOutcomes:
    """Implements `source.second_looks.SecondLookListener`."""

    def __init__(
        self, cache: Cache, namespace: Namespace, nursery: trio.Nursery, distrust: Callable[[int], object]
    ) -> None:
        """`distrust(inode)`: files with this number are fetched by Python alone from now on."""
        self._distrust = distrust
        self._cache = cache
        self._namespace = namespace
        self._nursery = nursery

    def uncertain(self, version: Version) -> None:
        """Bytes of this version are in doubt."""
        self._namespace.nodes.note_uncertain(version, uncertain=True)

    def confirmed(self, version: Version) -> None:
        """The bytes of this version are right."""
        self._namespace.nodes.note_uncertain(version, uncertain=False)
        self._cache.committer.confirm(version)

    def refuted(self, version: Version) -> None:
        """They may be of two states."""
        self._distrust(version.inode)
        self._cache.committer.disbelieve(version)
        self._namespace.tree.distrust(version)
        # Also where no name is known of it.
        start_guarded(self._nursery, "supersede", self._cache.files.supersede, version)
