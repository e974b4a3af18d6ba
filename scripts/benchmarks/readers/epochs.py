"""Reads files whole, each once an epoch, in random order, by threads that share the order; computing is a sleep.

    epochs.py ROOT LIST THREADS [--hint]

LIST has the paths of the files below ROOT, one a line. Each request {"epoch": N, "seed": S, "compute_s": T} is one
epoch in an order of its own; T seconds a file. With --hint the order is told ahead, as the README tells people to;
without, nothing here knows of hfs. The result has "files" and "bytes".
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barrier import serve
from shuffle import Shuffled


class Job:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.paths = [f"{args.root}/{name}" for name in args.list.read_text().splitlines()]
        self.sampler: Any = None
        self.lock = threading.Lock()

    def _indices(self, seed: int, epoch: int) -> Iterator[int]:
        if self.sampler is None:
            self.sampler = Shuffled(len(self.paths), seed)
            if self.args.hint:
                from hfs.hint import hinted

                self.sampler = hinted(self.sampler, files=self.paths, mount=self.args.root, ahead=True)
        self.sampler.set_epoch(epoch)
        return iter(self.sampler)

    def epoch(self, epoch: int, seed: int, compute_s: float) -> dict[str, Any]:
        indices = self._indices(seed, epoch)
        sizes: list[int] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                while True:
                    with self.lock:
                        index = next(indices, None)
                    if index is None:
                        return
                    sizes.append(_read(self.paths[index]))
                    if compute_s:
                        time.sleep(compute_s)
            except BaseException as error:  # noqa: BLE001 - told by whoever waits
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(self.args.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return {"files": len(sizes), "bytes": sum(sizes)}


def _read(path: str) -> int:
    with open(path, "rb", buffering=0) as file:
        return len(file.read())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("list", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("--hint", action="store_true")
    serve(Job(parser.parse_args()).epoch)


if __name__ == "__main__":
    sys.exit(main())
