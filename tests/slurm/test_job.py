"""The job script of users with a real Slurm of two nodes, without prolog and epilog: daemons in a step of their own.

After each ending nothing is left on the nodes but the cache, and the next job reads nothing from the source. Of a node
that was lost the dead mount stays, since nobody of the job is there to take it away; the next job does.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuse.harness import hfs_command
from tests.slurm import jobs
from tests.slurm.cluster import NOTHING, Cluster, cluster, source_bytes

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.fuse, pytest.mark.timeout(400)]


class User:
    """Who submits the job."""

    def __init__(self, cluster: Cluster, digest: str) -> None:
        self.cluster, self.digest = cluster, digest
        self.data = cluster.here / "data"
        (cluster.folder / "train.sh").write_text(f"data=$1\n{jobs.reads(cluster, '$data')}")
        self.places = ("--source", f"{cluster.folder}/src", "--at", str(self.data), "--cache", f"{cluster.here}/cache")
        self.training = ("--", "bash", f"{cluster.folder}/train.sh", "$data")
        self.script = self.printed("--cache-size", "200M")

    def printed(self, *options: str) -> str:
        return jobs.script("job", "--nodes", "2", *self.places, *options, *self.training)

    def start(self, *options: str) -> str:
        """A job that has read everything."""
        job = self.cluster.submit(self.script, f"--output={self.cluster.folder}/job-%j.out", *options)
        assert jobs.wait_read(self.cluster, job) == [self.digest] * 2, self.cluster.logs()
        return job

    def source_bytes(self) -> list[int]:
        """Of the mounts that are there now."""
        return [source_bytes(node.run(hfs_command(), "status", self.data, "--json")) for node in self.cluster.nodes]


@pytest.fixture(scope="module")
def user(cluster_folder: Path) -> Iterator[User]:
    digest = jobs.make_source(cluster_folder)
    with cluster(cluster_folder) as made:
        user = User(made, digest)
        first = user.start()
        assert user.source_bytes() == [jobs.FILES * jobs.FILE_BYTES] * 2
        jobs.let_go(made, first)
        assert made.ended(first) == "COMPLETED", made.logs()
        made.wait_clean()
        yield user


def normal(user: User, job: str) -> None:
    jobs.let_go(user.cluster, job)


def scancel(user: User, job: str) -> None:
    user.cluster.run("scancel", job)


def time_limit(user: User, job: str) -> None:
    """It comes."""


def another_step_ends(user: User, job: str) -> None:
    """On both nodes, while the training goes on; also one that is killed."""
    user.cluster.run("srun", f"--jobid={job}", "--overlap", "--nodes=2", "--ntasks=2", "true")
    names = [node.mounts() for node in user.cluster.nodes]
    assert names == [[str(user.data)]] * 2
    assert user.source_bytes() == [0, 0]
    jobs.let_go(user.cluster, job)


def node_failure(user: User, job: str) -> None:
    """slurmd, job and hfs of a node are killed; it comes back later."""
    node = user.cluster.nodes[1]
    node.fail()
    assert node.mounts() == [str(user.data)]  # dead
    user.cluster.wait("the job has failed", lambda: user.cluster.state(job) == "NODE_FAIL")
    user.cluster.ended(job)
    assert user.cluster.nodes[0].left() == NOTHING, user.cluster.logs()
    node.start()
    user.cluster.wait("the node is back", lambda: user.cluster.states() == ["idle"] * 2)
    node.run(hfs_command(), "sweep")


@pytest.mark.parametrize(
    ("ending", "state", "options"),
    [
        (normal, "COMPLETED", ()),
        (another_step_ends, "COMPLETED", ()),
        (scancel, "CANCELLED", ()),
        (time_limit, "FAILED", ("--time=1", "--signal=B:TERM@40")),
        (node_failure, "NODE_FAIL", ("--no-requeue",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nothing_is_left_but_a_warm_cache(
    user: User, ending: Callable[[User, str], None], state: str, options: tuple[str, ...]
) -> None:
    """A job that its script has ended in time, before the limit, is FAILED: by the exit code of the training."""
    job = user.start(*options)
    ending(user, job)
    assert user.cluster.ended(job) == state, user.cluster.logs()
    user.cluster.wait_clean()
    after = user.start()
    assert user.source_bytes() == [0, 0]
    jobs.let_go(user.cluster, after)
    assert user.cluster.ended(after) == "COMPLETED", user.cluster.logs()
    user.cluster.wait_clean()


def test_a_failed_node_is_clean_after_the_next_job(user: User) -> None:
    """Nobody sweeps: the next job's mount takes the place of the dead one."""
    job = user.start("--no-requeue")
    node = user.cluster.nodes[1]
    node.fail()
    user.cluster.wait("the job has failed", lambda: user.cluster.state(job) == "NODE_FAIL")
    node.start()
    user.cluster.wait("the node is back", lambda: user.cluster.states() == ["idle"] * 2)
    after = user.start()
    assert user.source_bytes() == [0, 0]
    jobs.let_go(user.cluster, after)
    assert user.cluster.ended(after) == "COMPLETED", user.cluster.logs()
    user.cluster.wait_clean()


def test_a_training_reads_directly_where_nothing_can_be_mounted(user: User) -> None:
    """A cache may fail, a job may not."""
    script = user.script.replace("wait_s=60", "wait_s=1").replace(
        f"cache={user.cluster.here}/cache", "cache=/proc/none"
    )
    assert script != user.script
    job = user.cluster.submit(script, f"--output={user.cluster.folder}/job-%j.out")
    assert jobs.wait_read(user.cluster, job) == [user.digest] * 2
    jobs.let_go(user.cluster, job)
    assert user.cluster.ended(job) == "COMPLETED", user.cluster.logs()
    assert "is read directly" in (user.cluster.folder / f"job-{job}.out").read_text()
    user.cluster.wait_clean()


def test_nodes_that_share_their_caches_read_the_source_once(user: User) -> None:
    """Their daemons are an MPI job, which srun starts."""
    script = user.printed("--cache-size", "200M", "--peers").replace("/here/cache", "/here/cache-of-peers")
    job = user.cluster.submit(script, f"--output={user.cluster.folder}/job-%j.out")
    assert jobs.wait_read(user.cluster, job) == [user.digest] * 2, user.cluster.logs()
    assert sum(user.source_bytes()) == jobs.FILES * jobs.FILE_BYTES
    jobs.let_go(user.cluster, job)
    assert user.cluster.ended(job) == "COMPLETED", user.cluster.logs()
    user.cluster.wait_clean()
