"""What a file of results says of itself: which benchmark, on which machine, of which versions.

Enough to tell whether two files may be held against each other, nothing that names a machine or its user.
"""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("pyfuse3", "trio", "numpy", "h5py", "mpi4py", "lmdb", "torch")


def about(root: Path, name: str, *, quick: bool, runs: int) -> dict[str, object]:
    """The head of the JSON: "benchmark", "quick", "runs", "seeds", "machine", "versions"."""
    return {
        "benchmark": name,
        "quick": quick,
        "runs": runs,
        "seeds": "fixed: the number of a run, and constants in the code of this commit",
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "processor": _processor(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "load_before": os.getloadavg()[0],
        },
        "versions": {
            "commit": _commit(root),
            "python": platform.python_version(),
            **{package: version for package in PACKAGES if (version := _version(package))},
        },
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit(root: Path) -> str:
    """With a "+" behind it if the files are not those of the commit; empty without git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + "+" * bool(changed.stdout.strip())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
