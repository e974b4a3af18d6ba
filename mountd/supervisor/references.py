"""Who uses the mount beside whoever has made it: commands that joined it, and when the mount goes with the last.

    a command    `hfs run`: a connection that stays open; over when it closes, also by kill -9, and the command, whose
                 descriptor (pidfd) it has sent, has ended
    a session    `hfs mount`: the process that leads the caller's session (setsid(2)); over when that ends, or unmounts
    a job        `hfs mount --job`, in a prolog: a name; over when the epilog says so, or `hfs sweep` for it
    a mount      `hfs mount` that has made it: over when somebody unmounts

While none is left the mount is taken away, after `linger_s` in which another may come. Where nobody ever joined,
whoever unmounts does so at once, from any session; else what others hold stays, and the caller is told who they are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hfs.mountd.supervisor.loop import Loop

_COME_S = 10.0
"""In which the command that has made a mount for itself says that it is there, once it answers."""
_SETTLED_S = 5.0
"""In which those who used an inherited mount have noticed that it has another keeper: they look twice a second."""
GONE_S = 10.0
"""In which whoever unmounts has done so; this process ends with the mount."""


@dataclass
class Reference:
    """One that holds the mount."""

    pid: int
    command: str
    session: int = 0
    """Of an `hfs mount`; 0: a command that is connected."""
    pidfd: int = -1
    job: str = ""
    """As the batch system calls it; empty: no job."""

    def take_command(self, pidfd: int) -> None:
        """The command runs as this process. It may outlive the `hfs run` that has started it. What is no pidfd is of no
        use, and could not even be waited for."""
        if not _is_pidfd(pidfd):
            os.close(pidfd)
            return
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pidfd = pidfd

    def told(self) -> dict[str, Any]:
        """For people."""
        told = {"pid": self.session or self.pid, "command": self.command, "session": bool(self.session)}
        return {**told, "job": self.job} if self.job else told


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
        inherited: bool = False,
    ) -> None:
        """`permanent`: made by `hfs mount`, from `session`. `inherited`: of a keeper that was killed, which others than
        the one that has started this one may have held."""
        self._loop = loop
        self._end = end
        self._linger_s = linger_s
        self._permanent = permanent
        self._maker = session if permanent else 0
        self._settling = inherited
        """Who holds it is not known yet."""
        self._joined = False
        self._held: list[Reference] = []
        self._last: Reference | None = None
        """The one that was told to take the mount away."""
        self._turn = 0
        """Counts who comes and goes: what was to be looked at before is looked at no more."""
        self.ending = False
        """Nobody may join any more."""

    def answers(self) -> None:
        """The mount answers: whoever has made it for itself must come now."""
        if not self._permanent:
            self._look_after(_COME_S)
        if self._settling:
            self._loop.after(_SETTLED_S, self._settled)

    def told(self) -> list[dict[str, Any]]:
        """For people: who holds it."""
        return [reference.told() for reference in self._held]

    def hold(self, pid: int, command: str, linger_s: float) -> Reference:
        """A command joins; to be given up by `release`."""
        self._linger_s = linger_s
        return self._enter(Reference(pid, command))

    def gone(self, reference: Reference) -> None:
        """The `hfs run` has ended; its command may not have."""
        if reference in self._held and reference.pidfd >= 0:
            if reference is self._last:
                self.ending, self._last = False, None
            reference.pid = _pid_of(reference.pidfd) or reference.pid
            self._loop.watch(reference.pidfd, lambda: self.release(reference))
        else:
            self.release(reference)

    def hold_session(self, session: int, command: str) -> None:
        """An `hfs mount` joins, for as long as its session."""
        self._joined = True
        if not session:  # of another pid namespace: held until unmounted
            self._permanent = True
            return
        if session in {reference.session for reference in self._held} or session == self._maker:
            return
        reference = Reference(session, command, session)
        try:
            reference.pidfd = os.pidfd_open(session)
        except OSError:  # it has ended, or is of another namespace: held until unmounted
            self._permanent = True
            return
        self._enter(reference)
        self._loop.watch(reference.pidfd, lambda: self.release(reference))

    def hold_job(self, job: str) -> None:
        """A job joins, if it has not yet."""
        if job not in {reference.job for reference in self._held}:
            self._enter(Reference(0, "hfs mount", job=job))

    def release_job(self, job: str) -> tuple[bool, bool]:
        """A job uses the mount no more: whether it did, and whether the mount goes now."""
        found = [held for held in self._held if held.job == job != ""]
        for reference in found:
            self.release(reference)
        return bool(found), bool(found) and not (self._held or self._permanent or self._linger_s)

    def is_last(self, reference: Reference) -> bool:
        """Whether the mount goes when this one is given up; if so, nobody may join any more."""
        if self._permanent or self._linger_s or self._held != [reference] or self._settling:
            return False
        self.ending, self._last = True, reference
        return True

    def is_unsettled(self, reference: Reference) -> bool:
        """Whether it may be the last: to be asked again."""
        return self._settling and self._held == [reference]

    def release(self, reference: Reference) -> None:
        """It has gone."""
        if reference in self._held:
            self._held.remove(reference)
            if reference.pidfd >= 0:
                self._loop.ignore(reference.pidfd)
                os.close(reference.pidfd)
            if reference is self._last:  # killed before it had taken the mount away, or it could not
                self.ending, self._last = False, None
            self._look_after(self._linger_s)

    def release_session(self, session: int) -> None:
        """A session that joined uses the mount no more."""
        for reference in [held for held in self._held if held.session == session != 0]:
            self.release(reference)

    def unmount(self, session: int, *, lazy: bool) -> list[dict[str, Any]]:
        """Somebody of this session unmounts. Who holds the mount still; nobody: the caller takes it away. `lazy`: it is
        taken away whoever holds it, and nobody joins it any more."""
        if lazy:
            self.ending = True
            return []
        if self._joined and self._maker and self._maker != session:
            self._watch_maker()
        self._permanent, self._maker = False, 0
        self.release_session(session)
        if not self._held:
            self.ending = True
            self._loop.after(GONE_S, self.stays)
        return self.told()

    def stays(self) -> None:
        """Whoever wanted to take it away could not: it was in use."""
        self.ending, self._permanent = False, True

    def close(self) -> None:
        """Give the descriptors back."""
        for reference in self._held:
            if reference.pidfd >= 0:
                os.close(reference.pidfd)
        self._held.clear()

    def _enter(self, reference: Reference) -> Reference:
        self._joined = True
        self._turn += 1
        self._held.append(reference)
        return reference

    def _watch_maker(self) -> None:
        """Others have joined, so what the maker's session does with the mount counts as theirs does."""
        maker, self._maker = self._maker, 0
        self._permanent = False
        self.hold_session(maker, "hfs mount")
        self._permanent = False

    def _settled(self) -> None:
        self._settling = False
        self._look_after(self._linger_s)

    def _look_after(self, seconds: float) -> None:
        self._turn += 1
        turn = self._turn
        self._loop.after(seconds, lambda: self._look(turn))

    def _look(self, turn: int) -> None:
        is_held = bool(self._held) or self._permanent or self._settling
        if turn == self._turn and not is_held and not self.ending:
            self.ending = True
            self._end()


def _is_pidfd(descriptor: int) -> bool:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii", errors="replace") as file:
        return any(line.startswith("Pid:") for line in file)


def _pid_of(pidfd: int) -> int:
    """0: it has ended, or is of another pid namespace."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
        return max(0, next((int(line.split()[1]) for line in file if line.startswith("Pid:")), 0))
    return 0
