"""A mount for one command: the one that is there, or a new one that ends with the last command that uses it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

from hfs.client.client import Client, find_socket, known_sockets
from hfs.client.control_socket import DaemonSilent
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import HfsError, MountError
from hfs.mountd.core.socket_places import socket_peer
from hfs.mountd.ledger import CacheRoot
from hfs.mountd.supervisor.generations import Generations
from hfs.mountd.supervisor.overlay import Layers
from hfs.mounting import joining, keeper, mountinfo, mounting, processes, taking_away
from hfs.mounting.keeper import MountReference
from hfs.mounting.preflight import check_mountpoint, check_places
from hfs.mounting.view import View

_END_S = 15.0
"""A daemon that makes room for the next writes what it holds for ten seconds at most."""
_AGAIN_S = 0.1
_SEEN_S = 2.0
"""A mount that nobody sees any more is gone from the kernel within milliseconds."""


_JOURNAL = 2
"""Of the descriptors of a mount: only who holds it can reach this one."""
_CONNECT_S = 1.0


class Lost(Exception):
    """Nobody can go on with it; the text says why."""


def inherit(config: Config, held: MountReference) -> MountReference | None:
    """The mount of `held`, whose keeper has ended, as it is held with the one that goes on.

    A batch system that gives each job or step a control group kills all that is in it at its end: also the keeper and
    the daemon that others use. Whoever holds the mount has its connection as well, so requests wait meanwhile; the
    first that notices starts another keeper, whose daemon goes on where the old one has ended. The others join that.
    Where the kernel cannot send requests again (before Linux 6.9) nobody inherits, and the mount is dead.

    None: not yet, its daemon has not ended: one that was left without a keeper is asked to. Raises Lost.
    """
    inheritance = held.inheritance
    if inheritance is None:
        raise Lost("this mount cannot be taken up by another daemon")
    device = str(inheritance["device"])
    if all(mount.device != device for mount in mountinfo.hfs_mounts()):
        raise Lost("it was unmounted")
    try:
        if (found := _held(device, config)) is not None:
            return found
        if (daemon := _serving(config, str(inheritance["given"]["config"]["mountpoint"]))) != 0:
            _have_end(daemon)
            return None
        with _takeover_lock(held), joining.start_lock_if_any(config):
            if (found := _held(device, config)) is not None:  # of one that was faster
                return found
            mounting.go_on(config, inheritance, held.descriptors).leave()
            found = _held(device, config)
    except (TimeoutError, ConnectionError):
        return None  # of a keeper, on a busy machine; it is asked again
    except (OSError, HfsError) as error:
        raise Lost(str(error)) from None
    if found is None:
        raise Lost("its new keeper does not answer")
    return found


def _held(device: str, config: Config) -> MountReference | None:
    """With a keeper that somebody has started; None: there is none. Raises OSError, MountError."""
    for kept in keeper.ours():
        if kept.status.get("device") == device:
            held = kept.hold(config.linger_s)
            if held is None:  # it is just being unmounted
                raise ConnectionAbortedError
            return held
    return None


@contextlib.contextmanager
def _takeover_lock(held: MountReference) -> Iterator[None]:
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


class OwnOverlay:
    """Of one command: tried wherever the daemon offers one, and renewed for as long as the command runs. In place the
    command has a mount namespace of its own anyhow. With --at it gets one only where an overlay is asked for: in the
    user namespace that a plain user needs for it, programs that are to have other rights (sudo, the starters of some
    containers) have none.

    Tell it when the command has `started`; `look` now and then, and at each SIGIO and SIGCHLD."""

    def __init__(self, config: Config, mountpoint: str, place: str, device: str) -> None:
        """`place`: where the command sees the mount of this device, which is at `mountpoint`. Never raises."""
        self.generations: Generations | None = None
        """None: there is no overlay."""
        self._place = place
        self._why_not = "the daemon offers none"
        self._is_told = config.io_mode != "overlay" and config.log_level != "debug"
        if place == mountpoint and config.io_mode != "overlay":
            self._why_not = "the command sees the mount where all do, unless --io-mode overlay asks for one"
        elif config.io_mode != "overlay" and _is_here(place):
            self._why_not = "the command begins in it, and would keep the first one as its working directory"
        elif told := offered(mountpoint, is_made=True):
            try:
                layers = Layers.told(told, config.source, device, noexec=config.noexec)
                self.generations = Generations(layers, place)
            except OSError as error:
                self._why_not = error.strerror or str(error)

    def started(self, view: View) -> None:
        """The command runs, in its view."""
        if self.generations is None:
            return
        if view.why_no_overlay is not None:
            self._why_not = view.why_no_overlay
            self._end()
            return
        self.generations.began(view.watch, view.namespaces)
        descriptor = self.generations.descriptor
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)

    def look(self) -> str | None:
        """Make another generation if there is to be one. A line for people."""
        if self.generations is not None:
            return self.generations.look()
        if self._is_told:
            return None
        self._is_told = True
        return f"{self._place}: no overlay, all is read through the daemon: {self._why_not}"

    def ended(self) -> str | None:
        """The command has, or was never started; what it has left behind sees the mount itself from now on. A line for
        people."""
        said = self.look() if self.generations is None else None
        self._is_told = True
        self._end()
        return said

    def _end(self) -> None:
        if self.generations is not None:
            self.generations.end()
            self.generations = None


class UsedMount:
    """Until `held` is closed, or this process ends."""

    def __init__(
        self,
        mountpoint: str,
        place: str,
        device: str,
        held: MountReference,
        config: Config,
        *,
        is_joined: bool,
    ) -> None:
        self.mountpoint = mountpoint
        self.place = place
        """Where the command sees it."""
        self._overlay = OwnOverlay(config, mountpoint, place, device)
        generations = self._overlay.generations
        self.view: View | None = None
        """None: as everybody sees it."""
        if place != mountpoint or generations is not None:
            self.view = View(mountpoint, place, device, config.as_user, generations)
        self.held = held
        self.is_joined = is_joined
        """It was there before us, and others may read it."""
        self._device = device
        self._config = config
        self._is_lost = False

    def command_started(self) -> None:
        """It has its view."""
        if self.view is not None:
            self._overlay.started(self.view)

    def command_ended(self) -> str | None:
        """Or was never started. A line for people."""
        return self._overlay.ended()

    def look(self) -> str | None:
        """Where the keeper of the mount was killed, with the job that had started it, have another one go on; and have
        overlays made anew. A line about what was done; None: there is nothing to do, or not yet."""
        if (said := self._overlay.look()) is not None:
            return said
        if self._is_lost or self.held.has_keeper():
            return None
        try:
            found = inherit(self._config, self.held)
        except Lost as lost:
            self._is_lost = True
            self.held.close()  # else whoever reads would wait for ever
            return f"{self.mountpoint}: its keeper has ended, and nobody goes on: {lost}"
        if found is None:
            return None
        found.follow(self.held)
        self.held = found
        return f"{self.mountpoint}: its keeper has ended; process {found.keeper.pid} goes on"

    def wait_kept(self) -> str | None:
        """`look`, until the mount has a keeper or nobody can be one: what was said; None: it has had one all along."""
        until_s = time.monotonic() + _END_S
        while (said := self.look()) is None and not self._is_lost and not self.held.has_keeper():
            if time.monotonic() > until_s:
                break
            time.sleep(_AGAIN_S)
        return said

    def wait_gone(self, limit_s: float) -> str | None:
        """Wait until the mount, which was taken away, and its daemon have ended. Why they have not; None: they have."""
        kept = self.held.keeper
        if self.held.wait_gone(_SEEN_S):
            return None
        if kept.is_seen():
            lines = [f"  {user}" for user in processes.seeing(self._device) if user.pid != kept.pid]
            lines = lines or ["  (in another mount namespace, by no process that this user may see)"]
            return "\n".join([f"{self.mountpoint}: stays until these end, which still see it", *lines])
        if self.held.wait_gone(limit_s):
            return None
        return f"process {kept.pid} still works on the cache {limit_s:g} s after the unmount"


def use_mount(config: Config, origins: dict[str, str], place: str) -> UsedMount:
    """A mount of config.source, made at config.mountpoint if there is none. `place`: where it is to be seen.

    Raises ConfigError, MountError. Whatever is raised after a mount was made, it ends.
    """
    if (used := _joined(config, origins, place)) is not None:
        return used
    try:
        check_places(config)
    except HfsError:
        with joining.start_lock_if_any(config):
            if (used := _joined(config, origins, place)) is not None:  # of one that was just mounting there
                return used
        raise
    with joining.start_lock(config):
        if (used := _joined(config, origins, place)) is not None:
            return used
        daemon = mounting.start(config, origins, permanent=False)
        daemon.leave()
        try:
            kept = keeper.find(config.mountpoint)
            held = None if kept is None else kept.hold(config.linger_s)
            if kept is None or held is None:
                text = f"{config.mountpoint}: the mount has no keeper that answers; its log is {config.log_file}"
                raise MountError(text)
            device = str(kept.status.get("device"))
            return UsedMount(config.mountpoint, place, device, held, config, is_joined=False)
        except BaseException:
            taking_away.detach(config.mountpoint, lazy=True)
            raise


def _joined(config: Config, origins: dict[str, str], place: str) -> UsedMount | None:
    while (found := joining.wait_running(config)) is not None:
        found.check(config, origins)
        if place == config.mountpoint != found.mountpoint:
            check_mountpoint(config)
        try:
            held = found.keeper.hold(config.linger_s)
        except ConnectionError:  # it has just ended
            held = None
        except OSError as error:
            why = f"the keeper of the mount does not answer: {error.strerror}; hfs doctor says more"
            raise MountError(f"{found.mountpoint}: {why}") from None
        if held is not None:
            return UsedMount(found.mountpoint, place, found.device, held, config, is_joined=True)
        time.sleep(_AGAIN_S)
    return None


def _is_here(place: str) -> bool:
    """Whether our working directory lies below, as far as it has a name."""
    try:
        here = os.getcwd()
    except OSError:
        return False
    return here == place or here.startswith(place.rstrip("/") + "/")


def offered(mountpoint: str, *, is_made: bool) -> dict[str, Any] | None:
    """What overlays over this mount are made of; None: its daemon offers none. `is_made`: one is made next."""
    try:
        status = Client(find_socket(mountpoint)).status(makes_overlay=is_made)
        return (status.get("io_mode") or {}).get("overlays")
    except DaemonSilent:
        return None
