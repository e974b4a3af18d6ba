"""What a plain user can leave where commands of root look, all of it at once, and what those commands make of it.

    unshare --mount python -m tests.fuse.planted SQUEUE

Runs in a mount namespace of its own with an empty /tmp and /run: each command of root without the plants, then with
them. Prints one JSON object. Not a test module: see test_planted.py.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hfs.mountd.ledger.record import Quota, write_grant
from hfs.mountd.supervisor.connection import Connection
from hfs.mounting import mountinfo
from tests.fuse.harness import environment, hfs_command
from tests.fuse.silent import silent_mount

UID = 61001
HERE = Path("/tmp/w")
SOURCE, MOUNT, CACHE, THEIRS = HERE / "source", HERE / "mnt", HERE / "cache", HERE / "theirs"
SECRET = "the-secret-of-root"
FORGED = "/tmp/hfs-0\nFORGED /etc/passwd: all of it\x1b]0;owned\x07\u202e"
OLD_CACHE = f"{UID}-{'a' * 16}"
SILENT = "/run/silent"


def commands() -> list[tuple[str, ...]]:
    return [
        ("mount", f"{SOURCE}", f"{MOUNT}", "--cache", f"{CACHE}", "--cache-size", "100M"),
        ("status",),
        ("status", "--all"),
        ("why",),
        ("doctor",),
        ("refresh", f"{MOUNT}"),
        ("cache", "warm", f"{MOUNT}"),
        ("cache", "list", f"{MOUNT}"),
        ("cache", "du", "--cache", f"{CACHE}"),
        ("cache", "evict", f"{MOUNT}/x"),
        ("debug", "bundle", "--with-names", "-o", f"{HERE}/bundle.tgz"),
        ("sweep", "--config", f"{HERE}/hfs.toml"),
        (
            "run",
            "--source",
            f"{SOURCE}",
            "--cache",
            f"{HERE}/other",
            "--cache-size",
            "100M",
            "--quiet",
            "--",
            "cat",
            f"{SOURCE}/x",
        ),
        ("umount", f"{MOUNT}"),
    ]


def prepare() -> None:
    """The namespace and what is root's in it."""
    os.chdir("/")
    libc = ctypes.CDLL(None, use_errno=True)
    for mount in mountinfo.hfs_mounts():
        libc.umount2(os.fsencode(mount.mountpoint), 2)
    for place in ("/tmp", "/run"):
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    os.chmod("/tmp", 0o1777)
    HERE.mkdir(mode=0o755)
    for folder in (SOURCE, MOUNT, THEIRS, CACHE):
        folder.mkdir()
    os.chown(THEIRS, UID, UID)
    CACHE.chmod(0o1777)
    (SOURCE / "x").write_text("x of the source")
    (HERE / "hfs.toml").write_text(f'cache = "{CACHE}"\nexpire = "1d"\n')
    (HERE / "private").write_text(f"{SECRET}\n")
    (HERE / "private").chmod(0o600)


def outcome(*command: str) -> dict[str, object]:
    """One command of root, and whether its mount is as it should be afterwards."""
    began = time.monotonic()
    try:
        env = environment({"PATH": f"{sys.argv[1]}:{os.environ['PATH']}"})
        done = subprocess.run(
            [os.fspath(hfs_command()), *command],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=env,
            timeout=90,
            check=False,
        )
        code, said = done.returncode, (done.stdout + done.stderr).decode()
    except subprocess.TimeoutExpired:
        code, said = -1, ""
    is_there = mountinfo.at(str(MOUNT)) is not None
    is_right = is_there and (MOUNT / "x").read_text() == "x of the source"
    return {"code": code, "said": said, "took_s": time.monotonic() - began, "there": is_there, "right": is_right}


def outcomes() -> dict[str, dict[str, object]]:
    found = {" ".join(command[:2]): outcome(*command) for command in commands()}
    with tarfile.open(HERE / "bundle.tgz") as bundle:
        texts = [file.read() for member in bundle if (file := bundle.extractfile(member)) is not None]
    found["debug bundle"]["secret"] = any(SECRET.encode() in text for text in texts)
    (HERE / "bundle.tgz").unlink()
    return found


