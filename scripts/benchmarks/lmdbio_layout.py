"""Rows of the layout itself: what building one costs beside a read of the file from end to end, and how large it is."""

from pathlib import Path

from scripts.benchmarks.async_io_learners import SHARED_BPS
from scripts.benchmarks.common import BenchError, SlowFs, Work, hfs_mount, reader, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.lmdbio_data import NAME, RECORDS, RECORDS_QUICK, Database, database
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most

PRESETS = ("lustre", "busy")

BLOCK_BYTES = 8 * 1024**2
"""Of the read from end to end: it asks for much at a time, as whoever wants to be fast does."""


def _sequential(root: Path, files: Database) -> float:
    with reader("blocks.py") as program:
        return seconds(program.do(sequential=str(root / files.file), size=BLOCK_BYTES))


def _build(root: Path, files: Database, layout: Path) -> float:
    """Raises BenchError when it has another number of records."""
    with reader("lmdb_build.py", root / NAME, root, layout) as program:
        answer = program.do()
    if answer["records"] != files.records:
        raise BenchError(f"the layout has {answer['records']} records of {files.records}")
    return seconds(answer)


def _measured(work: Work, files: Database, preset: str, layout: Path, got: Results) -> None:
    def add(what: str, spent_s: float, source: SlowFs) -> None:
        counters = source.counters()
        got.add(f"{preset} {what}_s", spent_s)
        got.add(f"{preset} {what}_reads", counters["read"])
        got.add(f"{preset} {what}_bytes", counters["read_bytes"] / files.bytes)

    for what in ("read", "build", "mount"):
        keys = [f"{preset} ratio", *(f"{preset} {what}_{key}" for key in ("s", "reads", "bytes"))]
        with got.attempt(*keys), slowfs(work, files.folder, preset) as source:
            if what == "mount":
                with hfs_mount(work, source.path) as mount:
                    add(what, _build(mount.path, files, layout), source)
            elif what == "build":
                add(what, _build(source.path, files, layout), source)
            else:
                add(what, _sequential(source.path, files), source)
    got.add(f"{preset} ratio", got.last(f"{preset} build_s") / got.last(f"{preset} read_s"))


def layout(work: Work, options: Options, command: str) -> list[Row]:
    files = database(work, options)
    path = work.new("layout") / "lmdb.layout"
    got = Results(command)
    for _ in range(options.runs):
        for preset in PRESETS:
            _measured(work, files, preset, path, got)
    rows = []
    for preset in PRESETS:
        what = f"layout of an LMDB of {files.records} records of 3 KB, {preset}{options.scale(RECORDS, RECORDS_QUICK)}"
        rows.append(got.row(f"{what}: building it / one read of the file", f"{preset} ratio", at_most(1.2)))
        for name, words in (("build", "building it"), ("mount", "building it through the mount"), ("read", "one read")):
            rows += [
                got.row(
                    f"  {words} (file at the bandwidth: {files.bytes / SHARED_BPS[preset]:.3g} s)",
                    f"{preset} {name}_s",
                    unit="s",
                ),
                got.row("    READ requests at the source", f"{preset} {name}_reads", unit=""),
                got.row("    source bytes / file", f"{preset} {name}_bytes"),
            ]
    got.add("size", path.stat().st_size / files.records)
    return [*rows, got.row("  size of the layout file for each record", "size", at_most(24), "bytes")]
