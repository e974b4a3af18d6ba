"""The bundle of `hfs debug bundle`: what somebody needs who is to find out what happened, in one small archive.

It never looks below SOURCE or a mount, has no bytes of any file, and no name of one unless that is asked for (`Masks`).
Each file in it is bounded, and so is the wait for each daemon and each log.
"""

from __future__ import annotations

import io
import json
import os
import platform
import resource
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import hfs
from hfs.client.client import Client, find_socket
from hfs.doctor.libfuse import load
from hfs.doctor.limits import room_for_processes
from hfs.doctor.masking import Masks
from hfs.doctor.surroundings import Surroundings
from hfs.mountd.core.config import KEYS
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.limits import available_bytes, groups_of
from hfs.mounting import keeper, mountinfo, probe
from hfs.mounting.mountinfo import Mount
from hfs.mounting.taking_away import owner_of
from hfs.sweeping import TimeForOthers

_FILE_BYTES = 1 << 20
_LOG_BYTES = 1 << 19
"""Of each log the end: some 4 000 lines."""
_MOST_MOUNTS = 16
_USER_S, _OTHERS_S = 10.0, 30.0
"""For mounts of other users, who may answer nothing: of one, of all."""
_OF_THE_SYSTEM = ("/dev", "/proc", "/sys", "/etc", "/run/hfs", "/usr")
_SETTINGS = (
    *("kernel/apparmor_restrict_unprivileged_userns", "kernel/pid_max", "kernel/threads-max"),
    *(
        "kernel/unprivileged_userns_clone",
        "user/max_user_namespaces",
        "vm/overcommit_memory",
        "fs/pipe-user-pages-soft",
    ),
    *("fs/fuse/max_pages_limit", "fs/file-max", "fs/nr_open"),
)
_STATUS = ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Cpus_allowed_list", "NSpid")
_FUSE = ("max_user_bgreq", "max_user_congthresh")
# The end of a file that belongs to a user, to which no link leads but of whoever reads it and root.
_TAIL = """
at, links = os.open("/", os.O_PATH), 0
left = [part for part in reversed(sys.argv[1].split("/")) if part]
while left:
    part = left.pop()
    fd = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=at)
    found = os.fstat(fd)
    if stat.S_ISLNK(found.st_mode):
        links += 1
        if found.st_uid not in (0, os.geteuid()) or links > 40:
            sys.exit("a link of another user leads to it")
        text = os.readlink(part, dir_fd=at)
        left += [part for part in reversed(text.split("/")) if part]
        if text.startswith("/"):
            at = os.open("/", os.O_PATH)
    else:
        at = fd
if stat.S_ISREG(found.st_mode) and found.st_uid == int(sys.argv[3]):
    fd = os.open(f"/proc/self/fd/{at}", os.O_RDONLY)
    os.lseek(fd, max(0, found.st_size - int(sys.argv[2])), os.SEEK_SET)
    left = int(sys.argv[2])
    while left and (part := os.read(fd, min(left, 65536))):
        sys.stdout.buffer.write(part)
        left -= len(part)
"""
_README = """A bundle of hfs debug bundle, made at {time}.

{names}
SOURCE, MOUNTPOINT, the cache, user ids and versions are in it as they are. Look through it before you give it away.

versions.json     hfs, Python, the kernel, libfuse, pyfuse3, all packages
limits.json       of the process, its control groups and the kernel
environment.json  variables that begin with HFS_
config.json       the configuration here and now, with the origin of each value
mounts.txt        /proc/self/mountinfo
doctor.json       hfs doctor --json, without a look at SOURCE
mount-N/          for each mount: what its daemon and its keeper say, and the end of their log
"""
_MASKED = "Names of files below SOURCE are masked: <name-1> stands for the same name everywhere in it.\n"
_NAMED = "With --with-names: names of files of the data set are in it.\n"


