"""Layouts of tar files, WebDataset shards among them: where the files of each sample lie in the archive.

Never runs in a training job. A sample is what WebDataset makes one, by its own rules for names (`_parted`): members in
a row whose names are the same up to the first dot of the last component, in the order in which they come; extensions in
capital letters are those in small ones; members without such a name, and those below or named __thus__, belong to none.

Headers are understood by the standard library's tarfile: ustar, pax and GNU's long names, at 25 to 65 microseconds a
member. It ends without a word where a header is damaged or the file is cut short; here that is an error: an archive
ends with a block of zeros. Small members are read with their headers in one way through the file, large ones are passed
over (`reading.FileWindow`).
"""

from __future__ import annotations

import functools
import re
import tarfile
from collections.abc import Iterator, Sequence

import numpy as np

from hfs.layouts.keys import hashed
from hfs.layouts.layout import Layout
from hfs.layouts.reading import FileWindow, SourceFile
from hfs.layouts.registry import KEYS, Format, Option
from hfs.layouts.shards import Shard, layout_of, shards_of
from hfs.mountd.wire.layout import LayoutError

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_NAMES = ("utf-8", "surrogateescape")
"""How bytes of names become text and come back as they were."""
_PARTS = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")
"""WebDataset's, as they are: hidden files (train/._a.jpg) are of a sample "train/" there, so they are here."""
_OWN_EXTENSIONS = ("__key__", "__url__")
"""What it says of a sample itself; a member of that extension is a second one to it."""
_LONGEST_HEADER_BYTES = 1024**2
"""Of a name or of all pax records of a member: what is longer is damage."""
_COMPRESSED = {
    b"\x1f\x8b": "gzip -d",
    b"BZh": "bzip2 -d",
    b"\xfd7zXZ\0": "xz -d",
    b"\x28\xb5\x2f\xfd": "zstd -d",
}


def build_tar(paths: str | Sequence[str], root: str, *, each_member: bool = False, keys: bool = False) -> Layout:
    """The layout in which sample i is the i-th group of members of the archives at `paths` below `root`.

    With `each_member` every regular file is a sample of its own. With `keys` the layout knows the samples of keys (the
    names up to the first dot; with `each_member`, the names). Raises LayoutError for compressed and damaged archives,
    those cut short, and sparse members; ConfigError for a path outside `root`.
    """
    shard = functools.partial(_shard, each_member=each_member, keys=keys)
    return layout_of(shards_of(paths, shard), root, "tar")


def _shard(file: SourceFile, *, each_member: bool, keys: bool) -> Shard:
    offsets: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    names: list[bytes] = []
    extensions: set[str] = set()
    bad: set[int] = set()
    for member in _members(file):
        name = member.name.encode(*_NAMES)
        parted = (member.name, "") if each_member else _parted(member.name)
        if parted is None:
            continue
        key, extension = parted[0].encode(*_NAMES), parted[1]
        if each_member or not names or key != names[-1]:
            names.append(key)
            counts.append(0)
            extensions = {*_OWN_EXTENSIONS}
        if extension in extensions and not each_member:
            raise LayoutError(
                f"{file.path}: two members {name.decode(errors='replace')} in one sample, the second at offset "
                f"{member.offset_data:,}: build with --each-member if the members are samples"
            )
        extensions.add(extension)
        if extension == "__bad__" and member.size and not each_member:
            bad.add(len(names) - 1)
        offsets.append(member.offset_data)
        sizes.append(member.size)
        counts[-1] += 1
    if bad:  # WebDataset leaves these samples out
        stays = np.array([number not in bad for number in range(len(names))])
        each = np.repeat(stays, counts)
        offsets, sizes = (list(np.array(values)[each]) for values in (offsets, sizes))
        counts, names = list(np.array(counts)[stays]), [name for name, one in zip(names, stays, strict=True) if one]
    return Shard(
        file.path,
        file.size,
        file.mtime_ns,
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
        np.array(counts, np.int64),
        hashed(names) if keys else None,
    )


