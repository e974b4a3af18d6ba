"""The cache: may it be made, may it be written to, on what kind of file system does it lie, is there room, and are the
indexes of the caches there whole?

What can never be is told alone: how full a directory is in which nothing can be written says nothing more. Leaves
nothing behind. A directory that does not answer is asked by a process that is left behind. No index is opened as a
database and nothing locked: a daemon that starts meanwhile must find its cache free. So only what the file's own
beginning says is compared with its length; `hfs cache check --cache DIR` reads everything.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from hfs.doctor.surroundings import CheckResult, Level, Surroundings, fault, good, limit
from hfs.mountd.core.cache_directory import open_cache_directory, real_path
from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.mountd.ledger import CacheRoot, caches_below, has_ledger
from hfs.mounting import mountinfo, probe

_NAME = "cache"
_SHARED = {
    *("nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "beegfs", "ceph", "glusterfs", "pvfs2", "orangefs", "9p", "afs"),
    *("panfs", "wekafs", "ocfs2", "gfs2", "virtiofs", "daos"),
}
_LAYERS = {"overlay", "aufs", "fuse.fuse-overlayfs"}
_LEAST_FREE_BYTES = 1 << 30
_LEAST_FREE_SHARE, _MOST_FREE_BYTES = 0.1, 10 * 10**9
"""What a mount without --cache-size leaves free: 10 % of the disk, at least 10 GB (mountd/cache/objects)."""
_LEAST_INODES = 100_000
_CODE = """
import os, sys, tempfile
try:
    with tempfile.TemporaryFile(dir=sys.argv[1], prefix=".hfs-doctor-") as file:
        file.write(bytes(1 << 16))
        file.flush()
        os.fsync(file.fileno())
    print(0)
except OSError as error:
    print(error.errno)
