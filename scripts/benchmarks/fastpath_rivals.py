"""Mounts of what others use for the same purpose: rclone with its full cache, and bindfs.

Both are Debian packages, installed here when that is possible. rclone gets what makes it fast: everything read once
before, and names and attributes believed for a day; the rest stands at its defaults. bindfs has no cache of its own.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks.common import BenchError, Work, mounts_below, preload, run, unmount, wait_gone

RIVALS = ("rclone", "bindfs")

MOUNT_LIMIT_S = 20.0
INSTALL_LIMIT_S = 300.0

_DAY = "24h"


def install() -> None:
    """Install the packages that are missing, as root with apt. What cannot be installed is missed later, by name."""
    missing = [name for name in RIVALS if shutil.which(name) is None]
    if not missing or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    with contextlib.suppress(BenchError):
        run("apt-get", "update", "-qq", limit_s=INSTALL_LIMIT_S)
        environment = "DEBIAN_FRONTEND=noninteractive"
        install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")
        run("env", environment, *install, *missing, limit_s=INSTALL_LIMIT_S)


def _command(name: str, source: Path, path: Path, cache: Path) -> list[str | Path]:
    if name == "bindfs":
        return ["bindfs", "-f", "-r", "--no-allow-other", source, path]
    words = ["--read-only", "--vfs-cache-mode", "full", "--vfs-cache-max-age", _DAY, "--dir-cache-time", _DAY]
    # No configuration file: a local path needs none.
    words += ["--attr-timeout", _DAY, "--config", "", "--log-level", "ERROR"]
    return ["rclone", "mount", source, path, "--cache-dir", cache, *words]


@contextlib.contextmanager
def rival(work: Work, name: str, source: Path) -> Iterator[Path]:
    """`source` mounted with one of the rivals, everything read once. Raises BenchError where it is not installed."""
    if shutil.which(name) is None:
        raise BenchError(f"{name} is not installed")
    path, cache = work.new(name), work.new(f"{name}-cache")
    process = subprocess.Popen(
        _command(name, source, path, cache),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the benchmark, which then unmounts
    )
    try:
        limit = time.monotonic() + MOUNT_LIMIT_S
        while path not in mounts_below(path):
            if process.poll() is not None or time.monotonic() > limit:
                process.kill()
                said = process.communicate()[1].decode(errors="replace").strip()[-500:]
                raise BenchError(f"{name} does not mount: {said}")
            time.sleep(0.02)
        preload(path)
        yield path
    finally:
        unmount(path)
        if not wait_gone(process.pid, MOUNT_LIMIT_S):
            process.kill()
        process.communicate()
        shutil.rmtree(cache, ignore_errors=True)
