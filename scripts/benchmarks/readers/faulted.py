"""Reads all below a folder in several ways, checks each byte, and goes on after errors. Knows nothing of hfs.

    faulted.py

Requests: {"folder": PATH}. File names are the numbers of their contents (pattern.py). The answer: "failed" (errors),
"wrong" (bytes), "bytes", "names" (entries found), "said" (a few errors).
"""

import mmap
import os
import sys
from typing import Any

from barrier import serve
from pattern import wrong_bytes

PIECE_BYTES = 128 << 10
MAX_SAID = 5


class Look:
    """One look at everything."""

    def __init__(self) -> None:
        self.got: dict[str, Any] = {"failed": 0, "wrong": 0, "bytes": 0, "names": 0, "said": []}

    def fault(self, what: str) -> None:
        self.got["failed"] += 1
        if len(self.got["said"]) < MAX_SAID:
            self.got["said"].append(what)

    def check(self, path: str, offset: int, data: bytes | memoryview) -> None:
        self.got["bytes"] += len(data)
        self.got["wrong"] += wrong_bytes(int(os.path.basename(path)), offset, data)

    def pieces(self, path: str, *, backwards: bool) -> None:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            offsets = list(range(0, size, PIECE_BYTES))
            for offset in reversed(offsets) if backwards else offsets:
                try:
                    data = os.pread(file.fileno(), PIECE_BYTES, offset)
                except OSError as error:
                    self.fault(f"{path} at {offset}: {error}")
                    continue
                if len(data) != min(PIECE_BYTES, size - offset):
                    self.fault(f"{path} at {offset}: {len(data)} bytes")
                self.check(path, offset, data)

    def mapped(self, path: str) -> None:
        """The last page only: a fault there is a signal, and the end of this program."""
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            offset = (len(view) - 1) // mmap.PAGESIZE * mmap.PAGESIZE
            self.check(path, offset, view[offset:])

    def folder(self, folder: str) -> None:
        names = sorted(os.listdir(folder))
        self.got["names"] += len(names)
        for number, name in enumerate(names):
            try:
                self.pieces(f"{folder}/{name}", backwards=number % 2 == 1)
            except OSError as error:
                self.fault(f"{folder}/{name}: {error}")


def work(folder: str, mapped: bool = False) -> dict[str, Any]:
    look = Look()
    try:
        look.folder(folder)
        if mapped:
            for name in sorted(os.listdir(folder)):
                look.mapped(f"{folder}/{name}")
    except OSError as error:
        look.fault(f"{folder}: {error}")
    return look.got


if __name__ == "__main__":
    sys.exit(serve(work))
