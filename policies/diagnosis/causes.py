"""The causes for which jobs wait: how each shows in figures, what it costs, and the one change to make.

A cause costs the share of the readers' time that would be gone without it, about. What costs less than a twentieth is
nothing to change a job for. The order is that of the list where costs are equal. What the figures do not prove is not
named: a wrong remedy costs more than none. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hfs.policies.diagnosis.situation import MOMENT_S, Situation

WORTH = 0.05
"""Share of the time below which nothing is wrong: epochs of the same job differ by more."""

_MANY_READERS = 4
"""With fewer workers siblings and readahead keep up without a hint (docs/benchmarks.md: first epochs)."""
_BUSY = 0.7
"""Of a core: the daemon's event loop is one thread, and near that everything queues."""
_RANDOM = 0.4
"""A full random order: more than this share of the bytes is fetched sample by sample, or less of the source's reads
begin where another has ended."""
_NEARLY = 3 / 4
"""Of its room: a cache that evicts by use keeps an eighth free."""
_SOME_READS = 64
_DECODING, _UNSEEN = "its own decoding", "its own decoding or the cache disk"
_IN_MEMORY = 0.9
"""Of what is staged: the rest is read from the cache disk so seldom that it costs nothing."""
_MANY_NUMBERS = 10
"""Names with another inode number. One or two may be chance: a file that was replaced within one tick of the clock."""

LASTING_NUMBERS = (
    "an option of that file system for lasting numbers, or --immutable if nobody changes SOURCE while it is mounted: "
    "what was seen once is believed from then on (hfs refresh has it looked at again)"
)


class Finding(NamedTuple):
    """One cause."""

    name: str
    cost: float
    """Share of the readers' time, 0..1."""
    what: str
    evidence: str
    remedy: str


def found(situation: Situation) -> list[Finding]:
    """What is wrong, the most expensive first; empty: nothing."""
    findings = [finding for cause in _CAUSES if (finding := cause(situation)) is not None and finding.cost >= WORTH]
    return sorted(findings, key=lambda finding: -finding.cost)


def nothing(situation: Situation) -> str:
    """What is to be said where no cause was found; empty: nobody waits."""
    what, share = waits_for(situation), max(situation.wait_share, situation.blocked_share)
    if what == _DECODING:
        return "jobs wait for their own decoding: their data is here"
    if what == _UNSEEN:
        return (
            "jobs wait for their own decoding, or for the cache disk: the kernel reads what is staged by itself, and "
            "nobody sees how long that takes"
        )
    if not what:
        return ""
    if situation.minute_staged_bytes > max(situation.minute_source_bytes, situation.minute_peer_bytes) / 2:
        return "what jobs wait for is read for the first time; it is staged, and later epochs find it here"
    return f"jobs wait for {what}, {_percent(share)} of their time; why is not known: hfs status --all"


def waits_for(situation: Situation) -> str:
    """What those who wait for data wait for, in one word or two; empty: they do not wait."""
    if situation.wait_share < WORTH:
        return ""
    if _is_blocked(situation):
        return "other nodes" if _peers_give_more(situation) else "the source"
    if _loop_share(situation) >= _BUSY:
        return "the daemon"
    is_in_memory = situation.in_memory is not None and situation.in_memory >= _IN_MEMORY
    return _UNSEEN if situation.kernel_opens and not is_in_memory else _DECODING


def _amount(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.3g} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _epoch_blocked(s: Situation) -> float:
    return min(1.0, s.epoch_source_wait_s / (s.epoch_s * max(1, s.readers))) if s.epoch_s > 0 else 0.0


def _is_blocked(s: Situation) -> bool:
    """Who waits, waits for bytes that are not on this node."""
    return max(s.blocked_share, _epoch_blocked(s)) >= s.wait_share / 2


def _peers_give_more(s: Situation) -> bool:
    return s.minute_peer_bytes > s.minute_source_bytes


def _source_share(s: Situation) -> float:
    """What waiting for the source, or for other nodes in its place, costs."""
    if s.epoch_s > 0:
        return s.wait_share if _is_blocked(s) and s.wait_share >= WORTH else 0.0
    return s.blocked_share


def _loop_share(s: Situation) -> float:
    """Share of the time in which its event loop computes, or is ready to and has no core. The threads of the data plane
    are as many as there are cores: they may compute all the time while nothing queues. A daemon that begins is busy for
    a moment."""
    busy_s = s.minute_loop_s + s.minute_core_wait_s
    return busy_s / s.seconds if s.seconds > 0 and busy_s >= MOMENT_S else 0.0


