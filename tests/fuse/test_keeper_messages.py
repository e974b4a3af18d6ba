"""The keeper outlives whatever its owner's programs send it: another release, a script, a fault of ours."""

import json
import os
import socket
from pathlib import Path

from hfs.mounting import keeper
from tests.fuse.harness import HfsMount

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
