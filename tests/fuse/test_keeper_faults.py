"""What the keeper of a mount meets beside a daemon that crashes: programs that cannot be started, are not loaded, or
do not fit the mount, another mount where its own was, and whatever its owner's programs send it: another release, a
script, a fault of ours. Real mounts: somebody always answers.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from hfs.client.client import Client, find_socket
from hfs.mountd.core.config import Config
from hfs.mountd.core.config.loading import dump
from hfs.mountd.core.errors import MountError
from hfs.mounting import keeper, mounting, own_process, taking_away
from tests.fuse.harness import HfsMount, children, environment, kill, mounts_below, run, wait_gone
from tests.fuse.injection import hidden, injected
from tests.support.pattern import pattern

SIZE = 200_000
Start = Callable[..., Config]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tree = tmp_path / "source"
    tree.mkdir()
    for number in (1, 2, 3):
        (tree / str(number)).write_bytes(pattern(number, 0, SIZE))
    return tree


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is started as a daemon: a file that can be taken away."""
    monkeypatch.setenv("PATH", environment()["PATH"])
    monkeypatch.setenv("MOUNT_TEST_RUN", environment()["MOUNT_TEST_RUN"])
    file = tmp_path / "daemon"
    file.write_text(f'#!/bin/sh\nexec {shlex.join(own_process.command("hfs.mounting.daemon_process"))} "$@"\n')
    file.chmod(0o755)
    monkeypatch.setattr(mounting, "_DAEMON", [str(file)])
    return file


@pytest.fixture
def start(source: Path, tmp_path: Path, program: Path) -> Iterator[Start]:
    """start(cache="cache"): a mount at tmp_path/mnt whose daemons are `program`; its configuration."""
    mnt = tmp_path / "mnt"
    mnt.mkdir()

    def begin(cache: str = "cache") -> Config:
        config = Config(source=str(source), mountpoint=str(mnt), cache=str(tmp_path / cache))
        config = msgspec.structs.replace(config, cache_size_bytes=1 << 30, log_file=str(tmp_path / "log"), push=False)
        mounting.start(config, {}).leave()
        return config

    yield begin
    while mounts_below(mnt):
        mounting.unmount(str(mnt))


def daemon_of(config: Config) -> int:
    return Client(find_socket(config.mountpoint)).pid()


def standby_of(config: Config) -> int:
    """The daemon that waits; it was forked by the one that serves, or by one before it."""
    serving = daemon_of(config)
    (found,) = (children(serving) | children(keeper_of(config))) - {serving}
    return found


def keeper_of(config: Config) -> int:
    found = keeper.find(config.mountpoint)
    assert found is not None, "the mount has no keeper that answers"
    return found.pid


def reads(config: Config, number: int) -> None:
    """A file that the kernel does not know yet, by a process that can be given up."""
    done = run("cat", f"{config.mountpoint}/{number}", limit_s=20)
    assert (done.returncode, done.stderr) == (0, "")
    assert (Path(config.mountpoint) / str(number)).read_bytes() == pattern(number, 0, SIZE)


def test_a_take_over_by_a_program_that_is_not_there_changes_nothing(start: Start, program: Path) -> None:
    """As where the release lies in a container: the keeper sees no such file."""
    config = start()
    before = keeper_of(config), daemon_of(config)
    program.rename(program.with_name("elsewhere"))
    with pytest.raises(MountError, match="cannot start it"):
        mounting.take_over(config, {})
    assert (keeper_of(config), daemon_of(config)) == before
    reads(config, 1)


def test_a_daemon_that_cannot_be_started_leaves_no_dead_mount(start: Start, program: Path) -> None:
    """Its program is gone when it is needed: readers are told, and a take-over mends it."""
    config = start()
    kept = keeper_of(config)
    serving = daemon_of(config)
    program.rename(program.with_name("elsewhere"))
    kill(standby_of(config))
    kill(serving)
    said = run("cat", f"{config.mountpoint}/1")
    assert "Input/output error" in said.stderr, said
    found = keeper.find(config.mountpoint)
    assert found is not None
    assert found.pid == kept
    assert "could not be started: No such file" in found.why_refused
    program.with_name("elsewhere").rename(program)
    mounting.take_over(config, {})
    reads(config, 1)


def test_a_program_that_comes_back_is_started(start: Start, program: Path) -> None:
    """As in the moment of an upgrade."""
    config = start()
    serving = daemon_of(config)
    program.rename(program.with_name("elsewhere"))
    kill(standby_of(config))
    kill(serving)
    while "could not be started" not in Path(str(config.log_file)).read_text():
        assert not wait_gone(keeper_of(config), 0)
    program.with_name("elsewhere").rename(program)
    reads(config, 1)


