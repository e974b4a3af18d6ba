"""Jobs for the tests with a real Slurm: they read the data set, say so, and go on until they are told to end.

Shared by the tests of the prolog and of the job's own daemons.
"""

import hashlib
import os
import shlex
from pathlib import Path

from tests.fuse.harness import hfs_command, must
from tests.slurm.cluster import Cluster

FILES = 20
FILE_BYTES = 65536


def make_source(folder: Path) -> str:
    """FOLDER/src, of files that everybody may read; what md5sum says of all of them."""
    source = folder / "src"
    source.mkdir()
    digest = hashlib.md5(usedforsecurity=False)
    for number in range(FILES):
        data = os.urandom(FILE_BYTES)
        (source / f"{number:02}").write_bytes(data)
        digest.update(data)
    said = folder / "said"
    said.mkdir()
    said.chmod(0o777)  # jobs of any user write there
    return digest.hexdigest()


def script(*arguments: str) -> str:
    """What `hfs slurm ARGUMENTS` prints."""
    return must(hfs_command(), "slurm", *arguments)


def reads(cluster: Cluster, data: str) -> str:
    """Text of bash: reads all of `data`, a shell word, says so once a node, and waits for `let_go`."""
    said = f"{shlex.quote(str(cluster.folder / 'said'))}/$SLURM_JOB_ID"
    return f"""
cat {data}/* | md5sum >{said}-$SLURMD_NODENAME-part
mv {said}-$SLURMD_NODENAME-part {said}-$SLURMD_NODENAME
until [[ -e {said}-go ]]; do sleep 0.1; done
"""


def wait_read(cluster: Cluster, job: str) -> list[str]:
    """Until the job has read on all nodes: what md5sum says on each."""
    return [cluster.wait_file(f"said/{job}-{node.name}").split()[0] for node in cluster.nodes]


def let_go(cluster: Cluster, job: str) -> None:
    """The job may end."""
    (cluster.folder / "said" / f"{job}-go").touch()
