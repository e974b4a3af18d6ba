"""Rows of an order of chunks that repeats and that nobody tells (LMDBIO's guess from history).

The job reads a large file chunk by chunk, as a loader does that fills a shuffle buffer: the order of the chunks is the
same in each epoch, that of the samples within a chunk is new each time. The cache takes a quarter of the file, so most
chunks have gone when their next epoch begins. In the other job the order of the chunks is new in each epoch as well:
it asks for the same bytes, and history says nothing of what comes next. Only the epochs after the first are held
against each other, all pages of the mount are dropped before each, and those of a sample when it has been read.
"""

import random
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import BenchError, SlowFs, Work, forget, hfs_mount, reader, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most, measured_rows

PRESET = "lustre"
CHUNK_BYTES = 8 << 20
CHUNKS, CHUNKS_QUICK = 32, 16
SAMPLE_BYTES = 32 << 10
SHARE = 0.25
EPOCHS = 5


def _orders(chunks: int, seed: int, *, repeats: bool) -> list[list[int]]:
    draw = random.Random(seed)
    first = draw.sample(range(chunks), chunks)
    return [first if repeats or not epoch else draw.sample(range(chunks), chunks) for epoch in range(EPOCHS)]


def _epochs(work: Work, file: Path, orders: list[list[int]], seed: int) -> tuple[float, float, int]:
    """Of all epochs but the first: seconds, source bytes / file, chunks that history had fetched."""
    capacity = int(SHARE * file.stat().st_size)
    with (
        slowfs(work, file.parent, PRESET) as source,
        hfs_mount(work, source.path, options=("--cache-size", str(capacity))) as mount,
        reader("blocks.py") as program,
    ):
        spent = 0.0
        before = 0
        for epoch, order in enumerate(orders):
            _drop(mount.path / file.name, source)
            answer = program.do(
                pieces=str(mount.path / file.name), order=order, piece=CHUNK_BYTES, size=SAMPLE_BYTES, seed=seed + epoch
            )
            if answer["bytes"] != file.stat().st_size // SAMPLE_BYTES * SAMPLE_BYTES:
                raise BenchError(f"{answer['bytes']} bytes were read of {file.stat().st_size}")
            if epoch:
                spent += seconds(answer)
            else:
                before = source.counters()["read_bytes"]
        read = source.counters()["read_bytes"] - before
        guessed = mount.status()["counters"]["guessed_chunks"]["value"]
    return spent, read / file.stat().st_size, guessed


def _drop(path: Path, source: SlowFs) -> None:
    # To drop pages the file must be opened, which is not what is measured.
    source.tell("set preset none")
    forget([path])
    source.tell(f"set preset {source.preset}")


def history(work: Work, options: Options, command: str) -> list[Row]:
    chunks = options.size(CHUNKS, CHUNKS_QUICK)
    size = chunks * CHUNK_BYTES // SAMPLE_BYTES * SAMPLE_BYTES
    folder = data.stamped(
        work.data / f"pieces-{chunks}", {"bytes": size}, lambda path: data.make_random(path / "pieces.bin", size, 1)
    )
    got = Results(command)
    for seed in range(options.runs):
        for name, repeats in (("new", False), ("same", True)):
            with got.attempt(f"{name}_s", f"{name}_bytes", f"{name}_guessed", "faster", "more"):
                spent, read, guessed = _epochs(
                    work, folder / "pieces.bin", _orders(chunks, seed, repeats=repeats), seed
                )
                got.add(f"{name}_s", spent)
                got.add(f"{name}_bytes", read)
                got.add(f"{name}_guessed", guessed)
        with got.attempt("faster", "more"):
            got.add("faster", got.last("new_s") / got.last("same_s"))
            got.add("more", got.last("same_bytes") / got.last("new_bytes"))
    what = (
        f"samples of 32 KiB of a {size / 1e6:.0f} MB file, chunk by chunk, cache {SHARE:.0%}, epochs 2 to {EPOCHS}, "
        f"{PRESET}{options.scale(CHUNKS, CHUNKS_QUICK)}"
    )
    rows = [
        got.row(f"{what}: order of chunks that repeats, speed-up over one that does not", "faster", at_least(1.2)),
        got.row("  source bytes / those of the order that does not", "more", at_most(1.1)),
    ]
    for name, title in (("same", "order that repeats"), ("new", "order that does not")):
        rows.append(got.row(f"  {title}", f"{name}_s", unit="s"))
        rows.append(got.row(f"  {title}: source bytes / file", f"{name}_bytes"))
        rows.append(got.row(f"  {title}: chunks fetched since they followed before", f"{name}_guessed", unit=""))
    return measured_rows(rows)
