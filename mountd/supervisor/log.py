"""The keeper's lines in the daemon's log. The file is opened for each: the daemon rotates it meanwhile.

A log below the cache is opened by the descriptor of its directory and never through a link: whoever may rename a
directory above the cache must not choose what a keeper of root appends to.
"""

from __future__ import annotations

import os
import time


class Log:
    """Appends to `path`, or to stderr if there is none."""

    def __init__(self, path: str | None, cache_dir: str | None = None) -> None:
        self.name = path or "stderr"
        """Where to look, for people."""
        self._path = path
        self._flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._directory_fd: int | None = None
        if path is not None and cache_dir is not None and path.startswith(f"{cache_dir}/"):
            self._flags |= os.O_NOFOLLOW
            self._path = os.path.basename(path)
            try:
                self._directory_fd = _own_directory(os.path.dirname(path))
            except OSError:
                self._path = None  # stderr is the log, as it was opened before

    def open(self) -> int:
        """A descriptor for a daemon's stderr; the caller closes it."""
        if self._path is not None:
            try:
                return os.open(self._path, self._flags, 0o600, dir_fd=self._directory_fd)
            except OSError:
                pass  # the disk of the log is full or gone; what we were started with may go on
        return os.dup(2)

    def info(self, text: str) -> None:
        """What is as it should be."""
        self._write("INFO", text)

    def warning(self, text: str) -> None:
        """What somebody should look at."""
        self._write("WARNING", text)

    def _write(self, level: str, text: str) -> None:
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03d}"
        try:
            descriptor = self.open()
            try:
                line = f"{stamp} {level} mountd.supervisor: {' '.join(text.splitlines())}\n"
                os.write(descriptor, line.encode("utf-8", "backslashreplace"))
            finally:
                os.close(descriptor)
        except OSError:
            pass  # nowhere to say it


def _own_directory(path: str) -> int:
    """A descriptor of a directory that only our user may write to. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        os.close(descriptor)
        raise PermissionError(path)
    return descriptor
