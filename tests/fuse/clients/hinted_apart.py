"""A training with a hint that does an epoch for each line of its standard input.

Run by tests/fuse/test_tunnel.py where it sees no control socket: hinted_apart.py MOUNT COUNT. Says "begun" once the
order of an epoch was handed over, waits for another line, reads every file and says how many bytes that were.
"""

import logging
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

from hfs.hint import hinted
from tests.fuse.hinted import content


class Shuffled:
    """Another order each epoch."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(self.count), self.count))


def main(mount: str, count: int) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    files = [os.path.join(mount, f"d{number % 4}/{number}") for number in range(count)]
    sampler: Any = hinted(Shuffled(count), files=files, name="apart", ahead=True)
    for epoch, _ in enumerate(sys.stdin):
        sampler.set_epoch(epoch)
        indices = iter(sampler)
        first = next(indices)
        print("begun", flush=True)
        sys.stdin.readline()
        total = 0
        for number in [first, *indices]:
            with open(files[number], "rb") as file:
                data = file.read()
            assert data == content(number)
            total += len(data)
        print(total, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
