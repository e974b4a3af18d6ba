"""Starting a mount, and ending it: what `hfs mount`, `hfs run` and `hfs umount` share.

What is started is the keeper of the mount (mountd/supervisor), a new process in a session of its own, which starts the
daemon. It gets the configuration on stdin and answers on stdout with one line of JSON: `{"ready": pid of the daemon}`,
`{"error": text, "code": exit code}`, or `{"died": exit code}` of a daemon that ended without a word; its stderr is the
log. So nothing is left half done: whoever calls `start` has a mount that answers, or an exception and no mount, also
after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from hfs.client.client import SOCKET_XATTR, Client, find_socket, sockets_by_name
from hfs.client.control_socket import Address, DaemonSilent
from hfs.mountd.core.config import Config
from hfs.mountd.core.config.loading import dump
from hfs.mountd.core.errors import ConfigError, HfsError, MountError
from hfs.mountd.core.socket_places import KEEPER, new_path
from hfs.mounting import keeper, logs, mountinfo, own_process, probe, processes
from hfs.mounting.given import GivenMount, why_not_ours
from hfs.mounting.taking_away import busy, clean_stale, detach

READY_S = 90.0
"""The daemon itself gives its mount 30 s to answer and the source the time of a slow metadata server."""
_END_S = 10.0
"""After SIGTERM the daemon unmounts and drains; a start that was interrupted has nothing to drain."""
DRAIN_S = 120.0
"""What is in flight to the cache disk at the end is bounded by the buffers; a failing disk may take this long."""
_PID_S = 2.0
"""To connect to a daemon takes no time, unless it is stopped."""
_ROOT = Path(__file__).parents[2]
"""Of the package: keeper and daemon are of the same release as their caller, installed or not."""
_COMMAND = [sys.executable, "-I", "-S", str(_ROOT / "hfs" / "mountd" / "supervisor")]
_DAEMON = own_process.command("hfs.mounting.daemon_process")


class MountInUse(MountError):
    """Others use the mount, and it goes with the last of them; the message names them."""


class StartedDaemon:
    """A mount that `start` started: its keeper, which ends when all of it has."""

    def __init__(self, process: subprocess.Popen[bytes], mountpoint: str) -> None:
        self._process = process
        self.mountpoint = mountpoint
        self.pid = process.pid
        """The keeper's."""

    def leave(self) -> None:
        """It lives on after this process, which will not wait for it."""
        self._process.returncode = 0  # else subprocess warns that nobody has waited

    def wait_gone(self, limit_s: float) -> bool:
        """Wait until it has ended; whether it has."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def start(
    config: Config,
    origins: dict[str, str],
    limit_s: float = READY_S,
    *,
    session: int = 0,
    permanent: bool = True,
    given: GivenMount | None = None,
) -> StartedDaemon:
    """Start the daemon; returns when the mount answers. Paths must be absolute and config.log_file set.

    `given`: the mount, if somebody else has made it. Its descriptors are closed here.

    `permanent`: the mount stays until it is unmounted, and was made by `session`; else it ends with the last command
    that holds it, and the caller must do so at once (`FoundKeeper.hold`).

    Raises ConfigError or MountError with the daemon's own words or the end of its log; then nothing is left mounted.
    Anything else that is raised meanwhile, such as KeyboardInterrupt, ends the daemon too.
    """
    use = {"permanent": permanent, "session": session, "linger_s": config.linger_s}
    return _started(config, config.mountpoint, _order(config, origins, given, **use), limit_s, given=given)


def go_on(config: Config, inheritance: Mapping[str, Any], descriptors: Sequence[int]) -> StartedDaemon:
    """Start another keeper, and its daemon, for a mount whose keeper and daemon were killed: as `start`.

    `inheritance`: of `MountReference`. The mount ends with the last command that holds it. `config`: where the log is.
    """
    mountpoint = str(inheritance["given"]["config"]["mountpoint"])
    inherited = {
        **{key: value for key, value in inheritance.items() if key != "given"},
        "descriptors": list(descriptors),
    }
    use = {"permanent": False, "linger_s": config.linger_s, "inherited": inherited}
    keeper_order = {"daemon": _DAEMON, "directory": str(_ROOT), "socket": new_path(mountpoint, KEEPER), **use}
    order = json.dumps({**inheritance["given"], "keeper": keeper_order}).encode()
    return _started(config, mountpoint, order, READY_S, descriptors)


def _started(
    config: Config,
    mountpoint: str,
    order: bytes,
    limit_s: float,
    descriptors: Sequence[int] = (),
    given: GivenMount | None = None,
) -> StartedDaemon:
    log_path = Path(config.log_file or os.devnull)
    try:
        log_file = logs.open_log(config)
    except OSError as error:
        if not descriptors and not logs.lies_in_cache(config):
            raise MountError(f"log file {log_path}: {error.strerror}; give another with --log-file PATH") from None
        log_file = open(os.devnull, "ab")  # noqa: SIM115 - a mount that goes on needs none, nor one without a cache
    with log_file:
        log_start = log_file.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,
            cwd=_ROOT,
            pass_fds=given.descriptors if given else descriptors,
        )
    try:
        answer = _answer(process, order, limit_s)
        if answer is None or "ready" not in answer:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            if answer is None:
                raise MountError(logs.post_mortem(process.poll(), log_path, log_start))
            if "died" in answer:
                raise MountError(logs.post_mortem(answer["died"], log_path, log_start))
            raise (ConfigError if answer.get("code") == 2 else MountError)(str(answer["error"]))
        if given is None:
            _see_that_it_answers(mountpoint)
    except BaseException:
        _end(process, mountpoint)
        raise
    finally:
        if given:
            given.close()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
    return StartedDaemon(process, mountpoint)


def _order(config: Config, origins: dict[str, str], given: GivenMount | None, **more: object) -> bytes:
    """What the keeper reads: the configuration, and what it has to know of itself (`KeeperOrder`)."""
    order = {"daemon": _DAEMON, "directory": str(_ROOT), "socket": new_path(config.mountpoint, KEEPER), **more}
    order |= given.order if given else {}
    return json.dumps({**json.loads(dump(config, origins)), "keeper": order}).encode()


def stay(
    config: Config, origins: dict[str, str], when_mounted: Sequence[str], given: GivenMount | None = None
) -> NoReturn:
    """Become the keeper of the mount, in the foreground: this process ends with it, and tells what happens on stderr.

    `when_mounted`: arguments of a Python that is started when the mount answers; none: nothing is. Raises OSError.
    """
    command = [sys.executable, *when_mounted] if when_mounted else []
    order = os.memfd_create("hfs-order")
    os.write(order, _order(config, origins, given, foreground=True, when_mounted=command))
    for descriptor in given.descriptors if given is not None else ():
        os.set_inheritable(descriptor, True)
    os.lseek(order, 0, os.SEEK_SET)
    os.dup2(order, 0)
    os.close(order)
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(_ROOT)
    os.execv(_COMMAND[0], _COMMAND)


def take_over(config: Config, origins: dict[str, str]) -> int:
    """Have the daemon of a running mount replaced by one of this release, with this configuration. Its pid.

    Returns when the new one answers. Raises ConfigError for what cannot be changed, MountError; then the old one goes
    on.
    """
    mount = mountinfo.at(config.mountpoint)
    given = None if mount is not None else keeper.of_given(config.mountpoint)
    if given is None and (mount is None or mount.fstype != mountinfo.HFS_TYPE):
        raise MountError(f"{config.mountpoint}: no hfs is mounted there to be taken over; leave out --take-over")
    kept = keeper.find(config.mountpoint) if given is None else given
    if given is not None and origins["allow_other"] == "default":  # the mount has decided that
        config = msgspec.structs.replace(config, allow_other=bool(given.config["allow_other"]))
    if kept is None:
        raise MountError(f"{config.mountpoint}: the mount has no keeper that answers; unmount, and mount again")
    record = json.loads(dump(config, origins))
    answer = kept.take_over({"daemon": _DAEMON, "directory": str(_ROOT), "environment": dict(os.environ), **record})
    if "ready" not in answer:
        text = str(answer.get("error") or "the keeper does not say why not")
        raise (ConfigError if answer.get("code") == 2 else MountError)(text)
    return int(answer["ready"])


def _answer(process: subprocess.Popen[bytes], handed_over: bytes, limit_s: float) -> dict[str, Any] | None:
    """The daemon's one line; None if it ended without. Raises MountError after `limit_s`."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, and may have said why
        process.stdin.write(handed_over)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    deadline = time.monotonic() + limit_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise MountError(f"the mount did not answer within {limit_s:g} s; is SOURCE reachable?")
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                return None
            line += part
    try:
        answer = json.loads(line)
    except ValueError:  # a library that prints: the log will say more
        return None
    return answer if isinstance(answer, dict) else None


