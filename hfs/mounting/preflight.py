"""Whether the places of a mount can be what they are meant to be: SOURCE, MOUNTPOINT, the cache, /dev/fuse.

`hfs mount` and `hfs run` call `absolute` and then `check_places` before a daemon is started. All faults are found and
told together, one line each with its remedy. What was given wrongly is a ConfigError (exit code 2), what is right but
cannot be done here and now a MountError (1). Every look at a path that may hang has a time limit. The one thing made
here is the cache directory itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable

import msgspec

from hfs.client.client import find_socket
from hfs.client.control_socket import DaemonSilent
from hfs.doctor import Level, here
from hfs.doctor.fuse import CERTAIN, check_device, check_fusermount
from hfs.mountd.core.cache_directory import open_cache_directory, real_path
from hfs.mountd.core.config import Config
from hfs.mountd.core.config.key import shown_user
from hfs.mountd.core.errors import ConfigError, MountError
from hfs.mounting import mountinfo, own_process, probe
from hfs.mounting.given import SOCKET_ENDS, is_given, why_no_connection

_DISK_FAILS = {errno.EDQUOT, errno.EIO, errno.ENOSPC, errno.EROFS, errno.ESTALE, errno.EUCLEAN}
"""Of a cache: it was not given wrongly, and there is a mount without it until its disk is well. The daemon says so."""


class _Faults:
    """Collects lines. One line of a wrong argument makes the whole a ConfigError."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._usage = False

    def usage(self, line: str) -> None:
        self._lines.append(line)
        self._usage = True

    def failed(self, line: str) -> None:
        self._lines.append(line)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def raise_any(self) -> None:
        if self._lines:
            raise (ConfigError if self._usage else MountError)("\n".join(self._lines))


def absolute(config: Config) -> Config:
    """The same with absolute paths; MOUNTPOINT and the cache without symlinks, as the kernel will name them.

    Raises ConfigError where somebody else's symlink leads to the cache.
    """
    paths = {
        "source": os.path.abspath(config.source),
        "mountpoint": mountinfo.canonical(config.mountpoint),  # /dev/fd/N stays
        "cache": real_path(config.cache, {mount.mountpoint for mount in mountinfo.hfs_mounts()}),
    }
    for field in ("control", "log_file", "metrics_file", "peer_secret"):
        value = getattr(config, field)
        if value is not None and not (field == "peer_secret" and value.startswith("env:")):
            paths[field] = os.path.abspath(value)
    return msgspec.structs.replace(config, **paths)


def check_places(config: Config) -> None:
    """Raise ConfigError or MountError with one line for each thing that is wrong. The paths must be absolute."""
    faults = _Faults()
    if (reason := own_process.why_missing()) is not None:
        faults.failed(reason)
    source = _check_source(config, faults)
    if is_given(config.mountpoint):
        if why := why_no_connection(config.mountpoint):
            faults.usage(why)
    else:
        mountpoint = _check_mountpoint(config, faults)
        if source is not None and mountpoint is not None:
            _check_nesting(config, source, mountpoint, faults)
        _check_fuse(config, faults)
    _check_cache(config, source, faults)
    faults.raise_any()


def check_mountpoint(config: Config) -> None:
    """Of `check_places` what a mount that is there already needs to be shown at MOUNTPOINT too."""
    faults = _Faults()
    _check_mountpoint(config, faults)
    faults.raise_any()


def _look(
    name: str,
    path: str,
    faults: _Faults,
    *,
    silent: str,
    missing: str,
    wrong: str,
    other: Callable[[OSError], str],
    as_user: str | None = None,
) -> probe.Look | None:
    """What is at `path`; None: a fault, which is told with the remedy for its kind. `other` makes both for the rest."""
    try:
        return probe.look(path, as_user)
    except TimeoutError:
        faults.failed(f"{name} {path}: does not answer within {probe.PROBE_S:g} s; {silent}")
    except FileNotFoundError:
        faults.usage(f"{name} {path}: no such directory; {missing}")
    except NotADirectoryError:
        faults.usage(f"{name} {path}: not a directory; {wrong}")
    except OSError as error:
        faults.failed(f"{name} {path}: {other(error)}")
    return None


def _check_source(config: Config, faults: _Faults) -> probe.Look | None:
    def other(error: OSError) -> str:
        if isinstance(error, PermissionError) and config.as_user is not None:
            return f"may not be read by user {shown_user(config.as_user)}; give --as-user USER, who can list it"
        if isinstance(error, PermissionError):
            as_root = " (as root: --as-user USER)" if os.geteuid() == 0 else ""
            return f"may not be read by user {os.geteuid()}; mount as a user who can list it{as_root}"
        return f"cannot be read ({error.strerror}); is its file system up?"

    remedy = "give the directory to show"
    return _look(
        "SOURCE",
        config.source,
        faults,
        silent="is its file system up?",
        missing=remedy,
        wrong=remedy,
        other=other,
        as_user=config.as_user,
    )


