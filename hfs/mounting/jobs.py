"""Jobs of a batch system that use mounts: released by an epilog, and found to have ended by whoever sweeps.

A prolog mounts for a job (`hfs mount --job ID`), and the keeper of the mount remembers the ID until it is released. A
mount that a job's own commands have made carries the job in its keeper's environment. Asks Slurm only; of jobs of other
batch systems nobody knows here whether they have ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from hfs.mountd.core.errors import MountError
from hfs.mounting import keeper, mounting, processes

ASK_S = 20.0
"""squeue itself gives up after ten seconds or so where the controller is silent (MessageTimeout)."""
_AT_AN_END = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}
"""Of squeue's states those of a job that holds no node any more. COMPLETING is none: epilogs are running then."""
_FIRST_SPECIAL = 0xFFFFFF00
"""Step ids from here on are not steps of srun: batch, extern, interactive, pending (slurm.h counts down from 2^32)."""
_CGROUP = re.compile(r"/job_([0-9]+)/step_([0-9]+)(?:/|$)", re.MULTILINE)
"""As cgroup/v1 and cgroup/v2 of Slurm name them; the batch step is step_batch."""


def release_job(job: str, mountpoint: str | None, *, wait: bool) -> list[str]:
    """Have this job use our mounts (that at a canonical path; None: any) no more, for epilogs: what goes with the last
    job is unmounted by its keeper, lazily. `wait`: until its daemon has ended too. A line for each mount that it used.

    Raises MountError for a daemon that does not end.
    """
    lines, ending = [], []
    for kept in list(keeper.ours()):
        place = str(kept.status.get("mountpoint"))
        if mountpoint not in {None, place}:
            continue
        descriptor = processes.open_pid(kept.pid) if wait else None
        with contextlib.suppress(OSError, MountError):  # it has just ended
            released, is_ending = kept.release_job(job)
            if released:
                lines.append(
                    f"{place}: used by job {job} no more" + (", nor by others: unmounted" if is_ending else "")
                )
            if is_ending and descriptor is not None:
                ending.append((place, descriptor))
                continue
        if descriptor is not None:
            os.close(descriptor)
    try:
        processes.wait_daemons_gone(ending, mounting.DRAIN_S)
    finally:
        for _, descriptor in ending:
            os.close(descriptor)
    return lines


def has_ended(job: str, limit_s: float = ASK_S) -> bool | None:
    """Whether this job of Slurm has left its nodes; None: nobody can tell, as of one of another batch system."""
    squeue = shutil.which("squeue")
    if squeue is None or re.fullmatch("[0-9]{1,20}", job) is None:
        return None
    command = [squeue, "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=min(limit_s, ASK_S), check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return True if "Invalid job id" in done.stderr else None
    states = set(done.stdout.split())
    return states <= _AT_AN_END if states else None


def job_of_process(pid: int) -> str | None:
    """The job of Slurm that has started this process; None: none, or it is not for us to see."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    prefix = b"SLURM_JOB_ID="
    return next((os.fsdecode(text[len(prefix) :]) for text in variables if text.startswith(prefix)), None)


def current_step(environ: Mapping[str, str] | None = None, cgroups: str | None = None) -> str | None:
    """The "JOB.STEP" of the step of srun that we run in, whose end kills all that it has started, however it was
    started; None: in none. `cgroups`: the text of /proc/self/cgroup.

    Slurm tracks a step by a control group of its own (proctrack/cgroup, the usual setting): a daemon with a session of
    its own ends with the step all the same. Not so in the script of the job (the batch step) and in an interactive
    shell of salloc, which live as long as the allocation."""
    if cgroups is None:
        try:
            with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
                cgroups = file.read()
        except OSError:
            cgroups = ""
    found = _CGROUP.search(cgroups)
    if found is None and re.search(r"/job_[0-9]+/step_", cgroups):
        return None  # batch, extern or interactive: srun's variables may have come from elsewhere
    given = os.environ if environ is None else environ
    job, step = found.groups() if found else (given.get("SLURM_JOB_ID", ""), given.get("SLURM_STEP_ID", ""))
    if not (job.isdecimal() and step.isdecimal()) or int(step) >= _FIRST_SPECIAL:
        return None
    return f"{job}.{step}"


def is_contained() -> bool:
    """Whether Slurm has put this process into a control group, of any kind of step: no daemon outlives that."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            return re.search(r"/job_[0-9]+/step_", file.read()) is not None
    except OSError:
        return False


def remedy_in_step(source: str) -> str | None:
    """What is to be said of a mount that was made here; None: nothing, it outlives nobody."""
    step = current_step()
    if step is None:
        return None
    return (
        f"ends with step {step} of Slurm, which kills all processes of a step at its end; for one command: hfs run "
        f"--source {source} -- COMMAND; for a whole job: hfs slurm job prints a script that gives daemons a step"
    )
