"""Layouts of lists of files: sample i is the whole of file i. Also how paths become relative to a root, fast.

A job may give a million paths when it starts, so all is done on the joined text, not path by path. Looks at no file.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hfs.layouts.layout import Layout
from hfs.mountd.base.errors import ConfigError
from hfs.mounting import mountinfo

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_SLASH, _DOT = ord("/"), ord(".")
_BLOCK_BYTES = 256 * 1024


class OutsideRoot(ConfigError):
    """Some files are not below the root. `numbers` are theirs, from 0."""

    def __init__(self, message: str, numbers: Sequence[int]) -> None:
        super().__init__(message)
        self.numbers = numbers


def check_samples(files: Sequence[Path] | None, layout: object) -> None:
    """Raises ValueError unless a caller has said in one way, and as a list, what sample i is."""
    if (files is None) == (layout is None):
        raise ValueError("give either files= or layout=")
    if files is not None and (isinstance(files, str | bytes) or not hasattr(files, "__len__")):
        raise ValueError("files= must be a list of paths")


def files_layout(files: Sequence[Path], root: str) -> Layout:
    """The layout in which sample i is the whole of `files[i]`: absolute and below `root`, also where `root` is a
    symlink's name for what they are below, or relative to it. Raises OutsideRoot and ConfigError."""
    try:
        return Layout(relative_names(files, root))
    except OutsideRoot:
        real = mountinfo.canonical(root)
        if real == root:
            raise
        return Layout(relative_names(files, real))


def relative_names(files: Sequence[Path], root: str, canonical: Callable[[str], str] = mountinfo.canonical) -> bytes:
    """The paths relative to `root`, joined by zero bytes.

    Absolute paths must be below `root`, as text or after the symlinks in their common directory have been followed;
    relative ones are meant relative to `root`. Raises OutsideRoot, and ConfigError for paths that cannot be.
    """
    if not len(files):
        raise ConfigError("no files: the list is empty")
    text = _joined(files)
    if text.count(b"\0") != len(files):
        raise ConfigError("a path with a zero byte in it")
    if _has_idle_components(text):
        text = b"\0" + b"\0".join(posixpath.normpath(path) if path else path for path in text[1:].split(b"\0"))
    base = os.fsencode(root.rstrip("/")) + b"/"
    if text.count(b"\0" + base) == len(files):
        return text.replace(b"\0" + base, b"\0")[1:]
    if b"\0." in text:
        text = b"\0" + b"\0".join(posixpath.normpath(path) if path else path for path in text[1:].split(b"\0"))
    text = _placed(text, base, root, canonical).replace(b"\0" + base, b"\0")
    for number, name in enumerate(text[1:].split(b"\0")):
        if name in {b"", b".", b".."} or name.startswith(b"../"):
            raise ConfigError(f"file number {number} is no file below {root}: {os.fsdecode(name) or '(empty)'}")
    return text[1:]


def _joined(files: Sequence[Path]) -> bytes:
    """A zero byte before each path."""
    try:
        return os.fsencode("\0".join(("", *files)))  # type: ignore[arg-type] # the usual case, and the fast one
    except TypeError:
        plain: list[Any] = [os.fspath(path) for path in files]
        if all(isinstance(path, str) for path in plain):
            return os.fsencode("\0".join(("", *plain)))
        return b"\0" + b"\0".join([os.fsencode(path) if isinstance(path, str) else path for path in plain])


def _has_idle_components(text: bytes) -> bool:
    """Whether a path has components that say nothing, or a slash at its end."""
    if text.endswith(b"/"):
        return True
    codes = np.frombuffer(text, np.uint8)
    for start in range(0, len(codes), _BLOCK_BYTES):  # by blocks that the processor's cache holds: five times faster
        here = codes[start : start + _BLOCK_BYTES]
        after = codes[start + 1 : start + 1 + _BLOCK_BYTES]
        here = here[: len(after)]
        if ((here == _SLASH) & ((after == _SLASH) | (after == _DOT) | (after == 0))).any():
            break
    else:
        return False
    pieces = (b"//", b"/./", b"/../", b"/\0", b"/.\0", b"/..\0")  # hidden files begin with a dot too
    return text.endswith((b"/.", b"/..")) or any(piece in text for piece in pieces)


def _placed(text: bytes, base: bytes, root: str, canonical: Callable[[str], str]) -> bytes:
    """The same with all absolute paths below `base`. Raises OutsideRoot."""
    absolute = text.count(b"\0/")
    if text.count(b"\0" + base) < absolute:
        shared = _common_directory(text)
        real = os.fsencode(canonical(os.fsdecode(shared))).rstrip(b"/") + b"/"
        if real != shared and real.startswith(base):
            text = text.replace(b"\0" + shared, b"\0" + real)
    if text.count(b"\0" + base) < absolute:
        paths = text[1:].split(b"\0")
        outside = [number for number, path in enumerate(paths) if path.startswith(b"/") and not path.startswith(base)]
        raise OutsideRoot(
            f"{len(outside):,} of {len(paths):,} files are not below {root}, the first is number {outside[0]}: "
            f"{os.fsdecode(paths[outside[0]])}",
            outside,
        )
    return text


def _common_directory(text: bytes) -> bytes:
    """What all absolute paths in the text begin with, up to and with a slash."""
    paths = [path for path in text[1:].split(b"\0") if path.startswith(b"/")]
    low, high = min(paths), max(paths)  # what these two have in common, all have
    length = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:length].rpartition(b"/")[0] + b"/"


def versions(names: bytes, root: str) -> tuple[list[int], list[int]]:
    """(size, mtime_ns) of each file, which costs a stat each; the size is -1 of one that is not there."""
    sizes, mtimes = [], []
    for name in names.split(b"\0"):
        try:
            found = os.stat(os.path.join(os.fsencode(root), name))
        except OSError:
            sizes.append(-1)
            mtimes.append(-1)
        else:
            sizes.append(found.st_size)
            mtimes.append(found.st_mtime_ns)
    return sizes, mtimes
