"""What every benchmark stands on: a work folder, slowfs and hfs mounts, reader processes, the page cache.

All of it is a context manager or a generator of one, so that mounts and processes are gone at the end, whatever the
end was. Everything lies below build/bench: data/ is kept between runs, run/ is not. One benchmark at a time (a lock).
Never touches mounts, processes or page-cache pages of others.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "bench"
SLOWFS = ROOT / "scripts" / "slowfs" / "slowfs"
HFS = ROOT / ".venv" / "bin" / "hfs"
READERS = Path(__file__).resolve().parent / "readers"

COMMAND_LIMIT_S = 120.0
"""A command that only mounts, unmounts or asks and has not ended by then hangs."""

READER_LIMIT_S = 1800.0
"""Far above what any request to a reader takes."""


class BenchError(Exception):
    """Something could not be measured; the message says what and why."""


def run(*command: str | os.PathLike[str], limit_s: float | None = COMMAND_LIMIT_S) -> str:
    """Run to the end and return stdout. Raises BenchError with what the command said."""
    name = " ".join(Path(part).name if "/" in os.fspath(part) else os.fspath(part) for part in command[:3])
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{name} did not end in {limit_s:g} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise BenchError(f"{name} ended with exit code {done.returncode}: {said}")
    return done.stdout


def mounts_below(path: Path) -> list[Path]:
    """Mount points at or below `path`, the innermost first."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        points = [re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), line.split()[4]) for line in table]
    return sorted((Path(point) for point in points if Path(point).is_relative_to(path)), reverse=True)


def unmount(point: Path) -> None:
    """Take a mount away, whatever state it is in."""
    # With -f the kernel fails what still waits for the daemon: a reader that hangs in it could not be ended otherwise.
    commands = (["umount"], ["fusermount3", "-u"], ["umount", "-f"], ["umount", "-l"], ["fusermount3", "-u", "-z"])
    for command in commands:
        if point not in mounts_below(point):
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([*command, point], stderr=subprocess.DEVNULL, timeout=COMMAND_LIMIT_S, check=False)
    if point in mounts_below(point):
        raise BenchError(f"{point} cannot be unmounted")


def wait_gone(pid: int, limit_s: float) -> bool:
    """Wait until a process, child or not, has ended. False if it has not within the limit."""
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        try:
            # A zombie has ended, whoever has still to collect it.
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


class Work:
    """The work folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.data, self.run = folder / "data", folder / "run"
        self._names = 0
        self._token = secrets.token_hex(3)

    def new(self, name: str) -> Path:
        """A new empty folder that is gone with the run."""
        self._names += 1
        # Other names than those of the last run, so other parts of the disk too: see `_spread`.
        path = self.run / f"{name}-{self._names}-{self._token}"
        path.mkdir(parents=True)
        return path


@contextlib.contextmanager
def work_folder(folder: Path) -> Iterator[Work]:
    """Own the work folder. Removes what an earlier, broken run has left, and all but the data at the end.

    Raises BenchError when another benchmark owns it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # What is made here is nobody's source, whatever the project's own list of ignored files says.
    (folder / ".gitignore").write_text("*\n")
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchError(f"another benchmark is running in {folder}") from None
        work = Work(folder)
        _clear(work.run)
        work.run.mkdir()
        _spread(work.run)
        try:
            yield work
        finally:
            # A second Ctrl-C must not stop this half-way: it takes seconds.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                _clear(work.run)
            finally:
                signal.signal(signal.SIGINT, before)


def _spread(folder: Path) -> None:
    """Have ext4 put what is made in each folder of this one into a part of the disk of its own.

    For every file that it makes it looks at all inodes of the part that were deleted in the last minutes
    (`recently_deleted` in fs/ext4/ialloc.c), and gives out none of them. Where caches of thousands of files come and go
    that is a millisecond a file: what the run before, or anybody, has removed would be measured.
    """
    with contextlib.suppress(OSError):  # nor has any other file system these parts
        subprocess.run(["chattr", "+T", folder], stderr=subprocess.DEVNULL, check=False)


def _clear(folder: Path) -> None:
    for point in mounts_below(folder):
        unmount(point)
    if folder.exists():
        shutil.rmtree(folder)


class SlowFs:
    """One mounted slowfs."""

    def __init__(self, backing: Path, path: Path, preset: str) -> None:
        self.backing, self.path, self.preset = backing, path, preset
        run(SLOWFS, "--preset", preset, backing, path)
        self.pid: int = self.counters()["pid"]

    def counters(self) -> dict[str, Any]:
        """What has reached it since it was mounted."""
        descriptor = os.open(self.path / ".slowfs", os.O_RDONLY)
        try:
            return json.loads(os.read(descriptor, 1 << 16))
        finally:
            os.close(descriptor)

    def tell(self, command: str) -> None:
        """One line for the control file."""
        descriptor = os.open(self.path / ".slowfs", os.O_WRONLY)
        try:
            os.write(descriptor, f"{command}\n".encode())
        finally:
            os.close(descriptor)

    def until(self, holds: Callable[[dict[str, Any]], bool], what: str, limit_s: float = 30) -> None:
        """Wait for something in the counters. Raises BenchError when it does not come."""
        limit = time.monotonic() + limit_s
        while not holds(self.counters()):
            if time.monotonic() > limit:
                raise BenchError(f"waited {limit_s:g} s in vain until {what}: {json.dumps(self.counters())}")
            time.sleep(0.02)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.tell("clear")  # what hangs in it goes on, so that it can be unmounted
        unmount(self.path)
        if not wait_gone(self.pid, 20):
            os.kill(self.pid, signal.SIGKILL)


