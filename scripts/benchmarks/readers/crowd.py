"""Many threads, each reading one file of a folder, which may take for ever. Knows nothing of hfs.

    crowd.py FOLDER

Requests: {"do": "start"} starts one thread a file; {"do": "count"} says how many are about to read or have come so far
("open"), and how many have ended ("done", "failed"); {"do": "join"} waits for all.
"""

import os
import sys
import threading
from typing import Any

from barrier import serve


class Crowd:
    def __init__(self, folder: str) -> None:
        self.paths = sorted(entry.path for entry in os.scandir(folder))
        self.threads: list[threading.Thread] = []
        self.lock = threading.Lock()
        self.counts = {"open": 0, "done": 0, "failed": 0}

    def _count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def _read(self, path: str) -> None:
        try:
            with open(path, "rb", buffering=0) as file:
                self._count("open")
                file.read()
            self._count("done")
        except OSError:
            self._count("failed")

    def work(self, do: str) -> dict[str, Any]:
        if do == "start":
            self.threads = [threading.Thread(target=self._read, args=(path,), daemon=True) for path in self.paths]
            for thread in self.threads:
                thread.start()
        elif do == "join":
            for thread in self.threads:
                thread.join()
        with self.lock:
            return dict(self.counts)


if __name__ == "__main__":
    sys.exit(serve(Crowd(sys.argv[1]).work))
