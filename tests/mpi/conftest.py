"""The fixture of MPI jobs, and those of mounts for programs that read through one."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fuse.conftest import _nothing_left, guard, hfs_mount, io_mode, slow_source
from tests.mpi.daemons import Daemons
from tests.mpi.harness import Job

__all__ = ["_nothing_left", "guard", "hfs_mount", "io_mode", "slow_source"]

PROGRAMS = Path(__file__).parent / "programs"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.mpi)


@pytest.fixture
def mpirun(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """mpirun(ranks, program, *arguments, options=[...], env={...}): a job of a program in tests/mpi/programs.

    A program is a Python file there, or a list that is the whole command. Past the end of the test nothing is left: no
    process, no file of MPI; else the test fails.
    """
    made: list[Job] = []

    def make(
        ranks: int,
        program: str | list[str],
        *arguments: str | Path | int,
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> Job:
        folder = tmp_path / f"job-{len(made)}"
        folder.mkdir()
        command = program if isinstance(program, list) else ["python", str(PROGRAMS / f"{program}.py")]
        job = Job(folder, ranks, [*command, *map(str, arguments)], list(options), env or {})
        made.append(job)
        return job

    yield make
    faults = [fault for job in made for fault in job.close()]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture
def daemons(tmp_path: Path, mpirun: Callable[..., Job]) -> Iterator[Callable[..., Daemons]]:
    """daemons(source, count, *options): that many mounts of `source`, which share what they read."""
    made: list[Daemons] = []

    def make(source: Path, count: int, *options: str, **more: str) -> Daemons:
        base = tmp_path / f"nodes-{len(made)}"
        base.mkdir()
        made.append(Daemons(mpirun, base, source, count, *options, **more))
        return made[-1]

    yield make
    for one in made:
        one.end()
        one.job.finish()
