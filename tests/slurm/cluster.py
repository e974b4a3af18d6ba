"""A cluster of Slurm on this machine: the real slurmctld, munged and one slurmd a node, from scripts/slurm.

A node is a mount namespace with directories of its own (`here`, the same path on all nodes, and /run), so that what is
mounted, cached and listened at on one is not seen on the other; processes, cgroups and network are the machine's. Each
step of a job has a cgroup of its own, which Slurm empties at the step's end (proctrack/cgroup).

Everything lies below one folder and listens on loopback. `close` ends all that was started.
"""

import contextlib
import itertools
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuse.guard import RUN_KEY
from tests.fuse.harness import BIN, ROOT, RUN_ID, wait_gone
from tests.slurm.apart import Apart

UNPACKED = ROOT / "build" / "slurm"
_LIBRARIES = UNPACKED / "usr/lib/x86_64-linux-gnu"
_PROGRAMS = UNPACKED / "usr/sbin"
_FREEZER = Path("/sys/fs/cgroup/freezer")
_UNIFIED = Path("/sys/fs/cgroup/cgroup.controllers")

NODES = 2
LIMIT_S = 150
CLEAN_S = 30
NOTHING: dict[str, list[str]] = {"mounts": [], "sockets": [], "processes": []}
_AGAIN_S = 0.1


def why_not() -> str | None:
    """The reason why there can be no cluster here, or None."""
    if not (UNPACKED / "complete").exists():
        return "Slurm's programs are not there: scripts/slurm"
    if os.geteuid() != 0:
        return "daemons of Slurm, mount namespaces and cgroups need root"
    if not os.access(_FREEZER, os.W_OK):
        return "proctrack/cgroup without systemd needs the freezer of cgroup v1"
    return None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _remove_cgroup(path: str) -> None:
    """Killed processes leave it a moment after they have ended."""
    until_s = time.monotonic() + CLEAN_S
    while True:
        try:
            os.rmdir(path)
            return
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_AGAIN_S)


class Node(Apart):
    """One of the cluster's: its namespace, its slurmd. `here` is a directory of its own at the same path on all."""

    def __init__(self, name: str, cluster: "Cluster") -> None:
        self.name = name
        self.folder = cluster.folder / name
        """Seen as `cluster.here` on the node."""
        self.folder.mkdir()
        super().__init__(self.folder, cluster.here, cluster.environment)
        self._cluster = cluster
        self._slurmd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Its slurmd, in a session of its own, as a service has it."""
        command = [_PROGRAMS / "slurmd-wlm", "-D", "-N", self.name, "-d", _PROGRAMS / "slurmstepd-wlm"]
        self._slurmd = self._cluster.start(f"slurmd-{self.name}", *self.entered(*command))

    def run(self, *command: str | os.PathLike[str]) -> str:
        """Run on this node, as root; what it says on stdout."""
        return self._cluster.run(*self.entered(*command))

    def left(self) -> dict[str, list[str]]:
        """All that must be gone after a job."""
        processes = [command for command in self.processes().values() if "slurmd-wlm" not in command]
        return {"mounts": self.mounts(), "sockets": self.sockets(), "processes": processes}

    def fail(self) -> None:
        """kill -9 of slurmd and of all other processes, hfs's too: the mounts stay as they are."""
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._slurmd is not None:
                self._slurmd.wait()
                self._slurmd = None
            for pid in found:
                assert wait_gone(pid), found

    def close(self) -> None:
        """End all on it."""
        self.fail()
        super().close()


