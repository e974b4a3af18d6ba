"""The least that any cache has to read from the source, when it knows all that will be asked for: Belady's MIN.

Pure; the bar of the group `belady` is held against it. Files have sizes, and the cache of this bound may keep any part
of a file: every byte is then a page of its own, for which MIN (drop what is needed last, and do not keep what is
needed later than all that is kept) is optimal. No cache of whole files reads less.
Source: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5(2), 1966.
"""

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NEVER = np.iinfo(np.int64).max


def next_uses(requests: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """For each request (a file below `count`) the position of the next one of the same file, or NEVER."""
    later = np.full(count, NEVER)
    uses = np.empty(len(requests), np.int64)
    for position in range(len(requests) - 1, -1, -1):
        uses[position] = later[requests[position]]
        later[requests[position]] = position
    return uses


def least_source_bytes(
    orders: Sequence[npt.NDArray[np.int64]], sizes: npt.NDArray[np.int64], capacity_bytes: int
) -> list[int]:
    """Source bytes of each epoch, the cache empty before the first. orders: the files of each epoch in the order of
    their use; sizes: bytes of each file."""
    requests = np.concatenate(orders)
    uses = next_uses(requests, len(sizes))
    kept = [0] * len(sizes)
    when = [NEVER] * len(sizes)
    farthest: list[tuple[int, int]] = []  # (-next use, file) of what is kept; stale where `when` says something else
    room = capacity_bytes
    missed: list[int] = []
    position = 0
    for order in orders:
        missed.append(0)
        for _ in range(len(order)):
            file, use = int(requests[position]), int(uses[position])
            size = int(sizes[file])
            missed[-1] += size - kept[file]
            room += kept[file]
            kept[file], when[file] = 0, use
            position += 1
            if use == NEVER:
                continue
            kept[file] = size
            room -= size
            heapq.heappush(farthest, (-use, file))
            while room < 0:
                last, victim = farthest[0]
                if -last != when[victim] or not kept[victim]:
                    heapq.heappop(farthest)
                    continue
                part = min(kept[victim], -room)
                kept[victim] -= part
                room += part
    return missed
