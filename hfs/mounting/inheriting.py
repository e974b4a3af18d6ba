"""Going on with a mount whose keeper and daemon were killed, by a command that uses it.

A batch system that gives each job or step a control group kills all that is in it at its end: also the keeper and the
daemon that this job has started and that others use. Whoever holds the mount has its connection as well
(`HeldMount.descriptors`), so requests wait meanwhile; the first that notices starts another keeper, which starts a
daemon that goes on where the old one has ended, as after a crash. The others join that.

Where the kernel cannot send requests again (before Linux 6.9) nobody inherits, and the mount is dead, as it always was.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Iterator

from hfs.client.client import known_sockets
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.socket_peer import socket_peer
from hfs.mountd.ledger import CacheRoot
from hfs.mounting import joining, keeper, mountinfo, mounting, processes
from hfs.mounting.keeper import HeldMount

_JOURNAL = 2
"""Of the descriptors of a mount: only who holds it can reach this one."""
_CONNECT_S = 1.0


class Lost(Exception):
    """Nobody can go on with it; the text says why."""


def inherit(config: Config, held: HeldMount) -> HeldMount | None:
    """The mount of `held`, whose keeper has ended, as it is held with the one that goes on.

    None: not yet, its daemon has not ended: one that was left without a keeper is asked to. Raises Lost.
    """
    bequest = held.bequest
    if bequest is None:
        raise Lost("this mount cannot be taken up by another daemon")
    device = str(bequest["device"])
    if all(mount.device != device for mount in mountinfo.hfs_mounts()):
        raise Lost("it was unmounted")
    try:
        if (found := _held(device, config)) is not None:
            return found
        if (daemon := _serving(config, str(bequest["given"]["config"]["mountpoint"]))) != 0:
            _have_end(daemon)
            return None
        with _turn(held), joining.turn_if_any(config):
            if (found := _held(device, config)) is not None:  # of one that was faster
                return found
            mounting.go_on(config, bequest, held.descriptors).leave()
            found = _held(device, config)
    except (TimeoutError, ConnectionError):
        return None  # of a keeper, on a busy machine; it is asked again
    except (OSError, HfsError) as error:
        raise Lost(str(error)) from None
    if found is None:
        raise Lost("its new keeper does not answer")
    return found


def _held(device: str, config: Config) -> HeldMount | None:
    """With a keeper that somebody has started; None: there is none. Raises OSError, MountError."""
    for kept in keeper.ours():
        if kept.status.get("device") == device:
            held = kept.hold(config.linger_s)
            if held is None:  # it is just being unmounted
                raise ConnectionAbortedError
            return held
    return None


@contextlib.contextmanager
def _turn(held: HeldMount) -> Iterator[None]:
    """One at a time of those that hold this mount, whatever has become of its cache. Raises OSError."""
    journal = held.descriptors[_JOURNAL]
    fd = os.open(f"/proc/self/fd/{journal}", os.O_RDWR | os.O_CLOEXEC)  # what they share would be one lock
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _serving(config: Config, mountpoint: str) -> int:
    """Our daemon that has the cache of this mount, or answers for it without one; 0: none."""
    try:
        with contextlib.closing(CacheRoot(config.cache)) as root:
            entries = root.ledger.listed()
    except (OSError, HfsError):  # the disk of the cache may be what has gone
        entries = []
    for entry in entries:
        ours = entry.running and entry.owner == os.geteuid()  # what others write there says nothing of our mounts
        if ours and entry.serving is not None and os.fsdecode(entry.serving.mountpoint) == mountpoint:
            return entry.serving.pid
    for path in known_sockets(mountpoint, os.geteuid()):
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(_CONNECT_S)
            connection.connect(path)
            return socket_peer(connection).pid
    return 0


def _have_end(pid: int) -> None:
    """A daemon whose keeper has gone makes room for the next, which will have one. Of another pid namespace: not."""
    descriptor = processes.open_pid(pid)
    if descriptor is None:
        return
    try:
        # Behind the descriptor: from here on the number is this process's, or nobody's.
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            is_daemon = b"hfs.mounting.daemon_process" in file.read()
        if is_daemon and os.stat(f"/proc/{pid}").st_uid == os.geteuid():
            signal.pidfd_send_signal(descriptor, signal.SIGHUP)
    except OSError:
        pass  # it has just ended
    finally:
        os.close(descriptor)
