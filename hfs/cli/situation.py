"""The situation of a mount (`policies.diagnosis`), from the status of its daemon and a look at who still lives."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hfs.mountd.supervisor.table import overlay_lies_at
from hfs.policies.diagnosis.situation import MOMENT_S, Situation


def situation_of(status: Mapping[str, Any]) -> Situation:
    """What an older or newer daemon does not say counts as nothing."""
    traffic = status.get("traffic") or {}
    minute = traffic.get("minute") or {}
    source, peers = status.get("source") or {}, status.get("peers") or {}
    staged, evicted = status.get("staged") or {}, status.get("evicted") or {}
    hints = status.get("hints") or {}
    counters = {name: counter.get("value", 0) for name, counter in (status.get("counters") or {}).items()}
    readers = sum(_lives(reader.get("pid", 0)) for reader in status.get("readers") or [])
    workers, kernel_opens = _workers(hints), bool((status.get("by_kernel") or {}).get("overlays"))
    if kernel_opens:  # who has read nothing but what is staged is none that the daemon has served
        readers = max(readers, workers.get("workers") or 0)
    return Situation(
        seconds=minute.get("seconds", 0.0),
        readers=readers,
        learners=len(hints.get("learners") or []),
        kernel_opens=kernel_opens,
        in_memory=in_memory(status),
        **{"cores": len(os.sched_getaffinity(0)), **workers},
        source_errors=source.get("errors", 0),
        source_failure=source.get("failure") or "",
        source_calls_hanging=(status.get("queues") or {}).get("hanging", 0),
        nodes_missing=", ".join([*(peers.get("gone") or []), *(peers.get("resting") or [])]),
        minute_source_bytes=minute.get("source_bytes", 0),
        minute_peer_bytes=minute.get("peer_bytes", 0),
        minute_staged_bytes=minute.get("staged_bytes", 0),
        minute_source_wait_s=minute.get("source_wait_s", 0.0),
        minute_loop_s=minute.get("loop_s", minute.get("cpu_s", 0.0)),
        minute_core_wait_s=minute.get("core_wait_s", 0.0),
        neighbour_demand_s=minute.get("yielded_s", 0.0),
        read_bytes=traffic.get("read_bytes", 0),
        source_bytes=traffic.get("source_bytes", 0),
        source_wait_s=status.get("source_wait_s", 0.0),
        **_epochs(hints),
        large_reads=source.get("large_reads", 0),
        large_reads_ordered=source.get("large_reads_ordered", 0),
        bypass_bytes=(status.get("read_bytes") or {}).get("bypass", 0),
        large_read_bytes=counters.get("bytes_large", 0),
        absolute_links=source.get("absolute_links", 0),
        renumbered=counters.get("inodes_renumbered", 0),
        version_changes=counters.get("version_changes", 0),
        slow_handles=(status.get("io_mode") or {}).get("faster_if_reopened", 0),
        evicted_bytes=evicted.get("bytes", 0),
        staged_bytes=staged.get("bytes", 0),
        room_bytes=staged.get("room_bytes", 0),
        capacity_bytes=staged.get("capacity_bytes") or 0,
        full_because=staged.get("full_because") or "",
        disk_state=staged.get("state", "ok"),
        disk_error=staged.get("last_error") or "",
        staging_behind=counters.get("staging_behind", 0),
        staged_chunks=counters.get("staging_put_chunks", 0),
    )


def in_memory(status: Mapping[str, Any]) -> float | None:
    """The share of what is staged that lies in memory, by a sample; None: nobody has looked."""
    sample = (status.get("page_cache") or {}).get("staged") or {}
    resident_bytes, sampled_bytes = sample.get("resident_bytes"), sample.get("sampled_bytes")
    return None if resident_bytes is None or not sampled_bytes else resident_bytes / sampled_bytes


def is_covered(status: Mapping[str, Any]) -> bool:
    """Whether an overlay lies over the mount here, where we see it."""
    return bool(status.get("mountpoint")) and overlay_lies_at(str(status["mountpoint"]))


def _lives(pid: int) -> bool:
    """And is not this command, which has looked at the mount too."""
    return pid > 0 and pid != os.getpid() and os.path.exists(f"/proc/{pid}")


def of_learner(situation: Situation, learner: Mapping[str, Any]) -> Situation:
    """The same, of one learner as the status tells it."""
    return replace(situation, **_means([learner]))


def _workers(hints: Mapping[str, Any]) -> dict[str, Any]:
    """What learners have told of who loads for them: a process that has started none does it itself. It may be several
    learners, one after the other or at once."""
    each: dict[Any, int] = {}
    cores = 0
    for learner in hints.get("learners") or hints.get("past") or []:
        epoch = _last_epoch(learner)
        if epoch is None:
            continue
        if epoch.get("workers") is None:
            return {}
        pid = learner.get("pid")
        each[pid] = max(1, epoch["workers"], each.get(pid, 0))
        cores = max(1, epoch.get("cores") or 0, cores)
    return {"workers": sum(each.values()), "loaders": len(each), "cores": cores} if each else {}


def _epochs(hints: Mapping[str, Any]) -> dict[str, Any]:
    return _means(hints.get("learners") or hints.get("past") or [])


def _means(learners: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The last epoch of each learner, on average."""
    last = [epoch for learner in learners if (epoch := _last_epoch(learner)) is not None]
    if not last:
        return {}

    def mean(*names: str) -> float:
        return sum(_sum(epoch, *names) for epoch in last) / len(last)

    return {
        "exposed_s": mean("exposed_s"),
        "epoch_s": mean("exposed_s", "compute_s", "other_s"),
        "epoch_source_wait_s": mean("source_wait_s"),
    }


def _last_epoch(learner: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The one before, where the last has only begun: its first batch is waited for, however fast everything is."""
    told = [epoch for epoch in learner.get("epochs") or [] if epoch.get("batches")]
    if len(told) > 1 and _sum(told[-1], "exposed_s", "compute_s", "other_s") < MOMENT_S:
        told.pop()
    return told[-1] if told else None


def _sum(epoch: Mapping[str, Any], *names: str) -> float:
    return float(sum(epoch.get(name) or 0.0 for name in names))
