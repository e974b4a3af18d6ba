"""The keys of what a mount tells of itself, and where: its log, and its metrics for monitoring systems.

They are fields of `Config` like all others; none of them changes what readers see.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from hfs.mountd.core.config.choices import LogFormat, LogLevel
from hfs.mountd.core.config.key import ADDRESS, FILE, FILE_OR_DIRECTORY, Key, choice
from hfs.mountd.core.config.sections import TOLD


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `Config` that says what is told."""

    log_level: Annotated[
        LogLevel,
        Key(
            "log-level",
            TOLD,
            choice(LogLevel),
            "What is logged: `debug`, `info`, `warning` or `error`.",
            given="`-v` is `debug`",
        ),
    ] = "info"
    log_file: Annotated[
        str | None,
        Key(
            "log-file",
            TOLD,
            FILE,
            "Write the daemon's log here. `hfs status` shows the file.",
            option=True,
            default="in `$XDG_STATE_HOME/hfs`, or `logs` in the cache directory; stderr in the foreground",
        ),
    ] = None
    log_format: Annotated[
        LogFormat,
        Key(
            "log-format",
            TOLD,
            choice(LogFormat),
            "How the log is written: as lines for people, or `json`, an object a line. See "
            "[monitoring](monitoring.md#logs).",
            option=True,
        ),
    ] = "text"
    metrics: Annotated[
        str | None,
        Key(
            "metrics",
            TOLD,
            ADDRESS,
            "Answer monitoring systems (Prometheus, OpenMetrics) at this address, like 127.0.0.1:9567. A port alone is "
            "of 127.0.0.1, port 0 is any that is free, `off` is none. See [monitoring](monitoring.md).",
            option=True,
            default="off",
        ),
    ] = None
    metrics_file: Annotated[
        str | None,
        Key(
            "metrics-file",
            TOLD,
            FILE_OR_DIRECTORY,
            "Write the metrics here every 15 s, for the textfile collector of node_exporter. In a directory: to a file "
            "of its own for each mountpoint; `off` is none.",
            option=True,
            default="off",
        ),
    ] = None
