"""What hints cost by themselves: planning an epoch in the daemon, and telling it in the training job."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hfs.hint import hinted
from hfs.policies.schedule.schedule import Schedule
from scripts.benchmarks.common import BenchError, Work, hfs_mount
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most

SAMPLES, SAMPLES_QUICK = 1_280_000, 64_000
"""ImageNet."""
MANY, MANY_QUICK = 10_000_000, 1_000_000
"""Of which a million are told at a time."""
LEARNERS = 8
A_FILE_BYTES = 110_000
AT_ONCE = 16
"""Units that the daemon takes at a time (mountd/hints/hints.py)."""

FILES = 4000
"""Of the list whose order is told: each is named some hundred times, so that the list itself costs next to nothing."""


def planned_s(samples: int, at_once: int, seed: int) -> float:
    """Eight learners begin an epoch, and every unit is taken once, `at_once` at a time."""
    permutation = np.random.default_rng(seed).permutation(samples).astype(np.int32)
    began_s = time.perf_counter()
    schedule = Schedule(samples, A_FILE_BYTES)
    for learner in range(LEARNERS):
        mine = permutation[learner::LEARNERS]
        schedule.follow(learner, 0, mine, None, len(mine), 0.0)
    count = 0
    while units := schedule.fetch_order.take(at_once, 1 << 60, 0.0):
        count += len(units)
        if at_once < samples:
            for unit in units:
                schedule.arrived(unit, A_FILE_BYTES)
    if count != samples:
        raise BenchError(f"{count} of {samples} units were planned")
    return time.perf_counter() - began_s


def told(work: Work, samples: int, seed: int) -> tuple[float, float]:
    """(seconds until the first index, nanoseconds that each further one takes more than without hfs)."""
    source = work.new("files")
    for number in range(FILES):
        (source / f"{number}").write_bytes(b"%d" % number)
    order = np.random.default_rng(seed).integers(0, FILES, samples)
    began_s = time.perf_counter()
    for _ in iter(order):
        pass
    bare_s = time.perf_counter() - began_s
    with hfs_mount(work, source) as mount:
        sampler = hinted(order, files=[str(number) for number in range(FILES)], mount=str(mount.path))
        began_s = time.perf_counter()
        indices = iter(sampler)
        next(indices)
        first_s = time.perf_counter() - began_s
        if not mount.status()["hints"]["learners"]:
            raise BenchError("the daemon has not been told of the order")
        began_s = time.perf_counter()
        for _ in indices:
            pass
        rest_s = time.perf_counter() - began_s
    return first_s, (rest_s - bare_s) / samples * 1e9


def later_s(work: Work, samples: int, seed: int) -> float:
    """How much later than PyTorch's bare sampler a hinted one gives its first index."""
    import torch  # the other rows need none
    from torch.utils.data import RandomSampler

    source = work.new("files")
    for number in range(FILES):
        (source / f"{number}").write_bytes(b"%d" % number)

    def first_s(hint: Callable[[Any], Any]) -> float:
        generator = torch.Generator().manual_seed(seed)
        sampler = hint(RandomSampler(range(FILES), num_samples=samples, replacement=True, generator=generator))
        began_s = time.perf_counter()
        indices = iter(sampler)
        next(indices)
        return time.perf_counter() - began_s

    bare_s = first_s(lambda sampler: sampler)
    files = [str(number) for number in range(FILES)]
    with hfs_mount(work, source) as mount:
        return first_s(lambda sampler: hinted(sampler, files=files, mount=str(mount.path))) - bare_s


def planning(work: Work, options: Options, command: str) -> list[Row]:
    samples = options.size(SAMPLES, SAMPLES_QUICK)
    many = options.size(MANY, MANY_QUICK)
    got = Results(command)
    for seed in range(options.runs):
        got.add("merged", planned_s(samples, samples, seed))
        got.add("planned", planned_s(samples, AT_ONCE, seed) / samples * 1e6)
        with got.attempt("first", "each"):
            first_s, each_ns = told(work, samples, seed)
            got.add("first", first_s)
            got.add("each", each_ns)
        with got.attempt("later"):
            got.add("later", later_s(work, many, seed))
    what = f"{samples} samples{options.scale(SAMPLES, SAMPLES_QUICK)}"
    return [
        got.row(f"{what} of {LEARNERS} learners: the order of fetching all of them", "merged", at_most(1), "s"),
        got.row(f"  a unit, taken {AT_ONCE} at a time as the daemon does, and arrived", "planned", unit="us"),
        got.row(f"hinted(order of {what}): drawn and told, until the first index", "first", unit="s"),
        got.row("  each further index", "each", unit="ns"),
        got.row(f"hinted(RandomSampler of {many} samples): first index, later than bare", "later", at_most(0.3), "s"),
    ]
