"""How fast the cache disk is, and whether SOURCE is faster: measured in two seconds at most, by a process for each.

One writes and syncs a file in pieces, makes small files, and reads the large one at random and in order, past the page
cache as far as the file system allows; the other reads, of the first files of SOURCE, the largest in order. They say
what they have after each piece, so a disk that hangs costs the two seconds and the figure, nothing else. A small part
of the room that is free is taken for it, in a directory that is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hfs.doctor import cache_place
from hfs.doctor.check_result import CheckResult, good, limit
from hfs.doctor.surroundings import Surroundings
from hfs.mounting import probe

_NAME = "cache-speed"
_DISK_S, _SOURCE_S = 1.5, 0.5
"""Together; an interpreter takes some hundredths of it."""
_WRITE_S, _FILES_S, _READ_S = 0.5, 0.3, 0.25
_MOST_BYTES, _MOST_SHARE, _LEAST_BYTES = 1 << 29, 20, 8 << 20
"""What is written: at most so much, and this part of what is free; with less than that nothing is measured."""
_SLOW_BYTES_S = 200 * 10**6
"""One stream of a parallel file system, as they are usually set up."""
_SLOW_FILES_S = 500.0
"""What one reader opens and reads of small files on such a one, with 2 ms a file."""
_FASTER = 1.25
"""Two runs of one disk differ by less."""
_ENOUGH_BYTES = 4 << 20
"""Less says nothing about bandwidth."""

# What each child begins with: how it says what it has, and how it reads.
_MODULES = ("json", "mmap", "random", "time")
_COMMON = """
said = {}
def say(what, count, started):
    said[what] = [count, time.monotonic() - started]
    print(json.dumps(said), flush=True)
    return said[what][1]
