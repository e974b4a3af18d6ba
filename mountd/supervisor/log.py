"""The keeper's lines in the daemon's log. The file is opened for each: the daemon rotates it meanwhile.

A log below the cache is opened by the descriptor of its directory and never through a link: whoever may rename a
directory above the cache must not choose what a keeper of root appends to.
"""

from __future__ import annotations

import json
import os
import time

_NAME = "hfs.mountd.supervisor"


class Log:
    """Appends to `path`, or to stderr if there is none."""

    def __init__(self, path: str | None, cache_dir: str | None = None, form: str = "text") -> None:
        self.name = path or "stderr"
        """Where to look, for people."""
        self._path = path
        self._form = form
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

    def written_as(self, form: str) -> None:
        """As the daemon that serves now writes its own lines: "text" or "json" (hfs/mounting/json_lines.py)."""
        self._form = form

    def info(self, text: str) -> None:
        """What is as it should be."""
        self._write("INFO", text)

    def warning(self, text: str) -> None:
        """What somebody should look at."""
        self._write("WARNING", text)

    def _write(self, level: str, text: str) -> None:
        now = time.time()
        try:
            descriptor = self.open()
            try:
                os.write(descriptor, (_json_line if self._form == "json" else _text_line)(now, level, text))
            finally:
                os.close(descriptor)
        except OSError:
            pass  # nowhere to say it


def _text_line(now: float, level: str, text: str) -> bytes:
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03d}"
    line = f"{stamp} {level} {_NAME}: {' '.join(text.splitlines())}\n"
    return line.encode("utf-8", "backslashreplace")


def _json_line(now: float, level: str, text: str) -> bytes:
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
    shown = text.encode("utf-8", "backslashreplace").decode()
    return json.dumps({"time": stamp, "level": level, "logger": _NAME, "message": shown}).encode() + b"\n"


def _own_directory(path: str) -> int:
    """A descriptor of a directory that only our user may write to. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        os.close(descriptor)
        raise PermissionError(path)
    return descriptor
