"""What `hfs-hint` is given: orders and lists of files, judged before anything is sent.

Every fault is a ConfigError (exit code 2) that names the file and the place in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hfs.cli.shared import complain, lines_of
from hfs.layouts.files import OutsideRoot, relative_names
from hfs.layouts.layout import Layout
from hfs.mountd.core.errors import ConfigError, printable
from hfs.mountd.wire.hints import MAX_ORDER_SAMPLES

_Indices = npt.NDArray[np.int64]


def read_order(path: str, samples: int) -> _Indices:
    """The order in a .npy file: a one-dimensional array of integers, 0 <= index < samples. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"--order {path}: {error.strerror}; give the .npy file of an order") from None
    except (ValueError, EOFError, MemoryError) as error:
        raise ConfigError(f"{path}: not a .npy file, or cut short ({error})") from None
    if found.ndim != 1 or not len(found):
        raise ConfigError(f"{path}: an array of shape {found.shape}; an order has one dimension and is not empty")
    if found.dtype.kind not in "iu":
        bad = ""
        if found.dtype.kind == "f" and np.isnan(found).any():
            bad = f", the one at {int(np.argmax(np.isnan(found)))} is NaN"
        raise ConfigError(f"{path}: its values are {found.dtype}{bad}; an order is integers")
    if len(found) > MAX_ORDER_SAMPLES:
        raise ConfigError(f"{path}: {len(found):,} indices, at most {MAX_ORDER_SAMPLES:,}")
    wrong = (found < 0) | (found >= samples)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ConfigError(
            f"{path}: {int(wrong.sum()):,} of {len(found):,} indices are out of range, the first is {found[at]} "
            f"at {at}; there are {samples:,} samples (0 to {samples - 1:,})"
        )
    return found.astype(np.int64)


def read_list(path: str) -> list[bytes]:
    """The names in a text file, one a line. Raises ConfigError, also for empty lines: they would shift the indices."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"--files {path}: {error.strerror}; give a file of names, one a line") from None
    lines = lines_of(text)
    for number, line in enumerate(lines, 1):
        if not line.strip() or b"\0" in line:
            fault = "is empty" if not line.strip() else "has a zero byte"
            raise ConfigError(f"{path}: line {number} {fault}; each line is the path of one sample")
    return lines


def within(files: Sequence[bytes], root: str) -> tuple[Layout, _Indices]:
    """The layout of the files below `root`, and the number in it of each of `files`, -1 for those that are not below.

    Complains about these. Raises ConfigError if none is left.
    """
    numbers = np.arange(len(files))
    try:
        return Layout(relative_names(files, root)), numbers
    except OutsideRoot as error:
        complain(f"{printable(str(error))}; these are left out")
        inside = np.ones(len(files), bool)
        inside[list(error.numbers)] = False
        if not inside.any():
            raise ConfigError(f"no file of the list is below {root}") from None
        numbers = np.where(inside, np.cumsum(inside) - 1, -1)
        return Layout(
            relative_names([file for file, is_inside in zip(files, inside, strict=True) if is_inside], root)
        ), numbers
