"""The formats that layouts can be made of, and the choice of one for files.

A new format is one file of this package with a `FORMAT`, one name in `_MODULES`, and one case in
tests/hfs/layouts/test_layouts_conformance.py, which fails without it. No file here imports the library of its format
before it is needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hfs.layouts.layout import Layout
from hfs.layouts.reading import opened
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.layout import LayoutError

_MODULES = ("hdf5", "lmdb", "tar", "tfrecord", "npy", "parquet", "tree")
_ASKED_LAST = "hdf5"
"""Whether a file is its own: behind a user block it begins where the first file of an archive does."""


HEAD_BYTES = 4096
"""How much of a file `recognise` is shown."""


@dataclasses.dataclass(frozen=True)
class Option:
    """What a format wants to know, as an option of `hfs layout build`. Formats may share one of the same kind."""

    name: str
    """As a keyword of `build`; on the command line with dashes."""
    help: str
    kind: type[str | bool] = str
    multiple: bool = False
    """The keyword gets a tuple, which may be empty."""
    metavar: str | None = None


DATASET = Option(
    "dataset",
    "A data set (HDF5) or array (.npz) that samples are rows of; repeat it for several.",
    multiple=True,
    metavar="NAME",
)
KEYS = Option("keys", "Keep a hash of each sample's key too, 8 bytes each: positions(layout, keys).", bool)


Build: TypeAlias = Callable[..., Layout]
"""`build(paths, root, **options)`: the layout of the files at `paths`, or LayoutError, or ConfigError."""


@dataclasses.dataclass(frozen=True)
class Format:
    """One format. What a sample of it is, docs/layouts.md says."""

    name: str
    recognise: Callable[[str, bytes], bool]
    """Whether a path is of this format. Gets its first HEAD_BYTES, or fewer; none of a directory."""
    build: Build
    options: Sequence[Option] = ()


def said(options: Mapping[str, object]) -> str:
    """Options as people would give them."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in options)


def formats() -> dict[str, Format]:
    """All formats by name."""
    modules = [importlib.import_module(f"hfs.layouts.{name}") for name in _MODULES]
    return {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Format)}


def recognised(paths: Sequence[str]) -> Format:
    """The one format that all of `paths` are of. Raises LayoutError."""
    known = formats()
    asked = sorted(known.values(), key=lambda one: one.name == _ASKED_LAST)
    names: dict[str, str] = {}
    for path in paths:
        head = b""
        if not os.path.isdir(path):
            with opened(path) as file:
                head = file.read(0, min(file.size, HEAD_BYTES))
        name = next((one.name for one in asked if one.recognise(path, head)), None)
        if name is None:
            raise LayoutError(f"{path}: of no format that is known ({', '.join(known)}): say which with --format")
        names.setdefault(name, path)
    if len(names) > 1:
        (one, path), (other, other_path) = list(names.items())[:2]
        raise LayoutError(f"{path} is {one} and {other_path} is {other}: build a layout for each format")
    return known[next(iter(names))]


def build(paths: Sequence[str], root: str, name: str = "auto", options: Mapping[str, object] | None = None) -> Layout:
    """The layout of `paths` in the format of this name; "auto": that which they look like.

    Options that are None, false or empty are as if not given. Raises LayoutError for what the files are, ConfigError
    for what cannot be asked for.
    """
    if not paths:
        raise ConfigError("no files: name at least one")
    known = formats()
    if name not in {"auto", *known}:
        raise ConfigError(f"format: {name!r} is not known; there are auto, {', '.join(known)}")
    chosen = recognised(paths) if name == "auto" else known[name]
    given = {key: value for key, value in (options or {}).items() if value not in {None, False, ()}}
    if foreign := {key: value for key, value in given.items() if key not in {option.name for option in chosen.options}}:
        taken = said({option.name: None for option in chosen.options}) or "none"
        raise ConfigError(f"{said(foreign)}: not an option of {chosen.name} files, whose options are {taken}")
    return chosen.build(paths, root, **given)
