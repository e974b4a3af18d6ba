"""A mount of SOURCE that is there already, of the same cache root: found, compared with what is wanted, and used.

The ledger of the root says which caches have daemons, and where these have their mounts; its keeper says what it was
told. Two commands that would start a daemon for the same source take turns (`turn`), so that the second finds the
mount of the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hfs.mounting import keeper, probe
from hfs.mounting.keeper import FoundKeeper, HeldMount
from mountd.base.errors import ConfigError, HfsError, MountError
from mountd.core.config import KEYS, Config
from mountd.core.config.handover import dump
from mountd.ledger import CacheRoot

_OWN = {"mountpoint", "source", "cache", "over", "foreground", "control", "log_level", "log_file", "linger_s"}
"""Of the command, not of the mount."""
_ENDING_S = 130.0
"""A mount that ends has two minutes to write what it holds."""
_AGAIN_S = 0.05


class Running(NamedTuple):
    """A mount of the same source."""

    mountpoint: str
    keeper: FoundKeeper

    def check(self, config: Config, origins: Mapping[str, str]) -> None:
        """Raises ConfigError where other options are wanted than it was made with."""
        wanted, made = json.loads(dump(config, dict(origins)))["config"], self.keeper.config
        faults = [
            f"{key.name}: it has {made.get(key.field)!r}, and {wanted.get(key.field)!r} is asked for"
            for key in KEYS
            if key.field not in _OWN and made.get(key.field) != wanted.get(key.field)
        ]
        if faults:
            where = f"{config.source} is already served by the mount {self.mountpoint}, made with other options"
            remedy = f"give the same, or end that mount first: hfs umount {self.mountpoint}"
            raise ConfigError(f"{where}: {'; '.join(faults)}; {remedy}")

    def hold(self, command: str, linger_s: float) -> HeldMount | None:
        """As of the keeper. Raises MountError."""
        try:
            return self.keeper.hold(command, linger_s)
        except OSError as error:
            raise MountError(f"{self.mountpoint}: the keeper of the mount does not answer: {error.strerror}") from None


def running(config: Config) -> Running | None:
    """The mount of config.source, if a daemon serves it from this cache root and is ours. Makes nothing."""
    if not os.path.isdir(f"{config.cache}/ledger"):
        return None
    try:
        found = probe.look(config.source)
        root = CacheRoot(config.cache)
    except (OSError, HfsError):
        return None  # `check_places` says what is wrong
    try:
        entries = root.ledger.listed()
    except OSError:
        return None
    finally:
        root.close()
    for entry in entries:
        serving = entry.serving
        if not entry.running or serving is None or (serving.device, serving.inode) != (found.device, found.inode):
            continue
        mountpoint = os.fsdecode(serving.mountpoint)
        if entry.name.startswith(f"{os.geteuid()}-") and (kept := keeper.find(mountpoint)) is not None:
            return Running(mountpoint, kept)
    return None


def wait_running(config: Config) -> Running | None:
    """As `running`, but of one that is just ending its end is waited for. Raises MountError."""
    until_s = time.monotonic() + _ENDING_S
    while (found := running(config)) is not None and found.keeper.status.get("ending"):
        if time.monotonic() > until_s:
            raise MountError(f"{found.mountpoint}: the mount of {config.source} does not end; see hfs status")
        time.sleep(_AGAIN_S)
    return found


@contextlib.contextmanager
def turn(config: Config) -> Iterator[None]:
    """One command at a time that would start a daemon for this source. The cache root must be there."""
    look = probe.look(config.source)
    root = CacheRoot(config.cache)
    try:
        with root.ledger.start_turn(look.device, look.inode):
            yield
    finally:
        root.close()
