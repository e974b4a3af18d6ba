"""Prolog, jobs, epilog on one node without Slurm: a stand-in sets Slurm's variables, gives each step a control group of
its own and ends it as Slurm does, by killing all that is in it. tests/slurm/test_prolog.py has the real one.
"""

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.harness import environment, hfs_command, processes_of_run
from tests.fuse.users import needs_root
from tests.slurm import jobs
from tests.slurm.apart import Apart

pytestmark = [needs_root, pytest.mark.fuse]

LIMIT_S = 40


def cgroup_root() -> Path | None:
    """Where cgroup v2 is mounted."""
    for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    return None


class Step:
    """Of a job: a control group, until it ends."""

    def __init__(self, node: "StandIn", job: str) -> None:
        root = cgroup_root()
        if root is None or not os.access(root, os.W_OK):
            pytest.skip("cgroup v2 is not there, or may not be written to")
        self._node, self._job = node, job
        self._group = root / f"hfs-test-{uuid.uuid4().hex}"
        self._group.mkdir()
        if not (self._group / "cgroup.kill").exists():
            self._group.rmdir()
            pytest.skip("this kernel has no cgroup.kill (Linux 5.14)")

    def run(self, *command: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
        """In it."""
        inside = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(self._group)]
        return self._node.run(*inside, *command, SLURM_JOB_ID=self._job, SLURM_STEP_ID="0")

    def end(self) -> None:
        """As slurmstepd does it."""
        (self._group / "cgroup.kill").write_text("1")
        while "populated 1" in (self._group / "cgroup.events").read_text():
            pass  # SIGKILL has been sent to all of them
        self._group.rmdir()


class StandIn:
    """A node: what Slurm runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.here = folder, folder / "here"
        (folder / "node").mkdir()
        self.here.mkdir()
        self.digest = jobs.make_source(folder)
        self.apart = Apart(folder / "node", self.here, environment())
        self.data = self.here / "data"
        for name in ("data", "own"):
            (folder / "node" / name).mkdir()
        config = folder / "hfs.toml"
        keys = {"source": folder / "src", "mountpoint": self.data, "cache": self.here / "cache"}
        config.write_text("".join(f'{key} = "{value}"\n' for key, value in keys.items()) + 'cache-size = "200M"\n')
        for name, arguments in (("prolog", ("--config", str(config))), ("epilog", ())):
            (folder / name).write_text(jobs.script(name, *arguments))

    def run(self, *command: str | os.PathLike[str], **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.apart.entered(*command),
            env=environment({"XDG_CONFIG_HOME": str(self.folder / "none"), **variables}),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def slurm(self, name: str, job: str) -> None:
        """A prolog or epilog, with as few variables as slurmd gives them."""
        done = self.run("env", "-i", f"SLURM_JOB_ID={job}", "bash", self.folder / name)
        assert done.returncode == 0

    def sweep(self, *options: str) -> tuple[int, str]:
        done = self.run(hfs_command(), "sweep", *options)
        return done.returncode, done.stdout

    def left(self) -> tuple[list[str], list[str], dict[int, str]]:
        return self.apart.mounts(), self.apart.sockets(), self.apart.processes()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StandIn]:
    made = StandIn(tmp_path)
    try:
        yield made
    finally:
        for pid in made.apart.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        made.apart.close()
    assert processes_of_run(tmp_path) == {}


def test_two_jobs_a_killed_step_and_the_next_job(node: StandIn) -> None:
    """Both use one mount. What the step has mounted for itself is dead after it, and said so before; the epilogs leave
    the cache only, and the third job reads nothing from the source."""
    for job in ("7", "8"):
        node.slurm("prolog", job)
    assert node.apart.mounts() == [str(node.data)]
    assert node.run("sh", "-c", f"cat {node.data}/* | md5sum").stdout.split()[0] == node.digest

    step, own = Step(node, "8"), node.here / "own"
    cache = ("--cache", node.here / "own-cache", "--cache-size", "100M")
    done = step.run(hfs_command(), "mount", node.folder / "src", own, *cache)
    assert (done.returncode, "ends with step 8.0 of Slurm" in done.stderr) == (0, True), done.stderr
    standing = node.apart.entered("sh", "-c", f"cd {own} && echo there && read -r _")
    with subprocess.Popen(standing, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stander:
        assert stander.stdout is not None
        assert stander.stdout.readline() == "there\n"
        step.end()
        assert "not connected" in node.run("ls", own).stderr
        code, said = node.sweep("--dry-run")
        assert (code, said.splitlines()[0]) == (0, f"would remove {own}: dead mount of {node.folder}/src")
        code, said = node.sweep()  # sockets of the dead daemon go, the mount is in use
        assert (code, said.splitlines()[0].startswith(f"kept {own}: ")) == (3, True), said
        assert f"its working directory is {own}" in said
        stander.communicate("\n")
    found = json.loads(node.sweep("--dry-run", "--json")[1])["found"]
    assert [(each["kind"], each["where"], each["kept"]) for each in found] == [("dead-mount", str(own), "")]
    node.slurm("epilog", "7")
    assert node.apart.mounts() == [str(node.data)]
    node.slurm("epilog", "8")
    assert node.left() == ([], [], {})

    node.slurm("prolog", "9")
    assert node.run("sh", "-c", f"cat {node.data}/* | md5sum").stdout.split()[0] == node.digest
    status = json.loads(node.run(hfs_command(), "status", node.data, "--json").stdout)
    assert status["source"]["bytes"] == 0
    node.slurm("epilog", "9")
    assert node.left() == ([], [], {})
