"""Prolog and epilog with a real Slurm of two nodes: jobs of a plain user read a mount of root's, and end in every way.

After each ending nothing is left on the nodes but the cache, and the next job reads nothing from the source.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuse.harness import hfs_command
from tests.slurm import jobs
from tests.slurm.cluster import Cluster, cluster, source_bytes

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.fuse, pytest.mark.timeout(300)]

USER = ("--uid=65534", "--gid=65534")


class Site:
    """A cluster whose prolog mounts a data set."""

    def __init__(self, cluster: Cluster, digest: str) -> None:
        self.cluster = cluster
        self.digest = digest
        self.data = cluster.here / "data"

    def start(self, *options: str) -> str:
        """A job of both nodes that has read everything."""
        command = jobs.reads(self.cluster, str(self.data))
        script = f"#!/bin/bash\n#SBATCH --nodes=2 --output=/dev/null\nsrun --ntasks-per-node=1 bash -c '{command}'\n"
        job = self.cluster.submit(script, *USER, *options)
        assert jobs.wait_read(self.cluster, job) == [self.digest] * 2, self.cluster.logs()
        return job

    def source_bytes(self) -> list[int]:
        """Of the mounts that are there now."""
        return [source_bytes(node.run(hfs_command(), "status", self.data, "--json")) for node in self.cluster.nodes]


@pytest.fixture(scope="module")
def site(cluster_folder: Path) -> Iterator[Site]:
    digest = jobs.make_source(cluster_folder)
    here = cluster_folder / "here"
    config = cluster_folder / "hfs.toml"
    config.write_text(
        f'source = "{cluster_folder}/src"\nmountpoint = "{here}/data"\ncache = "{here}/cache"\ncache-size = "200M"\n'
    )
    prolog, epilog = jobs.script("prolog", "--config", str(config)), jobs.script("epilog")
    with cluster(cluster_folder, prolog, epilog) as made:
        for node in made.nodes:
            (node.folder / "data").mkdir()
        site = Site(made, digest)
        first = site.start()
        assert site.source_bytes() == [jobs.FILES * jobs.FILE_BYTES] * 2
        jobs.let_go(made, first)
        assert made.ended(first) == "COMPLETED"
        made.wait_clean()
        yield site


def normal(site: Site, job: str) -> None:
    jobs.let_go(site.cluster, job)


def scancel(site: Site, job: str) -> None:
    site.cluster.run("scancel", job)


def time_limit(site: Site, job: str) -> None:
    """It comes."""


def node_failure(site: Site, job: str) -> None:
    """slurmd, job and hfs of a node are killed; it comes back later, and Slurm runs the epilog then."""
    node = site.cluster.nodes[1]
    node.fail()
    assert node.mounts() == [str(site.data)]  # dead
    site.cluster.wait("the job has failed", lambda: site.cluster.state(job) == "NODE_FAIL")
    node.start()
    site.cluster.wait("the node is back", lambda: site.cluster.states() == ["idle"] * 2)


@pytest.mark.parametrize(
    ("ending", "state", "options"),
    [
        (normal, "COMPLETED", ()),
        (scancel, "CANCELLED", ()),
        (time_limit, "TIMEOUT", ("--time=1",)),
        (node_failure, "NODE_FAIL", ("--no-requeue",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nothing_is_left_but_a_warm_cache(
    site: Site, ending: Callable[[Site, str], None], state: str, options: tuple[str, ...]
) -> None:
    job = site.start(*options)
    ending(site, job)
    assert site.cluster.ended(job) == state
    site.cluster.wait_clean()
    after = site.start()
    assert site.source_bytes() == [0, 0]
    jobs.let_go(site.cluster, after)
    assert site.cluster.ended(after) == "COMPLETED"
    site.cluster.wait_clean()


def test_two_jobs_on_a_node_use_one_mount(site: Site) -> None:
    """It goes with the last of them, and the first one's end is not noticed by the other."""
    first, second = site.start(), site.start()
    jobs.let_go(site.cluster, first)
    assert site.cluster.ended(first) == "COMPLETED"
    assert [node.mounts() for node in site.cluster.nodes] == [[str(site.data)]] * 2
    assert site.source_bytes() == [0, 0]
    jobs.let_go(site.cluster, second)
    assert site.cluster.ended(second) == "COMPLETED"
    site.cluster.wait_clean()


def test_a_job_whose_epilog_never_ran_is_swept(site: Site) -> None:
    """Slurm is asked whether it has ended; what another job holds stays."""
    job = site.start()
    node = site.cluster.nodes[0]
    node.run(
        hfs_command(),
        "mount",
        site.cluster.folder / "src",
        site.data,
        "--config",
        site.cluster.folder / "hfs.toml",
        "--job",
        "99",
    )
    said = node.run(hfs_command(), "sweep", "--dry-run")
    assert "use by job 99, which has ended" in said
    assert f"job {job}," not in said
    node.run(hfs_command(), "sweep")
    assert node.run(hfs_command(), "sweep") == ""
    jobs.let_go(site.cluster, job)
    assert site.cluster.ended(job) == "COMPLETED"
    site.cluster.wait_clean()


def test_a_mount_made_in_a_step_ends_with_it_and_says_so(site: Site) -> None:
    """The step ends while another one of the job goes on; the epilog takes away what it has left."""
    folder, here = site.cluster.folder, site.cluster.here
    (site.cluster.nodes[0].folder / "own").mkdir()
    script = f"""#!/bin/bash
#SBATCH --nodes=1 --nodelist={site.cluster.names[0]} --output={folder}/said/%j-out
srun --overlap bash -c '{jobs.reads(site.cluster, str(site.data))}' &
srun --overlap {hfs_command()} mount {folder}/src {here}/own --cache {here}/own-cache --cache-size 100M
wait
"""
    job = site.cluster.submit(script)
    said = site.cluster.wait_file(f"said/{job}-out")
    assert f"ends with step {job}." in said
    assert "hfs slurm job" in said
    node = site.cluster.nodes[0]
    site.cluster.wait(
        "the step has ended",
        lambda: site.cluster.run("squeue", "--steps", "--noheader", "--jobs", job).count(f"{job}.") <= 2,
    )
    assert sorted(node.mounts()) == sorted([str(site.data), f"{here}/own"])
    jobs.let_go(site.cluster, job)
    assert site.cluster.ended(job) == "COMPLETED"
    site.cluster.wait_clean()