# -- what the plain user does -----------------------------------------------------------------------------------------


def as_user(what: Callable[[], None]) -> int:
    """In a process of the plain user, which has SLURM_JOB_ID in its environment as all of this script has."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
        what()
    finally:
        os._exit(0)


def serve(path: str, answer: Callable[[], bytes | None]) -> None:
    """A listener; None: it says nothing to anybody."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)

    def loop() -> None:
        kept = []
        while True:
            client, _ = listener.accept()
            kept.append(client)
            with contextlib.suppress(OSError):
                if (data := answer()) is not None:
                    client.recv(65536)
                    client.sendall(data)
                    client.close()

    threading.Thread(target=loop, daemon=True).start()


def keeper_says() -> bytes:
    """That it keeps the mount of root, for a job that has ended."""
    mount = mountinfo.at(str(MOUNT))
    device = "" if mount is None else mount.device
    told = {"pid": 1, "device": device, "mountpoint": FORGED, "held_by": [], "ending": False, "config": {}}
    return json.dumps(told).encode()


def holder_says() -> bytes:
    told = {"pid": 1, "device": "0:1", "mountpoint": FORGED, "held_by": [{"job": str(n)} for n in range(4000)]}
    return json.dumps(told).encode()


def daemon_says() -> bytes:
    """A status that makes no sense, and names a file of root as its log."""
    detail = {"pid": 1, "mountpoint": FORGED, "traffic": FORGED, "staged": {"bytes": float("nan")}}
    detail["config"] = {"log-file": {"value": f"{HERE}/private", "origin": "default"}}
    body = msgspec.msgpack.encode({"type": "result", "detail": detail})
    return len(body).to_bytes(4, "big") + body


def sane_daemon_says() -> bytes:
    detail = {"pid": 1, "mountpoint": FORGED, "config": {"log-file": {"value": f"{HERE}/private", "origin": FORGED}}}
    body = msgspec.msgpack.encode({"type": "result", "detail": detail})
    return len(body).to_bytes(4, "big") + body


def answer_requests(fd: int, socket_of: Callable[[], bytes]) -> None:
    """A file system of FUSE that has an empty root, and names a socket."""
    while True:
        request = os.read(fd, 1 << 20)
        _, opcode, unique, _, _, _, _, _ = struct.unpack_from("<IIQQIIII", request)
        number, data = 0, b""
        if opcode == 26:  # INIT
            data = struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 9, 65536, 1, 1, 0, 0, *[0] * 7)
        elif opcode == 22:  # GETXATTR
            value, (size,) = socket_of(), struct.unpack_from("<I", request, 40)
            data = value if size else struct.pack("<II", len(value), 0)
        elif opcode == 3:  # GETATTR
            attributes = struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, UID, UID, 0, 4096, 0)
            data = struct.pack("<QII", 1, 0, 0) + attributes
        else:
            number = -38
        with contextlib.suppress(OSError):
            if opcode not in {2, 42}:  # FORGET
                os.write(fd, struct.pack("<IiQ", 16 + len(data), number, unique) + data)


def socket_of_root() -> bytes:
    """The control socket of root's daemon."""
    with contextlib.suppress(OSError):
        return next(
            (os.fsencode(f"/run/hfs/{name}") for name in os.listdir("/run/hfs") if name.endswith(".sock")), b"/"
        )
    return b"/none"


