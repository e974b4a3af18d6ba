"""A reader of a staged situation of scripts/bench why: reads as it is told until its stdin ends, and prints its bytes.

why_reader.py files FOLDER SEED          files whole, in random order
why_reader.py extents FOLDER SEED        256 KiB at a time at random places of the files
why_reader.py whole FOLDER SEED          files from the first byte to the last, one after the other
why_reader.py absent FOLDER SEED         looks for names that are not there
why_reader.py held FOLDER SEED           opens all, and keeps them open
why_reader.py decode FOLDER SEED         hinted, timed; computes for 20 ms after each file as a decoder would
why_reader.py processes FOLDER SEED      the same in as many processes as there are cores
"""

import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterator

EXTENT = 256 << 10
PIECE = 1 << 20
DECODE_S = 0.02


def told_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def names_of(folder: str, order: random.Random) -> list[str]:
    names = [f"{folder}/{name}" for name in sorted(os.listdir(folder))]
    order.shuffle(names)
    return names


def files(folder: str, order: random.Random) -> int:
    total = 0
    while not told_to_end():
        for name in names_of(folder, order):
            with open(name, "rb", buffering=0) as file:
                total += len(file.read())
            if told_to_end():
                break
    return total


def extents(folder: str, order: random.Random) -> int:
    total = 0
    handles = [os.open(name, os.O_RDONLY) for name in names_of(folder, order)]
    while not told_to_end():
        handle = order.choice(handles)
        at = order.randrange(os.fstat(handle).st_size // EXTENT) * EXTENT
        total += len(os.pread(handle, EXTENT, at))
    return total


def whole(folder: str, order: random.Random) -> int:
    total = 0
    while not told_to_end():
        for name in sorted(names_of(folder, order)):
            with open(name, "rb", buffering=0) as file:
                while not told_to_end() and (data := file.read(PIECE)):
                    total += len(data)
    return total


def absent(folder: str, order: random.Random) -> int:
    total = 0
    while not told_to_end():
        total += os.path.exists(f"{folder}/{order.random()}")
    return total


def held(folder: str, order: random.Random) -> int:
    handles = [os.open(name, os.O_RDONLY) for name in names_of(folder, order)]
    for handle in handles:
        os.pread(handle, 4096, 0)
    sys.stdin.read()
    return len(handles)


def decoded(name: str) -> bytes:
    with open(name, "rb", buffering=0) as file:
        data = file.read()
    until_s = time.perf_counter() + DECODE_S
    while time.perf_counter() < until_s:
        pass
    return data


def epochs(folder: str, order: random.Random, loaded: Callable[[Iterator[str]], Iterator[bytes]]) -> int:
    from hfs.exposed import timed
    from hfs.hint import hinted

    names = names_of(folder, order)
    total = 0
    while not told_to_end():
        sampler = hinted(list(range(len(names))), files=names, mount=folder)
        for data in timed(loaded(names[index] for index in sampler), sampler):
            total += len(data)
            if told_to_end():
                break
    return total


def decode(folder: str, order: random.Random) -> int:
    return epochs(folder, order, lambda names: map(decoded, names))


def processes(folder: str, order: random.Random) -> int:
    import multiprocessing

    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        return epochs(folder, order, lambda names: pool.imap(decoded, names))


WAYS = {
    "files": files,
    "extents": extents,
    "whole": whole,
    "absent": absent,
    "held": held,
    "decode": decode,
    "processes": processes,
}

if __name__ == "__main__":
    print("runs", flush=True)
    print(WAYS[sys.argv[1]](sys.argv[2], random.Random(int(sys.argv[3]))))
