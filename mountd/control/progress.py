"""The figures of one command while it runs: what `hfs cache` shows as progress and, at the end, as the result.

Plain counting, no I/O; faults are named up to a bound and handed out once.
"""

from __future__ import annotations

from hfs.mountd.core.errors import HfsError, NotTaken, StagingError
from hfs.mountd.wire.protocol import PathFault, Progress, Result

_MAX_FAULTS = 1000
"""Faults named in one command; more are only counted."""


class ProgressCounter:
    """Files and bytes done, skipped, failed and known of so far."""

    def __init__(self) -> None:
        self.files = self.bytes = self.failed = self.skipped = 0
        self.files_total = self.bytes_total = 0
        self.walking = False
        self.unseen = 0
        """Names of which it is not known yet what they are: counted as files of the mean size."""
        self.left = 0
        """Names that are gone through once more, later: what they are to take is not known either."""
        self.room_bytes: int | None = None
        """What it would take on the disk, where that is more than"""
        self.free_bytes: int | None = None
        """there is for it."""
        self._named = 0
        self._faults: list[PathFault] = []

    def found(self, size_bytes: int) -> None:
        """A file that will be worked on."""
        self.files_total += 1
        self.bytes_total += size_bytes

    def forget(self, size_bytes: int) -> None:
        """It will be found anew."""
        self.files_total -= 1
        self.bytes_total -= size_bytes

    def done(self, size_bytes: int) -> None:
        """A file is done."""
        self.files += 1
        self.bytes += size_bytes

    def skip(self, size_bytes: int) -> None:
        """Nothing was to be done for a file, which counts as done."""
        self.skipped += 1
        self.done(size_bytes)

    def fail(self, path: bytes, error: HfsError) -> None:
        """A path failed."""
        self.failed += 1
        if self._named < _MAX_FAULTS:
            self._named += 1
            self._faults.append(PathFault(path, str(error), isinstance(error, NotTaken)))

    def lost(self, files: int, size_bytes: int, why: str) -> None:
        """So many files that were done are so no longer; which, nobody knows."""
        self.files -= files
        self.bytes -= size_bytes
        self.fail(b"", StagingError(f"{files:,} files {why}"))
        self.failed += files - 1

    def progress(self) -> Progress:
        """How far it is; faults that were not told yet go with it."""
        unseen_bytes = self.unseen * self.bytes_total // max(1, self.files_total)
        return Progress(
            files=self.files,
            bytes=self.bytes,
            failed=self.failed,
            skipped=self.skipped,
            files_total=self.files_total + self.unseen,
            bytes_total=self.bytes_total + unseen_bytes,
            walking=self.walking or self.left > 0,
            faults=self._take_faults(),
            room_bytes=self.room_bytes,
            free_bytes=self.free_bytes,
        )

    def result(self) -> Result:
        """The last word."""
        return Result(
            files=self.files, bytes=self.bytes, failed=self.failed, skipped=self.skipped, faults=self._take_faults()
        )

    def _take_faults(self) -> list[PathFault]:
        faults, self._faults = self._faults, []
        return faults
