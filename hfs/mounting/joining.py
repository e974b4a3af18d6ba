"""A mount of SOURCE that is there already, of the same cache root: found, compared with what is wanted, and used.

The keepers of our user's mounts say which source each serves, from which cache, and what it was told. Two commands that
would start a daemon for the same source go one after the other (`start_lock`), so that the second finds the mount of
the first.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hfs.mountd.core.config import KEYS, Config
from hfs.mountd.core.config.config import TOLD
from hfs.mountd.core.config.loading import dump
from hfs.mountd.core.errors import ConfigError, HfsError, MountError
from hfs.mountd.ledger import CacheRoot, has_ledger
from hfs.mounting import keeper, mountinfo, probe
from hfs.mounting.keeper import FoundKeeper

_OWN = {
    *("mountpoint", "source", "cache", "over", "foreground", "control", "linger_s"),
    *(key.field for key in KEYS if key.section in TOLD.args),
}
"""Of the command, not of the mount."""
_ENDING_S = 30.0
"""A daemon that ends writes what it holds for ten seconds at most."""
_AGAIN_S = 0.05


class Running(NamedTuple):
    """A mount of the same source."""

    mountpoint: str
    """Where it is seen."""
    device: str
    """As in mountinfo."""
    keeper: FoundKeeper
    is_ending: bool
    is_shown: bool = True
    """In this mount namespace. One that was given may be seen in another."""

    def check(self, config: Config, origins: Mapping[str, str]) -> None:
        """Raises ConfigError where other options are wanted than it was made with."""
        wanted, made = json.loads(dump(config, dict(origins)))["config"], self.keeper.config
        faults = [
            f"{key.name}: it has {key.written(made.get(key.field))}, and {key.written(wanted[key.field])} is asked for"
            for key in KEYS
            if key.field not in _OWN and made.get(key.field) != wanted.get(key.field)
        ]
        if faults:
            where = f"{config.source} is already served by the mount {self.mountpoint}, made with other options"
            remedy = f"give the same, or end that mount first: hfs umount {self.mountpoint}"
            raise ConfigError(f"{where}: {'; '.join(faults)}; {remedy}")


def running(config: Config) -> Running | None:
    """The mount of config.source from this cache root, if it is ours. Makes nothing. Raises MountError where only
    another mount namespace shows it."""
    kept_by = list(keeper.ours())
    if not kept_by:
        return None  # SOURCE may be slow to answer: it is asked only where that matters
    try:
        found = probe.look(config.source, config.as_user)
        identity = [found.device, found.inode]
    except PermissionError:
        identity = None  # the mount that is there may read it as another user: to be told by `check`
    except OSError:
        return None  # `check_places` says what is wrong
    shown = _device_shown_at(config.source)
    for kept in kept_by:
        status = kept.status
        if shown is not None and status.get("device") == shown:
            is_same = kept.config.get("source") == config.source
        elif identity is not None:
            is_same = status.get("identity") == identity
        else:
            is_same = kept.config.get("source") == config.source and kept.config.get("as_user") != config.as_user
        if is_same and kept.config.get("cache") == config.cache:
            device, mountpoint = str(status.get("device")), str(status.get("mountpoint"))
            places = [mount.mountpoint for mount in mountinfo.mounts() if mount.device == device]
            place = mountpoint if mountpoint in places or not places else places[0]
            is_there = bool(places) or (bool(status.get("given")) and status.get("device") is not None)
            is_ending = bool(status.get("ending"))
            if not is_there and not is_ending and _is_shown_to(kept.pid, device):
                where = f"{config.source} is mounted at {mountpoint} in another mount namespace, which is not seen here"
                raise MountError(f"{where}; use it from there, or give another --cache")
            return Running(place, device, kept, is_ending or not is_there, bool(places))
    return None


def _device_shown_at(source: str) -> str | None:
    """Of the mount of hfs that lies at SOURCE itself, as within an `hfs run` in place; None: none does."""
    mount = mountinfo.at(mountinfo.canonical(source))
    return mount.device if mount is not None and mount.fstype == mountinfo.HFS_TYPE and not mount.part else None


def _is_shown_to(process: int, device: str) -> bool:
    try:
        return any(mount.device == device for mount in mountinfo.mounts(process))
    except OSError:
        return False  # it has ended, or is outside of our pid namespace


def wait_running(config: Config) -> Running | None:
    """As `running`, but of one that is just ending its end is waited for. Raises MountError."""
    until_s = time.monotonic() + _ENDING_S
    while (found := running(config)) is not None and found.is_ending:
        if time.monotonic() > until_s:
            raise MountError(
                f"{config.source}: its mount at {found.mountpoint} was taken away and has not ended yet: it is in use, "
                "or its daemon still writes; wait, or give another --cache"
            )
        time.sleep(_AGAIN_S)
    if found is not None and not found.is_shown:
        who = f"process {found.keeper.pid} serves it from the same cache, for a mount that is not seen here"
        raise MountError(f"{config.source}: {who}; give another --cache")
    return found


@contextlib.contextmanager
def start_lock(config: Config) -> Iterator[None]:
    """One command at a time that would start a daemon for this source; several where the disk of the cache takes no
    lock, and then there is no cache that one could have alone. Raises OSError where SOURCE cannot be looked at,
    ConfigError, MountError, LedgerBusy."""
    look = probe.look(config.source, config.as_user)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            root = stack.enter_context(contextlib.closing(CacheRoot(config.cache)))
            stack.enter_context(root.ledger.start_lock(look.device, look.inode))
        yield


@contextlib.contextmanager
def start_lock_if_any(config: Config) -> Iterator[None]:
    """As `turn`, where somebody may be starting a daemon: whatever is wrong with the places is told by others."""
    with contextlib.ExitStack() as stack:
        if has_ledger(config.cache):
            with contextlib.suppress(OSError, HfsError):
                stack.enter_context(start_lock(config))
        yield