def _see_that_it_answers(mountpoint: str) -> None:
    """The daemon says so; a caller's own look through the kernel is what counts."""
    mount = mountinfo.at(mountpoint)
    if mount is None or mount.fstype != mountinfo.HFS_TYPE:
        raise MountError(f"{mountpoint}: the mount is gone again")
    try:
        probe.xattr(mountpoint, SOCKET_XATTR)
    except OSError as error:
        raise MountError(f"{mountpoint}: the mount does not answer ({error.strerror})") from None


def _end(process: subprocess.Popen[bytes], mountpoint: str) -> None:
    """End a mount whose start has failed, and take away the mount that it may have made."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            # To be killed are all of its session; else it is the keeper that ends the others.
            (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)
        try:
            process.wait(_END_S)
            break
        except subprocess.TimeoutExpired:
            continue
    clean_stale(mountpoint)


def _last_process(mountpoint: str, kept: keeper.FoundKeeper | None) -> int | None:
    """A descriptor (see `processes.open_pid`) of what ends last of the mount at this path: its keeper, or its daemon.

    The pid is the kernel's word of who listens at a socket. When the mount does not answer, control sockets that carry
    its name are tried.
    """
    if kept is not None and (descriptor := processes.open_pid(kept.pid)) is not None:
        return descriptor
    try:
        addresses: list[Address] = [find_socket(mountpoint)]
    except DaemonSilent:
        addresses = [*sockets_by_name(mountpoint)]
    for address in addresses:
        with contextlib.suppress(HfsError):
            if (descriptor := processes.open_pid(Client(address).pid(_PID_S))) is not None:
                return descriptor
    return None


def _is_seen_elsewhere(mount: mountinfo.Mount) -> bool:
    """Whether the mount is seen at other places too: then its daemon goes on."""
    return any(other.device == mount.device and other.mountpoint != mount.mountpoint for other in mountinfo.mounts())


def _told(kept: keeper.FoundKeeper | None, *, lazy: bool, elsewhere: bool) -> list[str]:
    """Tell the keeper that the mount is about to be taken away here. Lines about others that hold it. Raises Busy."""
    if kept is None:
        return []
    try:
        if elsewhere:
            kept.release_session()
            return []
        return [f"  {holder}" for holder in kept.unmount(lazy=lazy)]
    except keeper.InUse as users:
        raise busy(str(kept.status.get("mountpoint")), str(users)) from None
    except (OSError, HfsError):
        return []  # it has just ended, or is of an older release


def unmount(mountpoint: str, *, lazy: bool = False, limit_s: float = DRAIN_S, mount_id: int | None = None) -> None:
    """Unmount hfs at this (canonical) path and wait until its daemon has ended, so that the cache is free. `mount_id`:
    of the mount that is meant, if not whatever is there.

    With `lazy` nothing is waited for, and a mount whose daemon is dead needs nothing more than to be taken away. Raises
    MountError when no hfs is mounted there or it cannot be unmounted, Busy when it is in use, MountInUse when other
    commands or sessions use it: it is unmounted when they end.
    """
    mount = mountinfo.at(mountpoint)
    if mount is None:
        raise MountError(f"{mountpoint}: nothing is mounted there; hfs status lists the mounts")
    if mount_id not in {None, mount.mount_id}:
        raise MountError(f"{mountpoint}: mounted anew meanwhile")
    if mount.fstype != mountinfo.HFS_TYPE:
        raise MountError(f"{mountpoint}: {mount.fstype} of {mount.source} is mounted there, not hfs; use umount")
    if mount.owner_uid is not None and os.geteuid() not in {0, mount.owner_uid}:
        raise MountError(f"{mountpoint}: only root and user {mount.owner_uid}, who has mounted it, may unmount it")
    if clean_stale(mountpoint):
        return
    kept = keeper.find(mountpoint)
    elsewhere = _is_seen_elsewhere(mount)
    if kept is not None and kept.status.get("given") and os.geteuid() != 0:
        raise MountError(why_not_ours(mountpoint, kept.pid))
    held = _told(kept, lazy=lazy, elsewhere=elsewhere)
    if held:
        raise MountInUse("\n".join([f"{mountpoint}: stays until these end, or hfs umount --lazy", *held]))
    descriptor = None if lazy or elsewhere else _last_process(mountpoint, kept)
    ending = [] if descriptor is None else [(mountpoint, descriptor)]
    try:
        detach(mountpoint, lazy=lazy, mount_id=mount.mount_id)
        processes.wait_daemons_gone(ending, limit_s, (lambda: False) if kept is None else kept.is_seen)
    finally:
        if descriptor is not None:
            os.close(descriptor)
