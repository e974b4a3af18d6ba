"""The keeper's lines in the daemon's log. The file is opened for each: the daemon rotates it meanwhile.

A thread opens it and writes: on a disk that hangs, or is frozen, either may take for ever, and the mount cannot wait.

A log below the cache is opened by the descriptor of its directory and never through a link: whoever may rename a
directory above the cache must not choose what a keeper of root appends to.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable

_NAME = "hfs.mountd.supervisor"
_PATIENCE_S = 0.5
"""So long a line is waited for, which is then there when others look. Behind one that hangs nobody waits."""
_MOST_WAITING = 1000


class Log:
    """Appends to `path`, or to stderr if there is none."""

    def __init__(self, path: str | None, cache_dir: str | None = None, form: str = "text") -> None:
        self.name = path or "stderr"
        """Where to look, for people."""
        self._path = path
        self._form = form
        self._flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._directory_fd: int | None = None
        self._errands: queue.Queue[_Errand] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._late: _Errand | None = None
        if path is not None and cache_dir is not None and path.startswith(f"{cache_dir}/"):
            self._flags |= os.O_NOFOLLOW
            self._path = os.path.basename(path)
            try:
                self._directory_fd = _own_directory(os.path.dirname(path))
            except OSError:
                self._path = None  # stderr is the log, as it was opened before

    def open(self) -> int:
        """A descriptor for a daemon's stderr; the caller closes it."""
        descriptor = self._soon(_Errand(self._open))
        return os.dup(2) if descriptor is None else descriptor

    def _open(self) -> int:
        if self._path is not None:
            try:
                return os.open(self._path, self._flags, 0o600, dir_fd=self._directory_fd)
            except OSError:
                pass  # the disk of the log is full or gone; what we were started with may go on
        return os.dup(2)

    def written_as(self, form: str) -> None:
        """As the daemon that serves now writes its own lines: "text" or "json" (hfs/mounting/logs.py)."""
        self._form = form

    def info(self, text: str) -> None:
        """What is as it should be."""
        self._write("INFO", text)

    def warning(self, text: str) -> None:
        """What somebody should look at."""
        self._write("WARNING", text)

    def _write(self, level: str, text: str) -> None:
        line = (_json_line if self._form == "json" else _text_line)(time.time(), level, text)
        self._soon(_Errand(lambda: self._append(line)))

    def _append(self, line: bytes) -> None:
        descriptor = self._open()
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _soon(self, errand: _Errand) -> int | None:
        """What comes of it; None: it has failed, or the disk hangs, or there is no thread, and it is done later."""
        has_thread = self._has_thread()
        try:
            self._errands.put_nowait(errand)
        except queue.Full:
            return None
        if not has_thread or (self._late is not None and not self._late.done.is_set()):
            return errand.result(0.0)
        found = errand.result(_PATIENCE_S)
        self._late = None if errand.done.is_set() else errand
        return found

    def _has_thread(self) -> bool:
        """One is started if there is none yet. False: the system has none to give, and is asked again next time."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="log", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            self._errands.get().run()


class _Errand:
    """Something that a disk may keep from being done. It may give a descriptor, which is closed if nobody waits."""

    def __init__(self, call: Callable[[], int | None]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._found: int | None = None
        self._is_awaited = True
        self.done = threading.Event()

    def run(self) -> None:
        """In the thread."""
        found = None
        with contextlib.suppress(OSError):  # nowhere to say it
            found = self._call()
        with self._lock:
            self._found = found
            if found is not None and not self._is_awaited:
                os.close(found)
        self.done.set()

    def result(self, limit_s: float) -> int | None:
        """Once."""
        self.done.wait(limit_s)
        with self._lock:
            self._is_awaited = False
            return self._found


def _text_line(now: float, level: str, text: str) -> bytes:
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03d}"
    # Names in it are others' words; the daemon has mountd.core.errors.printable for them.
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in " ".join(text.splitlines()))
    return f"{stamp} {level} {_NAME}: {shown}\n".encode()


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
