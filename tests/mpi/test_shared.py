"""NodeBatches in real MPI jobs, over plain files and over a mount: the plain reader's bytes, each read once a node."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs
from tests.mpi.harness import Job
from tests.mpi.shared_data import FILE_BYTES, FILE_SEED, NAME
from tests.support.pattern import write_pattern

ROOT = str(Path(__file__).parent.parent.parent)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    write_pattern(folder / NAME.decode(), FILE_SEED, FILE_BYTES)
    return folder


def start(mpirun: Callable[..., Job], folder: Path, *scenarios: str | int, options: tuple[str, ...] = ()) -> Job:
    return mpirun(4, "batches", folder, *scenarios, options=options, env={"PYTHONPATH": ROOT})


def test_all_that_no_rank_dies_of(mpirun: Callable[..., Job], source: Path) -> None:
    """What each scenario shows is its docstring in tests/mpi/programs/batches.py. One job: starting one costs most."""
    orderly = ("parity", "function", "nodes", "alone", "early_stop", "uneven", "errors", "held_arrays")
    names = (*orderly, "one_raises", "one_sleeps")
    job = start(mpirun, source, *names)
    for said in job.must():
        assert said.splitlines() == [f"{name} ok" for name in names]
    assert "rank 1 of 4 still uses arrays of a batch" in job.err(0)


@pytest.mark.fuse
def test_through_a_mount_the_source_is_read_once(
    mpirun: Callable[..., Job], hfs_mount: Callable[..., Hfs], source: Path
) -> None:
    """The ranks of two nodes read the same file twice in random order: the source gives each byte once."""
    mount = hfs_mount(source)
    for said in start(mpirun, mount.path, "parity", "nodes").must():
        assert said.splitlines() == ["parity ok", "nodes ok"]
    assert mount.source_bytes() <= FILE_BYTES


@pytest.mark.fuse
def test_an_order_that_one_rank_draws_is_hinted_once(
    mpirun: Callable[..., Job], hfs_mount: Callable[..., Hfs], source: Path
) -> None:
    mount = hfs_mount(source)
    for said in start(mpirun, mount.path, "hints").must():
        assert said.splitlines() == ["hints ok"]


@pytest.mark.parametrize("victim", [2, 0])
def test_where_a_rank_is_killed_the_others_hear_of_it(mpirun: Callable[..., Job], source: Path, victim: int) -> None:
    job = start(mpirun, source, "one_dies", victim, options=("--with-ft", "ulfm"))
    job.wait_line(victim, "kill me")
    job.kill(victim)
    job.finish()
    for rank in {0, 1, 2, 3} - {victim}:
        assert f"rank {victim} of 4 (process {job.pid(victim)}) has ended" in job.out(rank), job.text()  # from anybody


def test_where_a_rank_is_killed_plain_mpirun_ends_the_job(mpirun: Callable[..., Job], source: Path) -> None:
    job = start(mpirun, source, "one_dies", 1)
    job.wait_line(1, "kill me")
    job.kill(1)
    assert job.finish() != 0
