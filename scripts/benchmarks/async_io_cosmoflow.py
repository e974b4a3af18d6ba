"""Rows of large samples in HDF5 files (CosmoFlow): 48 MiB each, in random order, of which the daemon is told."""

from scripts.benchmarks import data
from scripts.benchmarks.async_io_learners import LEARNERS, MOUNT_HINT, TF, TF_PRE, DataSet, Epoch, Job, data_set
from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most

FILES = 4
A_FILE, A_FILE_QUICK = 12, 2
"""2.4 GB."""

ENOUGH, SCARCE = 1.5, 0.5
"""Time of the computation of an epoch over that of the transfer of its data: the bandwidth suffices, or it does not."""

DIRECT = (TF, TF_PRE)
"""With one sample as large as a buffer, they are Async and Async-DB as well, but for the order."""


def volumes_set(work: Work, options: Options) -> DataSet:
    return data_set(work, "volumes", FILES, options.size(A_FILE, A_FILE_QUICK), data.make_volumes, batch=1)


def cosmoflow(work: Work, options: Options, command: str, preset: str = "lustre") -> list[Row]:
    volumes = volumes_set(work, options)
    got = Results(command)
    bound_s = volumes.bandwidth_s(preset)

    def add(name: str, epoch: Epoch) -> None:
        got.add(f"{name} epoch_s", epoch.epoch_s)
        got.add(f"{name} exposed_s", epoch.exposed_s)
        got.add(f"{name} exposed", epoch.exposed_s / epoch.compute_s)
        got.add(f"{name} bound", epoch.epoch_s / bound_s)
        got.add(f"{name} opened_s", epoch.opened_s)
        got.add(f"{name} first_s", epoch.first_s)
        got.add(f"{name} source_s", epoch.source_s)
        got.add(f"{name} bytes", epoch.source_bytes / volumes.file_bytes)

    for seed in range(options.runs):
        enough, scarce = (Job(work, options, volumes, preset, seed, more * bound_s) for more in (ENOUGH, SCARCE))
        for strategy in DIRECT:
            with got.attempt(*(f"{strategy.name} {what}" for what in KEYS)):
                add(strategy.name, enough.epoch(strategy, 1))
        for name, job in (("enough", enough), ("scarce", scarce)):
            with got.attempt(*(f"{name} {what}" for what in KEYS)):
                add(name, job.epoch(MOUNT_HINT, 1))

    def more_rows(name: str) -> list[Row]:
        rows = [
            got.row("  exposed I/O", f"{name} exposed_s", unit="s"),
            got.row("  epoch", f"{name} epoch_s", unit="s"),
            got.row("  until all files were open", f"{name} opened_s", unit="s"),
            got.row("  until the first batch", f"{name} first_s", unit="s"),
            got.row("  last byte from the source", f"{name} source_s", unit="s"),
            got.row("  source bytes / files", f"{name} bytes"),
        ]
        return [] if rows[0].value is None else rows

    what = (
        f"{volumes.samples} samples of 48 MiB in {FILES} HDF5 files, {LEARNERS} learners, {preset},"
        f" epoch 1{options.scale(A_FILE, A_FILE_QUICK)}"
    )
    return [
        got.row(
            f"{what}, compute {ENOUGH} x transfer, mount + hint: exposed I/O / compute", "enough exposed", at_most(0.05)
        ),
        *more_rows("enough"),
        got.row(
            f"{what}, compute {SCARCE} x transfer, mount + hint: epoch / files at the shared bandwidth",
            "scarce bound",
            at_most(1.05),
        ),
        *more_rows("scarce"),
        *(
            got.row(f"  {strategy.name}, compute {ENOUGH} x transfer: {words}", f"{strategy.name} {key}")
            for strategy in DIRECT
            for words, key in (("exposed I/O / compute", "exposed"), ("epoch / files at the bandwidth", "bound"))
        ),
    ]


KEYS = ("epoch_s", "exposed_s", "exposed", "bound", "opened_s", "first_s", "source_s", "bytes")


def cosmoflow_busy(work: Work, options: Options, command: str) -> list[Row]:
    return cosmoflow(work, options, command, "busy")
