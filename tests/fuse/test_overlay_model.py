"""Readers by path in an overlay, while at random files are staged, evicted, changed, made and refreshed, and the daemon
is killed: no error, no mixture, nothing older than what was refreshed. A real mount, and the overlays of `hfs run`.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.harness import environment, processes_of_run, wait_gone
from tests.fuse.overlaid import this_kernel_has_them

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a plain user's daemon is killed in the same way"),
    pytest.mark.skipif(not this_kernel_has_them(), reason="this kernel has no overlayfs with a layer of data alone"),
]

NAMES = [f"{'a/b/' * (number % 2)}f{number:02d}" for number in range(24)]
LATER = [f"{'a/' * (number % 2)}later{number:02d}" for number in range(60)]
"""Made at the source one after the other; before that they do not exist."""
UNIT = 16
MOST_KILLS = 4
"""After five daemons that ended as soon as they began the keeper starts no other."""
SIZES = (10 * UNIT, 3125 * UNIT, 3 << 20)

JOB = """
import errno, json, os, random, sys, threading, time
from pathlib import Path
from hfs.client.client import Client, find_socket
place, floor_file, later = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
end, found = threading.Event(), {"reads": 0, "errors": [], "wrong": [], "stale": 0}
turns, turned = [0, 0, 0], threading.Condition()

def read(name, floor):
    with open(f"{place}/{name}", "rb") as file:
        try:
            data = file.read()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            found["stale"] += 1  # of the version that was opened the source has nothing any more
            return
    if data != data[:16] * (len(data) // 16) or data[8:16].decode().strip() != name[-8:]:
        return f"{name}: a mixture of {set(data[at:at + 16] for at in range(0, len(data), 16))}"
    if int(data[:8]) < floor:
        return f"{name}: {int(data[:8])}, refreshed to {floor}"

def go(seed):
    chance = random.Random(seed)
    while not end.is_set():
        floor = json.loads(Path(floor_file).read_text())
        name = chance.choice(list(floor))
        begun = time.monotonic()
        try:
            if chance.random() < 0.1:
                Path(place, chance.choice(later)).exists()
            wrong = read(name, floor[name])
            found["reads"] += 1
            if wrong:
                found["wrong"].append(wrong)
        except OSError as error:
            found["errors"].append([begun, time.monotonic(), str(error)])
        with turned:
            turns[seed] += 1
            turned.notify_all()

def settle():
    with turned:
        after = [count + 2 for count in turns]
        turned.wait_for(lambda: all(count >= least for count, least in zip(turns, after)))

readers = [threading.Thread(target=go, args=(seed,)) for seed in range(len(turns))]
for reader in readers:
    reader.start()
for line in sys.stdin:
    command, *names = json.loads(line)
    os.listdir(place)  # a daemon answers
    settle() if command == "settle" else getattr(Client(find_socket(place)), command)([name.encode() for name in names])
    print("done", flush=True)
end.set()
for reader in readers:
    reader.join()
print(json.dumps(found), flush=True)
"""


class Model:
    def __init__(self, place: Path, seed: int) -> None:
        self.source, self._floor_file = place / "source", place / "floor"
        self._place = place
        self._chance = random.Random(seed)
        self._versions = dict.fromkeys(NAMES, 0)
        self._later = iter(LATER)
        self._kills = 0
        (self.source / "a" / "b").mkdir(parents=True)
        for name in NAMES:
            self._write(name)
        self._set_floor()
        self.done: list[tuple[float, str]] = []
        """What was begun when, for whoever looks into an error."""
        given = ["--source", str(self.source), "--cache", str(place / "cache"), "--immutable"]
        arguments = [str(self.source), str(self._floor_file), ",".join(LATER)]
        with (place / "errors").open("w") as errors:
            self._job = subprocess.Popen(
                ["hfs", "run", *given, "--", "python3", "-c", JOB, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                text=True,
            )

    def _write(self, name: str) -> None:
        size = SIZES[sum(name.encode()) % len(SIZES)]
        new = self._place / "new"
        new.write_bytes(f"{self._versions[name]:<8d}{name[-8:]:<8s}".encode() * (size // UNIT))
        new.rename(self.source / name)

    def _set_floor(self) -> None:
        new = self._place / "floor.new"
        new.write_text(json.dumps(self._versions))
        new.rename(self._floor_file)

    def _ask(self, *command: str) -> None:
        """Of the daemon, from within the job."""
        assert self._job.stdin is not None
        assert self._job.stdout is not None
        self.done.append((time.monotonic(), " ".join(command)))
        self._job.stdin.write(json.dumps(command) + "\n")
        self._job.stdin.flush()
        assert self._job.stdout.readline() == "done\n", (self._place / "errors").read_text()

    def step(self) -> None:
        some = self._chance.sample(list(self._versions), self._chance.randint(1, 6))
        chosen = self._chance.random()
        if chosen < 0.35:
            self._ask("warm", *some)
        elif chosen < 0.6:
            self._ask("evict", *some)
        elif chosen < 0.85 or self._kills == MOST_KILLS:
            made = next(self._later)
            self._versions[made] = -1
            for name in (made, *some):
                self._versions[name] += 1
                self._write(name)
            self._ask("refresh", made, *some)
            self._set_floor()
        else:
            self._ask("settle")  # the kernel walks a path once more, and only once
            self.done.append((time.monotonic(), "kill -9"))
            self._kills += 1
            for pid, command in processes_of_run(self._place).items():
                if "daemon_process" in command:
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> dict[str, Any]:
        output, _ = self._job.communicate(timeout=60)
        self.done.append((time.monotonic(), "the end"))
        assert self._job.returncode == 0, (self._place / "errors").read_text()
        found: dict[str, Any] = json.loads(output)
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._job.kill()
        self._job.wait()
        for pipe in (self._job.stdin, self._job.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 12), *(pytest.param(seed, 60, marks=pytest.mark.long) for seed in (2, 3))],
)
def test_whatever_happens_readers_by_path_see_no_error(tmp_path: Path, seed: int, steps: int) -> None:
    model = Model(tmp_path, seed)
    try:
        for _ in range(steps):
            model.step()
        found = model.end()
    finally:
        model.close()
    assert all(wait_gone(pid) for pid in processes_of_run(tmp_path))
    assert not found["errors"], model.done
    assert not found["wrong"], model.done
    assert found["reads"] > steps
