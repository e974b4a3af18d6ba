"""A reader that opens files by path, again and again, which may change meanwhile, and writes down what it sees.

    changing.py FOLDER STATE BESIDE SEED

FOLDER has small/NUMBER and large/NUMBER as scripts/benchmarks/native_files.py makes them; BESIDE is a file that nobody
serves. STATE is an array of int64: how many of the small files may be read, and of each the oldest version that may
still be seen by who opens it. Requests: {"do": "all"} opens and reads each file once; {"do": "start"} begins to read
without end; {"do": "look"} says what has been counted so far. Knows nothing of hfs.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
from barrier import serve
from pattern import LEAST_BYTES, version_of, wrong_bytes

LARGE_BYTES = 64 << 10
PAUSE_S = 0.002
"""Between two operations: what is measured is not how many readers a core has."""
SLOW_OPEN_S, WAITS_S = 0.1, 1.0
NEWER = 3
"""So many versions may have come since the oldest that may be seen."""
MAX_SAID = 10
"""Of each kind."""


class Reader:
    """One process: a thread that reads without end, and the requests of the benchmark."""

    def __init__(self, folder: str, state: str, beside: str, seed: int) -> None:
        self.folder, self.beside = folder, beside
        self.random = random.Random(seed)
        self.large = sorted(os.listdir(f"{folder}/large"))
        self.state = np.memmap(state, np.int64, "r")
        self.counts: Counter[str] = Counter()
        self.longest_s = self.longest_open_s = 0.0
        self.said: list[str] = []
        self.begun_s = time.monotonic()

    def do(self, do: str) -> dict[str, Any]:
        if do == "start":
            threading.Thread(target=self.run, daemon=True).start()
        elif do == "all":
            for number in range(int(self.state[0])):
                self.small(number)
            for name in self.large:
                self.block(name)
        return {
            **self.counts,
            "said": self.said,
            "longest_s": self.longest_s,
            "longest_open_s": self.longest_open_s,
            "for_s": time.monotonic() - self.begun_s,
        }

    def run(self) -> None:
        while True:
            draw = self.random.random()
            if draw < 0.8:
                self.small(self.random.randrange(int(self.state[0])))
            elif draw < 0.9:
                self.block(self.random.choice(self.large))
            else:
                begun_s = time.monotonic()
                os.close(os.open(self.beside, os.O_RDONLY))
                self.counts["beside_slow"] += time.monotonic() - begun_s > SLOW_OPEN_S
            self.counts["operations"] += 1
            self.begun_s = time.monotonic()
            time.sleep(PAUSE_S)

    def fault(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= MAX_SAID:
            self.said.append(f"{kind}: {what}")

    def read(self, name: str, size: int, offset: int | None) -> tuple[bytes, int] | None:
        """What an open by path gives, and the offset; None: it fails. `offset` None: at random."""
        path = f"{self.folder}/{name}"
        self.begun_s = time.monotonic()
        try:
            descriptor = os.open(path, os.O_RDONLY)
            opened_s = time.monotonic() - self.begun_s
            try:
                if offset is None:
                    offset = self.random.randrange(os.fstat(descriptor).st_size - size)
                data = os.pread(descriptor, size, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.fault("failed", f"{path}: {error}")
            return None
        spent_s = time.monotonic() - self.begun_s
        self.counts["opens"] += 1
        self.longest_s, self.longest_open_s = max(self.longest_s, spent_s), max(self.longest_open_s, opened_s)
        if opened_s > SLOW_OPEN_S:
            self.fault("opens_slow", f"{path}: {opened_s:.3f} s")
        if spent_s > WAITS_S:
            self.fault("waits", f"{path}: {spent_s:.1f} s")
        return data, offset

    def small(self, number: int) -> None:
        oldest = int(self.state[1 + number])
        found = self.read(f"small/{number}", 2 * LEAST_BYTES, 0)
        if found is None:
            return
        version = version_of(number, found[0], oldest + NEWER)
        if version is None:
            self.fault("wrong", f"small/{number}: {len(found[0])} bytes are those of no version: {found[0][:64].hex()}")
        elif version < oldest:
            self.fault("old", f"small/{number}: version {version}, not {oldest}")

    def block(self, name: str) -> None:
        found = self.read(f"large/{name}", LARGE_BYTES, None)
        if found is None:
            return
        data, offset = found
        if len(data) != LARGE_BYTES or wrong_bytes(int(name), offset, data):
            self.fault("wrong", f"large/{name}: {len(data)} bytes at {offset}")


if __name__ == "__main__":
    sys.exit(serve(Reader(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])).do))
