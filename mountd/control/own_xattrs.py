"""Our own extended attributes, `user.hfs.*`: where a file is served from, and where the daemon is asked."""

from __future__ import annotations

from hfs.mountd.cache import Cache
from hfs.mountd.namespace import Node


class OwnXattrs:
    """Answers from what is known; never waits."""

    def __init__(self, cache: Cache, control_path: str) -> None:
        self._cache = cache
        self._control_path = control_path

    def value(self, node: Node, name: str) -> bytes | None:
        """The value of `user.hfs.state`, `user.hfs.tier` or `user.hfs.socket`; None if `node` has none of that name."""
        if name == "user.hfs.socket":
            return self._control_path.encode("utf-8", "surrogateescape")
        file = self._cache.files.get_nowait(node.version) if node.version is not None else None
        if name == "user.hfs.state" and node.version is not None:
            if file is None or not file.present:
                return b"source" if node.version.size else b"complete"
            return b"complete" if file.complete else b"%d/%d chunks" % (len(file.present), file.present.count)
        if name == "user.hfs.tier" and node.version is not None:
            return b"staged" if file is not None and file.complete else b"source"
        return None
