"""Extended attributes that the data plane answers (mountd/native/plane/answers.c, overlay.c): what it is told of them.

Without the extension all of them come to Python. Event loop only; never waits.
"""

from __future__ import annotations

from typing import Protocol, cast

from hfs.mountd.kernel import fastpath

_LONGEST_S = 86_400.0


class _Extension(Protocol):
    def plane_overlay(self, on: bool, /) -> None: ...

    def plane_root_without_acl(self, valid_ns: int, /) -> None: ...


class XattrAnswers:
    def __init__(self) -> None:
        self._extension = cast(_Extension | None, fastpath.extension())

    def root_without_acl(self, valid_s: float) -> None:
        """So long the root of the mount has no ACL; 0: it is not known."""
        if self._extension is not None:
            self._extension.plane_root_without_acl(int(min(valid_s, _LONGEST_S) * 1e9))

    def tell_overlays(self) -> None:
        """Overlays over the mount are told where staged leaves lie, from now on."""
        if self._extension is not None:
            self._extension.plane_overlay(True)
