"""Rows of small samples in HDF5 files (Neuron-Inverter): the four strategies of the paper and the mount."""

from scripts.benchmarks import data
from scripts.benchmarks.async_io_learners import (
    ASYNC,
    ASYNC_DB,
    LEARNERS,
    MOUNT,
    MOUNT_GROUPS,
    MOUNT_HINT,
    MOUNT_PLAIN_GROUPS,
    TF,
    TF_PRE,
    DataSet,
    Epoch,
    Job,
    Strategy,
    data_set,
)
from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Bar, Row, at_least, at_most

GROUP = 609
"""Samples of a group and of an I/O buffer, 11 MiB: from here on the paper sees all I/O overlapped."""

FILES = 4
A_FILE, A_FILE_QUICK = 43 * GROUP, 4 * GROUP
"""2 GB, in groups that two learners share evenly."""

BATCH = 128

COMPUTE = 1.5
"""Time of the computation of an epoch over that of the transfer of its data."""

PART_QUICK = {"lustre": 1280, "busy": 256}
"""Samples of a learner that a quick run reads one by one from the source itself."""

DIRECT = (TF, TF_PRE)
STRATEGIES = (TF, TF_PRE, ASYNC, ASYNC_DB, MOUNT, MOUNT_HINT, MOUNT_GROUPS, MOUNT_PLAIN_GROUPS)


def samples_set(work: Work, options: Options) -> DataSet:
    return data_set(work, "neuron", FILES, options.size(A_FILE, A_FILE_QUICK), data.make_samples, batch=BATCH)


def part_of(options: Options, samples: int, preset: str) -> int | None:
    """Samples of a learner of which an epoch that reads the source itself is extrapolated; None: it reads all, in some
    65 s from `lustre`."""
    whole = preset == "lustre" and not options.quick
    return None if whole else options.part(samples // LEARNERS, PART_QUICK[preset])


def add_epoch(got: Results, name: str, epoch: Epoch, size: int) -> None:
    """The figures of one strategy, under keys that begin with its name."""
    for what in ("exposed_s", "epoch_s", "opened_s", "first_s", "late", "source_s", "reads"):
        got.add(f"{name} {what}", getattr(epoch, what))
    got.add(f"{name} exposed", epoch.exposed_s / epoch.compute_s)
    got.add(f"{name} bytes", epoch.source_bytes / size)


def measured(job: Job, got: Results, preset: str) -> None:
    """One run of all strategies."""
    size = job.data.file_bytes
    for strategy in STRATEGIES:
        name = strategy.name
        with got.attempt(*(f"{name} {what}" for what in KEYS)):
            part = part_of(job.options, job.data.samples, preset) if strategy in DIRECT else None
            add_epoch(got, name, job.epoch(strategy, GROUP, part), size)
            if strategy is not TF:
                got.add(f"{name} less", got.last(f"{TF.name} exposed_s") / got.last(f"{name} exposed_s"))
            if strategy.mounted:
                got.add(f"{name} of own", got.last(f"{name} epoch_s") / got.last(f"{ASYNC_DB.name} epoch_s"))
                got.add(f"{name} first", got.last(f"{name} first_s") / got.last(f"{TF.name} first_s"))
                got.add(f"{name} bound", got.last(f"{name} source_s") / job.data.bandwidth_s(preset))


KEYS = (
    "exposed_s",
    "epoch_s",
    "opened_s",
    "first_s",
    "late",
    "source_s",
    "reads",
    "exposed",
    "bytes",
    "less",
    "of own",
    "first",
    "bound",
)


def samples(work: Work, options: Options, command: str, preset: str = "lustre") -> list[Row]:
    folder = samples_set(work, options)
    got = Results(command)
    compute_s = COMPUTE * folder.bandwidth_s(preset)
    for seed in range(options.runs):
        measured(Job(work, options, folder, preset, seed, compute_s), got, preset)

    def row(words: str, strategy: Strategy, what: str, bar: Bar | None = None, unit: str = "x") -> Row:
        return got.row(words, f"{strategy.name} {what}", bar, unit)

    def rows_of(strategy: Strategy) -> list[Row]:
        words = f"  {strategy.name}"
        if strategy in DIRECT and (part := part_of(options, folder.samples, preset)) is not None:
            words += f" [extrapolated from {part} samples of each learner]"
        head = row(f"{words}: exposed I/O", strategy, "exposed_s", unit="s")
        if head.value is None:
            return [head]
        return [
            head,
            *([] if strategy is TF else [row("    times less exposed I/O than TF", strategy, "less")]),
            row("    exposed I/O / compute", strategy, "exposed"),
            row("    epoch", strategy, "epoch_s", unit="s"),
            row("    until all files were open", strategy, "opened_s", unit="s"),
            row("    until the first batch", strategy, "first_s", unit="s"),
            row("    batches that were waited for", strategy, "late", unit=""),
            row("    last byte from the source", strategy, "source_s", unit="s"),
            row("    READ requests at the source", strategy, "reads", unit=""),
            row("    source bytes / files", strategy, "bytes"),
        ]

    what = (
        f"{folder.samples} samples of 19 KB in {FILES} HDF5 files, {LEARNERS} learners, {preset},"
        f" compute {compute_s:.3g} s, epoch 1{options.scale(A_FILE, A_FILE_QUICK)}"
    )
    return [
        row(
            f"{what}: mount (--chunk 2M) + group shuffle: times less exposed I/O than TF",
            MOUNT_GROUPS,
            "less",
            at_least(100),
        ),
        row("  exposed I/O / compute", MOUNT_GROUPS, "exposed", at_most(0.02)),
        row("  with the default chunk and no hint: times less exposed I/O", MOUNT_PLAIN_GROUPS, "less", at_least(50)),
        row("  epoch / epoch of Async-DB", MOUNT_GROUPS, "of own", at_most(1.05)),
        row("  mount + hint, full random order: times less exposed I/O than TF", MOUNT_HINT, "less", at_least(12)),
        row("  source time / files at the shared bandwidth", MOUNT_HINT, "bound", at_most(1.1)),
        row("  until its first batch / TF's", MOUNT_HINT, "first", at_most(1.5)),
        row("  without a hint: until the first batch / TF's", MOUNT, "first", at_most(1.5)),
        *(line for strategy in STRATEGIES for line in rows_of(strategy)),
    ]


def samples_busy(work: Work, options: Options, command: str) -> list[Row]:
    return samples(work, options, command, "busy")
