"""Nodes that come and go: a daemon each in a network of its own, with its own cache and mount, over one source, and a
learner each that checks every byte."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from hfs.client.client import Client, find_socket
from hfs.client.control_socket import DaemonEnded, DaemonSilent, Refused
from scripts.benchmarks.common import BenchError, Mount, Reader, SlowFs, Work, files_at, reader
from scripts.benchmarks.nodes_network import Network

PORT = 24370
OPTIONS = ("--placement", "partition", "--chunk", "1M", "--cache-size", "2G")
SETTINGS = "push=no,buffer=64M"
"""Nothing is pushed into page caches, which the learners drop anyway."""
PATIENCE_S = 60.0


class Nodes:
    """`mounts` of those that run, by number."""

    def __init__(self, work: Work, net: Network, source: SlowFs | Path, options: Sequence[str], settings: str) -> None:
        self.net, self._source, self._options, self._settings = net, source, options, settings
        self._base = work.new("nodes")
        secret = self._base / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32))
        self.secret = secret.read_text()
        self._secret = secret
        self.mounts: dict[int, Mount] = {}

    def start(self, numbers: Sequence[int], among: Sequence[int] | None = None) -> None:
        """Mount these together; they know the addresses of `among`, or of all of these. Raises BenchError."""
        peers = ",".join(f"{self.net.address(number)}:{PORT}" for number in among or numbers)

        def mount(number: int) -> tuple[int, Mount]:
            folder = self._base / str(number)
            folder.mkdir(exist_ok=True)
            (folder / "mount").mkdir(exist_ok=True)
            mine = f"{self._settings},peer-secret={self._secret},peer-listen={self.net.address(number)}:{PORT}"
            options = [*OPTIONS, *self._options, "--peers", peers, "-o", mine]
            source = self._source if isinstance(self._source, Path) else self._source.path
            words = self.net.within(number)
            return number, Mount(source, folder / "mount", folder / "cache", options, words)

        with ThreadPoolExecutor(len(numbers)) as threads:
            for made in [threads.submit(mount, number) for number in numbers]:
                number, mounted = made.result()
                self.mounts[number] = mounted

    def stop(self, number: int) -> None:
        """Unmount; its cache stays."""
        self.mounts.pop(number).close()

    def status(self, number: int) -> dict[str, Any]:
        """Raises BenchError where nobody answers in time."""
        limit = time.monotonic() + PATIENCE_S
        while True:
            try:
                return Client(find_socket(str(self.mounts[number].path))).status()
            except (DaemonSilent, DaemonEnded, Refused, OSError) as error:
                if time.monotonic() > limit:
                    raise BenchError(f"node {number} does not answer: {error}") from None
                time.sleep(0.02)

    def pid(self, number: int) -> int:
        return int(self.status(number)["pid"])

    def counter(self, name: str, number: int) -> int:
        return int(self.status(number)["counters"][name]["value"])

    def total(self, name: str) -> int:
        """Of all that run. A daemon that is started again counts from 0 again."""
        return sum(self.counter(name, number) for number in self.mounts)

    def source_bytes(self) -> int:
        """What the source was asked for so far."""
        assert isinstance(self._source, SlowFs)
        return int(self._source.counters()["read_bytes"])

    def kill(self, number: int) -> None:
        """kill -9 of the daemon; its keeper starts the next one."""
        os.kill(self.pid(number), signal.SIGKILL)

    def until(self, holds: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> float:
        """Wait; how many seconds it took. Raises BenchError."""
        begun_s = time.monotonic()
        while not holds():
            if time.monotonic() > begun_s + limit_s:
                raise BenchError(f"waited {limit_s:g} s in vain until {what}")
            time.sleep(0.02)
        return time.monotonic() - begun_s

    def until_settled(self) -> None:
        """Until the caches have on their disks what they are to have."""

        def is_idle(number: int) -> bool:
            staged = self.status(number)["staged"]
            return not staged["queued_bytes"] and not staged["uncommitted_bytes"]

        for number in self.mounts:
            self.until(lambda number=number: is_idle(number), f"node {number} has staged all")  # type: ignore[misc]

    def until_served(self, number: int) -> float:
        """Until this node's daemon, just killed, has given bytes to another again; how long that took."""

        def serves() -> bool:
            with contextlib.suppress(DaemonSilent, DaemonEnded, Refused, OSError, KeyError):
                status = Client(find_socket(str(self.mounts[number].path))).status()
                return status["keeper"]["restarts"] > restarts and status["counters"]["peer_served_bytes"]["value"] > 0
            return False

        restarts = int(self.status(number)["keeper"]["restarts"])
        self.kill(number)
        return self.until(serves, f"node {number} gives to others again")

    def close(self) -> None:
        with ThreadPoolExecutor(max(1, len(self.mounts))) as threads:
            list(threads.map(Mount.close, self.mounts.values()))
        shutil.rmtree(self._base, ignore_errors=True)


@contextlib.contextmanager
def nodes(
    work: Work, net: Network, source: SlowFs | Path, options: Sequence[str] = (), settings: str = SETTINGS
) -> Iterator[Nodes]:
    """None yet: `start` them."""
    made = Nodes(work, net, source, options, settings)
    try:
        yield made
    finally:
        made.close()


def digests(work: Work, folder: Path) -> Path:
    """A JSON object: the path of each file below, relative to it, and its size and xxh3."""
    path = work.new("digests") / "digests.json"
    found = {str(file.relative_to(folder)): _digest(file.read_bytes()) for file in files_at(folder)}
    path.write_text(json.dumps(found))
    return path


def _digest(data: bytes) -> tuple[int, int]:
    return len(data), xxhash.xxh3_64_intdigest(data)


class Learners:
    """One on each of these nodes."""

    def __init__(self, readers: dict[int, Reader]) -> None:
        self.readers = readers

    def begin(self, **request: Any) -> None:
        """All read, until `end`."""
        for one in self.readers.values():
            one.send(request)

    def end(self) -> list[dict[str, Any]]:
        return [one.answer() for one in self.readers.values()]

    def epoch(self, **request: Any) -> list[dict[str, Any]]:
        self.begin(**request)
        return self.end()


@contextlib.contextmanager
def learners(running: Nodes, expected: Path, numbers: Sequence[int] | None = None) -> Iterator[Learners]:
    """`expected`: of `digests`."""
    chosen = sorted(running.mounts) if numbers is None else numbers
    with contextlib.ExitStack() as stack:
        yield Learners(
            {
                number: stack.enter_context(
                    reader("whole_files.py", running.mounts[number].path, expected, rank, len(chosen))
                )
                for rank, number in enumerate(chosen)
            }
        )
