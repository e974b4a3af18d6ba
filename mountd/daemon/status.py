"""Status: the one object that `hfs status --json` prints, and what metrics are made of.

Nothing here waits for the source or a disk: it answers while every reader hangs. Other users than root and the owner of
the mount are told figures, and no name of a file or of somebody else's process.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from hfs.mountd.control import Traffic
from hfs.mountd.core.background import faults
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.config import describe
from hfs.mountd.core.limits import read_small
from hfs.mountd.core.metrics import COUNTERS
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.ending import Ending
from hfs.mountd.daemon.files import FileService
from hfs.mountd.daemon.names import NameService
from hfs.mountd.daemon.storage import Storage
from hfs.mountd.kernel import KernelSettings, PlaneFigures
from hfs.mountd.monitoring import Monitoring
from hfs.mountd.peers import ClusterView

_FOR_OTHERS = {
    *("pid", "version", "mountpoint", "uptime_s", "traffic", "io_mode", "by_kernel", "opens", "reads", "read_bytes"),
    *("hints", "source_wait_s", "scrub", "stage_encoding", "ahead", "queues", "memory", "open", "faults", "evicted"),
    *("interrupted", "version_changes", "stale_served", "page_cache", "data_plane", "slots", "kernel", "counters"),
}
"""What other users are told as it is."""

_FIGURES_FOR_OTHERS: dict[str, tuple[str, ...]] = {"source": (), "staged": ("state",), "peers": ("mode",)}
"""Of these the figures and the texts that are named here: others may name files."""

_OF_SOURCE = (
    *("opens", "stats", "listings", "errors", "retries", "abandoned"),
    *("large_reads", "large_read_bytes", "large_reads_ordered"),
)
_OF_PEERS = ("reads", "read_bytes", "misses", "faults", "served", "served_bytes", "refused_busy")
_TIERS = ("staged", "flight", "source", "bypass")
_AHEAD = (
    *("prefetched_chunks", "guessed_chunks", "prefetch_dropped", "prefetch_yields", "stats_ahead", "sibling_files"),
    *("hinted_bytes", "hints_missing", "pushed_bytes"),
)
_FAULTS = (
    *("staging_errors", "staging_dropped", "staged_checksum_failures", "staged_changed", "push_errors"),
    *("short_replies", "unexpected_errors"),
)


@dataclasses.dataclass(eq=False)
class Status:
    """Of one daemon."""

    basics: Basics
    storage: Storage
    view: ClusterView
    names: NameService
    files: FileService
    ending: Ending
    traffic: Traffic
    monitoring: Monitoring
    _started_s: float = dataclasses.field(default_factory=time.time, init=False)
    _version: str = dataclasses.field(default_factory=lambda: metadata.version("hfs-cache"), init=False)
    _kernel: KernelSettings = dataclasses.field(default_factory=KernelSettings, init=False)
    _job_bytes: int = dataclasses.field(default=0, init=False)
    """Of an estimate, which may go back a little; a counter may not."""

    def tuned(self, settings: KernelSettings) -> None:
        """What the kernel took of our settings for the mount."""
        self._kernel = settings

    async def gather(self, reader: Credentials | None, *, page_cache: bool) -> dict[str, object]:
        """The object of `hfs status --json`; for `reader`, another user than root and the owner, what they may see.
        `page_cache`: look at it anew, which takes 50 ms at most."""
        if page_cache:
            await self.files.residency.refresh()
        found = self._gather(await self.storage.learners.status(reader))
        if reader is None:
            return found
        shown: dict[str, object] = {}
        for key, value in found.items():
            if key in _FOR_OTHERS:
                shown[key] = value
            elif key in _FIGURES_FOR_OTHERS:
                assert isinstance(value, dict)
                texts = _FIGURES_FOR_OTHERS[key]
                shown[key] = {
                    name: told for name, told in value.items() if isinstance(told, int | float) or name in texts
                }
        return shown

    def figures(self) -> dict[str, Any]:
        """What metrics are made of: the object, and what it has in other words or not at all."""
        found: dict[str, Any] = self._gather({"learners": len(self.storage.learners)})
        self._job_bytes = max(self._job_bytes, found["traffic"]["read_bytes"])
        return {
            **found,
            "traffic": {"read_bytes": self._job_bytes},
            "background_faults": sum(faults().values()),
            "start_time_s": self._started_s,
            "mount_start_time_s": self.basics.handover.mounted_s,
            "cpu_ns": time.process_time_ns(),
            "small_files_running": self.storage.fetches.figures().jobs,
        }

    def _gather(self, hints: dict[str, object]) -> dict[str, object]:
        """In the order in which people read it; of the page cache what the last look has found. What the data plane has
        counted since is heard first."""
        self.files.pipeline.take()
        basics, files, metrics, cache = self.basics, self.files, self.basics.metrics, self.storage.cache
        plane = files.plane.figures()
        counters = {name: {"value": metrics[name], "meaning": meaning} for name, meaning in COUNTERS.items()}
        return {
            "pid": os.getpid(),
            "version": self._version,
            "mountpoint": basics.config.mountpoint,
            "keeper": {**self.ending.keeper, "journal": basics.journal.statistics()},
            "uptime_s": round(time.time() - self._started_s, 1),
            **self.traffic.gather(),
            "io_mode": self._io_mode(),
            "by_kernel": files.by_kernel.describe(),
            "opens": self._opens(plane),
            "source": self._source(),
            "peers": {**self.view.shown(), **self._counted(_OF_PEERS, "peer_")},
            "reads": self._by_tier("reads_", plane.reads),
            "read_bytes": self._by_tier("bytes_", plane.read_bytes),
            "readers": files.readers.shown(),
            "hints": hints,
            "source_wait_s": round(metrics["source_wait_ns"] / 1e9, 3),
            "staged": self._staged(),
            "scrub": cache.scrub.figures(),
            "stage_encoding": self._stage_encoding(),
            "ahead": self._counted(_AHEAD),
            "queues": self._queues(),
            "memory": {"buffer_bytes": files.fetch.buffers.used_bytes, "resident_bytes": _resident_bytes()},
            "descriptors": basics.open_files.statistics(),
            "open": self._open(),
            "faults": self._counted(_FAULTS),
            "other_users": {
                **self.names.permissions.figures(),
                **self._counted(("asked", "refused"), "permissions_"),
            },
            "background_faults": faults(),
            "evicted": self._counted(("files", "bytes"), "evicted_"),
            **self._counted(("interrupted", "version_changes", "stale_served")),
            "page_cache": files.residency.figures,
            "data_plane": {**plane._asdict(), "delegated": len(files.delegations)},
            "slots": self.names.slot_table.figures()._asdict(),
            "kernel": dataclasses.asdict(self._kernel),
            **self.monitoring.gather(),
            "config": describe(basics.config, basics.origins),
            "counters": counters,
        }

    def _counted(self, names: Iterable[str], prefix: str = "") -> dict[str, int]:
        return {name: self.basics.metrics[prefix + name] for name in names}

    def _by_tier(self, kind: str, staged_without_us: int) -> dict[str, int]:
        found = self._counted(_TIERS, kind)
        found["staged"] += staged_without_us
        return found

    def _opens(self, plane: PlaneFigures) -> dict[str, int]:
        found = self._counted(("cached", "passed", "anew", "stateless"), "opens_")
        found["cached"] += plane.opens_cached
        found["passed"] += plane.opens_passed
        return found

    def _io_mode(self) -> dict[str, object]:
        files = self.files
        is_faster = files.io_mode.passes_files or files.by_kernel.has_overlays()
        return {
            **files.io_mode.describe(),
            "overlays": files.overlays.describe(),
            "backing_files": files.io_mode.backing_files - files.delegations.idle_backing_files(),
            "faster_if_reopened": self.storage.handles.from_before_complete() if is_faster else 0,
        }

    def _open(self) -> dict[str, int]:
        namespace = self.names.namespace
        found = {"nodes": len(namespace.nodes), "names": len(namespace.names)}
        opened = self.storage.handles.statistics()
        opened["files"] += self.names.slot_table.figures().open
        return {**found, **opened}

    def _source(self) -> dict[str, object]:
        source, metrics = self.storage.source, self.basics.metrics
        return {
            "path": source.path,
            "id": source.source_id,
            "file_systems": source.file_systems.shown(),
            "reads": metrics["source_reads"],
            "bytes": metrics["source_read_bytes"],
            **self._counted(_OF_SOURCE, "source_"),
            "failure": source.threads.failure,
            "direct": source.files.direct,
            "in_doubt": len(source.second_looks),
            "wrong_sizes": source.files.wrong_sizes,
            "absolute_links": source.metadata.absolute_link_count,
            "absolute_links_named": list(source.metadata.absolute_links),
        }

    def _staged(self) -> dict[str, object]:
        figures = dataclasses.asdict(self.storage.cache.statistics())
        return {name.replace("shrunk_", "encoded_"): figure for name, figure in figures.items()}

    def _stage_encoding(self) -> dict[str, object]:
        encoding = self.storage.cache.shrinking.choice
        return {"wanted": self.basics.config.stage_encoding, "on": encoding.on, "reason": encoding.reason}

    def _queues(self) -> dict[str, int]:
        files, fetch = self.files, self.files.fetch
        return {
            "fetches": fetch.fetcher.in_flight,
            **files.prefetch.statistics(),
            **self.storage.source.threads.statistics(),
            "buffers_waiting": fetch.buffers.waiting,
            "threads_refused": self.basics.workers.refused,
        }


def _resident_bytes() -> int:
    return int(read_small("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGESIZE")
