"""What a report says of the machine and of this installation: versions, limits, settings. No names of files."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from importlib import metadata
from typing import Any

import hfs
from hfs.doctor.libfuse import load
from hfs.doctor.limits import room_for_processes
from hfs.doctor.surroundings import Surroundings
from hfs.mountd.core.memory import available_bytes, groups_of

_SETTINGS = (
    *("kernel/apparmor_restrict_unprivileged_userns", "kernel/pid_max", "kernel/threads-max"),
    *(
        "kernel/unprivileged_userns_clone",
        "user/max_user_namespaces",
        "vm/overcommit_memory",
        "fs/pipe-user-pages-soft",
    ),
    *("fs/fuse/max_pages_limit", "fs/file-max", "fs/nr_open"),
)
_STATUS = ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Cpus_allowed_list", "NSpid")
_FUSE = ("max_user_bgreq", "max_user_congthresh")


def versions() -> dict[str, Any]:
    """Of everything that takes part."""
    packages = {each.metadata["Name"]: each.version for each in metadata.distributions() if each.metadata["Name"]}
    return {
        "hfs": hfs.__version__,
        "python": sys.version,
        "kernel": {"release": platform.release(), "version": platform.version(), "machine": platform.machine()},
        "libc": " ".join(platform.libc_ver()),
        "loaded": load(),
        "packages": dict(sorted(packages.items())),
    }


def limits(around: Surroundings) -> dict[str, Any]:
    """Of this process, its control groups and the kernel."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    status = around.status
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "uid": around.uid,
        "processors": os.cpu_count(),
        "limits": {name: list(resource.getrlimit(getattr(resource, name))) for name in names},
        "status": {name: status[name] for name in _STATUS if name in status},
        "room_for_processes": room_for_processes(around),
        "available_bytes": available_bytes(f"{around.proc}/meminfo", groups_of(f"{around.proc}/self")),
        "control_groups": around.lines("self/cgroup"),
        "settings": {name.replace("/", "."): around.number(f"sys/{name}") for name in _SETTINGS},
        "fuse": {name: _number(f"/sys/module/fuse/parameters/{name}") for name in _FUSE},
        "loads": list(os.getloadavg()),
    }


def environment() -> dict[str, str]:
    """Variables whose names begin with HFS_, and no others. Of those that are no keys only the names: in a cluster of
    Kubernetes others put such there."""
    from hfs.mountd.core.config import KEYS

    ours = {"HFS_CONFIG", *(f"HFS_{key.name.upper().replace('-', '_')}" for key in KEYS)}
    return {
        name: value if name in ours else "(not a key)"
        for name, value in sorted(os.environ.items())
        if name.startswith("HFS_")
    }


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
