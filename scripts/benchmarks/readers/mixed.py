"""Many processes that read a tree of small and large files in every way there is, and check each byte.

    mixed.py FOLDER READERS SEED

FOLDER has large/NUMBER and small/CLASS/NUMBER as scripts/benchmarks/trust_soak.py makes them. One request: {"seconds":
S}; the answer has "operations", "bytes", "failed" (errors), "wrong" (bytes), "slowest_s" (one operation) and "said" (a
few of the errors). Knows nothing of hfs.
"""

import json
import mmap
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from barrier import serve
from pattern import wrong_bytes

PAGE = 4096
SEQUENTIAL_BYTES, READ_BYTES = 16 << 20, 1 << 20
RANDOM_BYTES = 128 << 10
RANDOM_READS = 16
SMALL_FILES = 16
MAX_SAID = 5


class Reader:
    """One process."""

    def __init__(self, folder: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.large = sorted(entry.path for entry in os.scandir(f"{folder}/large"))
        self.classes = {
            entry.path: {inner.name for inner in os.scandir(entry.path)} for entry in os.scandir(f"{folder}/small")
        }
        self.small = sorted(f"{path}/{name}" for path, names in self.classes.items() for name in names)
        self.got = {"operations": 0, "bytes": 0, "failed": 0, "wrong": 0, "slowest_s": 0.0}
        self.said: list[str] = []

    def run(self, limit_s: float) -> dict[str, Any]:
        operations: list[Callable[[], None]] = [self.in_order, self.anywhere, self.mapped, self.files, self.names]
        end = time.monotonic() + limit_s
        while (begin := time.monotonic()) < end:
            operation = self.random.choice(operations)
            try:
                operation()
            except OSError as error:
                self.fault(f"{operation.__name__}: {error}")
            self.got["operations"] += 1
            self.got["slowest_s"] = max(self.got["slowest_s"], time.monotonic() - begin)
        return {**self.got, "said": self.said}

    def fault(self, what: str) -> None:
        self.got["failed"] += 1
        if len(self.said) < MAX_SAID:
            self.said.append(what)

    def check(self, path: str, offset: int, data: bytes | memoryview) -> None:
        self.got["bytes"] += len(data)
        wrong = wrong_bytes(int(os.path.basename(path)), offset, data)
        if wrong:
            self.got["wrong"] += wrong
            self.said.append(f"{path}: {wrong} wrong bytes in {len(data)} at {offset}")

    def read_at(self, fd: int, path: str, offset: int, size: int) -> None:
        data = os.pread(fd, size, offset)
        if len(data) != size:
            self.fault(f"{path}: {len(data)} bytes of {size} at {offset}")
        self.check(path, offset, data)

    def in_order(self) -> None:
        path = self.random.choice(self.large)
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            start = self.random.randrange(0, max(1, size - SEQUENTIAL_BYTES), PAGE)
            for offset in range(start, min(start + SEQUENTIAL_BYTES, size), READ_BYTES):
                self.read_at(file.fileno(), path, offset, min(READ_BYTES, size - offset))

    def anywhere(self) -> None:
        path = self.random.choice(self.large)
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for _ in range(RANDOM_READS):
                self.read_at(file.fileno(), path, self.random.randrange(size - RANDOM_BYTES), RANDOM_BYTES)

    def mapped(self) -> None:
        path = self.random.choice(self.large)
        with open(path, "rb", buffering=0) as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            for _ in range(RANDOM_READS):
                offset = self.random.randrange(len(view) // PAGE) * PAGE
                self.check(path, offset, view[offset : offset + PAGE])

    def files(self) -> None:
        for path in self.random.sample(self.small, SMALL_FILES):
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read()
            if len(data) != size:
                self.fault(f"{path}: {len(data)} bytes of {size}")
            self.check(path, 0, data)

    def names(self) -> None:
        path = self.random.choice(list(self.classes))
        names = set(os.listdir(path))
        if names != self.classes[path]:
            self.fault(f"{path}: {len(names)} names, not {len(self.classes[path])}")


def one(folder: str, seed: int, limit_s: float, answer: int) -> None:
    """In a process of its own."""
    got = Reader(folder, seed).run(limit_s)
    os.write(answer, json.dumps(got).encode())


def work(folder: str, count: int, seed: int, seconds: float) -> dict[str, Any]:
    readers = []
    for number in range(count):
        here, there = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                one(folder, seed + number, seconds, there)
            finally:
                os._exit(0)
        os.close(there)
        readers.append((pid, here))
    total: dict[str, Any] = {"operations": 0, "bytes": 0, "failed": 0, "wrong": 0, "slowest_s": 0.0, "said": []}
    for pid, answer in readers:
        with open(answer, "rb") as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        got = json.loads(text) if text else {**dict.fromkeys(total, 0), "failed": 1, "said": ["a reader died"]}
        for key in ("operations", "bytes", "failed", "wrong"):
            total[key] += got[key]
        total["slowest_s"] = max(total["slowest_s"], got["slowest_s"])
        total["said"] = (total["said"] + got["said"])[:MAX_SAID]
    return total


if __name__ == "__main__":
    sys.exit(serve(lambda **request: work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), request["seconds"])))
