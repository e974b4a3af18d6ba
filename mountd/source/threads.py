"""Threads that wait for the source, so that nothing else has to.

Three bounded pools: metadata, demand reads and prefetch reads; a source that hangs for one kind does not stop another,
and never the event loop. A part of the source that hangs does not stop the rest (`source.places`). Each call has a time
limit with retries inside. A call that is past it is abandoned: its thread stays stuck in the system call (nothing can
end it), the pool gets another place, and it is counted. Past a bound of stuck threads new calls fail at once: by then
the source is dead, and each further thread would only cost memory.

Opens nothing itself and never touches the cache. Tests give `run_in_thread` a fake.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import trio

from hfs.mountd.core.background import call_guarded
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import SourceAway, SourceError, SourceTimeout
from hfs.mountd.core.limits import OpenFiles, is_refusal
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.native.statx import checked, libc
from hfs.mountd.source.places import Hanging, Permits

Pool = Literal["metadata", "demand", "prefetch"]
Value = TypeVar("Value")

_MAX_ABANDONED = 512
"""Stuck threads we keep: 8 KiB of kernel stack and some 100 KiB of their own each. Also how many may hang that somebody
still waits for."""

_SLOW_S: dict[Pool, float] = {"metadata": 1.0, "demand": 5.0, "prefetch": math.inf}
"""Longer than a call takes where nothing hangs: a stat of a busy server some 10 ms, a chunk of 8 MiB a second of a slow
one. What is fetched ahead is waited for by nobody: it takes no more threads than it has."""

_TRANSIENT = frozenset(
    {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.ENOMEM}
)
"""What a failover or a lost lease of Lustre, GPFS or NFS answers for a moment, and a kernel that reclaims memory."""

_AWAY = frozenset(
    {
        *(errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ENOLINK),
        *(errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EKEYEXPIRED, errno.ENOKEY),
    }
)
"""What is answered for names and attributes by a client whose server, connection, root or ticket has gone. Of a name
that is not there, or may not be looked up, other numbers speak."""

_BACKOFF_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Five tries more, 1.6 s in all. A reader of the source itself would have had the error at once; a moment's patience
survives an eviction by a metadata server, and a disk block that is really lost is reported soon enough."""


_DESCRIPTOR_S = 30.0
"""How long a call waits for a descriptor: by then others have closed theirs, or something of us leaks them."""

_PLENTY = 1 << 16
"""Open files, for who says nothing about it."""


_SETGROUPS, _SETRESUID, _SETRESGID = {
    "x86_64": (116, 117, 119),
    "aarch64": (159, 147, 149),
    "riscv64": (159, 147, 149),
    "loongarch64": (159, 147, 149),
    "ppc64le": (81, 164, 169),
    "s390x": (206, 208, 210),
}.get(platform.machine(), (None, None, None))
"""The numbers of the system calls, <asm/unistd.h>."""

_CAP_SETGID, _CAP_SETUID = 6, 7
_NEEDED = 1 << _CAP_SETGID | 1 << _CAP_SETUID
_CAPABILITY_VERSION_3 = 0x20080522
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_NOBODY = 0xFFFFFFFF
"""No user's id: setfsuid(2) with it changes nothing, and tells who is who."""

