"""Whether this process runs in a step of a Slurm job whose end kills all that it has started, however it was started.

Slurm tracks a step by a control group of its own (proctrack/cgroup, the usual setting): a daemon with a session of its
own ends with the step all the same. Not so in the script of the job (the batch step) and in an interactive shell of
salloc, which live as long as the allocation. Reads the environment and /proc/self/cgroup; asks nobody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_FIRST_SPECIAL = 0xFFFFFF00
"""Step ids from here on are not steps of srun: batch, extern, interactive, pending (slurm.h counts down from 2^32)."""
_CGROUP = re.compile(r"/job_([0-9]+)/step_([0-9]+)(?:/|$)", re.MULTILINE)
"""As cgroup/v1 and cgroup/v2 of Slurm name them; the batch step is step_batch."""


def current(environ: Mapping[str, str] | None = None, cgroups: str | None = None) -> str | None:
    """The "JOB.STEP" of the step that we run in; None: in none. `cgroups`: the text of /proc/self/cgroup."""
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


def remedy(source: str) -> str | None:
    """What is to be said of a mount that was made here; None: nothing, it outlives nobody."""
    step = current()
    if step is None:
        return None
    return (
        f"ends with step {step} of Slurm, which kills all processes of a step at its end; for one command: hfs run "
        f"--source {source} -- COMMAND; for a whole job: hfs slurm job prints a script that gives daemons a step"
    )
