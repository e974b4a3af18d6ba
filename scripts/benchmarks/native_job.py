"""Jobs that see their data in place: `hfs run` with readers within, as root or as a plain user, on a cache of its own.

A plain user is nobody, started by root. The native place is the staged files themselves, read by the same processes:
both sides are the same pages and the same blocks of the disk.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks import data
from scripts.benchmarks.common import HFS, BenchError, Reader, Work, forget, preload
from scripts.benchmarks.fastpath_access import Access, Duel, Place, least_s
from scripts.benchmarks.fastpath_staged import places_of
from scripts.benchmarks.options import Options
from scripts.benchmarks.plain_user import UID, as_plain_user

PLAIN, ROOT = "plain user", "root"
USERS = (PLAIN, ROOT)

OVERLAY = ("--immutable", "--io-mode", "overlay")
WITHOUT = {
    PLAIN: ("--immutable", "--io-mode", "daemon"),
    ROOT: ("--immutable", "--io-mode", "passthrough"),
}
"""What the same job has where there is no overlay."""

_END_S = 60.0
_RENEWAL_S = 20.0


class Home:
    """Where a user has its caches, and how its commands are started."""

    def __init__(self, work: Work, user: str) -> None:
        if os.geteuid() != 0:
            raise BenchError("only root may act as another user")
        self._work, self._user = work, user
        self.own = work.new("own")
        if user == PLAIN:
            shutil.chown(self.own, UID, UID)

    def words(self) -> list[str]:
        """What stands before a command."""
        words = ["env", "-u", "XDG_RUNTIME_DIR", f"HOME={self.own}", f"HFS_LOG_FILE={self.own}/log"]
        return [*as_plain_user(self._work.new("plain")), *words] if self._user == PLAIN else words


class Job:
    """One `hfs run` in place, and its readers. Made by `job`."""

    def __init__(self, home: Home, source: Path, cache: Path, how: Sequence[str], readers: Sequence[object]) -> None:
        self.source = source
        run = [str(HFS), "run", "--source", str(source), "--cache", str(cache), *how, "--quiet", "--"]
        self._all = Reader("several.py", *readers, within=[*home.words(), *run])

    def ask(self, request: dict[str, Any], readers: int = 1) -> list[dict[str, Any]]:
        """What so many readers answer, all at once."""
        return self.each([request] * readers)

    def each(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same, each with a request of its own."""
        answers: list[dict[str, Any]] = self._all.do(each=list(requests))["answers"]
        return answers

    def tried(self, *command: str | Path) -> tuple[int, str, str]:
        """Exit code, output and errors of a command that the job runs."""
        done = self._all.do(command=[str(word) for word in command])
        return done["code"], done["out"], done["err"]

    def command(self, *command: str | Path) -> str:
        """The output. Raises BenchError."""
        code, out, err = self.tried(*command)
        if code:
            raise BenchError(f"{Path(command[0]).name} {command[1]} within a job: exit code {code}: {err.strip()}")
        return out

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.command(HFS, "status", self.source, "--json"))
        return status

    def overlays(self) -> list[int]:
        """The numbers of those that it sees: another one is a new one."""
        numbers: list[int] = self._all.do(overlays=str(self.source))["overlays"]
        return numbers

    def renewed(self, before: list[int], limit_s: float = _RENEWAL_S) -> bool:
        """Wait until it sees another overlay than before. False: none has come."""
        until_s = time.monotonic() + limit_s
        while self.overlays() == before:
            if time.monotonic() > until_s:
                return False
            time.sleep(0.02)
        return True

    def resident_bytes(self, paths: Sequence[Path]) -> int:
        """Bytes of these files that lie in the page cache."""
        size: int = self._all.do(resident=[str(path) for path in paths])["bytes"]
        return size

    def end(self) -> None:
        """Raises BenchError."""
        self._all.end(_END_S)

    def close(self) -> None:
        """Whatever has become of it."""
        self._all.close()


@contextlib.contextmanager
def job(home: Home, source: Path, cache: Path, *readers: object, how: Sequence[str] = OVERLAY) -> Iterator[Job]:
    """`readers`: the arguments of readers/several.py. Raises BenchError where an overlay is wanted and there is
    none."""
    started = Job(home, source, cache, how, readers)
    try:
        if how == OVERLAY and not started.overlays():
            raise BenchError("there is no overlay; why not is said above")
        yield started
    except BaseException:
        # Its mount goes once nobody uses it.
        with contextlib.suppress(BenchError, OSError):
            started.end()
        raise
    else:
        started.end()
    finally:
        started.close()


class StagedFor:
    """A data set of which every file is staged in a user's own cache. Made by `staged_for`."""

    def __init__(self, work: Work, source: Path, user: str) -> None:
        self.source, self.home = source, Home(work, user)
        self.cache = self.home.own / "cache"
        self.bytes = data.tree_bytes(source)[1]
        with self.job(0) as warming:
            warming.command(HFS, "cache", "warm", source)
        self.names, self.native = places_of(source, self.cache)
        self.place = Place(source, self.names)
        # Written back now, so that the disk is quiet while something is measured, and then warm.
        self.forget()
        preload(self.cache)

    def copies(self) -> list[Path]:
        return [self.native.root / name for name in self.native.names]

    def forget(self) -> None:
        """No page of what is staged is in memory any more."""
        forget(self.copies())

    def job(self, readers: int, how: Sequence[str] = OVERLAY) -> contextlib.AbstractContextManager[Job]:
        """A new one, on the warm cache."""
        return job(self.home, self.source, self.cache, readers, "staged.py", "{}", how=how)

    def duel(self, within: Job, access: Access, options: Options, seed: int) -> Duel:
        """The same reads of the staged files and of the files in place, by as many readers as the access has."""
        return Duel(lambda request: within.ask(request, access.processes), access, self.native, seed, least_s(options))


@contextlib.contextmanager
def staged_for(work: Work, source: Path, user: str) -> Iterator[StagedFor]:
    """`source`, staged in a new cache of this user that is gone at the end, with what it holds of the page cache."""
    one = StagedFor(work, source, user)
    try:
        yield one
    finally:
        one.forget()
        shutil.rmtree(one.home.own, ignore_errors=True)
