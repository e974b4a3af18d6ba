"""What every part of a daemon is built with: its configuration, counters, threads, memory, and what it was left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hfs.mountd.core.config import Config
from hfs.mountd.core.limits import Memory, OpenFiles
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.workers import Workers
from hfs.mountd.namespace import Journal
from hfs.mountd.wire.handover import Handover


@dataclass(frozen=True, slots=True)
class Basics:
    config: Config
    origins: Mapping[str, str]
    """Where each setting came from."""
    handover: Handover
    """None: the mount is made here."""
    journal: Journal
    metrics: Metrics
    memory: Memory
    workers: Workers
    open_files: OpenFiles
