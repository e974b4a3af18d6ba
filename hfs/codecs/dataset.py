"""A data set of encoded samples, for loaders: `len` and `[index]`, as torch's map-style data sets have them.

Its files are read like any other, whole and in one piece: through a mount, which fetches, keeps and shares them as it
does every file, and four times fewer bytes of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hfs.codecs.codec import CodecError, Decoded, Device, WantedOutput
from hfs.codecs.sample import check_size, decode_entry, unpack

SUFFIX = ".hfsc"


class EncodedDataset:
    """Sample i of encoded files: the array alone, or a tuple with those that lie beside it (labels), in file order.

    files     a directory, whose .hfsc files are taken in the order of their names, or a sequence of paths
    wanted    how the first array of each file is to come back; what lies beside it comes as it was
    device    None: NumPy arrays; else tensors there. A loader whose workers are other processes wants "cpu" or None
    arrays    names of those wanted, in the order wanted; None: all
    verify    compare the checksum of each file: 1 ms for 10 MB

    Nothing is opened before it is asked for, so it can be sent to other processes. Raises CodecError, with the name of
    the file.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        wanted: WantedOutput | None = None,
        *,
        device: Device = None,
        arrays: Sequence[str] | None = None,
        verify: bool = True,
    ) -> None:
        if isinstance(files, str | os.PathLike):
            try:
                names = sorted(name for name in os.listdir(files) if name.endswith(SUFFIX))
            except OSError as error:
                raise CodecError(f"{os.fspath(files)}: cannot be listed ({error.strerror})") from None
            if not names:
                raise CodecError(f"{os.fspath(files)}: has no {SUFFIX} files; `hfs encode` makes them")
            self.files = [os.path.join(files, name) for name in names]
        else:
            self.files = [os.fspath(file) for file in files]
        self._device, self._arrays, self._verify = device, arrays, verify
        self._wanted = WantedOutput() if wanted is None else wanted

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Decoded:
        path = self.files[index]
        try:
            entries = {entry.name: entry for entry in unpack(read(path), verify=self._verify)}
            names = tuple(entries) if self._arrays is None else tuple(self._arrays)
            if missing := [name for name in names if name not in entries]:
                raise CodecError(f"has no array {missing[0]!r}; it has {', '.join(entries)}")
            check_size([entries[name] for name in names], self._wanted)
            main = next(iter(entries))
            found = tuple(
                decode_entry(entries[name], self._wanted if name == main else WantedOutput(), self._device)
                for name in names
            )
        except CodecError as error:
            raise CodecError(f"{path}: {error}") from None
        return found[0] if len(found) == 1 else found


def read(path: str) -> bytearray:
    """All bytes of the file, in memory that torch may share. Raises CodecError."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = bytearray(size)
            view, got = memoryview(data), 0
            while got < size:
                more = file.readinto(view[got:])
                if not more:
                    break
                got += more
    except OSError as error:
        raise CodecError(f"{path}: cannot be read ({error.strerror})") from None
    if got < size:
        raise CodecError(f"{path}: cut short while it was read, at {got:,} of {size:,} bytes")
    return data
