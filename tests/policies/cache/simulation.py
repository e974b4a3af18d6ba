"""A source and readers in virtual time, to see what the rules of policies/prefetch/miss_policy.py cost.

The source: 1 ms for each request, 200 MB/s a stream, 500 MB/s for all streams together. Readers read one extent after
the other and wait for it; workers fill files in the background. A read of what is here costs 0.1 ms. Used by
test_density.py; no test itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hfs.policies.geometry import ChunkSet, Extent, chunk_count, chunk_extent
from hfs.policies.prefetch.miss_policy import Fetch, Follow, MissPolicy, bypass_extent

CHUNK_BYTES = 8 << 20
HIT_S = 0.0001


@dataclass
class Speed:
    latency_s: float = 0.001
    stream: float = 200e6
    shared: float = 500e6

    def direct_s(self, size: int) -> float:
        return self.latency_s + size / self.stream


class File:
    def __init__(self, size: int) -> None:
        self.size = size
        self.present = ChunkSet(chunk_count(size, CHUNK_BYTES))
        self.coming: set[int] = set()
        self.density = MissPolicy(size, CHUNK_BYTES)
        self.filling = False

    @property
    def missing(self) -> int:
        return self.present.count - len(self.present)


@dataclass
class Job:
    """One transfer: a chunk (index >= 0) or an extent alone, and the readers that wait for it."""

    file: File
    index: int
    ready_s: float
    remaining: float
    waiters: list[int] = field(default_factory=list)


@dataclass
class Outcome:
    seconds: float = 0.0
    alone: int = 0
    chunks: int = 0
    chunks_at_end: int = 0
    source_bytes: int = 0
    direct_s: float = 0.0

    @property
    def requests(self) -> int:
        """READ requests of at most 1 MiB."""
        return self.alone + self.chunks * (CHUNK_BYTES >> 20)


def simulate(
    sizes: Sequence[int],
    reads: Sequence[tuple[int, int]],
    read_bytes: int,
    *,
    readers: int = 1,
    fillers: int = 4,
    speed: Speed | None = None,
    join: bool = False,
    can_stage: bool = True,
) -> Outcome:
    """Let `readers` share out `reads`, pairs of (file, offset). `join`: wait for a chunk on the way, never read alone.

    `seconds` is the time until the last read is answered, `source_bytes` what the source had sent or begun by then.
    """
    speed = speed or Speed()
    files = [File(size) for size in sizes]
    out = Outcome()
    jobs: list[Job] = []
    wake: list[tuple[float, int]] = [(0.0, reader) for reader in range(readers)]
    background: list[tuple[File, int]] = []
    fill_jobs = 0
    queue = iter(reads)
    now = 0.0
    busy = readers
    out.direct_s = sum(speed.direct_s(read_bytes) for _ in reads) / readers

    def start(file: File, index: int, size: int) -> Job:
        job = Job(file, index, now + speed.latency_s, float(size))
        jobs.append(job)
        out.source_bytes += size
        if index >= 0:
            file.coming.add(index)
            out.chunks += 1
        else:
            out.alone += 1
        return job

    def chunk(file: File, index: int) -> Job:
        coming = next((job for job in jobs if job.file is file and job.index == index), None)
        return coming or start(file, index, chunk_extent(index, file.size, CHUNK_BYTES).size)

    filled: set[int] = set()

    def fill_next() -> None:
        nonlocal fill_jobs
        while fill_jobs < fillers:
            if background:
                file, index = background.pop()
            else:
                for file in files:
                    if file.filling:
                        index = next((i for i in file.present.missing() if i not in file.coming), -1)
                        if index >= 0:
                            break
                        file.filling = False
                else:
                    return
            if index in file.present or index in file.coming:
                continue
            filled.add(id(chunk(file, index)))
            fill_jobs += 1

    while busy:
        active = [job for job in jobs if job.ready_s <= now]
        rate = min(speed.stream, speed.shared / len(active)) if active else 0.0
        times = [job.ready_s if job.ready_s > now else now + job.remaining / rate for job in jobs]
        soonest = min(times, default=float("inf"))
        reader_s, reader = min(wake, default=(float("inf"), -1))
        until = min(soonest, reader_s)
        for job in active:
            job.remaining -= rate * (until - now)
        now = until
        for job in [job for job in active if job.remaining <= 1e-3]:
            jobs.remove(job)
            if job.index >= 0:
                job.file.present.add(job.index)
                job.file.coming.discard(job.index)
            if id(job) in filled:
                filled.discard(id(job))
                fill_jobs -= 1
            wake.extend((now + HIT_S, waiter) for waiter in job.waiters)
        if reader_s <= now and (reader_s, reader) in wake:
            wake.remove((reader_s, reader))
            following = next(queue, None)
            if following is None:
                busy -= 1
                out.seconds = max(out.seconds, now)
            else:
                file = files[following[0]]
                read = Extent(following[1], min(following[1] + read_bytes, file.size))
                index = read.start // CHUNK_BYTES
                if index in file.present:
                    wake.append((now + HIT_S, reader))
                elif join and index in file.coming:
                    chunk(file, index).waiters.append(reader)
                else:
                    decision = file.density.missed(
                        read, sequential=False, missing_chunks=file.missing, can_stage=can_stage
                    )
                    if decision.fetch is Fetch.CHUNK:
                        chunk(file, index).waiters.append(reader)
                    else:
                        start(file, -1, bypass_extent(read, file.size).size).waiters.append(reader)
                    if decision.follow is Follow.CHUNK:
                        background.append((file, index))
                    elif decision.follow is Follow.FILL:
                        file.filling = True
        if background or any(file.filling for file in files):
            fill_next()
        if all(file.present.full for file in files):
            left = sum(1 for _ in queue)
            out.seconds = now + left * HIT_S / readers
            break
    out.chunks_at_end = sum(len(file.present) for file in files)
    return out
