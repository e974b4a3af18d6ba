"""Where the daemon's log goes: stderr in the foreground, else a file that is rotated and cannot fill a disk.

Records are written by a thread of their own, so a slow log disk never delays a read.
"""

from __future__ import annotations

import atexit
import copy
import json
import logging
import logging.handlers
import os
import queue
import signal
import stat
import sys
import time
import traceback
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from hfs.mountd.core import path_steps
from hfs.mountd.core.cache_directory import LOGS, open_cache_directory
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import HfsError, printable
from hfs.mountd.core.socket_places import prefix_of

log = logging.getLogger(__name__)

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FILE_BYTES = 16 * 1024**2
_FILES = 10
"""160 MB in all: weeks of a quiet mount, and nothing that a cache disk would miss."""
_TAIL_LINES = 20
"""Of a daemon that could not start: its error and what led to it."""


def default_log_file(config: Config, state_directory: str | None) -> str:
    """The state directory's, else below the cache: both are ours, and neither is the user's shared home."""
    name = "-".join(config.mountpoint.strip("/").split("/"))[-60:] or "root"
    directory = state_directory or f"{config.cache}/{_folder(config)}"
    return f"{directory}/{name}-{prefix_of(config.mountpoint)[:8]}.log"


def _folder(config: Config) -> str:
    """Below the cache; where several users share it each has his own."""
    try:
        others_write = os.stat(config.cache).st_mode & stat.S_IWOTH
    except OSError:
        others_write = 0
    return f"{LOGS}-{os.geteuid()}" if others_write else LOGS


def why_none(config: Config) -> str | None:
    """A line where no log is written, since another user was first in its place, in a cache that several share."""
    if os.geteuid() == 0 or not lies_in_cache(config):
        return None  # root moves it away
    directory = os.path.dirname(config.log_file or "")
    try:
        step = path_steps.open_step(directory, any_kind=True)
    except PermissionError as error:
        return f"{directory} {error.strerror}, so no log is written; give another with --log-file PATH"
    except OSError:
        return None
    try:
        found = os.fstat(step)
    finally:
        os.close(step)
    if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode):
        return None
    return f"{directory} belongs to user {found.st_uid}, so no log is written; give another with --log-file PATH"


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A log names files, also those in directories that not everybody may look into: what is made is the owner's."""

    def _open(self) -> TextIOWrapper:
        descriptor = _private(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), self.encoding, self.errors, line_buffering=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def open_log(config: Config) -> BinaryIO:
    """The log file, to append to: for what a daemon prints before it has a log. Raises ConfigError, OSError."""
    path = config.log_file or os.devnull
    if not _in_cache(config, path):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return open(path, "ab", opener=_private)
    with open_cache_directory(config.cache, make=True, shared_ok=True) as cache:
        directory_fd = cache.open_directory(_folder(config))
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.fdopen(os.open(os.path.basename(path), flags, 0o600, dir_fd=directory_fd), "ab")
        finally:
            os.close(directory_fd)


def _reached(config: Config, path: str) -> str:
    """The path of the log file by which it is opened and renamed for as long as this process lives."""
    if not _in_cache(config, path):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return path
    # By a descriptor that nobody closes: whoever may rename a directory above must not choose what a daemon appends to.
    with open_cache_directory(config.cache, make=True, shared_ok=True) as cache:
        return f"/proc/self/fd/{cache.open_directory(_folder(config))}/{os.path.basename(path)}"


def lies_in_cache(config: Config) -> bool:
    """Whether the log file shares the fate of the cache."""
    return config.log_file is not None and _in_cache(config, config.log_file)


def _in_cache(config: Config, path: str) -> bool:
    return os.path.dirname(path) == f"{config.cache}/{_folder(config)}"


class _Queued(logging.handlers.QueueHandler):
    """Hands records on with message and exception as two texts; the library's own makes them one."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """What may change meanwhile is made text now."""
        message = record.getMessage()
        record = copy.copy(record)
        record.msg, record.args = message, None
        if record.exc_info:
            record.exc_text = record.exc_text or _lines_of(record.exc_info[1])
            record.exc_info = None
        if record.stack_info:
            record.exc_text = "\n".join(filter(None, (record.exc_text, record.stack_info)))
            record.stack_info = None
        return record


def configure(config: Config) -> None:
    """Send all records from config.log_level on to config.log_file, or to stderr if there is none."""
    target: logging.Handler = logging.StreamHandler(sys.stderr)
    why_not: Exception | None = None
    if config.log_file is not None:
        try:
            target = _PrivateFile(
                _reached(config, config.log_file),
                maxBytes=_FILE_BYTES,
                backupCount=_FILES - 1,
                encoding="utf-8",
                errors="backslashreplace",
            )
        except (HfsError, OSError) as error:  # the disk of the cache, where the log may lie; stderr is an earlier log
            why_not = error
    target.setFormatter(JsonLines() if config.log_format == "json" else TextLines(_FORMAT))
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    writer = logging.handlers.QueueListener(records, target)
    writer.start()
    atexit.register(writer.stop)
    root = logging.getLogger()
    root.handlers[:] = [_Queued(records)]
    root.setLevel(config.log_level.upper())
    logging.captureWarnings(capture=True)
    if why_not is not None:
        log.warning("%s cannot be written to: %s", config.log_file, why_not)


def post_mortem(exit_code: int | None, log_path: Path, log_start: int) -> str:
    """Why a daemon ended before its mount answered: how, and the end of what it has logged since `log_start`."""
    if exit_code is None:
        how = "did not end"
    elif exit_code < 0:
        how = f"was ended by {signal.Signals(-exit_code).name}"
    else:
        how = f"ended with exit code {exit_code}"
    try:
        with log_path.open("rb") as file:
            file.seek(log_start)
            tail = file.read()[-65536:].decode(errors="backslashreplace").splitlines()[-_TAIL_LINES:]
    except OSError:
        tail = []
    return "\n".join([f"the daemon {how} before the mount answered; its log is {log_path}", *tail])


class TextLines(logging.Formatter):
    """A record as a line, whatever names and words of others are in it: none looks like a second one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        """The line."""
        record.message = printable(record.message)
        return super().formatMessage(record)


def _lines_of(error: BaseException | None) -> str:
    """Its traceback; what it says is one line of that."""
    lines = []
    for part in [] if error is None else traceback.format_exception(error):
        # Frames, and what stands between two errors, have several lines of their own.
        lines += part.split("\n")[:-1] if part.startswith((" ", "\n")) else [part.removesuffix("\n")]
    return "\n".join(map(printable, lines))


class JsonLines(logging.Formatter):
    """A record as an object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and `exception`.

    Whatever a message holds, a line is ASCII and one object: bytes of names that are not UTF-8 are shown as
    backslashes, line breaks are escaped. The keeper writes lines of the same form (mountd/supervisor/log.py).
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, without its end."""
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": _plain(record.getMessage()),
        }
        exception = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else "")
        if exception:
            line["exception"] = _plain(exception)
        return json.dumps(line)


def _plain(text: str) -> str:
    """Without surrogates: an escape of one alone is JSON that many programs refuse."""
    return text.encode("utf-8", "backslashreplace").decode()
