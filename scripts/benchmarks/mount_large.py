"""Rows of large files: random samples of an HDF5 file, few reads of a huge one, one read from end to end."""

import contextlib
import time
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import Work, hfs_mount, reader, seconds, slowfs, together
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most, median_row

SAMPLES, SAMPLES_QUICK = 78_125, 7_812
"""1.5 GB of samples."""
PART, PART_QUICK = 4_000, 1_000
"""Samples read directly from a busy source, where all would take a quarter of an hour."""
PROCESSES = 2

SHARED_BPS = {"lustre": 500e6, "busy": 50e6}

SPARSE_BYTES = 20 * 10**9
SPARSE_READS = 100
IDLE_S = 3.0
BLOCK_BYTES = 1024**2


def samples_folder(work: Work, options: Options) -> Path:
    """The folder of samples.h5."""
    count = options.size(SAMPLES, SAMPLES_QUICK)
    folder = work.data / f"samples-{count}"
    return data.stamped(folder, {"count": count}, lambda path: data.make_samples(path / "samples.h5", count))


def _read_samples(root: Path, seed: int, count: int | None) -> tuple[float, int]:
    """Seconds and samples of an epoch, or of its first part, read by all processes."""
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(reader("samples.py", root / "samples.h5", index, PROCESSES))
            for index in range(PROCESSES)
        ]
        spent, answers = together(programs, {"seed": seed, "count": count})
        return spent, sum(answer["samples"] for answer in answers)


def _direct(work: Work, folder: Path, preset: str, seed: int, count: int | None) -> tuple[float, int]:
    """Seconds, and READ requests at the source."""
    with slowfs(work, folder, preset) as source:
        spent, _ = _read_samples(source.path, seed, count)
        return spent, source.counters()["read"]


def _through(work: Work, folder: Path, preset: str, seed: int) -> tuple[float, int, int]:
    """Seconds, READ requests and bytes at the source."""
    with slowfs(work, folder, preset) as source, hfs_mount(work, source.path) as mount:
        spent, _ = _read_samples(mount.path, seed, None)
        after = source.counters()
        return spent, after["read"], after["read_bytes"]


def samples(work: Work, options: Options, command: str) -> list[Row]:
    """Directly, all samples are read from `lustre`. From `busy` a part is, and the time of all follows from the READ
    requests: as many as `lustre` got for the same order, each as long as those of the part. (By samples alone it
    would come out too long: the longer an epoch lasts, the more of its samples the page cache holds already.)"""
    folder = samples_folder(work, options)
    size = (folder / "samples.h5").stat().st_size
    part = options.size(PART, PART_QUICK)
    got: dict[str, list[float]] = {}

    def add(preset: str, direct_s: float, direct_reads: int, seed: int) -> None:
        spent, reads, read_bytes = _through(work, folder, preset, seed)
        values = {
            "direct_s": direct_s,
            "hfs_s": spent,
            "speed_up": direct_s / spent,
            "bound": spent / (size / SHARED_BPS[preset]),
            "fewer": direct_reads / reads,
            "reads": reads,
            "bytes": read_bytes / size,
        }
        for name, value in values.items():
            got.setdefault(f"{preset} {name}", []).append(value)

    for seed in range(options.runs):
        all_s, all_reads = _direct(work, folder, "lustre", seed, None)
        add("lustre", all_s, all_reads, seed)
        part_s, part_reads = _direct(work, folder, "busy", seed, part)
        add("busy", part_s * all_reads / part_reads, all_reads, seed)

    count = options.size(SAMPLES, SAMPLES_QUICK)
    what = f"{count} samples of 19 KB, one HDF5 file, 2 processes, random{options.scale(SAMPLES, SAMPLES_QUICK)}"
    stretched = f"; direct extrapolated from {part} samples by READ requests"
    rows = []
    for preset, note, factor in (("lustre", "", 5), ("busy", stretched, 10)):
        rows += [
            median_row(
                f"{what}, {preset}: speed-up over direct{note}",
                got[f"{preset} speed_up"],
                "x",
                command,
                at_least(factor),
            ),
            median_row(f"  direct{note}", got[f"{preset} direct_s"], "s", command),
            median_row("  hfs", got[f"{preset} hfs_s"], "s", command),
            median_row(
                "  time / bandwidth bound",
                got[f"{preset} bound"],
                "x",
                command,
                at_most(1.25) if preset == "busy" else None,
            ),
            median_row("  times fewer READ requests at the source", got[f"{preset} fewer"], "x", command, at_least(40)),
            median_row("  READ requests at the source", got[f"{preset} reads"], "", command),
            median_row("  source bytes / file", got[f"{preset} bytes"], "x", command, at_most(1.02)),
        ]
    return rows


