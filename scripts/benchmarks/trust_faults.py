"""Rows of a daemon whose Nth I/O call on the source or on the cache fails, once or from then on, for N = 1, 2, ...

`serving`: a mounted daemon is armed while files that it does not know yet are read and warmed. `life`: all of a mount's
life, from `hfs mount` to the unmount. Each goes on until a run had no fault left. After each: everything is read right,
`hfs cache check` is clean, no daemon has died, and what was staged and synced before is still there.
"""

import contextlib
import ctypes
import itertools
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hfs.client.client import Client, Refused, find_socket
from hfs.mountd.core.errors import HfsError
from scripts.benchmarks.common import HFS, ROOT, BenchError, Reader, SlowFs, Work, mounts_below, reader, run, slowfs
from scripts.benchmarks.common import unmount as take_away
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block
from scripts.benchmarks.table import Row, at_most, median_row

SOURCE, CACHE = 1, 2
WHERE = {"source": SOURCE, "cache": CACHE}
SMALL_FILES, SMALL_BYTES = 4, 30_000
LARGE_BYTES = 700_000
CHUNK = "256K"
KEPT = "kept"
LIMIT_S = 40.0
"""Of a reader: sources and caches here fail at once, so nothing takes a tenth of it."""
REST_LIMIT_S = 150.0
"""A cache disk that fails is left alone for up to a minute."""
STRIDE, STRIDE_QUICK = 1, 9
MOST = 3000
MAX_SAID = 50


class Control(ctypes.Structure):
    """As in faults/inject.c."""

    _fields_ = (
        ("at", ctypes.c_int64),
        ("for_ever", ctypes.c_int64),
        ("where", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("failed", ctypes.c_int64),
        ("first", ctypes.c_char * 64),
    )


@dataclass
class Injector:
    """The library that makes calls fail, and the memory by which it is told when."""

    work: Path
    source: Path
    cache: Path

    def __post_init__(self) -> None:
        self.library = self.work / "inject.so"
        code = ROOT / "scripts" / "benchmarks" / "faults" / "inject.c"
        run("gcc", "-O1", "-shared", "-fPIC", "-o", self.library, code, "-ldl")
        path = self.work / "control"
        path.write_bytes(bytes(ctypes.sizeof(Control)))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(Control))
        self.control = Control.from_buffer(self._memory)
        self.environment = {
            "LD_PRELOAD": str(self.library),
            "FAULTS_CONTROL": str(path),
            "FAULTS_SOURCE": str(self.source),
            "FAULTS_CACHE": str(self.cache),
        }

    def arm(self, at: int, where: int, *, for_ever: bool) -> None:
        self.control.for_ever, self.control.where = int(for_ever), where
        self.control.count = self.control.failed = 0
        self.control.at = at

    def disarm(self) -> int:
        """How many calls have failed."""
        self.control.at = 0
        return int(self.control.failed)


@dataclass
class Found:
    """What went wrong in all rounds of one kind."""

    rounds: int = 0
    wrong: int = 0
    hung: int = 0
    died: int = 0
    unclean: int = 0
    failed_meanwhile: int = 0
    failed_after: int = 0
    lost_bytes: int = 0
    said: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        if len(self.said) < MAX_SAID:
            self.said.append(what)

    def figures(self) -> dict[str, int]:
        """What must be 0."""
        return {
            "wrong bytes": self.wrong,
            "readers past their limit": self.hung,
            "bytes that had been synced and were read from the source again": self.lost_bytes,
            "reads that fail afterwards": self.failed_after,
            "daemons that died, mounts left": self.died,
            "cache checks that find damage": self.unclean,
        }


def faults(work: Work, options: Options, command: str) -> list[Row]:
    rows: list[Row] = []
    for name, rounds in (("serving", serving), ("life", life)):
        found = Found()
        for where, for_ever in itertools.product(WHERE, (False, True)):
            said = len(found.said)
            rounds(work, options, where, for_ever, found)
            for text in found.said[said:]:
                print(f"faults: {name}, {where}{', for ever' * for_ever}: {text}", file=sys.stderr)
        scale = f" [quick: each {STRIDE_QUICK}th]" if options.quick else ""
        what = f"the Nth I/O of source or cache fails, once or for ever: {name}, {found.rounds} rounds{scale}"
        rows += [
            median_row(f"{what}: {text}" if not number else f"  {text}", [float(figure)], "", command, at_most(0))
            for number, (text, figure) in enumerate(found.figures().items())
        ]
        rows.append(median_row("  errors that readers met meanwhile", [float(found.failed_meanwhile)], "", command))
    return rows


def _make(folder: Path, number: int) -> None:
    """Files whose names are the numbers of their contents."""
    folder.mkdir(parents=True)
    first = number * (SMALL_FILES + 1)
    (folder / str(first)).write_bytes(block(first, 0, LARGE_BYTES))
    for small in range(first + 1, first + 1 + SMALL_FILES):
        (folder / str(small)).write_bytes(block(small, 0, SMALL_BYTES))


