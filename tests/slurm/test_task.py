"""The task script of job arrays with a real Slurm: tasks on one node use one daemon, which lives in the cgroup of the
the task that has started it, and is killed with that. The others notice nothing.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import jobs
from tests.slurm.cluster import Cluster, cluster

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.fuse, pytest.mark.timeout(400)]


class User:
    """Who submits the array."""

    def __init__(self, cluster: Cluster, digest: str) -> None:
        self.cluster, self.digest = cluster, digest
        source, said = f"{cluster.folder}/src", f"{cluster.folder}/said/$SLURM_JOB_ID"
        (cluster.folder / "train.sh").write_text(f"""
exec 9<{source}/00
cat {source}/* | md5sum >{said}-part
mv {said}-part {said}-read
until [[ -e {said}-go ]]; do sleep 0.1; done
cat <&9 | cmp - {source}/00 && cat {source}/* | md5sum >{said}-again
""")
        places = ("--source", source, "--cache", f"{cluster.here}/cache", "--cache-size", "200M")
        self.script = jobs.script("task", *places, "--", "bash", f"{cluster.folder}/train.sh")

    def start(self) -> str:
        """A task that has read everything, and has a file open of which it has read nothing."""
        options = (f"--nodelist={self.cluster.names[0]}", f"--output={self.cluster.folder}/task-%j.out", "--array=0")
        task = self.cluster.submit(self.script, *options)
        assert self.cluster.wait_file(f"said/{task}-read").split()[0] == self.digest
        return task

    def ended(self, task: str) -> None:
        """It has read everything again."""
        jobs.let_go(self.cluster, task)
        assert self.cluster.ended(task) == "COMPLETED", self.cluster.logs()
        again = self.cluster.folder / "said" / f"{task}-again"
        assert again.exists(), self.cluster.logs()
        assert again.read_text().split()[0] == self.digest


@pytest.fixture
def user(cluster_folder: Path) -> Iterator[User]:
    digest = jobs.make_source(cluster_folder)
    with cluster(cluster_folder) as made:
        yield User(made, digest)


def test_the_task_that_has_started_the_daemon_ends_first(user: User) -> None:
    tasks = [user.start() for _ in range(3)]
    for task in tasks:
        user.ended(task)
    user.cluster.wait_clean()
