"""Rows of raw volumes in a cache that is too small for them, kept as they are and kept encoded (`--stage-encoding`)."""

import numpy as np

from scripts.benchmarks.codecs_decode import VOLUMES, VOLUMES_QUICK, volumes_folder
from scripts.benchmarks.common import BenchError, Work, forget, hfs_mount, objects_of, reader, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least

CACHE_SHARE = 0.3
"""Of the data: they shrink to about a quarter, so that encoded all of it fits, and as it is a third."""

BARS = {"lustre": at_least(1), "busy": at_least(3)}
"""A decoder gives some 1.5 GB/s a core: against a source that nobody else uses it gains little."""

HOW = {"none": "as it is", "auto": "encoded"}


def staged(work: Work, options: Options, command: str, preset: str = "lustre") -> list[Row]:
    folder = volumes_folder(work, options)
    files = sorted((folder / "raw").iterdir())
    data_bytes = sum(file.stat().st_size for file in files)
    got = Results(command)
    for seed in range(options.runs):
        orders = [np.random.default_rng([seed, epoch]).permutation(len(files)) for epoch in (1, 2)]
        for wanted in HOW:
            flags = ("--cache-size", str(int(CACHE_SHARE * data_bytes)), "--stage-encoding", wanted)
            with (
                slowfs(work, folder / "raw", preset) as source,
                hfs_mount(work, source.path, options=flags) as mount,
                reader("encoded.py", mount.path) as program,
            ):
                on = mount.status()["stage_encoding"]["on"]
                if on != (wanted == "auto"):
                    raise BenchError(f"--stage-encoding {wanted}: on is {on}")
                for epoch, order in enumerate(orders, 1):
                    # What the page cache holds is read by the mount's readers alone: the cache's disk is the question.
                    forget(objects_of(mount.path))
                    forget(objects_of(mount.cache))
                    before = mount.status()["source"]["bytes"]
                    took_s = seconds(program.do(kind="bytes", names=[files[number].name for number in order]))
                    got.add(f"{wanted} {epoch}", took_s)
                    got.add(f"{wanted} {epoch} source", (mount.status()["source"]["bytes"] - before) / 1e6)
                kept = mount.status()["staged"]
                if wanted == "auto":
                    if not kept["encoded_bytes"]:
                        raise BenchError("nothing was kept encoded")
                    got.add("ratio", kept["encoded_bytes"] / kept["encoded_stored_bytes"])
        for epoch in (1, 2):
            got.add(f"faster {epoch}", got.last(f"none {epoch}") / got.last(f"auto {epoch}"))
    count = options.size(VOLUMES, VOLUMES_QUICK)
    # A quick run's data is so little that the daemon's memory holds as much of it as the cache does.
    bar = None if options.quick else BARS[preset]
    what = f"{count} raw volumes of 17 MB, random order, mount over {preset}, a cache of {CACHE_SHARE:.0%} of the data"
    return [
        got.row(f"{what}, epoch 2: as it is / --stage-encoding auto", "faster 2", bar),
        *(got.row(f"  {words}", f"{wanted} 2", unit="s") for wanted, words in HOW.items()),
        *(got.row(f"  from the source, {words}", f"{wanted} 2 source", unit="MB") for wanted, words in HOW.items()),
        got.row("  bytes kept encoded / bytes that stand for them", "ratio"),
        got.row("  epoch 1: as it is / --stage-encoding auto", "faster 1"),
    ]


def staged_busy(work: Work, options: Options, command: str) -> list[Row]:
    return staged(work, options, command, "busy")