def sparse(work: Work, options: Options, command: str) -> list[Row]:
    """Few reads of a huge file must not fetch it."""
    folder = data.stamped(
        work.data / "sparse", {"bytes": SPARSE_BYTES}, lambda path: data.make_sparse(path / "sparse.bin", SPARSE_BYTES)
    )
    got: dict[str, list[float]] = {"ratio": [], "direct": [], "hfs": [], "bytes": [], "later": []}
    for seed in range(options.runs):
        request = {"count": SPARSE_READS, "size": data.SAMPLE_BYTES, "seed": seed}
        with slowfs(work, folder, "lustre") as source, reader("blocks.py") as program:
            direct = seconds(program.do(random=str(source.path / "sparse.bin"), **request))
        with (
            slowfs(work, folder, "lustre") as source,
            hfs_mount(work, source.path) as mount,
            reader("blocks.py") as program,
        ):
            spent = seconds(program.do(random=str(mount.path / "sparse.bin"), **request))
            got["bytes"].append(source.counters()["read_bytes"] / 1e6)
            time.sleep(IDLE_S)  # what was asked for ahead may still be on its way
            got["later"].append(source.counters()["read_bytes"] / 1e6)
        got["direct"].append(direct)
        got["hfs"].append(spent)
        got["ratio"].append(spent / direct)
    what = f"{SPARSE_READS} random reads of 19 KB of a 20 GB file, cold, lustre"
    return [
        median_row(f"{what}: time / direct", got["ratio"], "x", command, at_most(1.5)),
        median_row("  direct", got["direct"], "s", command),
        median_row("  hfs", got["hfs"], "s", command),
        median_row("  source bytes at the end of the reads", got["bytes"], "MB", command),
        median_row(f"  source bytes {IDLE_S:g} s later", got["later"], "MB", command, at_most(64)),
    ]


def sequential(work: Work, options: Options, command: str) -> list[Row]:
    folder = samples_folder(work, options)
    name = "samples.h5"
    size = (folder / name).stat().st_size
    got: dict[str, list[float]] = {"speed_up": [], "share": [], "direct": [], "hfs": [], "bytes": []}
    for _ in range(options.runs):
        with slowfs(work, folder, "lustre") as source, reader("blocks.py") as program:
            direct = seconds(program.do(sequential=str(source.path / name), size=BLOCK_BYTES))
        with (
            slowfs(work, folder, "lustre") as source,
            hfs_mount(work, source.path) as mount,
            reader("blocks.py") as program,
        ):
            spent = seconds(program.do(sequential=str(mount.path / name), size=BLOCK_BYTES))
            got["bytes"].append(source.counters()["read_bytes"] / size)
        got["direct"].append(size / direct / 1e6)
        got["hfs"].append(size / spent / 1e6)
        got["speed_up"].append(direct / spent)
        got["share"].append(size / spent / SHARED_BPS["lustre"])
    what = f"sequential read of {size / 1e9:.2g} GB by 1 MiB, cold, lustre{options.scale(SAMPLES, SAMPLES_QUICK)}"
    return [
        median_row(f"{what}: speed-up over direct", got["speed_up"], "x", command, at_least(2.0)),
        median_row("  share of the source's bandwidth", got["share"], "x", command, at_least(0.7)),
        median_row("  direct", got["direct"], "MB/s", command),
        median_row("  hfs", got["hfs"], "MB/s", command),
        median_row("  source bytes / file", got["bytes"], "x", command),
    ]
