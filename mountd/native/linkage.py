"""Whether pyfuse3 and the extension are linked with one libfuse, found out before either is loaded.

The extension stands in front of libfuse's functions and goes on to the next ones of the same name. Where pyfuse3 was
built with another libfuse these are not the ones whose session it holds: requests are swallowed, or a structure is read
past its end. Once loaded the extension cannot be taken away, and its libfuse stands in front of pyfuse3's, so the files
are looked at instead: what they need, where the loader finds that, and which constructor of a session the one calls and
the other defines. Reads a few kilobytes of two ELF files.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import closing

_LIBFUSE = "libfuse3"
_CONSTRUCTORS = ("fuse_session_new", "fuse_session_new_versioned")
"""Before libfuse 3.17, and from then on."""

_LOAD, _DYNAMIC = 1, 2  # types of program headers, <elf.h>
_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29  # tags of the dynamic section

_DI_LINKMAP = 2  # <dlfcn.h>


class _Object:
    """What the loader would find in a shared object. Raises OSError, ValueError for what is none."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        with open(path, "rb") as file, closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as data:
            if data[:4] != b"\x7fELF":
                raise ValueError(f"{path} is no shared object")
            try:
                self._read(data)
            except (struct.error, LookupError, OverflowError, StopIteration) as error:
                raise ValueError(f"{path} is damaged: {error}") from error

    def _read(self, data: mmap.mmap) -> None:
        self._wide = data[4] == 2
        self._order = "<" if data[5] == 1 else ">"
        loads, dynamic = [], (0, 0)
        for kind, offset, address, size in self._headers(data):
            if kind == _LOAD:
                loads.append((address, size, offset))
            elif kind == _DYNAMIC:
                dynamic = offset, size
        entry = struct.Struct(self._order + ("qQ" if self._wide else "iI"))
        start, size = dynamic
        found: dict[int, list[int]] = {}
        for tag, value in entry.iter_unpack(data[start : start + size // entry.size * entry.size]):
            found.setdefault(tag, []).append(value)
        table = found[_STRTAB][0]
        at = next(offset + table - address for address, size, offset in loads if address <= table < address + size)
        self._names = data[at : at + found[_STRSZ][0]]
        self.needed = [self._name(value) for value in found.get(_NEEDED, ())]
        self.rpath = [self._name(value) for value in found.get(_RPATH, ())]
        self.runpath = [self._name(value) for value in found.get(_RUNPATH, ())]

    def _headers(self, data: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
        """(type, offset in the file, address, bytes in the file) of each program header."""
        (begin,) = struct.unpack_from(self._order + ("Q" if self._wide else "I"), data, 32 if self._wide else 28)
        each, count = struct.unpack_from(self._order + "HH", data, 54 if self._wide else 42)
        for number in range(count):
            at = begin + number * each
            if self._wide:
                kind, _, offset, address, _, size = struct.unpack_from(self._order + "IIQQQQ", data, at)
            else:
                kind, offset, address, _, size = struct.unpack_from(self._order + "IIIII", data, at)
            yield kind, offset, address, size

    def _name(self, at: int) -> str:
        return os.fsdecode(self._names[at : self._names.index(b"\0", at)])

    def names(self, symbol: str) -> bool:
        """Whether a symbol of this name is defined here, or wanted of others."""
        return os.fsencode(symbol) + b"\0" in self._names

    def libfuse(self) -> str | None:
        """The libfuse that it is linked with: a path, or a name that the loader looks for in the usual places."""
        wanted = [name for name in self.needed if name.startswith(_LIBFUSE)]
        if not wanted:
            return None
        for folder in self._folders():
            candidate = os.path.join(folder, wanted[0])
            if os.path.exists(candidate):
                return os.path.realpath(candidate)
        return wanted[0]

    def _folders(self) -> Iterator[str]:
        """Where the loader looks before the usual places (ld.so(8))."""
        own = self.runpath or self.rpath
        lists = [os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":")]
        lists.insert(len(lists) if self.runpath else 0, ":".join(own))
        for folder in ":".join(lists).split(":"):
            if folder:
                origin = os.path.dirname(self.path)
                yield folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)


def why_not_one_libfuse(extension: str, pyfuse3: str) -> str | None:
    """Why the extension cannot stand between pyfuse3 and libfuse; None if it can. Paths of their shared objects."""
    try:
        ours, theirs = _Object(extension), _Object(pyfuse3)
    except (OSError, ValueError) as error:
        return f"it cannot be seen with which libfuse pyfuse3 was built ({error}): run scripts/setup again"
    mine, other = ours.libfuse(), theirs.libfuse()
    if mine is None or other is None:
        return "pyfuse3 has a libfuse of its own within: build it with the one of this machine (scripts/setup)"
    if mine != other and (mine := _located(mine)) != (other := _located(other)):
        return f"pyfuse3 was built with another libfuse ({other}) than the extension ({mine}): run scripts/setup again"
    if not any(ours.names(name) and theirs.names(name) for name in _CONSTRUCTORS):
        return "pyfuse3 was built with headers of another libfuse than the extension: run scripts/setup again"
    return None


def libfuse_in_use() -> set[str]:
    """The files of libfuse that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        paths = {line.rstrip("\n").partition("/")[2] for line in lines}
    return {f"/{path}" for path in paths if os.path.basename(path).startswith(_LIBFUSE)}


def _located(library: str) -> str:
    """The file that the loader finds under this name. What is loaded for it is seen by nobody else."""
    if "/" in library:
        return library
    try:
        loaded = ctypes.CDLL(library, mode=os.RTLD_LAZY | os.RTLD_LOCAL)
        libc = ctypes.CDLL(None)
    except OSError:
        return library
    link_map = ctypes.POINTER(_LinkMap)()
    handle = ctypes.c_void_p(loaded._handle)  # noqa: SLF001 - no other way to the file that was found
    if libc.dlinfo(handle, _DI_LINKMAP, ctypes.byref(link_map)) != 0:
        return library
    return os.path.realpath(os.fsdecode(link_map.contents.name))


class _LinkMap(ctypes.Structure):
    """The beginning of struct link_map, <link.h>."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))