class Cluster:
    """Of two nodes. Started when made; `close` it."""

    def __init__(self, folder: Path, prolog: str, epilog: str, suffix: str) -> None:
        """`prolog`, `epilog`: what Slurm runs as root on the nodes, as texts. `suffix`: of the names of nodes, which
        are names of cgroups of the machine too."""
        self.folder = folder
        self.names = [f"node{number}{suffix}" for number in range(1, NODES + 1)]
        self.here = folder / "here"
        self.here.mkdir()
        libraries = f"{_LIBRARIES}:{_LIBRARIES}/slurm-wlm"
        path = f"{UNPACKED}/usr/bin:{BIN}:{os.environ.get('PATH', os.defpath)}"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("HFS_", "XDG_", "SLURM"))},
            "LD_LIBRARY_PATH": libraries,
            "SLURM_CONF": f"{folder}/slurm.conf",
            "PATH": path,
            RUN_KEY: RUN_ID,
            "TMPDIR": str(self.here),
            "MPI4PY_LIBMPI": str(UNPACKED / "mpich/lib/libmpi.so.12"),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Any] = []
        self._scripts = {}
        for name, text in (("Prolog", prolog), ("Epilog", epilog)):
            if text:
                self._scripts[name] = self._script(name.lower(), text)
        self._configure()
        self._start_munged()
        self.start("slurmctld", _PROGRAMS / "slurmctld-wlm", "-D", "-c")
        self.nodes = [Node(name, self) for name in self.names]
        for node in self.nodes:
            node.start()
        self.wait("the nodes are idle", lambda: self.states() == ["idle"] * NODES)

    def _script(self, name: str, text: str) -> Path:
        """As a site would have it installed. Slurm's commands are found where a site has them, in PATH."""
        installed, wrapper = self.folder / f"hfs-{name}", self.folder / name
        installed.write_text(text)
        names = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", RUN_KEY)
        exported = "".join(f"export {key}={shlex.quote(self.environment[key])}\n" for key in names)
        wrapper.write_text(f"#!/bin/bash\n{exported}exec {installed} >>{self.folder}/{name}.log 2>&1\n")
        for path in (installed, wrapper):
            path.chmod(0o755)
        return wrapper

    def _configure(self) -> None:
        folder, host = self.folder, socket.gethostname().partition(".")[0]
        control, *ports = _free_ports(1 + NODES)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=1000"
            for name, port in zip(self.names, ports, strict=True)
        )
        scripts = "\n".join(f"{name}={path}" for name, path in self._scripts.items())
        (folder / "slurm.conf").write_text(f"""
ClusterName=hfs
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
PluginDir={_LIBRARIES}/slurm-wlm
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
MpiDefault=pmi2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=10
SlurmdTimeout=10
PrologFlags=Alloc
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
{scripts}
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
""")
        cgroups = f"CgroupMountpoint={_FREEZER.parent}\nCgroupPlugin=cgroup/v1\nConstrainCores=no\n"
        (folder / "cgroup.conf").write_text(cgroups)
        (folder / "state").mkdir()

    def _start_munged(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        self.start("munged", _PROGRAMS / "munged", "--foreground", "--force", *options)
        self.wait("munged listens", (folder / "socket").exists)

    def start(self, name: str, *command: str | os.PathLike[str]) -> subprocess.Popen[bytes]:
        """One of the daemons; it logs to NAME.log."""
        log = (self.folder / f"{name}.log").open("ab")
        self._logs.append(log)
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self.environment,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def run(self, *command: str | os.PathLike[str]) -> str:
        """Run to the end, which must be 0; what it says on stdout."""
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr, self.logs())
        return done.stdout

    def submit(self, script: str, *options: str) -> str:
        """The job's id."""
        path = self.folder / "job.sh"
        path.write_text(script)
        return self.run("sbatch", "--parsable", *options, path).strip()

    def state(self, job: str) -> str:
        """As scontrol has it; what has ended is COMPLETING until its epilogs are done."""
        for word in self.run("scontrol", "show", "job", job, "--oneliner").split():
            if word.startswith("JobState="):
                return word.partition("=")[2]
        raise AssertionError(job)

    def ended(self, job: str) -> str:
        """Wait until it has ended, epilogs included; its state."""
        self.wait(f"job {job} has ended", lambda: self.state(job) not in {"PENDING", "RUNNING", "COMPLETING"})
        return self.state(job)

    def states(self) -> list[str]:
        """Of the nodes."""
        return self.run("sinfo", "--noheader", "--Node", "--format=%t").split()

    def wait(self, what: str, is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        """Until it is so. Slurm has nothing to wait at: its commands are asked again."""
        until_s = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < until_s, f"not within {limit_s} s: {what}\n{self.logs()}"
            time.sleep(_AGAIN_S)

    def wait_clean(self) -> None:
        """Until nothing of jobs is left on any node. A node that was lost has its epilog when it is back."""
        until_s = time.monotonic() + CLEAN_S
        while (left := [node.left() for node in self.nodes]) != [NOTHING] * NODES:
            assert time.monotonic() < until_s, f"left after {CLEAN_S} s: {left}\n{self.logs()}"
            time.sleep(_AGAIN_S)

    def wait_file(self, name: str) -> str:
        """Until a job has written it below `folder`; what is in it."""
        path = self.folder / name
        self.wait(f"{name} is there", lambda: path.exists() and path.stat().st_size)
        return path.read_text()

    def logs(self) -> str:
        """The end of what all have said."""
        names = itertools.chain(self.folder.glob("*.log"), self.folder.glob("*.out"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(names))

    def close(self) -> None:
        """End all of it; its cgroups go too."""
        for node in getattr(self, "nodes", []):
            node.close()
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for log in self._logs:
            log.close()
        for name in self.names:
            for path, _, _ in os.walk(_FREEZER / f"slurm_{name}", topdown=False):
                _remove_cgroup(path)


def source_bytes(status: str) -> int:
    """Read from the source, of a text of `hfs status --json`."""
    return int(json.loads(status)["source"]["bytes"])


@contextlib.contextmanager
def cluster(folder: Path, prolog: str = "", epilog: str = "", suffix: str | None = None) -> Iterator[Cluster]:
    """For a `with`: what was started ends, if it fails halfway too."""
    made = Cluster.__new__(Cluster)
    try:
        Cluster.__init__(made, folder, prolog, epilog, f"-{secrets.token_hex(2)}" if suffix is None else suffix)
        yield made
    finally:
        made.close()