@dataclass
class Place:
    """A source with what is kept staged, a cache, a mountpoint, and a reader."""

    injector: Injector
    backing: Path
    source: SlowFs
    mountpoint: Path
    program: Reader

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, **self.injector.environment}

    def mount(self, *, may_fail: bool = False) -> bool:
        """False: it could not be mounted, and says so."""
        cache = self.injector.cache
        done = subprocess.run(
            [HFS, "mount", self.source.path, self.mountpoint, "--cache", cache, "--chunk", CHUNK, "--ttl", "3600"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S * 2,
            check=False,
        )
        if done.returncode and not may_fail:
            raise BenchError(f"hfs mount: {done.stderr}")
        return done.returncode == 0

    def unmount(self) -> None:
        run(HFS, "umount", self.mountpoint)

    def pass_doubts(self, number: int) -> None:
        """Show the daemon a stamp a few ticks behind what was made last, so that nothing of it is in doubt.

        A source that fails for ever is asked for a second look for 20 s, each round; one that fails once, at once.
        """
        time.sleep(0.06)
        (self.backing / f"stamp-{number}").touch()
        (self.mountpoint / f"stamp-{number}").stat()

    def client(self) -> Client:
        return Client(find_socket(str(self.mountpoint)))

    def look(self, name: str, found: Found, *, after: bool) -> bool:
        """Read a folder. False: the reader hangs."""
        self.program.send({"folder": str(self.mountpoint / name), "mapped": after})
        try:
            answer = self.program.answer(LIMIT_S)
        except BenchError as error:
            found.hung += 1
            found.note(f"{name}: {error}")
            return False
        found.wrong += answer["wrong"]
        if answer["wrong"]:
            found.note(f"{name}: {answer['wrong']} wrong bytes")
        found.failed_meanwhile += 0 if after else answer["failed"]
        if after:
            found.failed_after += answer["failed"]
            if answer["names"] != SMALL_FILES + 1:
                found.failed_after += 1
                found.note(f"{name}: {answer['names']} names")
            for text in answer["said"]:
                found.note(f"afterwards: {text}")
        return True


@contextlib.contextmanager
def _place(work: Work) -> Iterator[Place]:
    backing, folder = work.new("backing"), work.new("faults")
    _make(backing / KEPT, MOST)
    cache, mountpoint = folder / "cache", folder / "mount"
    mountpoint.mkdir()
    with slowfs(work, backing, "none") as source, reader("faulted.py") as program:
        place = Place(Injector(folder, source.path, cache), backing, source, mountpoint, program)
        place.mount()
        place.client().warm([KEPT.encode()])
        try:
            yield place
        finally:
            place.injector.disarm()
            if mountpoint in mounts_below(mountpoint):
                with contextlib.suppress(BenchError):
                    place.unmount()
                take_away(mountpoint)


def _kept(place: Place, found: Found) -> None:
    """What was synced must come from the cache: read it in a new mount and count what the source gives."""
    before = place.source.counters()["read_bytes"]
    place.look(KEPT, found, after=True)
    lost = place.source.counters()["read_bytes"] - before
    if lost:
        found.note(f"{lost} bytes that had been synced were read from the source again")
    found.lost_bytes += lost


def _settled(client: Client) -> dict[str, Any]:
    """Wait until the cache disk is tried again."""
    limit = time.monotonic() + REST_LIMIT_S
    while (status := client.status())["staged"].get("state") == "resting":
        if time.monotonic() > limit:
            raise BenchError("the cache disk is not tried again")
        time.sleep(0.05)
    return status


def serving(work: Work, options: Options, where: str, for_ever: bool, found: Found) -> None:
    """One daemon, armed again and again."""
    with _place(work) as place:
        client = place.client()
        pid = client.status()["pid"]
        at, step = 1, options.size(STRIDE, STRIDE_QUICK)
        while at < MOST:
            name = f"round-{at}"
            _make(place.backing / name, at)
            if where == "source" and for_ever:
                place.pass_doubts(at)
            place.injector.arm(at, WHERE[where], for_ever=for_ever)
            if not place.look(name, found, after=False):
                break
            with contextlib.suppress(Refused):
                client.warm([name.encode()])
            failed = place.injector.disarm()
            found.rounds += 1
            after = f"after call {at} ({place.injector.control.first.decode()})"
            try:
                status = _settled(client)
                if status["staged"]["state"] == "off":  # an index that could not be read: used again by the next mount
                    place.unmount()
                    place.mount()
                    client = place.client()
                    pid = (status := client.status())["pid"]
                if not place.look(name, found, after=True):
                    break
                checked = client.check([])
            except HfsError as error:
                found.died += 1
                found.note(f"{after}: {error}")
                break
            if checked.failed:
                found.unclean += 1
                found.note(f"{after}: cache check: {checked.faults}")
            if status["pid"] != pid:
                found.died += 1
                found.note(f"{after}: another daemon")
                pid = status["pid"]
            if not failed:
                break  # no fault was left
            at += step
        place.unmount()
        place.mount()
        _kept(place, found)


def life(work: Work, options: Options, where: str, for_ever: bool, found: Found) -> None:
    """A mount's whole life, again and again on one cache."""
    with _place(work) as place:
        place.unmount()
        at, step = 1, options.size(STRIDE, STRIDE_QUICK) * 3  # two seconds each: every third call
        while at < MOST:
            name = f"round-{at}"
            _make(place.backing / name, at)
            place.injector.arm(at, WHERE[where], for_ever=for_ever)
            try:
                mounted = place.mount(may_fail=True)
                if mounted:
                    if not place.look(name, found, after=False):
                        break
                    place.unmount()
            except (BenchError, subprocess.TimeoutExpired) as error:
                found.hung += 1
                found.note(f"after call {at}: {error}")
                break
            failed = place.injector.disarm()
            found.rounds += 1
            after = f"after call {at} ({place.injector.control.first.decode()})"
            if mounts_below(place.mountpoint):
                found.note(f"{after}: something is left mounted")
                found.died += 1
                take_away(place.mountpoint)
            check = subprocess.run(
                [HFS, "cache", "check", "--cache", place.injector.cache], capture_output=True, text=True, check=False
            )
            if check.returncode:
                found.unclean += 1
                found.note(f"{after}: cache check: {check.stdout}{check.stderr}")
            place.mount()
            place.look(name, found, after=True)
            _kept(place, found)
            place.unmount()
            if not failed:
                break
            at += step