"""
_OTHER = "give --cache a directory on a disk of this machine"
_INDEX_NAME = "cache-index"
_INDEX, _MARK = "index.sqlite", "index.damaged"
_MAGIC = b"SQLite format 3\0"
_APPLICATION = b"hfs1"
_HEADER = struct.Struct(">16sH10xI36x4s")
"""Magic, bytes of a page (1: 65 536), pages, application id; see the file format of SQLite."""


class CacheLocation(NamedTuple):
    """Where the cache is, or would be made."""

    path: str
    """Without symbolic links."""
    standing: str
    """The directory itself, or the nearest one above that is there."""

    @property
    def is_there(self) -> bool:
        """It need not be made."""
        return self.path == self.standing


def check(around: Surroundings) -> Iterator[CheckResult]:
    """What the cache would be refused for, or its kind and room. Nothing where no cache is known."""
    if around.cache is None:
        return
    place = place_of(around)
    if isinstance(place, CheckResult):
        yield place
        return
    refusal = _kind_refused(around, place) or _refused(around, place)
    if refusal is not None:
        yield refusal
        return
    yield from _kind(around, place)
    yield from _room(around, place)


def place_of(around: Surroundings) -> CacheLocation | CheckResult:
    """Where the cache is; a finding if that cannot be seen."""
    path = standing = around.cache or "/"
    while True:
        try:
            probe.look(standing, limit_s=around.answer_s)
            break
        except TimeoutError:
            return fault(_NAME, f"cache {path}: {standing} does not answer within {around.answer_s:g} s", _OTHER)
        except FileNotFoundError:
            standing = os.path.dirname(standing)
        except NotADirectoryError:
            return fault(_NAME, f"cache {path}: {standing} is not a directory", _OTHER)
        except OSError as error:
            if error.errno != errno.EACCES:  # whoever may not list a directory may pass it all the same
                return fault(_NAME, f"cache {path}: {standing} cannot be used ({error.strerror})", _OTHER)
            break
    try:
        real = real_path(path)
        return CacheLocation(real, real if standing == path else real_path(standing))
    except (HfsError, OSError) as error:
        return fault(_NAME, str(error), _OTHER)


def _kind_of(around: Surroundings, place: CacheLocation) -> mountinfo.Mount | None:
    return mountinfo.enclosing(place.standing, around.table)


def _kind_refused(around: Surroundings, place: CacheLocation) -> CheckResult | None:
    if around.source is not None and (place.path + "/").startswith(around.source.rstrip("/") + "/"):
        return fault(_NAME, f"cache {place.path}: inside SOURCE {around.source}", _OTHER)
    mount = _kind_of(around, place)
    if mount is None or mount.fstype in _LAYERS:
        return None
    if mount.fstype in _SHARED or mount.fstype.startswith("fuse"):
        text = (
            f"cache {place.path}: on {mount.fstype}, a shared file system: no faster than SOURCE, and not made for it"
        )
        return fault(_NAME, text, _OTHER)
    if mount.fstype in mountinfo.IN_MEMORY and around.cache_size_bytes is None:
        return fault(
            _NAME, f"cache {place.path}: on {mount.fstype}, in memory", "say how much it may take: --cache-size"
        )
    return None


def _refused(around: Surroundings, place: CacheLocation) -> CheckResult | None:
    """Permission bits tell root nothing, and a read-only or full disk tells nobody: so something is written."""
    where = place.standing
    try:
        if place.is_there:
            open_cache_directory(place.path, make=False, shared_ok=True).close()
        _try_to_write(where, around.answer_s)
    except ConfigError as error:
        return CheckResult(_NAME, Level.FAULT, str(error))
    except TimeoutError:
        return fault(_NAME, f"cache {place.path}: nothing can be written within {around.answer_s:g} s", _OTHER)
    except OSError as error:
        what = f"cache {place.path}: {'' if place.is_there else f'{where} '}cannot be written to by user {around.uid}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            full = "the disk is full" if error.errno == errno.ENOSPC else "the quota is used up"
            return fault(_NAME, f"cache {place.path}: {full}", "make room, or give --cache a directory elsewhere")
        return fault(_NAME, f"{what} ({error.strerror})", "give --cache a directory that you can write to")
    return None


def _try_to_write(folder: str, limit_s: float) -> None:
    """By another process: a disk that fails may never answer. Raises OSError, TimeoutError."""
    output, code = probe.answer(_CODE, [folder], limit_s)
    if code is None:
        raise TimeoutError
    number = int(output) if output.strip().isdigit() else errno.EIO
    if number:
        raise OSError(number, os.strerror(number))


def _kind(around: Surroundings, place: CacheLocation) -> Iterator[CheckResult]:
    mount = _kind_of(around, place)
    kind = "unknown" if mount is None else mount.fstype
    if kind in mountinfo.IN_MEMORY:
        text = f"cache {place.path}: on {kind}: what is staged takes memory from the job, and goes with a reboot"
        yield limit(_NAME, text, _OTHER)
    elif kind in _LAYERS:
        text = f"cache {place.path}: on {kind}, the container's own layer: slower, and gone with the container"
        yield limit(_NAME, text, "give --cache a directory of the host's disk that is mounted into the container")
    else:
        yield good(_NAME, f"cache {place.path}: on {kind}, can be {'written to' if place.is_there else 'made'}")


def _room(around: Surroundings, place: CacheLocation) -> Iterator[CheckResult]:
    name = "cache-room"
    disk = os.statvfs(place.standing)
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    held = _held_bytes(place)
    wanted = around.cache_size_bytes
    shown = f"{free / 1e9:,.1f} GB free where the cache is"
    if held:
        shown += f", besides the {held / 1e9:,.1f} GB that it holds"
    left = free - min(max(size * _LEAST_FREE_SHARE, _MOST_FREE_BYTES), size) if wanted is None else free
    if wanted is not None and wanted > free + held:
        text = f"--cache-size is {wanted / 1e9:,.1f} GB, and there are {shown}"
        yield limit(name, text, "give a smaller --cache-size, make room, or give --cache another disk")
    elif left + held < _LEAST_FREE_BYTES:
        text = f"{shown}, of which a mount without --cache-size leaves a tenth of the disk, 10 GB at least"
        yield limit(name, text, "make room, or give --cache-size")
    elif disk.f_files > 0 and disk.f_favail < _LEAST_INODES:
        text = f"only {disk.f_favail:,} more files can be made where the cache is"
        yield limit(name, text, "make room there, or give --cache another file system")
    else:
        yield good(name, shown)


def _held_bytes(place: CacheLocation) -> int:
    """What caches of this root hold by the ledger. Makes nothing."""
    if not has_ledger(place.path):
        return 0
    try:
        root = CacheRoot(place.path)
    except (HfsError, OSError):
        return 0
    try:
        return sum(entry.grant.used_bytes for entry in root.ledger.listed())
    except OSError:
        return 0
    finally:
        root.close()


def check_indexes(around: Surroundings) -> Iterator[CheckResult]:
    """One finding for each damaged index; one of all if none is. Nothing where the cache cannot be used anyway."""
    place = None if around.cache is None else place_of(around)
    if place is None or isinstance(place, CheckResult) or not place.is_there:
        return
    try:
        used, caches = _used(place.path), caches_below(place.path)
    except (HfsError, OSError):
        return  # `check` says why
    damaged = 0
    for cache in caches:
        why = None if os.path.basename(cache) in used else damage(cache)
        if why is not None:
            damaged += 1
            text = f"{cache}: its index is damaged ({why}): the next mount sets it aside, and stages anew"
            yield limit(_INDEX_NAME, text, f"nothing need be done; to free the room now: rm -r {cache}")
    if caches and not damaged:
        many = "1 cache" if len(caches) == 1 else f"{len(caches)} caches"
        yield good(_INDEX_NAME, f"{many} below {place.path}, no damage to be seen from outside")


def _used(path: str) -> set[str]:
    if not has_ledger(path):
        return set()
    root = CacheRoot(path)
    try:
        return {entry.name for entry in root.ledger.listed() if entry.running}
    finally:
        root.close()


def damage(cache: str) -> str | None:
    """What is wrong with the index of a cache; None: nothing that is seen from outside, or it has none."""
    if os.path.lexists(f"{cache}/{_MARK}"):
        return "a damaged page was met"
    try:
        fd = os.open(f"{cache}/{_INDEX}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    try:
        head, size = os.pread(fd, _HEADER.size, 0), os.fstat(fd).st_size
    except OSError as error:
        return str(error.strerror)
    finally:
        os.close(fd)
    if not head:
        return None  # a new one, of which all is in the log
    if len(head) < _HEADER.size:
        return f"{size} bytes are left of it"
    magic, page, pages, application = _HEADER.unpack(head)
    if magic != _MAGIC or application not in {_APPLICATION, bytes(4)}:
        return "it does not begin as one"
    if os.path.exists(f"{cache}/{_INDEX}-wal"):
        return None  # what is missing at its end may stand in the log
    expected = (65536 if page == 1 else page) * pages
    return f"{size} bytes long instead of {expected}" if size < expected else None