@contextlib.contextmanager
def slowfs(work: Work, backing: Path, preset: str) -> Iterator[SlowFs]:
    """A cold slowfs that shows `backing`: a new mount has nothing of it in the page cache.

    The pages of `backing` itself are brought into memory first (files with holes excepted), so that what is measured
    is the cost that slowfs charges and not this machine's disk, for direct readers and hfs alike.
    """
    preload(backing)
    mount = SlowFs(backing, work.new("source"), preset)
    try:
        yield mount
    finally:
        mount.close()


class Mount:
    """One mount of hfs, made with the command people use."""

    def __init__(
        self, source: Path, path: Path, cache: Path, options: Sequence[str] = (), within: Sequence[str] = ()
    ) -> None:
        """`within`: the words of what starts it."""
        self.source, self.path, self.cache, self.options = source, path, cache, options
        run(*within, HFS, "mount", source, path, "--cache", cache, *options)
        self.pid: int = self.status()["pid"]

    def status(self) -> dict[str, Any]:
        return json.loads(run(HFS, "status", self.path, "--json"))

    def close(self) -> None:
        """Unmount. What cannot be unmounted in the usual way is taken away, its daemon killed."""
        try:
            run(HFS, "umount", self.path)
        except BenchError as error:
            print(f"bench: {error}", file=sys.stderr)
            unmount(self.path)
        pid = getattr(self, "pid", 0)
        if pid and not wait_gone(pid, 60):
            print(f"bench: the daemon {pid} of {self.path} has not ended; killed", file=sys.stderr)
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def hfs_mount(work: Work, source: Path, cache: Path | None = None, options: Sequence[str] = ()) -> Iterator[Mount]:
    """hfs over `source`, with a new empty cache unless one is given. A cache made here is removed at the end."""
    own = work.new("cache") if cache is None else None
    path = work.new("mount")
    mount = None
    try:
        mount = Mount(source, path, cache or own or work.new("cache"), options)
        yield mount
    finally:
        if mount is not None:
            mount.close()
        elif path in mounts_below(path):
            unmount(path)
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)


class Reader:
    """One reader program, started and ready; see readers/barrier.py."""

    def __init__(self, script: str, *arguments: object, within: Sequence[str] = ()) -> None:
        """`within`: the words of what starts it, such as `hfs run -- `."""
        self.name = script
        self.process = subprocess.Popen(
            [*within, sys.executable, READERS / script, *(str(argument) for argument in arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends its readers
        )
        try:
            self.answer()
        except BaseException:
            self.close()
            raise

    def send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self, limit_s: float = READER_LIMIT_S) -> dict[str, Any]:
        """Its next line. Raises BenchError when it has ended or does not answer within the limit."""
        assert self.process.stdout
        # One answer at a time is under way, so nothing of it waits in the buffer of the pipe's file object.
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            raise BenchError(f"{self.name} did not end its reads in {limit_s:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} ended with exit code {self.process.wait()}; its message is above")
        return json.loads(line)

    def do(self, **request: Any) -> dict[str, Any]:
        self.send(request)
        return self.answer()

    def end(self, limit_s: float) -> None:
        """Let it end by itself. Raises BenchError where it does not, and where it fails; `close` it all the same."""
        assert self.process.stdin
        self.process.stdin.close()
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.name} did not end in {limit_s:g} s") from None
        if code:
            raise BenchError(f"{self.name} ended with exit code {code}; its message is above")

    def close(self) -> None:
        # Its workers are in its session; one that waits for a read gets the signal too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=20)


@contextlib.contextmanager
def reader(script: str, *arguments: object, within: Sequence[str] = ()) -> Iterator[Reader]:
    started = Reader(script, *arguments, within=within)
    try:
        yield started
    finally:
        started.close()


def together(readers: Sequence[Reader], request: dict[str, Any]) -> tuple[float, list[dict[str, Any]]]:
    """Start all readers with one request. Returns the seconds from the first start to the last end, and the answers."""
    for one in readers:
        one.send(request)
    answers = [one.answer() for one in readers]
    return max(answer["end_s"] for answer in answers) - min(answer["begin_s"] for answer in answers), answers


def seconds(answer: dict[str, Any]) -> float:
    """How long the request of this answer took."""
    return answer["end_s"] - answer["begin_s"]


def files_at(path: Path) -> list[Path]:
    """The regular files at or below `path`."""
    return [path] if path.is_file() else sorted(entry for entry in path.rglob("*") if entry.is_file())


def objects_of(cache: Path) -> list[Path]:
    """What is staged in the caches below a root."""
    return sorted(path for path in cache.glob("*/objects/*/*") if path.is_file())


def preload(path: Path) -> None:
    """Bring the files at or below `path` into the page cache; files with holes are left alone."""
    buffer = bytearray(1 << 20)
    for file in files_at(path):
        status = file.stat()
        if status.st_blocks * 512 < status.st_size // 2:
            continue
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def forget(paths: Iterable[Path]) -> None:
    """Drop the page-cache pages of these files (no others). Dirty ones are written first."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the daemon may have dropped it meanwhile
            descriptor = os.open(path, os.O_RDONLY)
            try:
                # Not for a file behind the mount, which has no dirty pages and whose fsync may be refused.
                with contextlib.suppress(OSError):
                    os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, with that of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # utime, stime, cutime, cstime: 14 to 17 in proc(5), which counts the two before the parenthesis.
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def process_memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process: now, and at most since it started."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024
