"""The daemon's process: `python -m hfs.daemon_process`, started by `hfs.mounting.start` and by nothing else.

Reads the configuration from stdin, answers with one line on stdout (see hfs/mounting.py), logs to the configured file.
stderr is that same file, for what Python or a library prints. Takes no arguments and reads no environment of its own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping

from mountd.config import Config, undump
from mountd.errors import ConfigError, HfsError

__all__ = ["exit_code", "leaf", "main", "message", "serve"]

log = logging.getLogger(__name__)


def exit_code(error: BaseException) -> int:
    """2 for what was given wrongly, 1 for everything else."""
    return 2 if isinstance(error, ConfigError) else 1


def leaf(error: BaseException) -> BaseException:
    """The first exception that nurseries have wrapped; one of ours before others."""
    while isinstance(error, BaseExceptionGroup):
        ours = [inner for inner in error.exceptions if isinstance(inner, HfsError | BaseExceptionGroup)]
        error = (ours or list(error.exceptions))[0]
    return error


def message(error: BaseException) -> str:
    """What to tell a person."""
    return str(error) if isinstance(error, HfsError) else f"the daemon failed: {error!r}"


def main() -> int:
    """Serve until unmounted; the exit code."""
    handed_over = sys.stdin.buffer.read()
    os.chdir("/")  # else the directory that we were started in could not be unmounted
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    answers = os.dup(1)
    os.dup2(2, 1)

    def answer(record: Mapping[str, object]) -> None:
        nonlocal answers
        if answers >= 0:
            try:
                os.write(answers, json.dumps(record).encode() + b"\n")
            except BrokenPipeError:
                pass  # the caller was killed; the mount is there all the same
            os.close(answers)
            answers = -1

    try:
        config, origins = undump(handed_over)
        serve(config, origins, lambda: answer({"ready": os.getpid()}))
    except BaseException as raised:  # noqa: BLE001 - whatever it is, the caller waits for a word
        error = leaf(raised)
        answer({"error": message(error), "code": exit_code(error)})
        return exit_code(error)
    return 0


def serve(config: Config, origins: Mapping[str, str], ready: Callable[[], None]) -> None:
    """Set up the log and run the daemon in this process. Raises what it raises, logged."""
    from hfs import logs

    logs.configure(config)
    try:
        from mountd import daemon

        daemon.run(config, origins, ready)
    except BaseException as raised:
        error = leaf(raised)
        if isinstance(error, HfsError):
            log.error("%s", error)
        else:
            log.exception("the daemon failed")
        raise


if __name__ == "__main__":
    sys.exit(main())
