"""Layouts of trees of files: sample i is the whole of the i-th file below one or more directories.

In the order of torchvision's ImageFolder, so that its numbers are those of the layout: the directories at the top by
name, in each the directories below by their paths, in each the files by name; links to directories and files are
followed. What lies at the top is left out, as it is of no class, unless there are no directories. Looks at each file
once (a stat), for its version; reads none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

import numpy as np

from hfs.layouts.files import relative_names
from hfs.layouts.layout import Layout
from hfs.layouts.registry import Format, Option
from hfs.mountd.wire.layout import LayoutError


def build_tree(paths: Sequence[str], root: str, *, suffix: Sequence[str] = ()) -> Layout:
    """The layout in which sample i is file i of the directories `paths` below `root`.

    With `suffix` only of those whose names end so, in small or capital letters. Raises LayoutError where there is none,
    where a directory cannot be read, and for what is neither a file nor a directory; ConfigError for a path outside
    `root`.
    """
    files: list[str] = []
    sizes: list[int] = []
    mtimes_ns: list[int] = []
    for top in paths:
        for path in _files(os.path.abspath(top), tuple(one.lower() for one in suffix)):
            try:
                found = os.stat(path)
            except OSError as error:
                raise LayoutError(f"{path}: cannot be read ({error.strerror}); give files that you can read") from None
            if not stat.S_ISREG(found.st_mode):
                raise LayoutError(f"{path}: not a regular file; only trees of files have a layout (see --suffix)")
            files.append(path)
            sizes.append(found.st_size)
            mtimes_ns.append(found.st_mtime_ns)
    if not files:
        raise LayoutError(f"{', '.join(paths)}: no files in it")
    names = relative_names(files, os.path.abspath(root))
    return Layout(names, np.array(sizes), np.array(mtimes_ns), made_from="tree")


def _files(top: str, suffix: tuple[str, ...]) -> Iterator[str]:
    if not os.path.isdir(top):
        raise LayoutError(f"{top}: not a directory")
    inside, files = _listed(top)
    if not inside:
        yield from (f"{top}/{name}" for name in files if name.lower().endswith(suffix or ""))
    for name in inside:
        below = sorted(_below(f"{top}/{name}"))
        yield from (f"{path}/{one}" for path, names in below for one in names if one.lower().endswith(suffix or ""))


def _below(top: str) -> Iterator[tuple[str, list[str]]]:
    """Each directory with the names of its files. Raises LayoutError where a link leads back to where it lies."""
    waiting: list[tuple[str, tuple[str, ...]]] = [(top, ())]
    while waiting:
        path, above = waiting.pop()
        place = os.path.realpath(path)
        if place in above:
            raise LayoutError(f"{path}: leads back to {place}, in which it lies")
        inside, files = _listed(path)
        yield path, files
        waiting += [(f"{path}/{name}", (*above, place)) for name in inside]


def _listed(path: str) -> tuple[list[str], list[str]]:
    """(directories, everything else) in a directory, by name."""
    try:
        with os.scandir(path) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError as error:
        raise LayoutError(f"{path}: cannot be read ({error.strerror}); give files that you can read") from None
    found.sort()
    return [name for name, is_dir in found if is_dir], [name for name, is_dir in found if not is_dir]


FORMAT = Format(
    "tree",
    lambda path, _: os.path.isdir(path),
    build_tree,
    [Option("suffix", "Only files whose names end so, as .jpg.", multiple=True, metavar="TEXT")],
)