def test_a_crash_while_another_release_is_loaded_is_survived(start: Start, program: Path, tmp_path: Path) -> None:
    """It may take for ever to be loaded, from the file system that hangs: nobody waits for it."""
    config = start()
    kept = keeper_of(config)
    serving = daemon_of(config)
    os.mkfifo(tmp_path / "gate")
    body = program.read_text()
    program.write_text(body.replace("exec", f"read line < {tmp_path / 'gate'}\nexec"))
    code = f"""
import sys
from hfs.mounting import taking_away, mounting
from hfs.mountd.core.config.loading import undump
mounting._DAEMON = [{str(program)!r}]
print(mounting.take_over(*undump(sys.stdin.buffer.read())))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as taking:
        assert taking.stdin is not None
        taking.stdin.write(dump(config, {}))
        taking.stdin.close()
        while len(children(kept)) < 2:
            assert taking.poll() is None
        kill(serving)
        try:
            reads(config, 1)
            between = daemon_of(config)
        finally:
            with open(tmp_path / "gate", "w") as gate:
                gate.write("\n")
            program.write_text(body)
        assert taking.stdout is not None
        taken = int(taking.stdout.read())
        assert taking.wait() == 0
    assert taken not in {serving, between}
    assert daemon_of(config) == taken
    reads(config, 2)
    kill(taken)
    reads(config, 3)


def test_a_release_without_the_extension_does_not_end_a_mount(start: Start, program: Path) -> None:
    """It cannot serve anything: the one before it goes on."""
    config = start()
    kept = keeper_of(config)
    body = program.read_text()
    other = program.with_name("other")
    other.write_text(without_extension(body))
    other.chmod(0o755)
    mounting._DAEMON[:] = [str(other)]
    with pytest.raises(MountError, match="could not take the mount over: it failed: the daemon's C extension"):
        mounting.take_over(config, {})
    reads(config, 1)
    assert keeper_of(config) == kept
    kill(daemon_of(config))
    reads(config, 2)


def test_daemons_that_have_lost_their_extension_leave_no_dead_mount(start: Start, program: Path) -> None:
    """As after half an upgrade: readers are told, and a take-over mends it."""
    config = start()
    kept = keeper_of(config)
    serving, body = daemon_of(config), program.read_text()
    program.write_text(without_extension(body))
    kill(standby_of(config))
    kill(serving)
    said = run("cat", f"{config.mountpoint}/1", limit_s=20)
    assert "Input/output error" in said.stderr, said
    found = keeper.find(config.mountpoint)
    assert found is not None
    assert found.pid == kept
    assert "failed: the daemon's C extension was not built" in found.why_refused
    program.write_text(body)
    mounting.take_over(config, {})
    reads(config, 1)


def without_extension(program: str) -> str:
    """The program, where the extension was not built."""
    variables = injected(hidden("hfs.mountd.native._fastpath"))
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return program.replace("exec", f"export {exports}\nexec")


@pytest.mark.alone  # the kernel gives a number away to the next mount of anybody
def test_a_keeper_leaves_the_mount_that_followed_its_own(start: Start, tmp_path: Path) -> None:
    """Its daemon is still writing down what it holds; the kernel has given the device number to the next mount."""
    config = start()
    old, serving = keeper_of(config), daemon_of(config)
    device = Path(config.mountpoint).stat().st_dev
    os.kill(serving, signal.SIGSTOP)
    try:
        taking_away.detach(config.mountpoint, lazy=False)
        other = start("other")
        assert Path(other.mountpoint).stat().st_dev == device, "this test needs the same number"
        assert keeper_of(other) != old
        os.kill(old, signal.SIGTERM)
    finally:
        os.kill(serving, signal.SIGCONT)
    assert wait_gone(old)
    reads(other, 1)


VALUES = ["", "x", None, True, -1, 1.5, 10**400, [], [None], {}, {"x": 1}, "\ud800", "\0", "x" * 99]
REQUESTS: dict[str, tuple[str, ...]] = {
    "hold": ("linger_s",),
    "hold-session": ("session",),
    "leave": ("leave",),
    "hold-job": ("job",),
    "release-job": ("job",),
    "release-session": ("session",),
    "status": ("status",),
    "take-over": ("daemon", "directory", "environment", "config", "origins"),
}


def messages(config: dict[str, object]) -> list[bytes]:
    take_over = {"ask": "take-over", "daemon": ["true"], "directory": "/", "environment": {}, "origins": {}}
    take_over["config"] = config
    found = [b"", b"5", b"[]", b"nonsense", b"\xff\xfe", b"[" * 100_000, b'{"ask":' * 100_000, b'{"linger_s": 1e999}']
    found += [json.dumps({"ask": value}).encode() for value in VALUES]
    for what, names in REQUESTS.items():
        for name in names:
            others = take_over if what == "take-over" else {"ask": what}
            found += [json.dumps({**others, name: value}).encode() for value in VALUES]
    return [*found, b'{"ask": "hold", "linger_s": Infinity}', b'{"ask": "hold", "linger_s": NaN}']


def say(path: str, message: bytes, descriptors: list[int] | None = None) -> bytes:
    """What is answered. `descriptors` are sent, and nobody has asked for them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(path)
        if descriptors:
            socket.send_fds(connection, [message], descriptors)
        connection.sendall(b"\n" if descriptors else message + b"\n")
        return connection.recv(1 << 16)


def test_a_malformed_message_does_not_end_the_keeper(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"text")
    hfs = hfs_mount(source)
    hfs.expect_warning("could not take the mount over")
    found = keeper.find(str(hfs.path))
    assert found is not None
    path = found._path
    for message in messages(found.config):
        say(path, message)
    for linger in ("2592000", "1e300", "-1e300"):  # a month: longer than the kernel can be told to wait
        assert b'"held": true' in say(path, f'{{"ask": "hold", "linger_s": {linger}}}'.encode())
    with (source / "file").open() as file, socket.socket() as other:
        for descriptor in (file.fileno(), other.fileno(), os.open("/dev/null", os.O_RDONLY)):
            assert b'"held": true' in say(path, b'{"ask": "hold"}', [descriptor])
    os.close(descriptor)
    after = keeper.find(str(hfs.path))
    assert after is not None
    assert (after.pid, after.status["daemon"]) == (found.pid, hfs.pid)
    assert (hfs.path / "file").read_bytes() == b"text"
