"""Where the daemon's log goes: stderr in the foreground, else a file that is rotated and cannot fill a disk.

Called once in the daemon's process, by `hfs.daemon_process` and `hfs mount --foreground`. Records are written by a
thread of their own, so a slow log disk never delays a read.
"""

from __future__ import annotations

import atexit
import logging
import logging.handlers
import os
import queue
import sys

from mountd.config import Config, socket_prefix

__all__ = ["configure", "default_log_file"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FILE_BYTES = 16 * 1024**2
_FILES = 10
"""160 MB in all: weeks of a quiet mount, and nothing that a cache disk would miss."""


def default_log_file(config: Config, state_directory: str | None) -> str:
    """The state directory's, else below the cache: both are ours, and neither is the user's shared home."""
    name = "-".join(config.mountpoint.strip("/").split("/"))[-60:] or "root"
    directory = state_directory or f"{config.cache}/logs"
    return f"{directory}/{name}-{socket_prefix(config.mountpoint)[:8]}.log"


def configure(config: Config) -> None:
    """Send all records from config.log_level on to config.log_file, or to stderr if there is none."""
    target: logging.Handler
    if config.log_file is None:
        target = logging.StreamHandler(sys.stderr)
    else:
        os.makedirs(os.path.dirname(config.log_file), exist_ok=True)
        target = logging.handlers.RotatingFileHandler(
            config.log_file,
            maxBytes=_FILE_BYTES,
            backupCount=_FILES - 1,
            encoding="utf-8",
            errors="backslashreplace",
        )
    target.setFormatter(logging.Formatter(_FORMAT))
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    writer = logging.handlers.QueueListener(records, target)
    writer.start()
    atexit.register(writer.stop)
    root = logging.getLogger()
    root.handlers[:] = [logging.handlers.QueueHandler(records)]
    root.setLevel(config.log_level.upper())
    logging.captureWarnings(capture=True)
