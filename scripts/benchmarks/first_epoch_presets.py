"""Images decoded, and a cache that holds a tenth: first epochs of jobs without a hint, on each simulated storage."""

from collections.abc import Sequence
from pathlib import Path

from scripts.benchmarks.async_io_files import FileSet, job
from scripts.benchmarks.common import Work, hfs_mount, reader, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.mount_images import FILES, FILES_QUICK, image_folder
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Bar, Row, at_least

DECODED = ("lustre", "disk", "flash")
DECODERS = (2, 8)
FASTER = {2: 1.3, 8: 1.1}
"""At least, by workers; on flash it may cost a twentieth."""

SMALL = ("lustre", "busy", "disk", "flash")
SMALL_WORKERS, SMALL_EPOCHS = 8, (1, 2)
SHARE = 10
CHUNK = ("-o", "chunk=1M")
"""A tenth of a quick run's data is less than a chunk of the usual size."""


def _decoded(root: Path, workers: int, seed: int) -> float:
    with reader("images.py", root, workers, "decode") as program:
        return seconds(program.do(epoch=1, seed=seed))


def images(work: Work, options: Options, command: str) -> list[Row]:
    """Direct and through a new mount, in turns."""
    folder = image_folder(work, options)
    got = Results(command)
    keys = [(preset, workers) for preset in DECODED for workers in DECODERS]
    for seed in range(options.runs):
        for preset, workers in keys:
            key = f"{preset} {workers}"
            with got.attempt(key, f"{key} direct"):
                with slowfs(work, folder, preset) as source:
                    direct_s = _decoded(source.path, workers, seed)
                with slowfs(work, folder, preset) as source, hfs_mount(work, source.path) as mount:
                    got.add(key, direct_s / _decoded(mount.path, workers, seed))
                got.add(f"{key} direct", direct_s)
    rows: list[Row] = []
    for preset, workers in keys:
        what = f"{FILES} JPEG files of 114 KB decoded, {workers} workers, no hint, {preset}"
        bar: Bar = at_least(0.95 if preset == "flash" else FASTER[workers])
        words = f"{what}{options.scale(FILES, FILES_QUICK)}: speed-up over direct"
        rows.append(got.row(words, f"{preset} {workers}", bar))
        rows.append(got.row("  direct", f"{preset} {workers} direct", None, "s"))
    return rows


def _read(files: FileSet, root: Path, epochs: Sequence[int], seed: int) -> float:
    with job(files, root, SMALL_WORKERS, drop=True) as program:
        return sum(seconds(program.epoch(epoch, seed)) for epoch in epochs)


def small(work: Work, options: Options, command: str) -> list[Row]:
    """Two epochs, with a cache that holds a tenth of what is read."""
    files = FileSet(work, image_folder(work, options))
    got = Results(command)
    for seed in range(options.runs):
        for preset in SMALL:
            with got.attempt(preset, f"{preset} direct"):
                with slowfs(work, files.folder, preset) as source:
                    direct_s = _read(files, source.path, SMALL_EPOCHS, seed)
                with (
                    slowfs(work, files.folder, preset) as source,
                    hfs_mount(work, source.path, None, ["--cache-size", str(files.bytes // SHARE), *CHUNK]) as mount,
                ):
                    got.add(preset, direct_s / _read(files, mount.path, SMALL_EPOCHS, seed))
                got.add(f"{preset} direct", direct_s)
    rows: list[Row] = []
    for preset in SMALL:
        what = f"{files}, {SMALL_WORKERS} workers, no hint, a cache of a tenth, {preset}"
        words = f"{what}{options.scale(FILES, FILES_QUICK)}: speed of two epochs / direct"
        rows.append(got.row(words, preset, at_least(0.95)))
        rows.append(got.row("  direct", f"{preset} direct", None, "s"))
    return rows
