"""Jobs of one node: `hfs run` of a program that reads and checks everything, and what the node looks like meanwhile."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from scripts.benchmarks import data
from scripts.benchmarks.common import HFS, BenchError, Work, objects_of
from scripts.benchmarks.options import Options
from scripts.benchmarks.plain_user import UID, as_plain_user
from scripts.benchmarks.readers.pattern import block

JOB = Path(__file__).resolve().parent / "readers" / "node_job.py"
FILES, FILES_QUICK = 2000, 200
FILE_BYTES = 43_000
_LIMIT_S = 300.0
_LOOK_S = 0.02


def folder_of(work: Work, options: Options, number: int) -> Path:
    """A data set of its own for each number."""
    count = options.size(FILES, FILES_QUICK)

    def make(root: Path) -> None:
        for name in range(number * count, (number + 1) * count):
            (root / str(name)).write_bytes(block(name, 0, FILE_BYTES).tobytes())

    spec: dict[str, object] = {"count": count, "bytes": FILE_BYTES, "number": number}
    return data.stamped(work.data / f"node-{number}-{count}", spec, make)


class Job:
    """One `hfs run` in place. `rounds` 0: until `end`."""

    def __init__(self, source: Path, cache: Path, size: str, *, rounds: int, seed: int, at: Path | None = None) -> None:
        """`at`: without hfs, of the folder there."""
        command = [sys.executable, str(JOB), str(at or source), str(rounds), str(seed)]
        if at is None:
            places = ["--source", str(source), "--cache", str(cache), "--cache-size", size, "--quiet"]
            command = [str(HFS), "run", *places, "--", *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_runs(self) -> "Job":
        """Until the command runs."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "runs\n":
            raise BenchError(f"hfs run: {self._process.communicate()[1].strip()}")
        return self

    def end(self) -> dict[str, Any]:
        """What it found, and "exit": the code of hfs."""
        out, said = self._process.communicate(timeout=_LIMIT_S)
        code = self._process.returncode
        if code != 0:
            return {"exit": code, "said": said, "files": 0, "wrong": 0, "failed": 0, "seconds": [], "uid": -1}
        return {"exit": code, **json.loads(out.splitlines()[-1])}

    def kill(self) -> None:
        """kill -9 of all of it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def ranks_of_a_plain_user(work: Work, source: Path, count: int) -> list[dict[str, Any]]:
    """What each of so many `hfs run` found that a plain user starts at once, in place."""
    folder, own = work.new("plain"), work.new("own")
    if os.geteuid() == 0:
        os.chown(own, UID, UID)
    each = (
        f'"{HFS}" run --source "{source}" --cache "{own}/cache" --quiet -- "{sys.executable}" "{JOB}" "{source}" 2 $n'
    )
    script = f"for n in $(seq {count}); do {each} > {own}/told-$n & done; wait"
    environment = {**os.environ, "HOME": str(own)}
    command = [*as_plain_user(folder), "sh", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    told = [(own / f"told-{number}").read_text().splitlines() for number in range(1, count + 1)]
    if not all(told):
        raise BenchError(f"hfs run as a plain user: {done.stderr.strip()}")
    return [json.loads(lines[-1]) for lines in told]


class Watch:
    """What the root takes on the disk, looked at all the time, while the block lasts."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            taken = 0
            for path in objects_of(self._cache):
                try:
                    taken += path.stat().st_blocks * 512
                except FileNotFoundError:
                    continue  # evicted since
            self.most_bytes = max(self.most_bytes, taken)


def daemons_of(sources: Sequence[Path]) -> int:
    """How many daemons serve these now, by their mounts."""
    names = {f"hfs#{source}".replace("#", "\\043") for source in sources}
    with open("/proc/self/mountinfo") as table:
        return len({line.split(" ")[2] for line in table if line.split(" - ")[1].split(" ")[1] in names})


def wait_unmounted(sources: Sequence[Path], limit_s: float) -> int:
    """Mounts that are left of these after so long at most."""
    until_s = time.monotonic() + limit_s
    while (left := daemons_of(sources)) and time.monotonic() < until_s:
        time.sleep(0.02)
    return left
