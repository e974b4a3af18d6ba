"""The floor that the data plane is measured against: floor/floor.c, compiled here and mounted over a folder."""

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks.common import ROOT, WORK, BenchError, Work, run, unmount, wait_gone

SOURCE = Path(__file__).resolve().parent / "floor" / "floor.c"
LIBFUSE = ROOT / "build" / "libfuse" / "prefix"
"""Ours, where the distribution's is too old; then the floor is linked with it as the daemon is."""

MOUNTED_S = 20.0


def program() -> Path:
    """Compiled, if it is not yet."""
    built = WORK / "floor"
    if built.exists() and built.stat().st_mtime > SOURCE.stat().st_mtime:
        return built
    WORK.mkdir(parents=True, exist_ok=True)
    search = {"PKG_CONFIG_PATH": f"{LIBFUSE}/lib/pkgconfig:{os.environ.get('PKG_CONFIG_PATH', '')}"}
    asked = ["pkg-config", "--cflags", "--libs", "fuse3"]
    flags = shlex.split(
        subprocess.run(asked, env=os.environ | search, check=True, capture_output=True, text=True).stdout
    )
    rpath = [f"-Wl,-rpath,{LIBFUSE}/lib"] if LIBFUSE.is_dir() else []
    run("cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", built, SOURCE, *flags, "-lpthread", *rpath)
    return built


@contextlib.contextmanager
def floor(work: Work, source: Path, threads: int, cache: Path | None = None) -> Iterator[Path]:
    """The mountpoint of a floor over `source`, with so many threads. `cache`: it fetches each file at its first open,
    and stores it there. Raises BenchError."""
    path = work.new("floor")
    server = subprocess.Popen([program(), source, path, str(threads), *([cache] if cache is not None else [])])
    try:
        limit = time.monotonic() + MOUNTED_S
        while not os.path.ismount(path):
            if server.poll() is not None or time.monotonic() > limit:
                raise BenchError(f"the floor was not mounted (exit code {server.poll()})")
            time.sleep(0.01)
        yield path
    finally:
        unmount(path)
        wait_gone(server.pid, MOUNTED_S)
        if server.poll() is None:
            server.kill()
        server.wait()
