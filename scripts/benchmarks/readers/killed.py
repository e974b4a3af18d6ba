"""A reader that goes on while the file system's daemon is killed, and writes down all that it sees of that.

    killed.py FOLDER ROLE SEED

FOLDER has large/NUMBER and small/CLASS/NUMBER as scripts/benchmarks/trust_kills.py makes them. ROLE `files` opens,
lists and reads in a loop; `mapped` reads pages of mapped files. Requests: {"do": "start"}; {"do": "hold"} opens files
that stay open and reads from each; {"do": "judge"} reads from these again and closes them: how many read on, are stale,
or fail; {"do": "look"} says for how long the operation under way has lasted, and what has been counted so far. Knows
nothing of hfs.
"""

import errno
import mmap
import os
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

from barrier import serve
from pattern import wrong_bytes

PAGE = 4096
RANDOM_BYTES = 64 << 10
HELD_SMALL, HELD_LARGE = 4, 4
MAX_SAID = 20


class Reader:
    """One process: a thread that reads without end, and the requests of the benchmark."""

    def __init__(self, folder: str, role: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.large = sorted(entry.path for entry in os.scandir(f"{folder}/large"))
        self.classes = {
            entry.path: {inner.name for inner in os.scandir(entry.path)} for entry in os.scandir(f"{folder}/small")
        }
        self.small = sorted(f"{path}/{name}" for path, names in self.classes.items() for name in names)
        self.operation = {"files": self.files, "mapped": self.pages}[role]
        self.views = [self.view(path) for path in self.large] if role == "mapped" else []
        self.held: list[tuple[str, int]] = []
        self.counts: Counter[str] = Counter()
        self.said: list[str] = []
        self.begun_s = time.monotonic()

    def do(self, **request: Any) -> dict[str, Any]:
        match request["do"]:
            case "start":
                threading.Thread(target=self.run, daemon=True).start()
            case "hold":
                self.hold()
            case "judge":
                self.judge()
        return {**self.counts, "said": self.said, "for_s": time.monotonic() - self.begun_s}

    def run(self) -> None:
        while True:
            self.begun_s = time.monotonic()
            self.operation()
            self.counts["operations"] += 1

    def fault(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        if len(self.said) < MAX_SAID:
            self.said.append(f"{kind}: {what}")

    def files(self) -> None:
        if self.random.random() < 0.2:
            path = self.random.choice(list(self.classes))
            try:
                names = set(os.listdir(path))
            except OSError as error:
                self.fault("opens_failed", f"listdir {path}: {error}")
                return
            if names != self.classes[path]:
                self.fault("listings_wrong", f"{path}: {len(names)} names, not {len(self.classes[path])}")
            return
        path = self.random.choice(self.small if self.random.random() < 0.8 else self.large)
        try:
            descriptor = os.open(path, os.O_RDONLY)
            size = os.fstat(descriptor).st_size
        except OSError as error:
            self.fault("opens_failed", f"open {path}: {error}")
            return
        try:
            offset = 0 if size < 1 << 20 else self.random.randrange(size - RANDOM_BYTES)
            self.check(
                path, offset, os.pread(descriptor, min(size, 1 << 20), offset), min(size, size - offset, 1 << 20)
            )
        except OSError as error:
            self.read_failed(f"read {path}", error)
        finally:
            os.close(descriptor)

    def read_failed(self, what: str, error: OSError) -> None:
        self.fault("stale" if error.errno == errno.ESTALE else "reads_failed", f"{what}: {error}")

    def check(self, path: str, offset: int, data: bytes, size: int) -> None:
        self.counts["bytes"] += len(data)
        wrong = wrong_bytes(int(os.path.basename(path)), offset, data)
        if wrong:
            self.fault("wrong", f"{path}: {wrong} wrong bytes in {len(data)} at {offset}")
        if len(data) != size:
            self.fault("short", f"{path}: {len(data)} bytes of {size} at {offset}")

    # -- mapped files -------------------------------------------------------------------------------------------------

    def view(self, path: str) -> tuple[str, int, mmap.mmap]:
        descriptor = os.open(path, os.O_RDONLY)
        return path, descriptor, mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)

    def pages(self) -> None:
        path, descriptor, view = self.random.choice(self.views)
        offset = self.random.randrange(len(view) // PAGE) * PAGE
        view.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, offset, RANDOM_BYTES, os.POSIX_FADV_DONTNEED)
        self.check(path, offset, view[offset : offset + PAGE], min(PAGE, len(view) - offset))

    # -- handles that are open when the daemon dies -------------------------------------------------------------------

    def hold(self) -> None:
        for path in self.random.sample(self.small, HELD_SMALL) + self.random.sample(self.large, HELD_LARGE):
            try:
                descriptor = os.open(path, os.O_RDONLY)
                os.pread(descriptor, 100, 0)
            except OSError as error:
                self.fault("opens_failed", f"open {path}: {error}")
                continue
            self.held.append((path, descriptor))

    def judge(self) -> None:
        for path, descriptor in self.held:
            size = os.fstat(descriptor).st_size
            offset = self.random.randrange(max(1, size - PAGE)) // PAGE * PAGE
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # else the kernel answers
            try:
                data = os.pread(descriptor, PAGE, offset)
            except OSError as error:
                self.fault("held_stale" if error.errno == errno.ESTALE else "held_failed", f"held {path}: {error}")
            else:
                self.check(path, offset, data, min(PAGE, size - offset))
                self.counts["held_on"] += 1
            os.close(descriptor)
        self.held.clear()


if __name__ == "__main__":
    sys.exit(serve(Reader(sys.argv[1], sys.argv[2], int(sys.argv[3])).do))
