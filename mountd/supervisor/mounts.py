"""The mount that is kept: SOURCE's descriptor from before it, its connection, what each daemon of it is handed.

It is made here, or somebody else has made it and given its connection (given.py), which is then all that there is.

Where a connection cannot be taken up by another daemon (before Linux 6.9), the mount is made again on top of the dead
one, so that there is no empty directory in between; what lies below goes at the end.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hfs.mountd.supervisor.connection import Connection, GivenConnection, MountRefused, unmount
from hfs.mountd.supervisor.daemons import received
from hfs.mountd.supervisor.desk import Reply
from hfs.mountd.supervisor.generations import Generations
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.overlay import Layers, take_away
from hfs.mountd.supervisor.table import device_at

_UNSEEN_DAEMONS = 1000
"""More daemons than one keeper starts: a mount is given up long before. Each daemon of a mount has a number of its own,
and whoever inherits knows that of the daemon that served when it joined."""


_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


_LOOK_S = 5.0
"""Besides whenever there is something to do."""
_UNMOUNTED_S = 1.0
"""In which whoever takes away the overlay may take away the mount too (`umount -R`)."""


class MountOverlay:
    """The overlay over the mountpoint of a mount of root's: made and renewed by its keeper, for all who look there.

    The mount itself is seen nowhere else then. Whoever takes the overlay away by hand, as `umount MOUNTPOINT` does,
    means the mount: that follows a moment later.

    Of one mount; none until `begin`. Where there can be none, all is read through the daemon.
    """

    def __init__(self, mount: KeeperMount, loop: Loop, log: Log, *, noexec: bool) -> None:
        self._mount = mount
        self._noexec = noexec
        self._loop = loop
        self._log = log
        self._generations: Generations | None = None
        self._device = ""
        self._reply: Reply | None = None
        self.told: Mapping[str, Any] | None = None
        """What it is made of, as the daemon has told it; None: there is to be none."""
        self.why_none = ""
        """Why there is none, though there was to be one."""

    @property
    def is_there(self) -> bool:
        """It was put in place, and not taken away here."""
        return self._generations is not None and self._generations.is_made

    def begin(self, told: Mapping[str, Any], reply: Reply = lambda _: None) -> None:
        """Make one of this from here on, none of nothing; `reply` tells what has come of it."""
        self.end()
        self.told, self.why_none = told or None, ""
        connection = self._mount.connection
        if not told or connection is None or self._mount.is_given:
            self._none("there is to be none", reply)
            return
        self._device = connection.device
        layers = Layers.told(told, self._mount.source, self._device, noexec=self._noexec)
        try:
            generations = Generations(layers, self._mount.mountpoint)
        except (OSError, ValueError) as error:
            self._none(str(getattr(error, "strerror", None) or error), reply)
            return
        self._generations, self._reply = generations, reply
        self._loop.watch(generations.descriptor, self.look)
        self._look_again(generations)
        self.look()

    def look(self) -> None:
        """To be called after SIGCHLD, too."""
        generations = self._generations
        if generations is None:
            return
        said = generations.look()
        if self._reply is not None and generations.is_made:
            self._answer({"made": True})
        elif self._reply is not None and said is not None:
            reply, self._reply = self._reply, None
            self.end()
            self._none(generations.why, reply)
            return
        elif said is not None:
            self._log.warning(said)
        if generations.was_taken_away:
            self._loop.after(_UNMOUNTED_S, lambda: self._settle(generations))

    @property
    def replaced(self) -> list[int]:
        """As of `Generations`."""
        return [] if self._generations is None else self._generations.replaced

    def end(self, *, lazily: bool = True, sure: bool = False) -> bool:
        """As of `Generations`."""
        generations = self._generations
        if generations is None:
            return True
        descriptor = generations.descriptor
        self._loop.ignore(descriptor)
        if not generations.end(lazily=lazily, sure=sure):
            self._loop.watch(descriptor, self.look)
            return False
        self._generations = None
        self._answer({"why": "it was taken away again"})
        return True

    def again(self) -> None:
        """It was taken away. Make it again where the mount has stayed, and not only a daemon that still writes."""
        connection = self._mount.connection
        stays = connection is not None and not connection.is_gone and connection.is_mounted
        if stays and self._generations is None and self.told is not None and not self.why_none:
            self.begin(self.told)

    def _settle(self, generations: Generations) -> None:
        """Somebody has taken it away."""
        if generations is not self._generations or not generations.was_taken_away:
            return
        connection, told = self._mount.connection, self.told
        if connection is None or told is None:
            return
        if connection.device != self._device:
            self.begin(told)  # with the mount below, which was made anew
            return
        self.end()
        self.told = None
        try:
            if device_at(self._mount.mountpoint) == self._device:
                unmount(self._mount.mountpoint, self._device)
        except OSError as error:
            self._log.warning(f"{self._mount.mountpoint}: cannot be unmounted ({error.strerror})")

    def _look_again(self, generations: Generations) -> None:
        if generations is self._generations:
            self._loop.after(_LOOK_S, lambda: self._looked_again(generations))

    def _looked_again(self, generations: Generations) -> None:
        if generations is self._generations:
            self.look()
            self._look_again(generations)

    def _none(self, why: str, reply: Reply) -> None:
        self.why_none = why
        if self.told is not None:
            self._log.warning(f"{self._mount.mountpoint}: no overlay, all is read through the daemon: {why}")
        reply({"why": why})

    def _answer(self, record: dict[str, Any]) -> None:
        if self._reply is not None:
            reply, self._reply = self._reply, None
            reply(record)


class OpenSource(NamedTuple):
    """SOURCE's directory."""

    fd: int
    device: int
    """st_dev and st_ino."""
    inode: int


