"""What a format of data sets is to `hfs layout`: how its files are recognised, and what makes a layout of them.

Each format is one file of this package with a `FORMAT`, named in `registry.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hfs.layouts.layout import Layout
from hfs.layouts.reading import SourceFile

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
    """One format."""

    name: str
    about: str
    """What a sample is, in a few words."""
    recognise: Callable[[str, bytes], bool]
    """Whether a path is of this format. Gets its first HEAD_BYTES, or fewer; none of a directory."""
    build: Build
    options: Sequence[Option] = ()
    spot_check: Callable[[SourceFile, int, int], str | None] | None = None
    """What is wrong with the extent of `size` bytes at `offset`, as far as the format can tell from the bytes around
    it; None: nothing. Raises LayoutError where they cannot be read."""


def said(options: Mapping[str, object]) -> str:
    """Options as people would give them."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in options)
