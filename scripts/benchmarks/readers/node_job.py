"""A job of one node: reads all files of a folder in random order, again and again, checks each byte; without hfs.

    node_job.py FOLDER ROUNDS SEED

Prints "runs" when it begins and, after ROUNDS rounds (0: once its stdin has ended), one JSON object: "files", "wrong"
(bytes), "failed" (reads), "seconds" (of each round), "uid", "daemon" (its socket; empty: there is none). File names are
the numbers of their contents (pattern.py).
"""

import json
import os
import random
import select
import sys
import time

from pattern import wrong_bytes


def main() -> None:
    folder, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    names = sorted(os.listdir(folder), key=int)
    order = random.Random(seed)
    wrong = failed = files = 0
    seconds: list[float] = []
    print("runs", flush=True)
    while len(seconds) < rounds or not (rounds or select.select([sys.stdin], [], [], 0)[0]):
        order.shuffle(names)
        began_s = time.perf_counter()
        for name in names:
            files += 1
            try:
                with open(f"{folder}/{name}", "rb", buffering=0) as file:
                    wrong += wrong_bytes(int(name), 0, file.read())
            except OSError:
                failed += 1
        seconds.append(time.perf_counter() - began_s)
    found = {"files": files, "wrong": wrong, "failed": failed, "seconds": seconds, "uid": os.getuid()}
    print(json.dumps({**found, "daemon": daemon_of(folder)}))


def daemon_of(folder: str) -> str:
    try:
        return os.fsdecode(os.getxattr(folder, "user.hfs.socket"))
    except OSError:
        return ""


if __name__ == "__main__":
    main()