def real_source(config: Config) -> str:
    """SOURCE without symlinks, as whoever reads it finds it. Raises OSError, MountError."""
    if config.as_user is not None:
        with contextlib.suppress(TimeoutError):  # `check_places` tells it
            return probe.real_path(config.source, config.as_user)
    return mountinfo.canonical(config.source)


def _check_mountpoint(config: Config, faults: _Faults) -> probe.Look | None:
    path = config.mountpoint
    mount = mountinfo.at(path)
    if mount is not None and mount.fstype == mountinfo.HFS_TYPE:
        faults.failed(f"MOUNTPOINT {path}: {describe_mount(mount)}; end it first: hfs umount {path}")
        return None
    if mount is not None and not config.over:
        faults.failed(f"MOUNTPOINT {path}: {describe_mount(mount)}; choose another, or --over to mount over it")
        return None
    found = _look(
        "MOUNTPOINT",
        path,
        faults,
        silent="choose another",
        missing="start hfs fd-mount first" if path.endswith(SOCKET_ENDS) else f"make it: mkdir -p {path}",
        wrong="give an empty directory",
        other=lambda error: f"cannot be used ({error.strerror}); choose another",
        as_user=config.as_user if config.over and path == real_source(config) else None,
    )
    if found is not None and found.has_entries and not config.over:
        faults.usage(f"MOUNTPOINT {path}: not empty; choose an empty directory, or --over to hide what is there")
        return None
    return found


def describe_mount(mount: mountinfo.Mount) -> str:
    """What is mounted there and by whom, in one clause."""
    if mount.fstype != mountinfo.HFS_TYPE:
        return f"{mount.fstype} of {mount.source} is already mounted there"
    what = f"hfs is already mounted there ({mount.source}"
    try:
        return f"{what}, process {_pid_of(mount.mountpoint)})"
    except DaemonSilent:
        return f"{what}) and does not answer"


def _pid_of(mountpoint: str) -> int:
    from hfs.client.client import Client

    return Client(find_socket(mountpoint)).pid()


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _check_nesting(config: Config, source: probe.Look, mountpoint: probe.Look, faults: _Faults) -> None:
    same = (source.device, source.inode) == (mountpoint.device, mountpoint.inode)
    if not same and _inside(config.mountpoint, real_source(config)):
        faults.usage(
            f"MOUNTPOINT {config.mountpoint}: inside SOURCE {config.source}, so the daemon would read itself; "
            "choose a directory elsewhere, or SOURCE itself with --over"
        )


def _check_cache(config: Config, source: probe.Look | None, faults: _Faults) -> None:
    path = config.cache
    for name, directory in (("SOURCE", config.source), ("MOUNTPOINT", config.mountpoint)):
        # SOURCE is looked into only if it has answered.
        real = directory if name == "MOUNTPOINT" or source is None else real_source(config)
        if _inside(path, real) or (name == "SOURCE" and _has_ancestor(path, source)):
            faults.usage(f"cache {path}: inside {name} {directory}; choose a directory on a disk of this machine")
            return
    mount = mountinfo.enclosing(os.path.realpath(path))
    if mount is not None and mount.fstype in mountinfo.IN_MEMORY and config.cache_size_bytes is None:
        faults.usage(f"a cache on {mount.fstype} needs --cache-size SIZE: {path} lies in memory")
    if faults and not os.path.exists(path):
        return  # there will be no mount, so nothing is made
    try:
        opened = open_cache_directory(path, make=True, shared_ok=True)
    except ConfigError as error:
        faults.usage(str(error))
        return
    except NotADirectoryError:
        faults.usage(f"cache {path}: not a directory; give a directory on a disk of this machine")
        return
    except OSError as error:
        if error.errno not in _DISK_FAILS:
            faults.failed(f"cache {path}: cannot be made ({error.strerror}); give a directory that you can write to")
        return
    try:
        with opened, tempfile.TemporaryFile(dir=f"/proc/self/fd/{opened.fd}"):
            pass  # permission bits tell root nothing
    except OSError as error:
        if error.errno not in _DISK_FAILS:
            faults.failed(
                f"cache {path}: cannot be written to ({error.strerror}); give a directory that you can write to"
            )


def _has_ancestor(path: str, directory: probe.Look | None) -> bool:
    """Whether one of the existing directories above `path` is this one, by another name (a bind mount)."""
    while directory is not None:
        try:
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == (directory.device, directory.inode):
                return True
        except OSError:
            pass  # not made yet
        if path == "/":
            break
        path = os.path.dirname(path)
    return False


def _check_fuse(config: Config, faults: _Faults) -> None:
    around = here(allow_other=config.allow_other)
    for finding in (*check_device(around), *check_fusermount(around)):
        if finding.level is Level.FAULT and finding.check in CERTAIN:
            faults.failed(finding.line())
