"""The process that tests/power/test_crash.py kills. Run with a mode and a cache directory.

`points`, or `points encoded`: reads numbers, one a line; for each it forks a process that works on the cache and kills
itself at that disk or index operation; answers "killed" or "done COUNT". `stream`: works with real threads until it is
killed from outside, and tells each round.
"""

import os
import sys
from contextlib import AbstractContextManager, ExitStack
from unittest import mock

import trio

from hfs.mountd.cache import Cache, CacheSettings, open_cache, reclaimer
from hfs.mountd.cache.index import statements as index_file
from hfs.mountd.cache.objects import numbers as staging_names
from hfs.mountd.cache.objects.codec import Shrinker
from hfs.mountd.core.metrics import Metrics
from tests.support.faults import (
    CAPACITY_BYTES,
    CHUNK_BYTES,
    SHRINKS,
    ZEROS,
    Operations,
    check_all,
    die,
    evict,
    healthy_staging,
    put,
    version_of,
)

# (seed, size): one chunk, several with a short end, exactly two, and more than fits so that something must go.
FILES = ((1, 5000), (2, 300_000), (3, 2 * CHUNK_BYTES), (4, 70_001), (5, 1))


def few_numbers_leased() -> AbstractContextManager[object]:
    """Object numbers come in small blocks: a block runs out in each run, and 64 names are tried after a kill. They are
    forgotten in small groups, too.

    With the 16 384 of a real cache the tests of kills and faults spend most of their time on names that never were.
    """
    patches = ExitStack()
    patches.enter_context(mock.patch.object(index_file, "_LEASE", 64))
    patches.enter_context(mock.patch.object(staging_names, "_AHEAD", 60))
    patches.enter_context(mock.patch.object(reclaimer, "_FORGOTTEN_AT_ONCE", 2))
    return patches


async def work(staging: Cache, generation: int, *, may_fail: bool = False, first: int = 0) -> None:
    """Stage, read, evict: everything that changes the disk or the index. `generation` makes other versions of it.

    `first`: added to the seeds; SHRINKS for what can be encoded.
    """
    await staging.ready.wait()
    await check_all(staging, may_fail=may_fail)
    for seed, size in FILES:
        file = await staging.files.get(version_of(first + seed, size, generation), b"dir/%d" % seed)
        staging.files.pin(file)
        for index in reversed(range(file.present.count)):
            put(staging, file, index)
        staging.files.unpin(file)
        if seed == 2:
            await staging.committer.wait_committed()
    await staging.committer.wait_committed()
    zeros = await staging.files.get(version_of(ZEROS + first, 3 * CHUNK_BYTES + 9, generation), b"zeros")
    staging.files.pin(zeros)
    put(staging, zeros, 2)
    await staging.writer.put_holes(zeros, (0, 1, 3))
    staging.files.unpin(zeros)
    # A file of which only a part is staged, twice: committed, and then more of it written without an end.
    part = await staging.files.get(version_of(first + 6, 1_000_000, generation), b"part")
    put(staging, part, 3)
    await staging.committer.wait_committed()
    put(staging, part, 5)
    put(staging, part, part.present.count - 1)
    await evict(staging, version_of(first + 1, 5000, generation))
    # A chunk that is found damaged, and put again.
    file = await staging.files.get(version_of(first + 3, 2 * CHUNK_BYTES, generation))
    staging.reclaim_queue.give_up(file, [1])
    await staging.reclaimer.wait_idle()
    put(staging, file, 1)


async def one_run(cache_dir: str, at: int, generation: int, encoding: bool) -> int:
    """Work once, to die at operation `at`. Returns how many operations there were."""
    operations = Operations(at, die, reads=False)
    policy = "lru" if generation % 2 else "fill-once"
    async with healthy_staging(cache_dir, eviction=policy, operations=operations, encoding=encoding) as staging:
        await work(staging, generation, first=SHRINKS if encoding else 0)
    return operations.count


def points(cache_dir: str, encoding: bool) -> None:
    """Serve the numbers on standard input."""
    if encoding:
        Shrinker()  # the library is loaded once, not in each child
    for line in sys.stdin:
        at, generation = map(int, line.split())
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            count = trio.run(one_run, cache_dir, at, generation, encoding)
            os.write(writer, b"done %d" % count)
            os._exit(0)
        os.close(writer)
        answer = os.read(reader, 64)
        os.close(reader)
        os.waitpid(pid, 0)
        print(answer.decode() or "killed", flush=True)


async def stream(cache_dir: str) -> None:
    """Stage generation after generation until somebody ends it."""
    settings = CacheSettings(CAPACITY_BYTES, chunk_bytes=CHUNK_BYTES, eviction="lru")
    async with open_cache(cache_dir, settings, metrics=Metrics()) as staging:
        generation = int.from_bytes(os.urandom(4))
        while True:
            generation += 1
            for seed in range(10, 40):
                file = await staging.files.get(version_of(seed, 150_000, generation), b"stream/%d" % seed)
                for index in range(file.present.count):
                    put(staging, file, index)
                await staging.files.get(version_of(seed + 100, 10, generation))
            print("round", flush=True)
            if generation % 2:
                await staging.committer.wait_committed()


if __name__ == "__main__":
    mode, cache = sys.argv[1:]
    if mode.startswith("points"):
        with few_numbers_leased():
            points(cache, mode == "points encoded")
    else:
        trio.run(stream, cache)
