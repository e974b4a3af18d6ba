"""Writes down which files of ours a process enters, when, and in which thread or task: for scripts/bench house.

This folder is the first that the Python of a traced mount finds. A line for each time that another file is entered:
CLOCK_MONOTONIC in nanoseconds, who, and the file, in HFS_TRACED_IN/<process id>.
"""

import os
import sys
import threading
import time
from types import CodeType, FrameType

_FOLDER = os.environ.get("HFS_TRACED_IN", "")
_names: dict[CodeType, str] = {}
_files: dict[int, int] = {}
_last = threading.local()


def _name(code: CodeType) -> str:
    """The path from the project's root; empty for what is not ours."""
    for top in ("mountd", "policies"):
        _, found, rest = code.co_filename.rpartition(f"/{top}/")
        if found and "site-packages" not in code.co_filename:
            return f"{top}/{rest}"
    return ""


def _who() -> str:
    try:
        return f"task-{id(sys.modules['trio'].lowlevel.current_task())}"
    except (KeyError, AttributeError, RuntimeError):  # no event loop here, or not yet
        return f"thread-{threading.get_native_id()}"


def _entered(frame: FrameType, event: str, _: object) -> None:
    if event != "call":
        return
    name = _names.get(frame.f_code)
    if name is None:
        name = _names[frame.f_code] = _name(frame.f_code)
    if not name or getattr(_last, "busy", False):
        return
    _last.busy = True
    entry = (_who(), name)
    if entry != getattr(_last, "entry", None):
        _last.entry = entry
        process = os.getpid()
        if process not in _files:
            _files[process] = os.open(f"{_FOLDER}/{process}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        os.write(_files[process], f"{time.monotonic_ns()} {entry[0]} {name}\n".encode())
    _last.busy = False


if _FOLDER:
    threading.setprofile(_entered)
    sys.setprofile(_entered)