_setfsuid, _setfsgid = libc.setfsuid, libc.setfsgid
_setfsuid.argtypes = _setfsgid.argtypes = [ctypes.c_uint32]


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    """Two of these: capabilities 0 to 31, and those from 32 on."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


class ReadingUser(NamedTuple):
    """The user as whom the source is read."""

    who: Credentials
    wholly: bool
    """By `become_wholly`."""

    def become(self) -> None:
        """The calling thread is that user from now on. Raises OSError, and is then nobody to work for."""
        (become_wholly if self.wholly else become)(self.who)


def be_closed() -> None:
    """Being another user, in one thread: the file system then decides about that user, and not about the daemon.

    fsuid, fsgid, supplementary groups and capabilities belong to a thread; glibc's setgroups changes all threads, so
    the system call is made directly. A thread that has become somebody keeps no capability but the two it needs to
    become somebody else, and never becomes the daemon again: it is to be used for nothing else. Knows no paths.

    A FUSE mount without allow_other looks at the real, effective and saved ids instead (`fuse_allow_current_process`),
    so `become_wholly` sets these too. By them the kernel decides who may send a thread signals, and who may trace it:
    where this is used the process must not be dumpable (`be_closed`), or the user would have all of the daemon, root's
    rights included. `ReadingUser` is the user as whom the whole source is read, if that is not the daemon's.

    Nobody but root may trace this process or have its core from now on, whatever its threads become.
    """
    checked(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(2)")


def become_wholly(who: Credentials) -> None:
    """The calling thread is `who` in all that the kernel asks, for ever, and has no capability. Needs `be_closed`.

    Raises OSError, and is then nobody to work for.
    """
    _be_in(who)
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 1:
        raise OSError(errno.EPERM, "the process can be traced")
    checked(libc.syscall(_SETRESGID, who.gid, who.gid, who.gid), "setresgid(2)")
    checked(libc.syscall(_SETRESUID, who.uid, who.uid, who.uid), "setresuid(2)")
    _keep_only(0)


def become(who: Credentials) -> None:
    """The calling thread is `who` for file systems from now on. Raises OSError, and is then nobody to work for."""
    dumpable = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    _be_in(who)
    _setfsgid(who.gid)
    _setfsuid(who.uid)
    _keep_only(_NEEDED)
    if _setfsuid(_NOBODY) & 0xFFFFFFFF != who.uid or _setfsgid(_NOBODY) & 0xFFFFFFFF != who.gid:
        raise OSError(errno.EPERM, f"user {who.uid}, group {who.gid}: refused by setfsuid(2) or setfsgid(2)")
    if dumpable == 1:  # another fsuid takes it from the whole process, and with it core dumps
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def why_impossible() -> str | None:
    """Why no thread of this process can become another user; None if one can."""
    found: list[str | None] = []

    def try_it() -> None:
        try:
            become(Credentials(os.geteuid() + 1, os.getegid() + 1, (os.getegid() + 2,)))
            found.append(None)
        except OSError as error:
            found.append(error.strerror or str(error))

    thread = threading.Thread(target=try_it, name="hfs-as-user", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        return str(error)
    thread.join()
    return found[0]


def _be_in(who: Credentials) -> None:
    """In the groups of `who`."""
    if _SETGROUPS is None:
        raise OSError(errno.ENOSYS, f"setgroups(2) is not known for {platform.machine()}")
    if who.uid == 0:
        raise OSError(errno.EINVAL, "root is not another user")  # and would have its capabilities back
    groups = (ctypes.c_uint32 * len(who.groups))(*who.groups)
    checked(libc.syscall(_SETGROUPS, len(who.groups), groups), "setgroups(2)")


def _keep_only(wanted: int) -> None:
    """Take all other effective capabilities from the calling thread; what it may have back stays permitted."""
    header = _Header(_CAPABILITY_VERSION_3, 0)
    sets = (_Capabilities * 2)()
    checked(libc.capget(ctypes.byref(header), sets), "capget(2)")
    sets[0].effective = sets[0].permitted & wanted
    sets[1].effective = 0
    checked(libc.capset(ctypes.byref(header), sets), "capset(2)")


class SourceThreads:
    """Runs blocking functions against the source. `time_limit_s` 0 means for ever."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        demand: int,
        prefetch: int,
        metadata: int = 64,
        time_limit_s: float,
        open_files: OpenFiles | None = None,
        run_in_thread: Callable[..., Any] = trio.to_thread.run_sync,
        user: ReadingUser | None = None,
    ) -> None:
        """`open_files`: of this process. `user`: whom the threads of `run_in_thread` have become."""
        self.user = user
        """The user as whom the source is read; None: the daemon's own."""
        self._metrics = metrics
        self.open_files = open_files or OpenFiles(_PLENTY)
        self._hanging = Hanging(_MAX_ABANDONED)
        counts: dict[Pool, int] = {"metadata": metadata, "demand": demand, "prefetch": prefetch}
        self._places = {pool: Permits(count, self._hanging, slow_s=_SLOW_S[pool]) for pool, count in counts.items()}
        self._unlimited = trio.CapacityLimiter(math.inf)
        self.time_limit_s = time_limit_s or math.inf
        self._run_in_thread = run_in_thread
        self._stuck = 0
        self._failure: tuple[str, int] | None = None
        """The last error, if nothing has succeeded since as far as calls tell, and what had been read by then."""

    @property
    def failure(self) -> str | None:
        """What the source answers, where it has answered nothing else since. The data plane reads it past our calls."""
        if self._failure is None or self._metrics["source_read_bytes"] > self._failure[1]:
            return None
        return self._failure[0]

    def _failed(self, why: str) -> None:
        self._metrics.add("source_errors")
        self._failure = why, self._metrics["source_read_bytes"]

    @property
    def stuck(self) -> int:
        """Threads abandoned and not yet back."""
        return self._stuck

    def statistics(self) -> dict[str, int]:
        """Calls running and waiting, by pool."""
        hanging = sum(places.hanging(_SLOW_S["demand"]) for places in self._places.values())
        figures = {"stuck": self._stuck, "hanging": hanging}
        for pool, places in self._places.items():
            figures[f"{pool}_running"] = places.running
            figures[f"{pool}_waiting"] = places.waiting
        return figures

    @property
    def demand_waits(self) -> bool:
        """True while a demand read waits for a thread: then nothing should be fetched ahead."""
        return self._places["demand"].in_line > 0

    async def call(
        self,
        pool: Pool,
        what: str,
        function: Callable[..., Value],
        *args: Any,
        directory: bytes = b"",
        limit_s: float | None = None,
    ) -> Value:
        """`function(*args)` in a thread of `pool`, tried again after transient errors, within the time limit.

        `directory`: the path of the one that it asks, relative to the source.
        Raises SourceError with the errno of the last try, SourceTimeout when the limit (`limit_s`, or the general one)
        is over, and whatever else the function raises.
        """
        deadline = trio.current_time() + (self.time_limit_s if limit_s is None else limit_s)
        once = partial(self._once, pool, what, deadline, function, args, directory)
        for pause_s in (*_BACKOFF_S, None):
            try:
                return await self._with_descriptors(deadline, once)
            except OSError as error:
                number = error.errno or errno.EIO
                if number not in _TRANSIENT or pause_s is None or trio.current_time() + pause_s >= deadline:
                    if number in _TRANSIENT:
                        self._failed(os.strerror(number))
                    is_away = pool == "metadata" and number in _AWAY
                    raise (SourceAway if is_away else SourceError)(number, what) from error
            self._metrics.add("source_retries")
            await trio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    async def _with_descriptors(self, deadline: float, once: Callable[[], Awaitable[Value]]) -> Value:
        """`once`, tried again while there is no descriptor for it: the source has nothing to do with that."""
        patience_s = min(deadline, trio.current_time() + _DESCRIPTOR_S)
        pause_s = _BACKOFF_S[0] / 8
        while True:
            try:
                return await once()
            except OSError as error:
                if not is_refusal(error) or trio.current_time() + pause_s >= patience_s:
                    raise
            self.open_files.refuse()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _BACKOFF_S[-1])

    async def _once(
        self,
        pool: Pool,
        what: str,
        deadline: float,
        function: Callable[..., Value],
        args: tuple[Any, ...],
        directory: bytes,
    ) -> Value:
        if self._stuck >= _MAX_ABANDONED:
            self._failed(f"no answer, and {self._stuck} threads wait for one")
            raise SourceTimeout(f"{what}: {self._stuck} threads are stuck in the source, not adding another")
        call = _Call(self, function, args, trio.lowlevel.current_trio_token())
        places = self._places[pool]
        with trio.move_on_at(deadline):
            place = await places.enter(directory)
            try:
                value: Value = await self._run_in_thread(call.run, abandon_on_cancel=True, limiter=self._unlimited)
            except trio.Cancelled:
                if self._abandon(call, lambda: places.leave(place)):
                    places.hangs(place)
                else:
                    places.leave(place)
                raise
            except BaseException:
                places.leave(place)
                raise
            places.leave(place)
            self._failure = None
            return value
        self._failed("no answer within the time limit")
        raise SourceTimeout(f"{what}: no answer within the time limit")

    def _abandon(self, call: _Call, leave: Callable[[], None]) -> bool:
        """True if its thread is stuck: `leave` is called when it has come back after all."""
        with call.lock:
            call.abandoned = True
            if not call.running:
                return False  # it is over, or will not begin
            call.leave = leave
        self._stuck += 1
        self._metrics.add("source_abandoned")
        return True

    def returned(self, call: _Call) -> None:
        """An abandoned thread has come back after all."""
        if call.leave is not None:
            self._stuck -= 1
            call.leave()


class _Call:
    """One try: remembers whether its thread runs, so that giving it up can be told from never having started."""

    __slots__ = ("_args", "_function", "_owner", "_token", "abandoned", "leave", "lock", "running")

    def __init__(
        self,
        owner: SourceThreads,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self._owner = owner
        self._function = function
        self._args = args
        self._token = token
        self.lock = threading.Lock()
        """A thread that ends just when it is given up is stuck for both sides, or for neither."""
        self.running = False
        self.abandoned = False
        self.leave: Callable[[], None] | None = None

    def run(self) -> Any:  # noqa: ANN401 - whatever the function gives
        with self.lock:
            if self.abandoned:
                return None  # given up before it began: nobody waits for the result
            self.running = True
        try:
            return self._function(*self._args)
        finally:
            if self._end():
                try:
                    self._token.run_sync_soon(call_guarded, "return of a stuck thread", self._owner.returned, self)
                except trio.RunFinishedError:
                    pass  # the daemon has stopped meanwhile

    def _end(self) -> bool:
        """The function is over. True if the call was given up meanwhile."""
        with self.lock:
            self.running = False
            return self.abandoned