def _source_fails(s: Situation) -> Finding | None:
    if not s.source_failure:
        return None
    return Finding(
        "source-errors",
        1.0,
        "the source answers with errors: only what is staged can be read",
        f"failed operations: {s.source_errors:,}, the last one with: {s.source_failure}",
        "see what is wrong with SOURCE: ls it, ask its servers; if it was mounted anew meanwhile, hfs umount and hfs "
        "mount again",
    )


def _source_hangs(s: Situation) -> Finding | None:
    if not s.source_calls_hanging or s.source_failure:
        return None
    return Finding(
        "source-hangs",
        max(_source_share(s), WORTH),
        "the source does not answer, and says no error: who reads from it waits, what is staged can be read",
        f"calls that are at the source for longer than a call takes: {s.source_calls_hanging:,}",
        "see whether SOURCE answers (timeout 10 ls), and ask its servers; what waits goes on when it does",
    )


def _is_full(s: Situation) -> bool:
    return s.disk_state == "full"


def _disk(s: Situation) -> Finding | None:
    if s.disk_state in ("resting", "off"):
        return Finding(
            "cache-disk",
            max(_source_share(s), WORTH),
            "the cache disk is not written to: "
            + ("the last try failed" if s.disk_state == "resting" else "the cache cannot be used"),
            s.disk_error or f"state {s.disk_state}",
            "look at the disk of --cache (dmesg, df), or choose another",
        )
    if s.staging_behind > s.staged_chunks / 10 and s.staging_behind > 16:
        return Finding(
            "cache-disk",
            _source_share(s),
            "the cache disk is slower than the source: what it does not take is read again in the next epoch",
            f"{s.staging_behind:,} chunks were not staged for that, {s.staged_chunks:,} were",
            "put --cache on a faster disk of this node, or have the data warmed before: hfs cache warm",
        )
    return None


def _links(s: Situation) -> Finding | None:
    if not s.absolute_links:
        return None
    return Finding(
        "links",
        max(WORTH, _source_share(s)),
        "symbolic links lead past the mount: what is read through them is read from the shared file system directly",
        f"absolute links: {s.absolute_links:,}, named in hfs status --json under source",
        "mount over the source (hfs run without --at), or make the links relative",
    )


def inode_numbers(s: Situation) -> Finding | None:
    """Whether the source makes inode numbers anew."""
    if s.renumbered < _MANY_NUMBERS or 2 * s.renumbered <= s.version_changes:
        return None
    return Finding(
        "inode-numbers",
        max(WORTH, _source_share(s)),
        "the source gives the same files other inode numbers, and each is another file: it is fetched again",
        f"{s.renumbered:,} times a name had another number and the size and times of before; "
        f"{s.version_changes:,} files were found changed in all",
        LASTING_NUMBERS,
    )


def _handles(s: Situation) -> Finding | None:
    if not s.slow_handles:
        return None
    return Finding(
        "handles",
        WORTH,
        "files were opened before they were staged, and are read through the daemon as long as they stay open",
        f"such files that are open: {s.slow_handles:,}",
        "open them again at the beginning of an epoch (in PyTorch: persistent_workers=False, or reopen in the dataset)",
    )


def _cache_size(s: Situation) -> Finding | None:
    evicts = s.evicted_bytes >= s.capacity_bytes / 10 and s.room_bytes >= _NEARLY * s.capacity_bytes
    if not _is_full(s) and not (s.capacity_bytes and evicts):  # a full disk may leave the cache no room at all
        return None
    used = f"{_amount(s.room_bytes)} of {_amount(s.capacity_bytes)} are used"
    return Finding(
        "cache-size",
        _source_share(s),
        "the cache is full: what has no room in it is read from the source each time",
        f"{used}; {s.full_because or f'{_amount(s.evicted_bytes)} were evicted'}",
        "mount with a larger --cache-size, or a larger disk (hfs cache warm --dry-run tells what the data takes); or "
        "evict what no job reads: hfs cache evict",
    )


