"""Layouts of lists of files: sample i is the whole of file i. Also how paths become relative to a root, fast.

A job may give ten million paths when it starts, so all is done on joined text, not path by path, and on a part of it at
a time. Looks at no file.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

from hfs.layouts.layout import Layout
from hfs.mountd.core.errors import ConfigError
from hfs.mounting import mountinfo

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Steps = Generator[None, None, list[bytes]]

_IDLE = re.compile(rb"/(?:/|\.{0,2}(?:[/\0]|\Z))")
"""Components that say nothing, or a slash at the end of a path."""
_STEP_FILES = 4096


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
    return Layout(_made(files_in_steps(files, root)))


def files_in_steps(files: Sequence[Path], root: str) -> Steps:
    """The names of `files_layout`, in steps as `names_in_steps` has them."""
    try:
        return (yield from names_in_steps(files, root))
    except OutsideRoot:
        real = mountinfo.canonical(root)
        if real == root:
            raise
        return (yield from names_in_steps(files, real))


def relative_names(files: Sequence[Path], root: str, canonical: Callable[[str], str] = mountinfo.canonical) -> bytes:
    """The paths relative to `root`, joined by zero bytes.

    Absolute paths must be below `root`, as text or after the symlinks in their common directory have been followed;
    relative ones are meant relative to `root`. Raises OutsideRoot, and ConfigError for paths that cannot be.
    """
    return _made(names_in_steps(files, root, canonical))


def _made(steps: Steps) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return b"".join(end.value)


def names_in_steps(files: Sequence[Path], root: str, canonical: Callable[[str], str] = mountinfo.canonical) -> Steps:
    """What `relative_names` gives, in pieces, and made one by one: a millisecond or two from step to step."""
    if not len(files):
        raise ConfigError("no files: the list is empty")
    base = os.fsencode(root.rstrip("/")) + b"/"
    texts: list[bytes] = []
    elsewhere: list[int] = []
    """The texts in which not all paths begin with `base`."""
    rest = iter(files)
    while part := list(itertools.islice(rest, _STEP_FILES)):
        text = _joined(part)
        if text.count(b"\0") != len(part):
            raise ConfigError("a path with a zero byte in it")
        if _IDLE.search(text):
            text = _normal(text)
        if text.count(b"\0" + base) == len(part):
            text = text.replace(b"\0" + base, b"\0")
        else:
            elsewhere.append(len(texts))
            text = _normal(text) if b"\0." in text else text
        texts.append(text)
        yield
    if elsewhere:
        yield from _place(texts, elsewhere, base, root, canonical)
        for number in elsewhere:
            texts[number] = _below(texts[number].replace(b"\0" + base, b"\0"), number * _STEP_FILES, root)
            yield
    texts[0] = texts[0][1:]
    return texts


def _normal(text: bytes) -> bytes:
    return b"\0" + b"\0".join(posixpath.normpath(path) if path else path for path in text[1:].split(b"\0"))


def _below(text: bytes, first: int, root: str) -> bytes:
    """The same. Raises ConfigError where one of the relative paths, which are counted from `first`, cannot be."""
    if b"\0\0" not in text and b"\0." not in text and not text.endswith(b"\0"):
        return text
    for number, name in enumerate(text[1:].split(b"\0"), first):
        if name in {b"", b".", b".."} or name.startswith(b"../"):
            raise ConfigError(f"file number {number} is no file below {root}: {os.fsdecode(name) or '(empty)'}")
    return text


def _joined(files: Sequence[Path]) -> bytes:
    """A zero byte before each path."""
    try:
        return os.fsencode("\0".join(("", *files)))  # type: ignore[arg-type] # the usual case, and the fast one
    except TypeError:
        plain: list[Any] = [os.fspath(path) for path in files]
        if all(isinstance(path, str) for path in plain):
            return os.fsencode("\0".join(("", *plain)))
        return b"\0" + b"\0".join([os.fsencode(path) if isinstance(path, str) else path for path in plain])


def _place(
    texts: list[bytes], elsewhere: list[int], base: bytes, root: str, canonical: Callable[[str], str]
) -> Generator[None, None, None]:
    """Put all absolute paths below `base`; the texts that are not `elsewhere` are. Raises OutsideRoot."""
    if not any(_outside(texts[number], base) for number in elsewhere):
        return
    ends = [] if len(elsewhere) == len(texts) else [base]
    for number in elsewhere:
        paths = [path for path in texts[number][1:].split(b"\0") if path.startswith(b"/")]
        ends += [min(paths), max(paths)] if paths else []  # what these two have in common, all have
        yield
    shared = _common_directory(min(ends), max(ends))
    real = os.fsencode(canonical(os.fsdecode(shared))).rstrip(b"/") + b"/"
    outside: list[int] = []
    first = b""
    for number in elsewhere:
        if real != shared and real.startswith(base):
            texts[number] = texts[number].replace(b"\0" + shared, b"\0" + real)
        if _outside(texts[number], base):
            paths = texts[number][1:].split(b"\0")
            wrong = [at for at, path in enumerate(paths) if path.startswith(b"/") and not path.startswith(base)]
            first = first or paths[wrong[0]]
            outside += [number * _STEP_FILES + at for at in wrong]
        yield
    if outside:
        count = sum(text.count(b"\0") for text in texts)
        raise OutsideRoot(
            f"{len(outside):,} of {count:,} files are not below {root}, the first is number {outside[0]}: "
            f"{os.fsdecode(first)}",
            outside,
        )


def _outside(text: bytes, base: bytes) -> int:
    """How many absolute paths in it are not below `base`."""
    return text.count(b"\0/") - text.count(b"\0" + base)


def _common_directory(low: bytes, high: bytes) -> bytes:
    """What both begin with, up to and with a slash."""
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
