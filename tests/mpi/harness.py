"""MPI jobs for tests: starts a program under mpirun with a bounded time, keeps what each rank said, finds what is left.

Called by the fixture `mpirun` in tests/mpi/conftest.py. Never imports mpi4py.MPI: that would make the test runner an
MPI job of one, which leaves files in /dev/shm and /tmp. Ranks are told apart from the processes of other test runs by
a key in their environment; all files of the job lie below two folders of its own, which must be empty afterwards.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.fuse import guard
from tests.fuse.harness import RUN_ID, environment, wait_gone
from tests.mpi import start

JOB_KEY = "MPI_TEST_JOB"

# Starting four ranks takes 0.6 s on two idle cores. Below the time limit of a test, so that what was said is shown.
JOB_LIMIT_S = 40

# After its last rank mpirun ends within milliseconds.
STAYS_S = 3

# Between two looks at the files of ranks: for what has no event to wait for, a line in a file.
LOOK_S = 0.02

SETTINGS = {
    # Containers run tests as root.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # More ranks than cores: let them share, and give up the core while they wait.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Shared memory only; the component for UCX is tried otherwise, and complains.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_osc": "^ucx",
    # With --with-ft ulfm it says of every component that nobody has tested it.
    "OMPI_MCA_mpi_ft_verbose": "0",
}


class Job:
    """One mpirun under way: `pid`, `wait_line`, `kill`, then `finish`; `close` ends it whatever its state."""

    def __init__(
        self, folder: Path, ranks: int, command: list[str], options: list[str], env: Mapping[str, str]
    ) -> None:
        self.folder, self.ranks = folder, ranks
        self._id = uuid.uuid4().hex
        self._stayed = False
        # Names short: sockets lie below them. Shared memory is looked through in a folder of its own in /dev/shm.
        self._shm = Path("/dev/shm") / f"mpi-test-{self._id[:8]}"
        self._tmp = folder / "tmp"
        for made in (self._tmp, self._shm):
            made.mkdir(parents=True)
        settings = {
            **SETTINGS,
            JOB_KEY: self._id,
            "TMPDIR": str(self._tmp),
            "OMPI_MCA_btl_sm_backing_directory": str(self._shm),
            "OMPI_MCA_osc_sm_backing_store": str(self._shm),
            **env,
        }
        full = [
            *(sys.executable, start.__file__, "job", "mpirun", "-n", str(ranks), *options),
            *(sys.executable, start.__file__, "rank", str(folder), *command),
        ]
        with open(folder / "mpirun.log", "wb") as log:
            self._mpirun = subprocess.Popen(
                full, env=environment(settings), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
            )

    def pid(self, rank: int) -> int:
        """The process id of a rank, when it has started."""
        path = self.folder / f"{rank}.pid"
        self._wait_for(path.exists, f"rank {rank} does not start")
        return int(path.read_text())

    def wait_line(self, rank: int, text: str) -> None:
        """Wait until the rank has printed `text` (flushed)."""
        self._wait_for(lambda: text in self.out(rank), f"rank {rank} does not print {text!r}")

    def wait_error(self, rank: int, text: str) -> None:
        """Wait until the rank has written `text` to stderr."""
        self._wait_for(lambda: text in self.err(rank), f"rank {rank} does not write {text!r}")

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to one rank, and wait until it has ended."""
        pid = self.pid(rank)
        os.kill(pid, number)
        assert wait_gone(pid), f"rank {rank} did not end on signal {number}\n{self.text()}"

    def out(self, rank: int) -> str:
        """What the rank has printed so far."""
        return self._read(f"{rank}.out")

    def err(self, rank: int) -> str:
        """What the rank has written to stderr so far."""
        return self._read(f"{rank}.err")

    def finish(self, limit_s: float = JOB_LIMIT_S) -> int:
        """Wait for the end of the job; its exit code. A job past the limit is an error that shows what was said.

        The prterun of OpenMPI 5.0.11 sometimes (1 in 60) stays when several ranks have exited with an error at once.
        Such a one is killed when all ranks have been gone for a while, and the code is then that of the kill.
        """
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return self._mpirun.wait(min(STAYS_S, max(0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                if self._all_gone():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return self._mpirun.wait(STAYS_S)
                    self._stayed = True
                    self._mpirun.kill()
                    return self._mpirun.wait()
            if time.monotonic() >= deadline:
                raise AssertionError(f"the job did not end in {limit_s} s\n{self.stacks()}\n{self.text()}")

    def _all_gone(self) -> bool:
        """Whether every rank has started and ended."""
        pids = [self._read(f"{rank}.pid") for rank in range(self.ranks)]
        return all(pid and wait_gone(int(pid), 0) for pid in pids)

    def must(self, limit_s: float = JOB_LIMIT_S) -> list[str]:
        """`finish`, and fail unless it ended with 0. What each rank has printed."""
        code = self.finish(limit_s)
        assert code == 0, f"mpirun exited with {code}\n{self.text()}"
        return [self.out(rank) for rank in range(self.ranks)]

    def text(self) -> str:
        """All that was said, for the message of a failed test."""
        parts = [("mpirun", self._read("mpirun.log"))]
        for rank in range(self.ranks):
            parts += [(f"rank {rank}, stdout", self.out(rank)), (f"rank {rank}, stderr", self.err(rank))]
        return "\n".join(f"--- {who}\n{said}" for who, said in parts if said)

    def stacks(self) -> str:
        """Have the ranks that go on write where they are (`faulthandler.register(SIGUSR1)`), if they do that."""
        for rank in range(self.ranks):
            with contextlib.suppress(OSError, ValueError):
                pid = int(self._read(f"{rank}.pid"))
                with open(f"/proc/{pid}/status") as status:
                    caught = next(line for line in status if line.startswith("SigCgt"))
                if int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
                    os.kill(pid, signal.SIGUSR1)
        select.select([], [], [], 10 * LOOK_S)
        return "their stacks, where they write them, are on their stderr"

    def close(self) -> list[str]:
        """End it whatever its state. What was wrong: processes and files that stayed."""
        faults = []
        if self._mpirun.poll() is None:
            self._mpirun.terminate()  # mpirun then ends the ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._mpirun.wait(5)
        for pid, command in guard.processes_of_run(RUN_ID, str(self._tmp), f"{JOB_KEY}={self._id}").items():
            faults.append(f"process left behind: {pid} {command}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_gone(pid)
        self._mpirun.wait()
        for folder in (self._shm, self._tmp):
            if not self._stayed:  # a killed mpirun can clear nothing away
                faults += [f"file left behind: {path}" for path in folder.rglob("*") if not path.is_dir()]
            shutil.rmtree(folder, ignore_errors=True)  # gone already, if it is closed for the second time
        return faults

    def _read(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text(errors="replace")
        return ""

    def _wait_for(self, happened: Callable[[], bool], fault: str, state: Callable[[], object] = lambda: "") -> None:
        """`state` says how things stand where it did not happen."""
        deadline = time.monotonic() + JOB_LIMIT_S
        while not happened():
            ended = self._mpirun.poll()
            # Looked at once more: it may have happened just before the end.
            assert ended is None or happened(), f"{fault}: mpirun has ended with {ended}\n{self.text()}"
            late = time.monotonic() > deadline
            assert not late, f"{fault} within {JOB_LIMIT_S} s {state()}\n{self.stacks()}\n{self.text()}"
            select.select([], [], [], LOOK_S)