def _random(s: Situation) -> Finding | None:
    in_pieces = s.bypass_bytes > _RANDOM * s.large_read_bytes > 0 and not _is_full(s)  # so is what has no room
    unordered = s.large_reads > _SOME_READS and s.large_reads_ordered < _RANDOM * s.large_reads
    if not (in_pieces or unordered):
        return None
    return Finding(
        "random-order",
        _source_share(s),
        "samples of large files are read in fully random order: the source is read in small pieces",
        f"{_amount(s.bypass_bytes)} of {_amount(s.large_read_bytes)} of large files were fetched for one sample each; "
        f"{s.large_reads_ordered:,} of {s.large_reads:,} reads of the source went on where another had ended",
        "shuffle groups of neighbours: hfs.samplers.GroupShuffleSampler; or hint the order: hinted(sampler)",
    )


def _no_hint(s: Situation) -> Finding | None:
    if s.learners or s.readers < _MANY_READERS:
        return None
    return Finding(
        "no-hint",
        _source_share(s),
        f"{s.readers} readers, and nobody has told the order in which they read",
        f"readers were blocked by the source for {_percent(s.blocked_share)} of their time",
        "tell it: sampler = hinted(sampler, files=..., mount=...), or from outside hfs-hint record and replay",
    )


def _nodes(s: Situation) -> Finding | None:
    if not s.nodes_missing:
        return None
    return Finding(
        "nodes",
        _source_share(s),
        "other nodes of the job do not answer: what they had cached comes from the source again",
        f"gone or silent: {s.nodes_missing}",
        "see whether their daemons live and are heard: hfs status --cluster, and hfs status there",
    )


def _source(s: Situation) -> Finding | None:
    if not s.learners:
        return None  # what is read for the first time is waited for, and nobody could fetch it ahead
    given_bytes = max(s.minute_source_bytes, s.minute_peer_bytes)
    rate = given_bytes / s.seconds if s.seconds > 0 else 0.0
    return Finding(
        "source",
        _source_share(s),
        "the other nodes are slower than the job" if _peers_give_more(s) else "the source is slower than the job",
        f"{'they' if _peers_give_more(s) else 'it'} gave {rate / 1e6:.3g} MB/s, and readers waited for that for "
        f"{_percent(s.blocked_share)} of their time",
        "have the data here before the job begins: hfs cache warm; later epochs do not wait",
    )


def _neighbours(s: Situation) -> Finding | None:
    if s.neighbour_demand_s < s.seconds / 4:
        return None
    return Finding(
        "another-job",
        _source_share(s) + WORTH / 2 if _source_share(s) else 0.0,
        "another job of this node reads from source or cache disk too, and goes before what is fetched ahead here",
        f"fetching ahead has stepped back for {s.neighbour_demand_s:.0f} of {s.seconds:.0f} s",
        "start the jobs one after the other, or warm the data of this one before: hfs cache warm",
    )


def _daemon(s: Situation) -> Finding | None:
    share = _loop_share(s)
    if share < _BUSY:
        return None
    waits = s.wait_share if s.epoch_s > 0 else WORTH
    computes, without = s.minute_loop_s / s.seconds, s.minute_core_wait_s / s.seconds
    said = f"its event loop computes {computes:.1f} s each second"
    said += f" and has no core for {without:.1f} s" if without > 0.1 else ""
    return Finding(
        "daemon-cpu",
        waits,
        "the daemon itself is busy",
        f"{said}, on {s.cores} cores",
        "give it a core (fewer workers, or a larger --cpus-per-task); --immutable or fewer, larger files cost it less",
    )


def _workers(s: Situation) -> Finding | None:
    if s.epoch_s <= 0 or waits_for(s) != _DECODING or s.workers is None:
        return None
    each = min(s.cores, max(2, 2 * s.workers)) // s.loaders
    if each * s.loaders <= s.workers:
        return None
    learners = f" for each of {s.loaders} learners" if s.loaders > 1 else ""
    return Finding(
        "workers",
        s.wait_share,
        "the job waits for its own decoding: the data is here",
        f"learners waited {_percent(s.wait_share)} of the time, for the source {_percent(_epoch_blocked(s))}",
        f"more workers: num_workers={each}{learners} (on {s.cores} cores {s.workers} load at most)",
    )


_CAUSES: tuple[Callable[[Situation], Finding | None], ...] = (
    *(
        _source_fails,
        _source_hangs,
        _disk,
        inode_numbers,
        _links,
        _neighbours,
        _cache_size,
        _random,
        _nodes,
        _no_hint,
        _source,
        _daemon,
        _workers,
        _handles,
    ),
)
