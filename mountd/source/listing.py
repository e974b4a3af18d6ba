"""One directory's names, compactly: a snapshot that is read from start to end while the directory changes.

Kept as the kernel gives them, in records of getdents64(2) with the inode number and the type: a Python list of 200 000
names would cost 25 MB a reader, the records cost 30 bytes and the names, and nothing is made of a name before it is
asked for. Positions are indexes, so any readdir offset can be resumed, and no entry is shown twice or skipped within
one open directory.

A listing grows while the source is read, and readers follow it: the first names of a directory of 100 000 are shown
long before the last are known. Records are taken apart when their names are wanted, so that the source is asked for the
next ones meanwhile; many in slices of the event loop, whoever has them listed, since a million take half a second.

The source is read by getdents64(2) itself: os.scandir makes an object of every name and keeps the interpreter meanwhile
(1 us a name), reads 32 KiB a call, and stats what has no type.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

import trio
import xxhash

from hfs.mountd.core.background import Slices
from hfs.mountd.core.errors import VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.native.statx import checked, libc
from hfs.mountd.source.descriptors import Directories, show
from hfs.mountd.source.threads import SourceThreads

_OFFSET_AT, _LENGTH_AT, _TYPE_AT, _NAME_AT = 8, 16, 18, 19
"""In a struct linux_dirent64: u64 inode, s64 offset, u16 bytes of the record, u8 type, and the name, ended by a NUL."""
_MAY_BE_FILES = (0, stat.S_IFMT(stat.S_IFREG) >> 12)
"""DT_UNKNOWN and DT_REG."""
_DOTS = (b".", b"..")
_DOT = ord(".")

_BLOCK_BYTES = 256 << 10
"""Eight thousand names a call: a larger one saves little (17 calls instead of 5 for 100 000) and shows the first names
later."""

_PART_BYTES = 64 << 10
"""Taken apart, or hashed, in one step: two thousand names, half a millisecond."""

_NAMES = 2048
"""As many, where they are counted."""

_AT_ONCE_BYTES = 16 << 10
"""What is no more than that waits for no slice."""

_SEARCHED_BYTES = 8 << 20
_LIKE_IT = 16
"""Ends of longer names that one block is searched past for a name: there may be as many as names."""

_getdents64 = getattr(libc, "getdents64", None) or libc.getdents  # musl calls it so


class Block:
    """What one getdents64(2) gave, and where in it each name's record begins; `.` and `..` are left out: `dots`, with
    their inode numbers.

    The type is that of readdir(3), 0 where the source does not tell: whoever reads the directory then asks for the
    attributes, which the kernel hands on to us, so nothing is asked of the source here.
    """

    __slots__ = ("dots", "end", "records", "starts")

    def __init__(self, records: bytes, begin: int) -> None:
        """Of `records` the part from `begin` on that can be taken apart in one step."""
        starts = array("I")
        dots: tuple[tuple[bytes, int], ...] = ()
        at, end = begin, min(begin + _PART_BYTES, len(records))
        while at < end:
            if records[at + _NAME_AT] != _DOT or (name := _name(records, at)) not in _DOTS:
                starts.append(at - begin)
            else:
                dots += ((name, int.from_bytes(records[at : at + _OFFSET_AT], sys.byteorder)),)
            at += records[at + _LENGTH_AT] | records[at + _LENGTH_AT + 1] << 8
        self.dots = dots
        self.end = at
        """Where in `records` the rest begins."""
        self.records = records[begin:at]
        self.starts = starts

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        return (_name(self.records, at) for at in self.starts)

    def name(self, index: int) -> bytes:
        """The name of entry `index` of this block."""
        return _name(self.records, self.starts[index])

    def names(self, begin: int, end: int) -> list[bytes]:
        """Those of the entries [begin, end), as far as there are some."""
        records = self.records
        return [records[at + _NAME_AT : records.index(0, at + _NAME_AT)] for at in self.starts[begin:end]]

    def files(self) -> list[bytes]:
        """The names of what is a regular file, or may be one."""
        records = self.records
        return [_name(records, at) for at in self.starts if records[at + _TYPE_AT] in _MAY_BE_FILES]

    def find(self, name: bytes) -> int | None:
        """The index of `name`, searched for as bytes: 4 MB take a millisecond. None: not there, or too hard to find."""
        at, wanted = 0, name + b"\0"
        for _ in range(_LIKE_IT):
            found = self.records.find(wanted, at)
            if found < 0:
                break
            index = bisect_right(self.starts, found) - 1
            if index >= 0 and self.starts[index] + _NAME_AT == found:
                return index
            at = found + 1  # the end of a longer name, or what happens to lie between two
        return None


class Listing:
    """Event loop only. Names in the order of the source. `len(listing)` entries so far, numbered from 0."""

    def __init__(self, slices: Slices | None = None) -> None:
        self.slices = slices or Slices()
        """What takes long with all of its names takes turns there."""
        self._records: deque[bytes] = deque()
        """Not taken apart yet, the first of them from `_begin` on."""
        self._begin = 0
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self._count = 0
        self._hasher = xxhash.xxh3_64()
        self._digests: list[int] = []
        """Of the names up to the end of each block, as far as they were asked for."""
        self._grown = trio.Event()
        self._error: Exception | None = None
        self.dots: dict[bytes, int] = {}
        """The inode numbers of `.` and `..`, as far as the source has named these."""
        self.complete = False
        """Nothing will be added: the source has given all, or has failed."""
        self.memory_bytes = 0
        """Bytes this listing holds."""

    def append(self, records: bytes) -> None:
        """The source has named these too, in records of getdents64(2)."""
        self._records.append(records)
        if len(self._records) == 1 and len(records) <= _AT_ONCE_BYTES:
            self._take_one_apart()
        self._wake()

    async def take_apart(self) -> None:
        """Number what was appended, in slices."""
        if self._records:
            await self.slices.carry_out(self._taking_apart())

    def _taking_apart(self) -> Iterator[None]:
        while self._records:
            self._take_one_apart()
            yield

    def _take_one_apart(self) -> None:
        block = Block(self._records[0], self._begin)
        self._begin = block.end
        if block.end >= len(self._records[0]):
            self._records.popleft()
            self._begin = 0
        self.dots.update(block.dots)
        if len(block):
            self._blocks.append(block)
            self._firsts.append(self._count)
            self._count += len(block)
            self.memory_bytes += len(block.records) + len(block) * block.starts.itemsize

    def finish(self, error: Exception | None = None) -> None:
        """There are no more, or the source does not say: then `error` is raised behind the last name. Whoever brings
        many names has had all but the last taken apart."""
        for _ in self._taking_apart():
            pass
        self._error = error
        self.complete = True
        self._wake()

    def _wake(self) -> None:
        grown, self._grown = self._grown, trio.Event()
        grown.set()

    async def reaches(self, position: int) -> bool:
        """Whether there is an entry `position`; waits until that is known. Raises what the source has."""
        while position >= len(self):
            if self._records:
                await self.take_apart()
                continue
            if self._error is not None:
                raise self._error.with_traceback(None)  # one object, many readers: each starts with a clean traceback
            if self.complete:
                return False
            await self._grown.wait()
        return True

    async def whole(self) -> None:
        """Wait until everything is here. Raises what the source has."""
        await self.reaches(1 << 63)

    def __len__(self) -> int:
        return self._count

    def block(self, position: int) -> tuple[Block, int]:
        """The block that holds entry `position`, and its index there."""
        number = bisect_right(self._firsts, position) - 1
        return self._blocks[number], position - self._firsts[number]

    async def hash_before(self, position: int) -> None:
        """So that `marked` takes no longer for who goes on from far behind the last one that it was asked of."""
        number = bisect_right(self._firsts, position) - 1
        if len(self._digests) < number:
            await self.slices.carry_out(self._hashing(number))

    def _hashing(self, count: int) -> Iterator[None]:
        while len(self._digests) < count:
            _update(self._hasher, list(self._blocks[len(self._digests)]))
            self._digests.append(self._hasher.intdigest())
            yield

    def marked(self, position: int) -> tuple[int, int]:
        """(end, digest) of the names in their order up to some end at or behind `position`, which is at least 1.

        The end is that of a block: a reader that goes on from it costs half a millisecond for each 2 000 names, whoever
        reads.
        """
        number = bisect_right(self._firsts, position - 1) - 1
        for _ in self._hashing(number + 1):
            pass
        return self._firsts[number] + len(self._blocks[number]), self._digests[number]

    async def digest(self, end: int) -> int:
        """The digest of the names before `end`, all of which are known. In slices."""
        hasher = xxhash.xxh3_64()

        def hashing() -> Iterator[None]:
            for begin in range(0, end, _NAMES):
                _update(hasher, self.names(begin, min(begin + _NAMES, end)))
                yield

        await self.slices.carry_out(hashing())
        return hasher.intdigest()

    def __getitem__(self, position: int) -> bytes:
        block, index = self.block(position)
        return block.name(index)

    def names(self, start: int, end: int) -> list[bytes]:
        """The names from `start` to before `end`, as far as there are some."""
        found: list[bytes] = []
        end = min(end, len(self))
        while start < end:
            block, index = self.block(start)
            part = block.names(index, index + end - start)
            found += part
            start += len(part)
        return found

    def __iter__(self) -> Iterator[bytes]:
        return (name for block in self._blocks for name in block)

    def files(self) -> Iterator[list[bytes]]:
        """The names so far of what is a regular file, or may be one (not every source tells), some thousand at a
        time."""
        return (block.files() for block in self._blocks)

    def find(self, name: bytes) -> int | None:
        """The position of `name`, as far as is known and soon found."""
        if self.memory_bytes > _SEARCHED_BYTES:
            return None
        for first, block in zip(self._firsts, self._blocks, strict=True):
            index = block.find(name)
            if index is not None:
                return first + index
        return None


class Lister:
    """Lists directories. Event loop only; what blocks runs in a thread."""

    def __init__(self, directories: Directories, threads: SourceThreads, metrics: Metrics) -> None:
        self._directories = directories
        self._threads = threads
        self._metrics = metrics

    async def fill(self, directory: bytes, inode: int, listing: Listing, *, file_system: str = "") -> None:
        """Put the names in `directory`, without . and .., into `listing` as they come.

        Raises VersionChanged if it is no longer `inode` of `file_system` (see `Attributes`), SourceError and
        SourceTimeout; `listing` then has the names before.
        """
        self._metrics.add("source_listings")
        what = f"listing of {show(directory, b'')}"
        reader, records = await self._threads.call(
            "metadata", what, self._open, directory, inode, file_system, directory=directory
        )
        listing.append(records)
        while not reader.ended:
            records = await self._threads.call("metadata", what, reader.read, directory=directory)
            await listing.take_apart()  # what nobody has waited for
            listing.append(records)
        await listing.take_apart()

    def _open(self, directory: bytes, inode: int, file_system: str) -> tuple[DirectoryReader, bytes]:
        where = self._directories.get(directory)
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=where.fd)
        reader = DirectoryReader(fd)
        found = os.fstat(fd)
        same = found.st_ino == inode and where.file_system == file_system
        if directory and (not same or (found.st_nlink == 0 and self._is_another(directory))):
            self._directories.forget(directory)
            raise VersionChanged(f"{show(directory, b'')}: another directory stands here now")
        return reader, reader.read()

    def _is_another(self, directory: bytes) -> bool:
        """True if the path leads to a directory with links, which the one we had open has not; some sources never count
        them."""
        self._directories.forget(directory)
        return os.fstat(self._directories.get(directory).fd).st_nlink > 0


class DirectoryReader:
    """An open directory of the source; closed at its end, or when nobody holds it any more. Blocks."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        """`fd`: owned from now on."""
        self._fd = fd

    @property
    def ended(self) -> bool:
        """All names were read."""
        return self._fd < 0

    def read(self) -> bytes:
        """The next names, in records of getdents64(2). Raises OSError, and may then be called again.

        Goes on until there are many or all: a small directory is one call for the event loop, not two.
        """
        room = ctypes.create_string_buffer(_BLOCK_BYTES)
        used = 0
        while used < _BLOCK_BYTES // 2:
            size = _getdents64(self._fd, ctypes.byref(room, used), _BLOCK_BYTES - used)
            if size < 0 and used:
                break  # what was read is not lost; the next call meets the error again
            if checked(size, "getdents64") == 0:
                self._close()
                break
            used += size
        return ctypes.string_at(room, used)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self._close()


def _update(hasher: xxhash.xxh3_64, names: list[bytes]) -> None:
    hasher.update(b"/".join([*names, b""]))


def _name(records: bytes, at: int) -> bytes:
    at += _NAME_AT
    return records[at : records.index(0, at)]
