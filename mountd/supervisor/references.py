"""Who uses the mount beside whoever has made it: commands that joined it, and when the mount goes with the last.

    a command    `hfs run`, and what it has started: each holds a lock (flock, shared) on one file in memory, of which
                 the keeper gives a descriptor to whoever joins. The kernel releases it, also at kill -9
    a session    `hfs mount`: the process that leads the caller's session (setsid(2)); over when that ends, or unmounts
    a job        `hfs mount --job`, in a prolog: a name; over when the epilog says so, or `hfs sweep` for it
    a mount      `hfs mount` that has made it: over when somebody unmounts

While none is left the mount is taken away, after `linger_s` in which another may come. Who takes it away has the lock
alone until it has gone, so nobody joins meanwhile. The file goes on with a mount whose keeper was killed: whoever has
joined holds it still. Where nobody ever joined, whoever unmounts does so at once, from any session; else what others
hold stays, and the caller is told who they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any

from hfs.mountd.supervisor.loop import Loop

_LOOK_S = 0.5
"""Between two looks at the lock. The pulse of the daemon is looked at as often."""
_COME_S = 10.0
"""In which the command that has made a mount for itself says that it is there, once it answers."""
GONE_S = 10.0
"""In which whoever unmounts has done so; this process ends with the mount."""
_LOCKS = "/proc/locks"
_SHOWN = 200


class References:
    """Of one mount. `end` is called when the last has gone, once."""

    def __init__(
        self,
        loop: Loop,
        end: Callable[[], None],
        *,
        permanent: bool,
        session: int,
        linger_s: float,
        inherited: int = -1,
    ) -> None:
        """`permanent`: made by `hfs mount`, from `session`. `inherited`: the file of a keeper that was killed, a
        descriptor that is ours from here on; -1: there was none before. Raises OSError."""
        self._loop = loop
        self._end = end
        self._linger_s = linger_s
        self._left_s = _COME_S
        """How long it is kept if nobody uses it."""
        self._permanent = permanent
        self._maker = session if permanent else 0
        self._joined = False
        self._holders: dict[int | str, int] = {}
        """Sessions, with a descriptor (pidfd) of the leader of each, and jobs."""
        self._is_unmounting = False
        self._has_ended = False
        self.ending = False
        """Nobody may join any more."""
        # Another process's lock is released with the last descriptor of what that process has opened, so nobody locks
        # what somebody else has opened.
        given = inherited if inherited >= 0 else os.memfd_create("hfs-users", os.MFD_CLOEXEC)
        try:
            self._lock = _opened(given)
        finally:
            os.close(given)

    def answers(self) -> None:
        """The mount answers: whoever has made it for itself must come now."""
        self._loop.after(_LOOK_S, self._look)

    def told(self) -> list[dict[str, Any]]:
        """For people: who holds it."""
        mounts = {"pid": 0, "command": "hfs mount"}
        told: list[dict[str, Any]] = [
            mounts | ({"session": False, "job": who} if isinstance(who, str) else {"session": True, "pid": who})
            for who in self._holders
        ]
        return told + [{"pid": pid, "command": _command_of(pid), "session": False} for pid in self._lockers()]

    def hold(self, linger_s: float) -> int:
        """A command joins, if it can lock this file; to be sent to it and closed. Raises OSError."""
        self._joined = True
        self._linger_s = linger_s
        self._left_s = max(self._left_s, linger_s)
        return _opened(self._lock)

    def leave(self) -> bool:
        """A command that has the lock alone would take the mount away: whether it may. If so nobody joins any more."""
        if self._is_kept or self._linger_s:
            return False
        self.ending = True
        return True

    def hold_session(self, session: int) -> None:
        """An `hfs mount` joins, for as long as its session."""
        self._joined = True
        if session in self._holders or session == self._maker != 0:
            return
        try:
            descriptor = os.pidfd_open(session) if session else -1
        except OSError:
            descriptor = -1
        if descriptor < 0:  # of another pid namespace, or it has ended: held until unmounted
            self._permanent = True
            return
        self._holders[session] = descriptor
        self._loop.watch(descriptor, lambda: self.release(session))

    def hold_job(self, job: str) -> None:
        """A job joins, if it has not yet."""
        self._joined = True
        self._holders.setdefault(job, -1)

    def release(self, who: int | str) -> bool:
        """A session or a job that joined uses the mount no more; False: it had not joined."""
        if who not in self._holders:
            return False
        self._left_s = self._linger_s
        descriptor = self._holders.pop(who)
        if descriptor >= 0:
            self._loop.ignore(descriptor)
            os.close(descriptor)
        return True

    def release_job(self, job: str) -> tuple[bool, bool]:
        """A job uses the mount no more: whether it did, and whether the mount goes now."""
        if not self.release(job):
            return False, False
        goes = not (self._is_kept or self._linger_s) and self._is_alone()
        if goes:
            self.ending = True
            self._loop.after(0.0, self._finish)
        return True, goes

    def unmount(self, session: int, *, lazy: bool) -> list[dict[str, Any]]:
        """Somebody of this session unmounts. Who holds the mount still; nobody: the caller takes it away. `lazy`: it is
        taken away whoever holds it, and nobody joins it any more."""
        if lazy:
            self.ending = True
            return []
        maker, self._maker, self._permanent = self._maker, 0, False
        if self._joined and maker and maker != session:
            # Others have joined, so what the maker's session does with the mount counts as theirs does.
            self.hold_session(maker)
            self._permanent = False
        self.release(session)
        if self._is_kept or not self._is_alone():
            return self.told() or [{"pid": 0, "command": "of another pid namespace", "session": False}]
        self.ending = self._is_unmounting = True
        self._loop.after(GONE_S, self.stays)
        return []

    def stays(self) -> None:
        """Whoever wanted to take it away could not: it was in use."""
        self.ending = self._is_unmounting = False
        self._permanent = True
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the descriptors back."""
        self._has_ended = True
        for who in list(self._holders):
            self.release(who)
        os.close(self._lock)

    @property
    def _is_kept(self) -> bool:
        """Whether others than commands use it."""
        return self._permanent or bool(self._holders)

    def _is_alone(self) -> bool:
        """Whether no command uses it; if so, none can join until the lock is released."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _look(self) -> None:
        if self._has_ended:
            return
        self._loop.after(_LOOK_S, self._look)
        if self._is_unmounting:
            return
        if self._is_kept or not self._is_alone():
            self._left_s = self._linger_s
            return
        self._left_s -= _LOOK_S
        if self.ending or self._left_s <= 0:  # whoever was to take it away was killed before, or could not
            self._finish()
        else:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _finish(self) -> None:
        if not self._has_ended:
            self.ending = self._has_ended = True
            self._end()

    def _lockers(self) -> Iterator[int]:
        """Processes of commands that hold it, as far as they are of our pid namespace: proc_locks(5)."""
        found = os.fstat(self._lock)
        name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        with contextlib.suppress(OSError), open(_LOCKS, encoding="ascii", errors="replace") as lines:
            for fields in map(str.split, lines):
                if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == name and int(fields[4]) != os.getpid():
                    yield int(fields[4])


def _opened(descriptor: int) -> int:
    """Of the same file, with locks of its own."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def _command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_SHOWN).rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        words = b""
    return words.decode(errors="replace") or "ended; what it has started goes on"
