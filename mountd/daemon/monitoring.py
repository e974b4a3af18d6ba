"""Monitoring: the figures of this daemon for systems that collect them, each from where it is known.

They may be asked for many times a second: nothing here walks over files or processes, or looks at what is not in
memory. They are those of `hfs status --json`, which takes its time.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata

import trio

from hfs.mountd.core.background import faults
from hfs.mountd.core.metrics import COUNTERS
from hfs.mountd.core.open_files import read_small
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.control import read_counts
from hfs.mountd.daemon.files import FileService
from hfs.mountd.daemon.names import NameService
from hfs.mountd.daemon.storage import Storage
from hfs.mountd.monitoring import Figure, MonitoringStatus, open_monitoring
from hfs.policies.traffic import estimated

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")

_PROCESS_EVERY_S = 1.0
"""What the kernel has to add up over all threads is a third of all the work, and needs no telling more often."""

_TIERS = ("staged", "flight", "source", "bypass")
_AS_COUNTED = (
    *((f"reads.{tier}", f"reads_{tier}") for tier in _TIERS),
    *((f"read_bytes.{tier}", f"bytes_{tier}") for tier in _TIERS),
    *((f"opens.{answer}", f"opens_{answer}") for answer in ("cached", "passed", "anew", "stateless")),
)
"""Figures of the status, and the counters that they are; of some the data plane has more."""


@asynccontextmanager
async def open_metrics(
    basics: Basics, storage: Storage, names: NameService, files: FileService, nursery: trio.Nursery
) -> AsyncIterator[MonitoringStatus]:
    """Tell them until the block is left."""
    figures = _Figures(basics, storage, names, files)
    named = {"source.path": basics.config.source, "version": metadata.version("hfs-cache")}
    async with open_monitoring(
        basics.config,
        figures.gather,
        named,
        basics.open_files,
        basics.workers.run_patient,
        nursery,
        follows=basics.journal.generation > 0,
    ) as monitoring:
        yield monitoring


class _Figures:
    """All that `mountd.monitoring`'s FIGURES name."""

    def __init__(self, basics: Basics, storage: Storage, names: NameService, files: FileService) -> None:
        self._basics = basics
        self._storage = storage
        self._names = names
        self._files = files
        self._started_s = time.time()
        self._process: dict[str, Figure] = {}
        self._look_again_s = 0.0
        self._job_bytes = 0
        """Of an estimate, which may go back a little; a counter may not."""

    def gather(self) -> dict[str, Figure]:
        """The figures of this moment; those of the process of the last second."""
        metrics = self._basics.metrics
        if time.monotonic() >= self._look_again_s:
            self._look_again_s = time.monotonic() + _PROCESS_EVERY_S
            self._process = _of_process()
        figures: dict[str, Figure] = {name: metrics[name] for name in COUNTERS}
        figures.update(self._process)
        self._add_daemon(figures)
        self._add_staging(figures)
        self._add_fetching(figures)
        self._add_files(figures)
        return figures

    def _add_daemon(self, figures: dict[str, Figure]) -> None:
        basics, handover = self._basics, self._basics.handover
        figures["start_time_s"] = self._started_s
        figures["mount_start_time_s"] = handover.mounted_s
        figures["keeper.restarts"] = handover.restarts
        figures["keeper.hung"] = handover.hung
        figures["memory.buffer_bytes"] = self._files.fetch.buffers.used_bytes
        figures["background_faults"] = sum(faults().values())
        figures["descriptors.refused"] = basics.open_files.refused
        figures["queues.threads_refused"] = basics.workers.refused

    def _add_staging(self, figures: dict[str, Figure]) -> None:
        staged = self._storage.cache.statistics()
        figures["staged.files"] = staged.files
        figures["staged.bytes"] = staged.bytes
        figures["staged.room_bytes"] = staged.room_bytes
        figures["staged.capacity_bytes"] = staged.capacity_bytes
        figures["staged.queued_bytes"] = staged.queued_bytes
        figures["staged.uncommitted_bytes"] = staged.uncommitted_bytes
        figures["staged.state"] = staged.state
        figures["learners"] = len(self._storage.learners)

    def _add_fetching(self, figures: dict[str, Figure]) -> None:
        fetch = self._files.fetch
        for queues in (self._files.prefetch.statistics(), self._storage.source.threads.statistics()):
            for name, figure in queues.items():
                figures[f"queues.{name}"] = figure
        figures["queues.fetches"] = fetch.fetcher.in_flight
        figures["queues.buffers_waiting"] = fetch.buffers.waiting
        figures["small_files_running"] = self._storage.fetches.figures().jobs

    def _add_files(self, figures: dict[str, Figure]) -> None:
        metrics, namespace = self._basics.metrics, self._names.namespace
        plane, leaves = self._files.plane.figures(), self._names.leaf_table.figures()
        for figure, counter in _AS_COUNTED:
            figures[figure] = metrics[counter]
        figures["reads.staged"] = metrics["reads_staged"] + plane.reads
        figures["read_bytes.staged"] = metrics["bytes_staged"] + plane.read_bytes
        figures["opens.cached"] = metrics["opens_cached"] + plane.opens_cached
        figures["opens.passed"] = metrics["opens_passed"] + plane.opens_passed
        self._job_bytes = max(self._job_bytes, estimated(read_counts(metrics, self._files, plane)).read_bytes)
        figures["traffic.read_bytes"] = self._job_bytes
        figures["by_kernel.look_ups"], figures["by_kernel.bytes"] = self._files.by_kernel.look_ups()
        figures["io_mode.mode"] = self._files.io_mode.choice.mode
        figures["open.nodes"] = len(namespace.nodes)
        figures["open.names"] = len(namespace.names)
        figures["data_plane.delegated"] = len(self._files.delegations)
        figures["data_plane.opens_cached"] = plane.opens_cached
        figures["data_plane.opens_passed"] = plane.opens_passed
        figures["data_plane.releases"] = plane.releases
        figures["data_plane.reads"] = plane.reads
        figures["data_plane.lock_wait_ns"] = plane.lock_wait_ns
        figures["leaves.look_ups"] = leaves.look_ups
        figures["leaves.attributes"] = leaves.attributes


def _of_process() -> dict[str, Figure]:
    return {
        "cpu_ns": time.process_time_ns(),
        "memory.resident_bytes": int(read_small("/proc/self/statm").split()[1]) * _PAGE_BYTES,
    }