def _parted(name: str) -> tuple[str, str] | None:
    """(key, extension) of a member; None: it belongs to no sample."""
    found = _PARTS.match(name)
    if found is None or _META.match(name) or (name.startswith("__") and name.endswith("__") and "/" not in name):
        return None
    return found[1], found[2].lower()


def _members(file: SourceFile) -> Iterator[tarfile.TarInfo]:
    """The regular files, in order. Raises LayoutError."""
    with FileWindow(file) as window:
        head = window.read(0, min(file.size, _BLOCK))
        for magic, command in _COMPRESSED.items():
            if head.startswith(magic):
                raise LayoutError(
                    f"{file.path}: compressed: its members have no place in the file; unpack it ({command})"
                )
        headers = _Headers(file, window)
        at = 0
        try:
            archive = tarfile.TarFile(fileobj=headers, encoding=_NAMES[0], errors=_NAMES[1])  # type: ignore[arg-type] # it reads, seeks and tells
            while at + _BLOCK <= file.size:
                if window.read(at, _BLOCK) == _ZEROS:
                    return
                headers.seek(at)
                member = tarfile.TarInfo.fromtarfile(archive)
                _check(file, member)
                if member.isreg():
                    yield member
                at = archive.offset
        except (tarfile.TarError, ValueError, IndexError, OverflowError, RecursionError) as error:
            kind = "damaged" if at else "not a tar file"
            raise LayoutError(f"{file.path}: {kind}: {error} in the header at offset {at:,}") from None
        fault = "cut short: no block of zeros at its end," if at else "not a tar file: it ends"
        raise LayoutError(f"{file.path}: {fault} at offset {file.size:,}")


def _check(file: SourceFile, member: tarfile.TarInfo) -> None:
    """Raises LayoutError for a member that is not in the archive as one piece."""
    at, end = member.offset, member.offset_data + member.size
    if member.issparse() or any(key.startswith("GNU.sparse") for key in member.pax_headers):
        raise LayoutError(f"{file.path}: a sparse member at offset {at:,}, parts of which are not in the archive")
    if member.type == b"M":
        raise LayoutError(f"{file.path}: the rest of a member of another volume, at offset {at:,}")
    if member.size < 0:
        raise LayoutError(f"{file.path}: damaged: a size of {member.size:,} in the header at offset {at:,}")
    if "\0" in member.name:
        raise LayoutError(f"{file.path}: damaged: a zero byte in the name of the member at offset {at:,}")
    if member.isreg() and end > file.size:
        raise LayoutError(
            f"{file.path}: cut short: the {member.size:,} bytes of {member.name} at offset {member.offset_data:,} "
            f"reach beyond its end ({file.size:,})"
        )


class _Headers:
    """The archive as the file that tarfile reads headers from."""

    def __init__(self, file: SourceFile, window: FileWindow) -> None:
        self._file, self._window, self._at = file, window, 0

    def read(self, size: int) -> bytes:
        """Raises LayoutError for more than a header can be."""
        if not 0 <= size <= _LONGEST_HEADER_BYTES:
            raise LayoutError(
                f"{self._file.path}: damaged: an extended header of {size:,} bytes before offset {self._at:,}"
            )
        found = self._window.read(self._at, max(0, min(size, self._file.size - self._at)))
        self._at += len(found)
        return found

    def seek(self, offset: int) -> None:
        self._at = offset

    def tell(self) -> int:
        return self._at


def _recognise(path: str, head: bytes) -> bool:
    if head[257:262] == b"ustar" or path.endswith(".tar"):
        return True
    return path.endswith(".tgz") or (".tar" in path[-8:] and head.startswith(tuple(_COMPRESSED)))


FORMAT = Format(
    "tar",
    _recognise,
    build_tar,
    [
        Option("each_member", "Every file in the archive is a sample of its own.", bool),
        KEYS,
    ],
)