def past_the_cache(path, seconds, size, what):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        os.preadv(fd, [mmap.mmap(-1, 4096)], 0)
    except OSError:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    total, place = os.fstat(fd).st_size, 0
    buffer, started, done = mmap.mmap(-1, size), time.monotonic(), 0
    while True:
        if what == "read":
            place = random.randrange(max(1, total // size)) * size
        got = os.preadv(fd, [buffer], place)
        done, place = done + got, place + got
        if say(what, done, started) >= seconds or (what != "read" and place >= total) or not total:
            break
    os.close(fd)
"""
_DISK = """
folder, most = sys.argv[1], int(sys.argv[2])
write_s, files_s, read_s = map(float, sys.argv[3:])
piece = os.urandom(1 << 20)
fd = os.open(folder + "/large", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
started, done, size = time.monotonic(), 0, 1
while True:
    for _ in range(size):
        view = memoryview(piece)
        while view:
            view = view[os.write(fd, view):]
    os.fdatasync(fd)
    done, size = done + size * len(piece), min(16, size * 2)
    if say("write", done, started) >= write_s or done + size * len(piece) > most:
        break
os.close(fd)
started, count = time.monotonic(), 0
while True:
    fd = os.open(f"{folder}/{count}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, piece[:16384])
    os.close(fd)
    count += 1
    if say("files", count, started) >= files_s or count >= 4000:
        break
past_the_cache(folder + "/large", read_s, 1 << 17, "read")
past_the_cache(folder + "/large", read_s, 1 << 20, "sequence")
"""
_SOURCE = """
source, source_s = sys.argv[1], float(sys.argv[2])
best, seen, until = (0, ""), 0, time.monotonic() + source_s / 2
folders = [source]
while folders and seen < 500 and time.monotonic() < until:
    try:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen >= 500 or time.monotonic() > until:
                    break
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    best = max(best, (entry.stat(follow_symlinks=False).st_size, entry.path))
    except OSError:
        pass
if best[1]:
    past_the_cache(best[1], source_s / 2, 1 << 20, "source")
"""


class Speed(NamedTuple):
    """What was measured; None: nothing came of it."""

    write_bytes_s: float | None = None
    """Sequentially, synced."""
    files_s: float | None = None
    """Of 16 KiB, made and closed."""
    read_bytes_s: float | None = None
    """128 KiB at random."""
    sequence_bytes_s: float | None = None
    """In order, as SOURCE."""
    source_bytes_s: float | None = None
    """One file in order."""


def measure(folder: str, source: str | None, as_user: str | None = None) -> Speed | None:
    """Of the disk of `folder`, in which one is made and removed, and of SOURCE; None: there is no room for it. Raises
    OSError."""
    disk = os.statvfs(folder)
    most_bytes = min(_MOST_BYTES, disk.f_bavail * disk.f_frsize // _MOST_SHARE)
    if most_bytes < _LEAST_BYTES:
        return None
    made = tempfile.mkdtemp(dir=folder, prefix=".hfs-doctor-")
    try:
        numbers = [str(each) for each in (most_bytes, _WRITE_S, _FILES_S, _READ_S)]
        output, _ = probe.answer(_COMMON + _DISK, [made, *numbers], _DISK_S, None, _MODULES)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    found = _rates(output)
    if source is not None:
        output, _ = probe.answer(_COMMON + _SOURCE, [source, str(_SOURCE_S - 0.1)], _SOURCE_S, as_user, _MODULES)
        found |= _rates(output)
    return Speed(*(found.get(what) for what in ("write", "files", "read", "sequence", "source")))


def _rates(output: bytes) -> dict[str, float]:
    """Of what a child has said until it ended, or was ended."""
    said: dict[str, list[float]] = {}
    for line in output.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            break  # the last one, cut short
    if said.get("source", [0])[0] < _ENOUGH_BYTES:
        said.pop("source", None)
    return {what: count / seconds for what, (count, seconds) in said.items() if seconds > 0}


def check(around: Surroundings, measured: Callable[..., Speed | None] = measure) -> Iterator[CheckResult]:
    """Nothing where the cache cannot be used anyway, or where nothing is to be measured."""
    if around.cache is None or not around.measured:
        return
    place = cache_place.place_of(around)
    if isinstance(place, CheckResult):
        return
    try:
        speed = measured(place.standing, around.source, around.as_user)
    except OSError:
        return  # `cache_place` says why
    if speed is not None:
        yield judged(speed)


def judged(speed: Speed) -> CheckResult:
    """The figures, and whether they are too small."""
    if speed.write_bytes_s is None:
        return limit(_NAME, "the cache disk wrote nothing within two seconds", "give --cache another disk")
    parts = [f"writes {_mb(speed.write_bytes_s)} MB/s (synced)"]
    if speed.files_s is not None:
        parts.append(f"makes {speed.files_s:,.0f} files/s")
    if speed.read_bytes_s is not None:
        parts.append(f"reads {_mb(speed.read_bytes_s)} MB/s at random")
    told = f"the cache disk {', '.join(parts)}"
    source, sequence, read = speed.source_bytes_s, speed.sequence_bytes_s, speed.read_bytes_s
    if sequence is not None:
        told += f" and {_mb(sequence)} MB/s in order"
    if source is not None:
        told += f"; SOURCE reads {_mb(source)} MB/s"
    if source is not None and sequence is not None and source > sequence * _FASTER:
        return limit(
            _NAME, f"{told}: SOURCE is faster than the cache", "give --cache a faster disk, or read SOURCE itself"
        )
    slow = speed.write_bytes_s < _SLOW_BYTES_S or (speed.files_s or _SLOW_FILES_S) < _SLOW_FILES_S
    if slow or (read or _SLOW_BYTES_S) < _SLOW_BYTES_S:
        text = f"{told}: slower than a stream of a usual shared file system (200 MB/s, 500 files/s)"
        return limit(_NAME, text, "give --cache a faster disk (NVMe), or look what else uses this one")
    return good(_NAME, told)


def _mb(bytes_s: float) -> str:
    return f"{bytes_s / 1e6:,.0f}"
