"""A layout: which bytes of which files each sample of a data set is; and the file that keeps it.

Made by the other files of this package, used by `hfs/hint.py` inside training jobs and by the command line. The file is
an uncompressed .npz without pickles, of a few bytes a sample, beside the data set or anywhere:

    format        uint8    "hfs-layout 1"
    names         uint8    paths of the files relative to a root (the mount, or its source), joined by zero bytes
    file_sizes    int64    bytes of each file when the layout was made, -1: not known
    file_mtimes   int64    nanoseconds since the epoch, -1: not known
    made_from     uint8    UTF-8, for people
    starts, extents, offsets, sizes     only if a sample is less than a whole file, see `Layout`

Arrays of one value are kept as that one, and all in the narrowest integers that hold them. Opens no file but the
layout's own, and those that `Layout.changed` is asked to look at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import zipfile
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mountd.errors import HfsError
from mountd.protocol_hints import LayoutFrame

__all__ = ["Layout", "LayoutError"]

_FORMAT = b"hfs-layout 1"

_Ints = npt.NDArray[np.int64]


def _none() -> _Ints:
    return np.empty(0, np.int64)


class LayoutError(HfsError):
    """A layout, or the file of one, that cannot be used."""


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Which bytes of which files each sample is.

    Without `extents` sample i is the whole of file i. With them it is the extents `starts[i]` to `starts[i + 1]`
    (half-open), or the one extent i if `starts` is empty; extent j is `sizes[j]` bytes at `offsets[j]` of file
    `extents[j]`. All arrays are int64 and one-dimensional. Raises LayoutError where they do not fit together.
    """

    names: bytes
    """Relative to a root, joined by zero bytes."""
    file_sizes: _Ints = dataclasses.field(default_factory=_none)
    """One for each file, or empty; -1: not known."""
    file_mtimes_ns: _Ints = dataclasses.field(default_factory=_none)
    extents: _Ints = dataclasses.field(default_factory=_none)
    offsets: _Ints = dataclasses.field(default_factory=_none)
    sizes: _Ints = dataclasses.field(default_factory=_none)
    starts: _Ints = dataclasses.field(default_factory=_none)
    made_from: str = ""
    """For people: the format and the names of the data sets."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                if value.ndim != 1 or value.dtype.kind not in "iu":
                    raise LayoutError(f"{field.name} is not a list of integers")
                object.__setattr__(self, field.name, np.ascontiguousarray(value, np.int64))
        files = self.file_count
        if not self.names or any(len(array) not in {0, files} for array in (self.file_sizes, self.file_mtimes_ns)):
            raise LayoutError("it does not say the same number of files everywhere")
        count = len(self.extents)
        if len(self.offsets) != count or len(self.sizes) != count:
            raise LayoutError("it does not say the same number of extents everywhere")
        if not count:
            if len(self.starts):
                raise LayoutError("it has starts without extents")
            return
        if self.extents.min() < 0 or self.extents.max() >= files:
            raise LayoutError(f"it has extents in files that it does not have (there are {files})")
        if self.offsets.min() < 0 or self.sizes.min() < 1 or len(self.file_sizes) != files:
            raise LayoutError("it has extents that lie nowhere")
        ends = self.offsets + self.sizes
        if (ends > self.file_sizes[self.extents]).any():
            at = int(np.argmax(ends > self.file_sizes[self.extents]))
            raise LayoutError(f"extent {at} lies beyond the end of its file")
        starts = self.starts
        if len(starts) and (starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 0).any()):
            raise LayoutError("its starts do not ascend from 0 to the number of extents")

    @property
    def file_count(self) -> int:
        """How many files there are."""
        return self.names.count(b"\0") + 1

    @property
    def files(self) -> list[bytes]:
        """Their paths relative to the root."""
        return self.names.split(b"\0")

    @property
    def samples(self) -> int:
        """How many samples there are; indices are 0 <= i < samples."""
        if len(self.starts):
            return len(self.starts) - 1
        return len(self.extents) or self.file_count

    @property
    def sample_bytes(self) -> int | None:
        """Bytes of all samples together, those in common counted each time; None if not known."""
        if len(self.extents):
            return int(self.sizes.sum())
        if len(self.file_sizes) and self.file_sizes.min() >= 0:
            return int(self.file_sizes.sum())
        return None

    def frame(self) -> LayoutFrame:
        """As it is sent to the daemon."""
        whole = not len(self.extents)
        return LayoutFrame(
            files=self.names,
            extents=b"" if whole else self.extents.astype("<i4").tobytes(),
            offsets=b"" if whole else self.offsets.astype("<i8").tobytes(),
            sizes=b"" if whole else self.sizes.astype("<i8").tobytes(),
            starts=b"" if whole else self.starts.astype("<i8").tobytes(),
            file_sizes=b"" if whole else self.file_sizes.astype("<i8").tobytes(),
        )

    def changed(self, root: str) -> list[str]:
        """What is wrong with each file below `root` that is not the version the layout was made of.

        Costs a stat for each file whose version is known.
        """
        wrong: list[str] = []
        if not len(self.file_sizes) or not len(self.file_mtimes_ns):
            return wrong
        for name, size, mtime_ns in zip(self.files, self.file_sizes, self.file_mtimes_ns, strict=True):
            if size < 0 or mtime_ns < 0:
                continue
            path = os.path.join(os.fsencode(root), name)
            try:
                found = os.stat(path)
            except OSError as error:
                wrong.append(f"{os.fsdecode(path)}: {error.strerror}")
                continue
            if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
                wrong.append(f"{os.fsdecode(path)}: changed since the layout was made")
        return wrong

    def save(self, path: str) -> None:
        """Write the file, all of it or nothing. Raises LayoutError."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "format": _text(_FORMAT),
            "names": _text(self.names),
            "made_from": _text(self.made_from.encode("utf-8", "backslashreplace")),
            "file_sizes": self.file_sizes,
            "file_mtimes": self.file_mtimes_ns,
            "samples": np.array([self.samples]),
        }
        if len(self.extents):
            arrays |= {
                "extents": _packed(self._rows(self.extents)),
                "offsets": _packed(self.offsets),
                "sizes": _packed(self._rows(self.sizes)),
                "starts": _packed(np.diff(self.starts)),
                "extent_count": np.array([len(self.extents)]),
            }
        part = f"{path}.{secrets.token_hex(4)}.part"
        try:
            with open(part, "xb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type] # its stubs take any name for allow_pickle
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise LayoutError(f"{path}: cannot be written ({error.strerror})") from None

    def _rows(self, values: _Ints) -> _Ints:
        """The extents of one sample, if all samples have the same; else all."""
        lengths = np.diff(self.starts)
        if len(lengths) and (step := int(lengths[0])) and (lengths == step).all():
            rows = values.reshape(-1, step)
            if (rows == rows[0]).all():
                return values[:step]
        return values

    @classmethod
    def load(cls, path: str) -> Self:
        """The layout in a file. Raises LayoutError, which names the file and what is wrong with it."""
        try:
            # Not np.load of the path: it leaves the file open where it fails.
            with open(path, "rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as arrays:
                if "format" not in arrays:
                    raise LayoutError(f"{path}: not a layout")
                said = arrays["format"].tobytes()
                if said != _FORMAT:
                    raise LayoutError(
                        f"{path}: of another format ({said.decode(errors='replace')}); this version reads "
                        f"{_FORMAT.decode()}. Build it again"
                    )
                read = {name: arrays[name] for name in arrays.files}
            return cls._of(read)
        except FileNotFoundError:
            raise LayoutError(f"{path}: no such file") from None
        except LayoutError as error:
            text = str(error)
            raise LayoutError(text if text.startswith(path) else f"{path}: damaged: {text}") from None
        except (OSError, EOFError, ValueError, KeyError, IndexError, MemoryError, zipfile.BadZipFile) as error:
            raise LayoutError(f"{path}: not a layout, or cut short ({error})") from None

    @classmethod
    def _of(cls, read: dict[str, npt.NDArray[Any]]) -> Self:
        samples = int(read["samples"][0])
        arrays: dict[str, _Ints] = {}
        if "extents" in read:
            count = int(read["extent_count"][0])
            if not 0 < count < 1 << 40 or not 0 <= samples <= max(count, 1 << 31):
                raise LayoutError("it says a number of extents that cannot be")
            arrays["extents"] = _spread(read["extents"], count)
            arrays["offsets"] = _spread(read["offsets"], count)
            arrays["sizes"] = _spread(read["sizes"], count)
            if len(read["starts"]):
                lengths = _spread(read["starts"], samples)
                arrays["starts"] = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        layout = cls(
            names=read["names"].tobytes(),
            file_sizes=read["file_sizes"],
            file_mtimes_ns=read["file_mtimes"],
            made_from=read["made_from"].tobytes().decode(errors="replace"),
            **arrays,
        )
        if layout.samples != samples:
            raise LayoutError(f"it has {layout.samples} samples and says {samples}")
        return layout


def _text(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _packed(values: _Ints) -> npt.NDArray[Any]:
    """The same in the narrowest unsigned integers; one value if all are the same."""
    if len(values) and (values == values[0]).all():
        values = values[:1]
    return values.astype(np.min_scalar_type(int(values.max()) if len(values) else 0))


def _spread(values: npt.NDArray[Any], count: int) -> _Ints:
    """`count` values, of as many or of those that repeat."""
    if not len(values) or count % len(values):
        raise LayoutError(f"it has {len(values)} values where {count} belong")
    return np.tile(values.astype(np.int64), count // len(values)) if len(values) < count else values.astype(np.int64)