class CannotBecome(Exception):
    """No process of ours can become that user; the text says why."""


def open_source(path: str, as_user: str | None) -> OpenSource:
    """SOURCE, for the mount's daemons: by us, or by a child that has become the user as whom it is read (`as_user`).

    Root may not so much as look at a directory of a file system that squashes it, or at another user's FUSE mount. A
    FUSE mount that admits its owner alone wants all of the ids to be his, which the keeper could not take back.
    `as_user`: UID:GID:GROUP,GROUP... Raises OSError, CannotBecome. Only one thread may run: this forks.
    """
    if as_user is None:
        return _open(path)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = os.fork()
            if child == 0:
                _answer(theirs, path, as_user)
        data, descriptors = received(ours, 256, 1)
    os.waitpid(child, 0)
    what, *numbers = data.decode().split() or ["lost"]
    if what == "open":
        return OpenSource(descriptors[0], int(numbers[0]), int(numbers[1]))
    if what == "refused":
        raise OSError(int(numbers[0]), os.strerror(int(numbers[0])), path)
    why = os.strerror(int(numbers[0])) if numbers else "the process that tried has ended"
    raise CannotBecome(f"as-user: the keeper cannot become user {as_user} ({why}): it needs CAP_SETUID and CAP_SETGID")


def _open(path: str) -> OpenSource:
    fd = os.open(path, _FLAGS)
    try:
        found = os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise
    return OpenSource(fd, found.st_dev, found.st_ino)


def _answer(to: socket.socket, path: str, as_user: str) -> None:
    """In the child, which ends here whatever happens."""
    try:
        step = "kept"
        try:
            uid, gid, groups = as_user.split(":")
            os.setgroups([int(group) for group in groups.split(",") if group])
            os.setresgid(int(gid), int(gid), int(gid))
            os.setresuid(int(uid), int(uid), int(uid))
            step = "refused"
            found = _open(path)
        except OSError as error:
            to.send(f"{step} {error.errno or 5}".encode())
        else:
            socket.send_fds(to, [f"open {found.device} {found.inode}".encode()], [found.fd])
    finally:
        os._exit(0)


