"""The mounts of hfs that are there: does each answer, has it a keeper, do we see its daemon; and what has no mount. And
the directories of our sockets: are they ours alone, and does somebody listen at each?

Every look at a mount is made by a process that is left behind when there is no answer. Sockets are asked with a limit.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from hfs.client.client import SOCKET_XATTR, Client, address_of
from hfs.client.control_socket import Address, Refused
from hfs.doctor.surroundings import CheckResult, Level, Surroundings, fault, good, limit, note
from hfs.mountd.core import socket_places
from hfs.mountd.core.errors import HfsError
from hfs.mounting import keeper, mountinfo, probe, taking_away
from hfs.mounting.mountinfo import Mount
from hfs.policies.diagnosis import causes
from hfs.policies.diagnosis.situation import Situation

_NAME = "mount"
_AT_ONCE = 16
_ENDING_S = 2.0
_OTHERS_S = 10.0
"""For all mounts of other users together: who likes has many that say nothing."""
_MOST = 200
"""Mounts that are asked; a node has a few."""
_SOCKETS = "sockets"
_AGAIN_S = 0.2
"""Between bind and listen of a process that is just starting lie microseconds."""


def check(around: Surroundings) -> Iterator[CheckResult]:
    """One finding for each mount, and one for each keeper of ours whose mount has gone."""
    mounts = mountinfo.in_fair_order(mountinfo.hfs_mounts(around.table))
    until_s = time.monotonic() + _OTHERS_S
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = list(threads.map(partial(_look, around, until_s), mounts[:_MOST]))
    there = {mount.mount_id for mount in mountinfo.parse("\n".join(around.lines("self/mountinfo")))}
    for mount, finding in zip(mounts, found, strict=False):
        if mount.mount_id in there:  # else it was unmounted meanwhile, and did not answer for that
            yield finding
    yield from _without_mount()


def _look(around: Surroundings, until_s: float, mount: Mount) -> CheckResult:
    """What is wrong with a mount of another user is nothing that keeps ours from working."""
    if mount.is_of_others and time.monotonic() > until_s:
        return note(_NAME, f"{mount.mountpoint}: not asked: the mounts of other users have {_OTHERS_S:g} s together")
    found = _found(around, mount)
    is_ours = mount.owner_uid in {None, around.uid}
    if is_ours or found.level in {Level.GOOD, Level.NOTE}:
        return found
    return note(found.check, found.text, f"that is for user {mount.owner_uid} or root to mend")


def _found(around: Surroundings, mount: Mount) -> CheckResult:
    place = mount.mountpoint
    try:
        socket = os.fsdecode(probe.xattr(place, SOCKET_XATTR, limit_s=around.answer_s))
    except TimeoutError:
        text = f"{place}: the mount does not answer within {around.answer_s:g} s"
        number = mount.device.partition(":")[2]
        remedy = f"hfs umount --lazy {place}; what waits ends with: echo 1 > /sys/fs/fuse/connections/{number}/abort"
        return fault("silent-mount", text, remedy)
    except OSError as error:
        return _refused(around, mount, error)
    try:
        address = address_of(socket, place)
        status = Client(address).status(around.answer_s)
    except Refused as error:
        return note(_NAME, f"{place}: answers readers; its daemon tells us nothing ({error})")
    except HfsError as error:
        text = f"{place}: answers readers, and its daemon does not answer commands ({error})"
        return limit("silent-daemon", text, f"wait, or hfs umount {place} between two jobs, and mount again")
    return _answers(place, _pid(socket if address.owner is None else address), status)


def _pid(socket: Address) -> int | None:
    """Of its daemon; 0: it is in a pid namespace that we do not see; None: its socket is not seen from here."""
    try:
        return Client(socket).pid()
    except HfsError:
        return None


def _answers(place: str, pid: int | None, status: dict[str, Any]) -> CheckResult:
    if pid == 0:
        text = f"{place}: its daemon is in another pid namespace: a killed reader waits until its read is answered"
        return limit("pid-namespace", text, "run jobs and daemon in the same pid namespace (hostPID, --pid=host)")
    kept = status.get("keeper") or {}
    foreground = ((status.get("config") or {}).get("foreground") or {}).get("value")
    if not kept.get("pid") and kept.get("reason") and not foreground:
        text = f"{place}: nobody would start its daemon again after a crash ({kept['reason']})"
        return limit("mount-without-keeper", text, f"hfs umount {place} between two jobs, and mount again")
    counters = status.get("counters") or {}
    renumbered, changes = (counters.get(name, {}).get("value", 0) for name in ("inodes_renumbered", "version_changes"))
    numbers = causes.inode_numbers(Situation(renumbered=renumbered, version_changes=changes))
    if numbers is not None:
        return limit(numbers.name, f"{place}: {numbers.what}; {numbers.evidence}", numbers.remedy)
    return good(_NAME, f"{place}: answers" + ("" if pid is None else f", process {pid}"))


def _refused(around: Surroundings, mount: Mount, error: OSError) -> CheckResult:
    place, owner = mount.mountpoint, mount.owner_uid
    if error.errno in taking_away.DEAD and not taking_away.has_keeper(mount):
        text = f"{place}: the daemon of this mount is dead, and nobody starts it again"
        return fault("dead-mount", text, f"hfs umount {place}, or hfs mount there again")
    if isinstance(error, PermissionError):
        return note(_NAME, f"{place}: the mount of user {owner}, which user {around.uid} may not look at")
    kept = keeper.find(place) if error.errno == errno.EIO else None
    why = kept.why_refused if kept is not None else ""
    text = f"{place}: {why or error.strerror}"
    return fault("refusing-mount", text, f"mend that and hfs mount --take-over, or hfs umount {place}")


def _without_mount() -> Iterator[CheckResult]:
    """One that has just lost its mount ends within a moment, as a rule."""
    ending = {kept.pid for kept in keeper.ours() if kept.status.get("device") is None}
    if not ending:
        return
    time.sleep(_ENDING_S)
    for kept in keeper.ours():
        if kept.pid in ending and kept.status.get("device") is None:
            place = kept.status.get("mountpoint") or "a mount"
            text = f"process {kept.pid}, the keeper of {place}, whose mount has gone, still waits for its daemon"
            remedy = f"it ends when the cache is written; if the source hangs it never may: kill -9 {kept.pid}"
            yield limit("keeper-without-mount", text, remedy)


def check_sockets(around: Surroundings, directories: Sequence[str] | None = None) -> Iterator[CheckResult]:
    """One finding for each directory that is not ours alone, and one for each with stale sockets. A stale socket harms
    nobody, and the next mount removes it; it tells that something was killed."""
    places = socket_places.directories_of(around.uid) if directories is None else list(directories)
    shut: dict[str, str] = {}
    stale: list[str] = []
    for place in places:
        try:
            stale += _stale(place, around.uid)
        except PermissionError as error:
            shut[place] = str(error.strerror)
        except OSError:
            continue  # not there yet, or not to be made: the next one is used
    if stale:
        time.sleep(_AGAIN_S)
        stale = [
            path for place in sorted({os.path.dirname(path) for path in stale}) for path in _stale(place, around.uid)
        ]
    for place, why in shut.items():
        text = f"{place}: {why}: no socket is put there, and none is looked for"
        yield note("socket-directory", text, "have it removed; until then sockets lie in another one beside it")
    if stale:
        many = "1 socket" if len(stale) == 1 else f"{len(stale)} sockets"
        text = f"{many} that nobody listens at, of daemons that were killed: {stale[0]}"
        text += ", ..." if len(stale) > 1 else ""
        yield note("stale-sockets", text, f"rm {' '.join(stale[:4])}; hfs mount removes its own")
    if not shut and not stale:
        yield good(_SOCKETS, f"no stale sockets in {', '.join(places)}")


def _stale(directory: str, uid: int) -> list[str]:
    """Raises OSError."""
    with socket_places.opened(directory, uid) as descriptor:
        names = sorted(socket_places.names(descriptor, socket_places.DAEMON, socket_places.KEEPER))
        return [f"{directory}/{name}" for name in names if socket_places.is_stale(descriptor, name)]
