"""Rows of large files: random samples of an HDF5 file, few reads of a huge one, one read from end to end."""

import contextlib
import time
from pathlib import Path

from scripts.benchmarks import data
from scripts.benchmarks.common import Work, hfs_mount, reader, seconds, slowfs, together
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Bar, Row, at_least, at_most, median_row

SAMPLES, SAMPLES_QUICK = 78_125, 7_812
"""1.5 GB of samples."""
PART_QUICK = 1_000
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
    """What directly would take long is extrapolated from a part, in the two ways that bracket the truth:

    by samples    every sample costs as much as those of the part. So it is where the data is larger than memory.
    by requests   the later samples cost less, since this file stays in memory, page by page, as it is read: as many
                  READ requests as a whole epoch was seen to make directly (from `lustre`, in the same order), each as
                  long as those of the part. So it is here.
    """
    folder = samples_folder(work, options)
    size = (folder / "samples.h5").stat().st_size
    count, part = options.size(SAMPLES, SAMPLES_QUICK), options.part(SAMPLES, PART_QUICK)
    got: dict[str, list[float]] = {}

    def add(preset: str, seed: int, *, whole: tuple[float, int], part_s: float, part_reads: int) -> None:
        """`whole`: seconds and READ requests of a whole epoch read directly."""
        spent, reads, read_bytes = _through(work, folder, preset, seed)
        by_samples_s = part_s * count / part
        values = {
            "hfs_s": spent,
            "whole_s": whole[0],
            "whole": whole[0] / spent,
            "by_samples_s": by_samples_s,
            "by_samples": by_samples_s / spent,
            "bound": spent / (size / SHARED_BPS[preset]),
            "fewer": part_reads * count / part / reads,
            "fewer_whole": whole[1] / reads,
            "reads": reads,
            "bytes": read_bytes / size,
        }
        for name, value in values.items():
            got.setdefault(f"{preset} {name}", []).append(value)

    for seed in range(options.runs):
        part_s, part_reads = _direct(work, folder, "lustre", seed, part)
        whole = _direct(work, folder, "lustre", seed, None)
        add("lustre", seed, whole=whole, part_s=part_s, part_reads=part_reads)
        part_s, part_reads = _direct(work, folder, "busy", seed, part)
        by_requests = part_s * whole[1] / part_reads, whole[1]
        add("busy", seed, whole=by_requests, part_s=part_s, part_reads=part_reads)

    what = f"{count} samples of 19 KB, one HDF5 file, 2 processes, random{options.scale(SAMPLES, SAMPLES_QUICK)}"
    by_samples = f"direct extrapolated from {part} samples, by samples"

    def row(name: str, key: str, unit: str, bar: Bar | None = None) -> Row:
        return median_row(name, got[key], unit, command, bar)

    def common_rows(preset: str, whole: str, bound: Bar | None) -> list[Row]:
        return [
            row("  hfs", f"{preset} hfs_s", "s"),
            row("  hfs / bandwidth bound", f"{preset} bound", "x", bound),
            row(f"  times fewer READ requests, {by_samples}", f"{preset} fewer", "x", at_least(40)),
            row(f"  times fewer READ requests, {whole}", f"{preset} fewer_whole", "x"),
            row("  READ requests of hfs at the source", f"{preset} reads", ""),
            row("  source bytes / file", f"{preset} bytes", "x", at_most(1.02)),
        ]

    measured = "direct measured whole"
    stretched = f"direct extrapolated from {part} samples, by requests"
    return [
        row(f"{what}, lustre: speed-up, {measured}", "lustre whole", "x", at_least(5)),
        row(f"  {measured}", "lustre whole_s", "s"),
        row(f"  speed-up, {by_samples} (data larger than memory)", "lustre by_samples", "x"),
        row(f"  {by_samples}", "lustre by_samples_s", "s"),
        *common_rows("lustre", measured, None),
        row(f"{what}, busy: speed-up, {by_samples} (data larger than memory)", "busy by_samples", "x", at_least(10)),
        row(f"  {by_samples}", "busy by_samples_s", "s"),
        row(f"  speed-up, {stretched} (data in memory as it is read)", "busy whole", "x"),
        row(f"  {stretched}", "busy whole_s", "s"),
        *common_rows("busy", "direct measured whole on lustre", at_most(1.25)),
    ]


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
