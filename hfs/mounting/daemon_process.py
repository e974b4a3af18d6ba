"""The daemon's process (own_process.py), started by the keeper of a mount (mountd/supervisor).

Imports everything and says so; then waits on stdin, a socket, for its configuration and the mount's connection. Before
it begins to serve it forks the process that waits next. What it says on stdout, a line of JSON each, is told in
mountd/supervisor/daemons.py. That pipe stays open as long as it lives: its end tells the keeper that all threads have
gone. Logs to the configured file; stderr is that same file, for what Python or a library prints. Takes no arguments and
reads no environment of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping, Sequence

from hfs.mountd.core.config import Config
from hfs.mountd.core.config.loading import undump
from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.mountd.supervisor.daemons import received
from hfs.mountd.wire.handover import Handover, descriptors_of, handed_over

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
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it waits there is nothing to be said of that
    answers = os.dup(1)
    os.dup2(2, 1)

    def answer(record: Mapping[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the keeper was killed; the mount is there all the same
            os.write(answers, json.dumps(record).encode() + b"\n")

    with contextlib.suppress(Exception):  # what it is will be said, and logged, when it is imported again
        importlib.import_module("hfs.mountd.daemon.daemon")
    os.chdir("/")  # else the directory that we were started in could not be unmounted
    gc.collect()
    gc.freeze()  # what is there now stays, shared by all that are forked
    while True:
        answer({"imported": os.getpid()})
        given, received = _receive()
        if not given:
            return 0  # the keeper has gone, or needs no daemon any more
        count = descriptors_of(given)
        descriptors = received[:count]
        if not _fork_next(descriptors, received[count:], answers):
            break
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        config, origins = undump(given)
        serve(config, origins, lambda: answer({"ready": os.getpid()}), handed_over(given, descriptors))
    except BaseException as raised:  # noqa: BLE001 - whatever it is, the caller waits for a word
        error = leaf(raised)
        answer({"error": message(error), "code": exit_code(error)})
        return exit_code(error)
    return 0


def _fork_next(mount: Sequence[int], ends: Sequence[int], answers: int) -> bool:
    """Fork the process that waits next, before anything is begun; whether this is it.

    `mount`: what was received for this daemon. `ends`: what becomes the other's stdin, its descriptor of answers, and
    its stderr; none: there is to be no other.
    """
    if not ends:
        return False
    try:
        is_next = os.fork() == 0
    except OSError as error:  # the keeper starts one when it is needed
        log.warning("no process for a next daemon: %s", error.strerror)
        is_next = False
    if is_next:
        for descriptor in mount:
            os.close(descriptor)
        stdin, its_answers, stderr = ends
        os.dup2(stdin, 0)
        os.dup2(its_answers, answers, inheritable=False)
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
    for descriptor in ends:
        os.close(descriptor)
    return is_next


def _receive() -> tuple[bytes, list[int]]:
    """All that comes on stdin until its end, and the descriptors that come with it."""
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        return sys.stdin.buffer.read(), []
    with socket.socket(fileno=os.dup(0)) as connection:
        data, descriptors = received(connection, 65536, 16)
        try:
            while part := connection.recv(65536):
                data += part
        except ConnectionResetError:
            data = b""
    return data, descriptors


def serve(config: Config, origins: Mapping[str, str], ready: Callable[[], None], handover: Handover) -> None:
    """Set up the log and run the daemon in this process. Raises what it raises, logged."""
    from hfs.mounting import logs

    logs.configure(config)
    try:
        from hfs.mountd.daemon import daemon

        daemon.run(config, origins, ready, handover)
    except BaseException as raised:
        error = leaf(raised)
        if isinstance(error, HfsError):
            log.error("%s", error)
        else:
            log.exception("the daemon failed")
        raise
