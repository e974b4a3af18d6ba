"""The daemon's log as JSON, an object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and `exception`.

Whatever a message holds, a line is ASCII and one object: bytes of names that are not UTF-8 are shown as backslashes,
line breaks are escaped. The keeper writes lines of the same form (mountd/supervisor/log.py).
"""

from __future__ import annotations

import json
import logging
import time


class JsonLines(logging.Formatter):
    """Formats a record whose message and exception are text already (`hfs.mounting.logs`), or any other."""

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