def write(path: str, files: Mapping[str, str]) -> int:
    """A new archive, for its owner's eyes alone; its length in bytes. Raises OSError, FileExistsError."""
    packed = io.BytesIO()
    now_s = int(time.time())
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode("utf-8", "backslashreplace")[:_FILE_BYTES]
            member = tarfile.TarInfo(f"hfs-debug/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, now_s
            archive.addfile(member, io.BytesIO(data))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(packed.getbuffer())
    except BaseException:
        os.unlink(path)
        raise
    return packed.getbuffer().nbytes


class Collector:
    """Gathers what goes into the bundle. `mountpoint`: of one mount only; None: of all that are seen."""

    def __init__(self, around: Surroundings, mountpoint: str | None, *, with_names: bool) -> None:
        self._around = around
        found = mountinfo.in_fair_order(mountinfo.hfs_mounts(around.table))
        self._mounts = [mount for mount in found if mountpoint in {None, mount.mountpoint}][:_MOST_MOUNTS]
        self._keepers: dict[int, list[keeper.FoundKeeper]] = {}
        sources = [mount.source.removeprefix("hfs#") for mount in found]
        given = [around.source] if around.source else []
        self._sources = {*sources, *given}
        places = [*self._sources, *(mount.mountpoint for mount in found)]
        caches = [around.cache] if around.cache else []
        ours = [*caches, sys.prefix, sys.base_prefix, __file__.rpartition("/hfs/")[0], *_OF_THE_SYSTEM]
        self._masks = None if with_names else Masks(places, ours)

    def gather(self, config: Mapping[str, Any], report: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """(name, text) of each file. `config`: as of `hfs config --json`; `report`: as of `hfs doctor --json`."""
        said = _NAMED if self._masks is None else _MASKED
        yield "README.txt", _README.format(time=time.strftime("%Y-%m-%d %H:%M:%S%z"), names=said)
        yield "versions.json", _json(_versions())
        yield "limits.json", _json(_limits(self._around))
        yield "environment.json", _json(_environment())
        yield "config.json", _json(config)
        yield "mounts.txt", self._table()
        shown = [{**finding, "text": self._shown(finding["text"])} for finding in report["findings"]]
        yield "doctor.json", _json({**report, "findings": shown})
        others = TimeForOthers(_USER_S, _OTHERS_S)
        for number, mount in enumerate(self._mounts):
            owner = self._around.uid if mount.owner_uid is None else mount.owner_uid
            with others.spent_on(owner):
                if left_s := others.left_s(owner):
                    for name, text in self._mount(mount, min(self._around.answer_s, left_s)):
                        yield f"mount-{number}/{name}", text
                else:
                    yield f"mount-{number}/status.json", _json({"error": f"not asked: {others.limits}"})

    def _table(self) -> str:
        lines = self._around.lines("self/mountinfo")
        if self._masks is None:
            return "\n".join(lines)
        devices = {
            mount.device for source in self._sources if (mount := mountinfo.enclosing(source, self._around.table))
        }
        shown = []
        for line in lines:
            fields = line.split(" ")
            if len(fields) > 4 and fields[2] in devices and fields[3] != "/":
                fields[3] = "<path>"  # what of the file system of SOURCE is shown elsewhere
            shown.append(self._masks.places_in(" ".join(fields)))
        return "\n".join(shown)

    def _mount(self, mount: Mount, limit_s: float) -> Iterator[tuple[str, str]]:
        kept = self._keeper_of(mount)
        log_file = "" if kept is None else str(kept.config.get("log_file") or "")
        try:
            socket = find_socket(mount.mountpoint, limit_s=limit_s)
            status = Client(socket).status(limit_s)
        except HfsError as error:
            yield "status.json", _json({"error": self._shown(str(error))})
        else:
            log_file = str(((status.get("config") or {}).get("log-file") or {}).get("value") or log_file)
            yield "status.json", _json(self._figures(status))
        if kept is not None:
            yield "keeper.json", _json(self._figures({"pid": kept.pid, **kept.status}))
        if log_file.startswith("/"):
            yield "log.txt", self._log(log_file, mount)

    def _keeper_of(self, mount: Mount) -> keeper.FoundKeeper | None:
        """All of another user are asked once: they may say nothing for seconds."""
        owner = mount.owner_uid
        if owner in {None, self._around.uid}:
            return keeper.find(mount.mountpoint)
        assert owner is not None
        if owner not in self._keepers:
            self._keepers[owner] = list(keeper.of_user(owner))
        return next((kept for kept in self._keepers[owner] if kept.status.get("device") == mount.device), None)

    def _shown(self, text: str) -> str:
        return text if self._masks is None else self._masks.text(text)

    def _figures(self, found: dict[str, Any]) -> dict[str, Any]:
        """The configuration stays: SOURCE and other places are what it is about."""
        if self._masks is None:
            return found
        shown = {name: value for name, value in found.items() if name != "config"}
        return {**self._masks.tree(shown), "config": found.get("config")}

    def _log(self, path: str, mount: Mount) -> str:
        places = [*self._sources, *(mount.mountpoint for mount in self._mounts)]
        if any(path.startswith(f"{place.rstrip('/')}/") for place in places):
            return "(the log lies below SOURCE or a mount, where nothing is looked at)"
        # Its daemon says where it is, and may name any file: what belongs to the mount's user is read, as that one.
        arguments = [path, str(_LOG_BYTES), str(self._around.uid if mount.owner_uid is None else mount.owner_uid)]
        data, code = probe.answer(_TAIL, arguments, self._around.answer_s, owner_of(mount), ["stat"])
        lines = data.decode("utf-8", "backslashreplace").split("\n")
        if len(data) >= _LOG_BYTES:
            lines = lines[1:]  # the first one is cut
        if not data:
            lines = [f"({path} does not answer)" if code is None else f"({path}: nothing in it, or it cannot be read)"]
        return "\n".join(lines if self._masks is None else map(self._masks.line, lines))


def _json(found: object) -> str:
    text = json.dumps(found, indent=1, default=str)
    return text if len(text) <= _FILE_BYTES else json.dumps({"error": f"{len(text)} bytes are too many"})


def _versions() -> dict[str, Any]:
    """Of everything that takes part."""
    packages = {each.metadata["Name"]: each.version for each in metadata.distributions() if each.metadata["Name"]}
    return {
        "hfs": hfs.__version__,
        "python": sys.version,
        "kernel": {"release": platform.release(), "version": platform.version(), "machine": platform.machine()},
        "libc": " ".join(platform.libc_ver()),
        "loaded": load(),
        "packages": dict(sorted(packages.items())),
    }


def _limits(around: Surroundings) -> dict[str, Any]:
    """Of this process, its control groups and the kernel."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    status = around.status
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "uid": around.uid,
        "processors": os.cpu_count(),
        "limits": {name: list(resource.getrlimit(getattr(resource, name))) for name in names},
        "status": {name: status[name] for name in _STATUS if name in status},
        "room_for_processes": room_for_processes(around),
        "available_bytes": available_bytes(f"{around.proc}/meminfo", groups_of(f"{around.proc}/self")),
        "control_groups": around.lines("self/cgroup"),
        "settings": {name.replace("/", "."): around.number(f"sys/{name}") for name in _SETTINGS},
        "fuse": {name: _number(f"/sys/module/fuse/parameters/{name}") for name in _FUSE},
        "loads": list(os.getloadavg()),
    }


def _environment() -> dict[str, str]:
    """Variables whose names begin with HFS_, and no others. Of those that are no keys only the names: in a cluster of
    Kubernetes others put such there."""
    ours = {"HFS_CONFIG", *(f"HFS_{key.name.upper().replace('-', '_')}" for key in KEYS)}
    return {
        name: value if name in ours else "(not a key)"
        for name, value in sorted(os.environ.items())
        if name.startswith("HFS_")
    }


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
