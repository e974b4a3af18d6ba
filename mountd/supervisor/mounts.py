"""The mount that is kept: SOURCE's descriptor from before it, its connection, what each daemon of it is handed.

It is made here, or somebody else has made it and given its connection (given.py), which is then all that there is.

Where a connection cannot be taken up by another daemon (before Linux 6.9), the mount is made again on top of the dead
one, so that there is no empty directory in between; what lies below goes at the end.
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hfs.mountd.supervisor.connection import Connection, GivenConnection, MountRefused, unmount
from hfs.mountd.supervisor.overlay import take_away
from hfs.mountd.supervisor.source import open_source
from hfs.mountd.supervisor.table import device_at

_UNSEEN_DAEMONS = 1000
"""More daemons than one keeper starts: a mount is given up long before. Each daemon of a mount has a number of its own,
and whoever inherits knows that of the daemon that served when it joined."""


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
