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

from hfs.mountd.base.errors import MountError
from hfs.mounting import keeper, mounting, processes

ASK_S = 20.0
"""squeue itself gives up after ten seconds or so where the controller is silent (MessageTimeout)."""
_AT_AN_END = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}
"""Of squeue's states those of a job that holds no node any more. COMPLETING is none: epilogs are running then."""


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