def plant_sockets() -> None:
    os.mkdir("/tmp/hfs-0", 0o755)
    serve("/tmp/hfs-0/a.keeper", keeper_says)
    for number in range(200):
        os.symlink(SILENT, f"/tmp/hfs-0/{number}.keeper")
    os.mkdir(f"/tmp/hfs-{UID}", 0o700)
    place = f"/tmp/hfs-{UID}"
    serve(f"{place}/a.keeper", keeper_says)
    serve(f"{place}/b.keeper", holder_says)
    serve(f"{place}/c.keeper", lambda: b"[" * 100_000)
    serve(f"{place}/d.keeper", lambda: b'{"pid": 1, "held_by": [NaN]}')
    serve(f"{place}/e.keeper", lambda: None)
    for number in range(50):
        os.symlink(SILENT, f"{place}/{number}.keeper")
    serve(f"{place}/nonsense.sock", daemon_says)
    serve(f"{place}/sane.sock", sane_daemon_says)
    for number in range(2, 3000):
        Path(f"/tmp/hfs-{number}").touch()
    os.mkdir(f"{THEIRS}/ready")
    signal.pause()


def stop_what_becomes_us() -> None:
    """The process that empties an old cache is this user's, so it can be stopped."""
    while True:
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == UID:
                    command = Path(f"/proc/{name}/cmdline").read_bytes()
                    if b"hfs.sweeping" in command or b"sweep\0" in command:
                        os.kill(int(name), signal.SIGSTOP)


def leave_an_old_cache() -> None:
    record = os.open(CACHE / "ledger" / OLD_CACHE, os.O_RDWR | os.O_CREAT, 0o644)
    write_grant(record, Quota(1 << 20, 1 << 20, 1))
    os.mkdir(CACHE / OLD_CACHE, 0o700)


def silent_listener() -> socket.socket:
    """Of root, for all: there is one on each machine with systemd."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SILENT)
    os.chmod(SILENT, 0o666)
    listener.listen(1024)
    return listener


def mount_theirs(name: str, socket_of: Callable[[], bytes]) -> int:
    """A mount that the kernel says is the plain user's."""
    place = THEIRS / name
    place.mkdir()
    os.chown(place, UID, UID)
    connection = Connection.make(str(place), FORGED, allow_other=True, noexec=False, owner=(UID, UID))
    pid = as_user(lambda: answer_requests(connection.fd, socket_of))
    connection.close()
    return pid


def mount_what_never_answers(stack: contextlib.ExitStack) -> None:
    """Where commands of root look: for sockets, in the cache root, and on the way to a mount that is dead."""
    dead = THEIRS / "above" / "mnt"
    dead.mkdir(parents=True)
    Connection.make(str(dead), FORGED, allow_other=True, noexec=False, owner=(UID, UID)).close()
    (CACHE / "ledger" / f"0-{'b' * 16}").touch()
    for folder in (f"/tmp/hfs-{UID}-silent01", "/tmp/hfs-1", f"{CACHE}/0-{'b' * 16}"):
        os.mkdir(folder, 0o700)
    for place in (
        *(THEIRS / "above", f"/tmp/hfs-{UID}-silent01", "/tmp/hfs-1"),
        *(CACHE / f"0-{'b' * 16}", CACHE / "ledger" / f"0-{'b' * 16}"),
    ):
        stack.enter_context(silent_mount(place, UID))


def main() -> None:
    prepare()
    without = outcomes()
    listener = silent_listener()
    theirs = [as_user(plant_sockets), as_user(leave_an_old_cache), as_user(stop_what_becomes_us)]
    while not (THEIRS / "ready").exists():
        time.sleep(0.01)
    theirs += [
        mount_theirs("a\nFORGED line", lambda: os.fsencode(f"/tmp/hfs-{UID}/nonsense.sock")),
        mount_theirs("sane", lambda: os.fsencode(f"/tmp/hfs-{UID}/sane.sock")),
        mount_theirs("of-root", socket_of_root),
        mount_theirs("silent", lambda: os.fsencode(SILENT)),
        mount_theirs("nowhere", lambda: b"/\xff\n\x1b"),
    ]
    try:
        with contextlib.ExitStack() as stack:
            mount_what_never_answers(stack)
            with_plants = outcomes()
    finally:
        for pid in theirs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        listener.close()
    print(json.dumps({"without": without, "with": with_plants}))


if __name__ == "__main__":
    main()
