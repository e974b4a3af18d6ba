"""Layouts of tar files, WebDataset shards among them: where the files of each sample lie in the archive.

Called by `hfs layout build`; never by a training job. A sample is what WebDataset makes one: members in a row whose
names are the same up to the first dot of the last component, in the order in which they come; members without such a
name, and those named __thus__, belong to none.

Reads the headers with a reader of its own, not tarfile's: that takes 29 microseconds a member, 75 where members have
pax headers as those of WebDataset's writer do (31 MB/s of members of 1 KB, slower than the storage), and it ends
without a word where a header is damaged or the file is cut short. Here that is an error: an archive ends with a block
of zeros.
Small members are read with their headers in one way through the file, large ones are passed over (`reading.Window`).

The format: pax(1), "ustar Interchange Format" and "pax Interchange Format"; tar(5) for GNU's long names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from hfs.layouts.format import KEYS, Format, Option
from hfs.layouts.keys import hashed
from hfs.layouts.layout import Layout, LayoutError
from hfs.layouts.reading import FileWindow, SourceFile, opened
from hfs.layouts.shards import Shard, layout_of

__all__ = ["FORMAT", "build_tar"]

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_LONGEST_NAME_BYTES = 1024**2
"""Of a name or of all pax records of a member: what is longer is damage."""
_COMPRESSED = {
    b"\x1f\x8b": "gzip -d",
    b"BZh": "bzip2 -d",
    b"\xfd7zXZ\0": "xz -d",
    b"\x28\xb5\x2f\xfd": "zstd -d",
}
_REGULAR = {b"0", b"\0", b"7"}
_WITHOUT_DATA = {b"1", b"2", b"3", b"4", b"5", b"6"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """A regular file."""

    name: bytes
    offset: int
    size: int


def build_tar(paths: str | Sequence[str], root: str, *, each_member: bool = False, keys: bool = False) -> Layout:
    """The layout in which sample i is the i-th group of members of the archives at `paths` below `root`.

    With `each_member` every regular file is a sample of its own. With `keys` the layout knows the samples of keys (the
    names up to the first dot; with `each_member`, the names). Raises LayoutError for compressed and damaged archives,
    those cut short, and sparse members; ConfigError for a path outside `root`.
    """
    shards = []
    for path in [paths] if isinstance(paths, str) else paths:
        with opened(path) as file:
            shards.append(_shard(file, each_member=each_member, keys=keys))
    return layout_of(shards, root, "tar")


def _shard(file: SourceFile, *, each_member: bool, keys: bool) -> Shard:
    offsets: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    names: list[bytes] = []
    extensions: set[bytes] = set()
    for member in _members(file):
        key, extension = (member.name, b"") if each_member else _parted(member.name)
        if not key:
            continue
        if each_member or not names or key != names[-1]:
            names.append(key)
            counts.append(0)
            extensions.clear()
        elif extension in extensions:
            raise LayoutError(
                f"{file.path}: two members {member.name.decode(errors='replace')} in one sample, the second at offset "
                f"{member.offset:,}: build with --each-member if the members are samples"
            )
        extensions.add(extension)
        offsets.append(member.offset)
        sizes.append(member.size)
        counts[-1] += 1
    return Shard(
        file.path,
        file.size,
        file.mtime_ns,
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
        np.array(counts, np.int64),
        hashed(names) if keys else None,
    )


def _parted(name: bytes) -> tuple[bytes, bytes]:
    """(key, extension) of a member; no key: it belongs to no sample."""
    directory, slash, last = name.rpartition(b"/")
    stem, dot, extension = last.partition(b".")
    if not stem or not dot or (name.startswith(b"__") and name.endswith(b"__")):
        return b"", b""
    return directory + slash + stem, extension


def _members(file: SourceFile) -> Iterator[_Member]:
    """The regular files, in order. Raises LayoutError."""
    at = 0
    always: dict[bytes, bytes] = {}
    here: dict[bytes, bytes] = {}
    """What pax headers say of all members, and of the next."""
    with FileWindow(file) as window:
        head = window.read(0, min(file.size, _BLOCK))
        for magic, command in _COMPRESSED.items():
            if head.startswith(magic):
                raise LayoutError(
                    f"{file.path}: compressed: its members have no place in the file; unpack it ({command})"
                )
        while True:
            if at + _BLOCK > file.size:
                fault = "cut short: no block of zeros at its end," if at else "not a tar file: it ends"
                raise LayoutError(f"{file.path}: {fault} at offset {file.size:,}")
            header = window.read(at, _BLOCK)
            if header == _ZEROS:
                if here:
                    raise LayoutError(f"{file.path}: damaged: no member follows its extended header at offset {at:,}")
                return
            _check_sum(file, header, at)
            kind, size = header[156:157], _number(file, header, at)
            data = at + _BLOCK
            if kind in {b"x", b"g", b"L", b"K"}:
                if size > min(_LONGEST_NAME_BYTES, file.size - data):
                    raise LayoutError(f"{file.path}: damaged: an extended header of {size:,} bytes at offset {at:,}")
                text = window.read(data, size)
                if kind in {b"x", b"g"}:
                    (here if kind == b"x" else always).update(_records(file, text, data))
                elif kind == b"L":
                    here[b"path"] = text.partition(b"\0")[0]
                at = data + _padded(size)
                continue
            said = always | here if always else here
            if kind == b"S" or any(key.startswith(b"GNU.sparse") for key in said):
                raise LayoutError(
                    f"{file.path}: a sparse member at offset {at:,}, parts of which are not in the archive"
                )
            if kind == b"M":
                raise LayoutError(f"{file.path}: the rest of a member of another volume, at offset {at:,}")
            if b"size" in said:
                size = _decimal(file, said[b"size"], at)
            name = said.get(b"path") or _name(header)
            here = {}
            if kind in _WITHOUT_DATA or (kind == b"\0" and name.endswith(b"/")):
                at = data
                continue
            if data + size > file.size:
                raise LayoutError(
                    f"{file.path}: cut short: the {size:,} bytes of {name.decode(errors='replace')} at offset {data:,} "
                    f"reach beyond its end ({file.size:,})"
                )
            if kind in _REGULAR:
                yield _Member(name, data, size)
            at = data + _padded(size)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _check_sum(file: SourceFile, header: bytes, at: int) -> None:
    try:
        said = int(header[148:156].strip(b" \0") or b"0", 8)
    except ValueError:
        said = -1
    # The field itself counts as blanks. Some old programs added signed bytes.
    there = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if said == there or said == there - 256 * sum(byte > 127 for byte in header[:148] + header[156:]):
        return
    fault = "damaged: wrong checksum of the header" if at else "not a tar file: no header"
    raise LayoutError(f"{file.path}: {fault} at offset {at:,}")


def _number(file: SourceFile, header: bytes, at: int) -> int:
    """The size field: octal digits, or binary after a byte of 128."""
    field = header[124:136]
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        size = int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        size = -1
    if size < 0:
        raise LayoutError(f"{file.path}: damaged: a size of {field!r} at offset {at + 124:,}")
    return size


def _decimal(file: SourceFile, text: bytes, at: int) -> int:
    if not text.isdigit() or len(text) > 20:
        raise LayoutError(f"{file.path}: damaged: a size of {text[:20]!r} in the extended header before offset {at:,}")
    return int(text)


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _records(file: SourceFile, text: bytes, at: int) -> dict[bytes, bytes]:
    """Of a pax header: "LENGTH KEY=VALUE\\n", LENGTH that of all of it."""
    found: dict[bytes, bytes] = {}
    place = 0
    while place < len(text) and text[place]:
        digits = text[place : place + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = text[place : place + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if length < len(digits) + 3 or len(record) < length or not equals or record[-1:] != b"\n":
            raise LayoutError(f"{file.path}: damaged: no record of an extended header at offset {at + place:,}")
        found[key] = value
        place += length
    return found


def _recognise(path: str, head: bytes) -> bool:
    if head[257:262] == b"ustar" or path.endswith(".tar"):
        return True
    return path.endswith(".tgz") or (".tar" in path[-8:] and head.startswith(tuple(_COMPRESSED)))


def _spot_check(file: SourceFile, offset: int, size: int) -> str | None:
    at = offset - _BLOCK
    if at < 0:
        return "no member begins before it"
    header = file.read(at, _BLOCK)
    _check_sum(file, header, at)
    said = _number(file, header, at)
    if header[156:157] not in _REGULAR or (said != size and at + _BLOCK + _padded(size) > 8 * 1024**3 > size):
        return "no regular file begins there"
    if said != size and size < 8 * 1024**3:
        return f"the member there has {said:,} bytes"
    return None


FORMAT = Format(
    "tar",
    "the files whose names are the same up to the first dot (WebDataset)",
    _recognise,
    build_tar,
    [
        Option("each_member", "Every file in the archive is a sample of its own.", bool),
        KEYS,
    ],
    _spot_check,
)