class KeeperMount:
    """`open_source`, then `make`, before anything else."""

    def __init__(
        self,
        mountpoint: str,
        source: str,
        options: Mapping[str, bool],
        *,
        resend: bool,
        given_fd: int = -1,
        foreign_pids: bool = False,
    ) -> None:
        """`options`: `allow_other` and `noexec`. `resend` False: as on a kernel that cannot send requests again.
        `given_fd`: the connection of a mount that somebody else has made; -1: it is made here. `foreign_pids`: in
        another pid namespace, perhaps."""
        self.mountpoint = mountpoint
        self.source = source
        self.connection: Connection | None = None
        self.identity: list[int] = []
        """st_dev and st_ino of SOURCE."""
        self.made_s = 0.0
        """When it was first made, in seconds since the epoch."""
        self.is_given = given_fd >= 0
        """Somebody else has made it, and takes it away."""
        self._given_fd = given_fd
        self._foreign_pids = foreign_pids
        self._options = options
        self._resend = resend
        self._source_fd = -1
        self._journal: list[int] = []
        self._generation = -1
        self._worn = False
        self._below: set[str] = set()
        """Devices of dead mounts of ours that lie below."""

    def open_source(self, as_user: str | None) -> None:
        """While its path does not lead to the mount. Raises OSError, CannotBecome."""
        self._source_fd, *self.identity = open_source(self.source, as_user)

    def make(self) -> None:
        """Mount, on top of what is there; a mount of ours that is there is dead then. Raises MountRefused."""
        if self.is_given and self._given_fd < 0:
            raise MountRefused(f"{self.mountpoint}: the connection was given once; start hfs on a new one")
        if self.connection is not None:
            # First: a look-up that waits there holds its root, so that nothing can be mounted on it.
            self._below.add(self.connection.device)
            with contextlib.suppress(OSError):
                take_away(self.mountpoint)
            self.connection.abort()
        made = self._take() if self.is_given else self._mount()
        try:
            made.read_init()
        except MountRefused:
            with contextlib.suppress(OSError):
                made.detach()
            made.close()
            raise
        self.connection = made
        self._worn = False
        self.made_s = self.made_s or time.time()
        self._generation = -1
        for descriptor in self._journal:
            os.close(descriptor)
        self._journal = [os.memfd_create(f"hfs-{name}", os.MFD_CLOEXEC) for name in ("journal-a", "journal-b", "opens")]

    def _mount(self) -> Connection:
        allow_other, noexec = self._options["allow_other"], self._options["noexec"]
        return Connection.make(self.mountpoint, self.source, allow_other=allow_other, noexec=noexec)

    def _take(self) -> Connection:
        given_fd, self._given_fd = self._given_fd, -1
        return GivenConnection.take(given_fd, self.mountpoint)

    def inheritance(self) -> tuple[dict[str, Any], list[int]]:
        """What another keeper needs to go on with this mount if this one is killed, and the descriptors that go with
        that; nothing, where no daemon can go on where another has ended."""
        if not self.takes_up:
            return {}, []
        assert self.connection is not None
        record = {
            "device": self.connection.device,
            "init": base64.b64encode(self.connection.init).decode(),
            "generation": self._generation,
            "identity": self.identity,
            "mounted_s": self.made_s,
        }
        return record, [self.connection.fd, self._source_fd, *self._journal]

    def inherit(self, record: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Instead of `open_source` and `make`: go on with the mount of a keeper that was killed, and its daemon."""
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        fd, self._source_fd, *self._journal = descriptors
        self.connection = Connection(fd, self.mountpoint, str(record["device"]))
        self.connection.init = base64.b64decode(record["init"])
        self.identity = list(record["identity"])
        self.made_s = float(record["mounted_s"])
        self._generation = int(record["generation"]) + _UNSEEN_DAEMONS

    @property
    def device(self) -> str | None:
        """Of the mount, as in mountinfo. None once the mount has gone: its number may be another one's by then."""
        return None if self.connection is None or self.connection.is_gone else self.connection.device

    @property
    def takes_up(self) -> bool:
        """Whether another daemon can go on where one has ended."""
        resends = self.connection is not None and self.connection.resends and self._resend
        return resends and not self._worn

    def give_up(self) -> bool:
        """The next daemon gets a connection of its own: what waits on this one, and what is open there, gets an error.
        False: the mount is another's, and there is no other connection to be had."""
        self._worn = not self.is_given
        return self._worn

    def handover(self, beats_fd: int) -> tuple[dict[str, Any], list[int]]:
        """What the next daemon is told of it (mountd/wire/handover.py), and the descriptors that go with that.
        `beats_fd`: see `Pulse`; -1: there is none."""
        assert self.connection is not None
        self._generation += 1
        descriptors = [self.connection.fd, self._source_fd, *self._journal]
        descriptors += [beats_fd] if beats_fd >= 0 else []
        record = {
            "descriptors": len(descriptors),
            "init": base64.b64encode(self.connection.init).decode(),
            "generation": self._generation,
            "resend": self.takes_up,
            "device": self.connection.device,
            "mounted_s": self.made_s,
            "given": self.is_given,
            "foreign_pids": self._foreign_pids,
        }
        return record, descriptors

    def detach(self) -> None:
        """Take it out of the tree; it ends when its last user has gone. Raises OSError."""
        if self.connection is not None:
            self.connection.detach()
        self._uncover()

    def close(self) -> None:
        """Let go of it."""
        if self.connection is not None:
            self.connection.close()
        with contextlib.suppress(OSError):
            self._uncover()

    def _uncover(self) -> None:
        while (device := device_at(self.mountpoint)) in self._below:
            unmount(self.mountpoint, device)
