"""The one table of all metrics: their names, kinds, what they mean, and which figure each is.

The text that monitoring systems are given and the table in docs/monitoring.md are both made from it. A figure is a
counter (`mountd.core.metrics`), or what `hfs status --json` has under that path; the few that it has in other words are
made by mountd/daemon/status.py. Counters that no row names are told as they are, so a new one shows up by itself.

Labels are words that stand here, never names of files, users or processes: how many series a mount has is known
beforehand. Besides, each has the label `mountpoint`, which tells the mounts of a machine apart.

Only data: reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal, NamedTuple, get_args

from hfs.mountd.core.metrics import COUNTERS
from hfs.policies.iomode import Mode

Kind = Literal["counter", "gauge", "info"]

PREFIX = "hfs_"


class Sample(NamedTuple):
    """One series of a family."""

    figure: str
    """A counter, or a path of the status. "PATH=WORD": 1 while the status says so there, else 0. Empty: always 1. One
    that ends with _ns is told in seconds."""
    labels: tuple[tuple[str, str], ...] = ()
    """Of an info: the figure that is the value of the label; else the value itself."""


class Family(NamedTuple):
    """A metric."""

    name: str
    """Without the ending that its kind adds (`_total` of a counter, `_info`)."""
    kind: Kind
    help: str
    samples: tuple[Sample, ...]

    @property
    def unit(self) -> str:
        """A base unit, which the name ends with; empty if it is a plain number."""
        last = self.name.rpartition("_")[2]
        return last if last in {"bytes", "seconds"} else ""

    @property
    def sample_name(self) -> str:
        """What each of its samples is called."""
        return self.name + {"counter": "_total", "gauge": "", "info": "_info"}[self.kind]


def _family(kind: Kind, name: str, meaning: str, figure: str = "", /, **labels: Mapping[str, str]) -> Family:
    """`labels`: at most one, with the figure of each of its values."""
    samples = [
        Sample(of_value, ((label, value),)) for label, figures in labels.items() for value, of_value in figures.items()
    ]
    return Family(PREFIX + name, kind, meaning, tuple(samples) or (Sample(figure),))


_counter = partial(_family, "counter")
_gauge = partial(_family, "gauge")


def _words(figure: str, words: tuple[str, ...]) -> dict[str, str]:
    """Of a figure that is one of these words: a sample for each."""
    return {word: f"{figure}={word}" for word in words}


def _plain(counter: str, meaning: str) -> Family:
    """A counter as it is."""
    name = f"{counter.removesuffix('_ns')}_seconds" if counter.endswith("_ns") else counter
    name = f"{name.removeprefix('bytes_')}_bytes" if name.startswith("bytes_") else name
    meaning = meaning.removeprefix("nanoseconds ") if counter.endswith("_ns") else meaning
    words = f"seconds {meaning}" if counter.endswith("_ns") else meaning
    return _counter(name, f"{words[0].upper()}{words[1:]}.", counter)


_POOLS = ("metadata", "demand", "prefetch")
_TIERS = ("staged", "flight", "source", "bypass")
_ANSWERS = ("cached", "passed", "anew", "stateless")
_STATES = ("ok", "cleaning", "resting", "full", "off")
"""`mountd.cache`'s State; tests compare them."""

_DECLARED = (
    Family(
        "hfs_mount",
        "info",
        "What is mounted, and by which release.",
        (Sample("", (("source", "source.path"), ("version", "version"))),),
    ),
    # -- the daemon
    _gauge("start_time_seconds", "When the daemon was started, in seconds since 1970.", "start_time_s"),
    _gauge("mount_start_time_seconds", "When the mount was made, in seconds since 1970.", "mount_start_time_s"),
    _counter("restarts", "Daemons of this mount that ended without being asked to.", "keeper.restarts"),
    _counter("hung", "Of these those that the keeper ended since they did not answer.", "keeper.hung"),
    _gauge(
        "io_mode",
        "1 for the way in which reads are served now, 0 for the others.",
        io_mode=_words("io_mode.mode", get_args(Mode)),
    ),
    _counter("cpu_seconds", "Time that the daemon has computed, all of its threads.", "cpu_ns"),
    _gauge(
        "memory_bytes",
        "Memory of the daemon: all of it, and of that the buffers of chunks in flight.",
        kind={"resident": "memory.resident_bytes", "buffers": "memory.buffer_bytes"},
    ),
    # -- reads
    _counter(
        "job_read_bytes",
        "Bytes that jobs have read, whoever answered: about, by the sizes of the files that they opened; of files of "
        "more than 8 MiB, and where there are overlays, only what the daemon has answered.",
        "traffic.read_bytes",
    ),
    _counter(
        "cache_hits",
        "Reads answered from what was here: staged files, or memory where a fetch had brought it.",
        tier={"staged": "reads.staged", "memory": "reads.flight"},
    ),
    _counter(
        "cache_misses",
        "Reads that something was fetched for: a chunk or file that is kept, or a bypass read, which is not.",
        tier={"source": "reads.source", "bypass": "reads.bypass"},
    ),
    _counter(
        "read_bytes",
        "Bytes that readers were given by the daemon, by where they came from. What the kernel answers by itself "
        "(page cache, passthrough, overlays) is not counted.",
        tier={
            "staged": "read_bytes.staged",
            "memory": "read_bytes.flight",
            "source": "read_bytes.source",
            "bypass": "read_bytes.bypass",
        },
    ),
    _counter(
        "fetched_bytes",
        "Bytes that came to this node, by origin.",
        origin={"source": "source_read_bytes", "peer": "peer_read_bytes"},
    ),
    _counter(
        "opens",
        "Opens, by how they were answered: through the page cache, passed through, to be repeated, or once and for "
        "all.",
        answer={answer: f"opens.{answer}" for answer in _ANSWERS},
    ),
    _counter(
        "overlay_look_ups",
        "First look-ups of staged files in an overlay, which opens them by itself from then on: how often they are "
        "read nobody counts.",
        "by_kernel.look_ups",
    ),
    _counter("overlay_look_up_bytes", "Sizes of these files.", "by_kernel.bytes"),
    _counter(
        "stall_seconds", "Time that opens and reads have waited for the source, added up over all.", "source_wait_ns"
    ),
    # -- the source
    _gauge(
        "source_calls_running",
        "Calls that are at the source now, each in a thread. Small files fetched by the data plane are besides.",
        pool={pool: f"queues.{pool}_running" for pool in _POOLS},
    ),
    _gauge(
        "source_calls_waiting",
        "Calls that wait for a thread.",
        pool={pool: f"queues.{pool}_waiting" for pool in _POOLS},
    ),
    _gauge("source_calls_hanging", "Calls that are at the source for longer than a call takes.", "queues.hanging"),
    _gauge("source_threads_stuck", "Threads given up that have not come back from the source.", "queues.stuck"),
    _gauge("fetches_running", "Chunks and batches of small files that are being fetched.", "queues.fetches"),
    _gauge("small_files_running", "Small files that the data plane fetches, or is to.", "small_files_running"),
    # -- what is staged
    _gauge("cache_capacity_bytes", "What this mount's cache may use as things stand.", "staged.capacity_bytes"),
    _gauge("cache_used_bytes", "What it uses on the disk.", "staged.room_bytes"),
    _gauge(
        "cache_state",
        "1 for the state that the cache is in, 0 for the others. Cleaning: what a crash has left is looked "
        "through, and nothing is staged yet; resting: the disk has failed and is tried again; full: the last chunk "
        "found no room; off: nothing is staged any more.",
        state=_words("staged.state", _STATES),
    ),
    _gauge("stage_done_files", "Files that are staged, complete or not.", "staged.files"),
    _gauge("stage_done_bytes", "Bytes that are staged.", "staged.bytes"),
    _gauge("stage_queued_bytes", "Bytes in memory that wait for the cache disk.", "staged.queued_bytes"),
    _gauge("stage_uncommitted_bytes", "Bytes that are written and not yet durable.", "staged.uncommitted_bytes"),
    _counter("stage_failed", "Failures of the cache disk or its index.", "staging_errors"),
    _counter(
        "stage_dropped_chunks",
        "Chunks not staged because the queue, the disk or the cache was full.",
        "staging_dropped",
    ),
    _counter("cache_evictions", "Staged files evicted.", "evicted_files"),
    _counter("cache_evicted_bytes", "Bytes evicted.", "evicted_bytes"),
    # -- learners
    _gauge("learners", "Learners that have joined and tell their order.", "hints.learners"),
    _counter(
        "learner_seconds",
        "Time of learners as they tell it: exposed (waiting for the next batch), computing, and other.",
        part={"exposed": "learner_exposed_ns", "compute": "learner_compute_ns", "other": "learner_other_ns"},
    ),
    # -- queues
    _gauge(
        "prefetch_queue",
        "What waits to be fetched ahead: chunks that readers come to, and chunks that fill up files.",
        kind={"windows": "queues.windows", "fills": "queues.fills"},
    ),
    _gauge("prefetch_workers_busy", "Workers that fetch ahead now.", "queues.workers_busy"),
    _gauge("buffers_waiting", "Fetches that wait for a buffer.", "queues.buffers_waiting"),
    # -- the kernel's side
    _gauge("nodes", "Files and directories that the daemon knows for the kernel.", "open.nodes"),
    _gauge("names", "Names that it remembers.", "open.names"),
    _gauge("delegated_files", "Files whose opens the data plane answers.", "data_plane.delegated"),
    _counter(
        "data_plane_requests",
        "Requests answered without Python.",
        request={
            "look_up": "slots.look_ups",
            "attributes": "slots.attributes",
            "open_cached": "data_plane.opens_cached",
            "open_passed": "data_plane.opens_passed",
            "release": "data_plane.releases",
            "read": "data_plane.reads",
        },
    ),
    _counter(
        "data_plane_lock_wait_seconds",
        "Time that the threads of the data plane have waited for each other.",
        "data_plane.lock_wait_ns",
    ),
    # -- faults
    _counter("background_faults", "Unforeseen errors of background tasks.", "background_faults"),
    _counter(
        "resources_refused",
        "How often the system had no descriptor, or no thread, to give.",
        kind={"descriptors": "descriptors.refused", "threads": "queues.threads_refused"},
    ),
)


def _rest() -> Iterator[Family]:
    """Counters that no row above names. What rows add to a counter, or tell by another name, is told there alone."""
    told = {sample.figure for family in _DECLARED for sample in family.samples}
    told |= {f"{what}_{tier}" for what in ("reads", "bytes") for tier in _TIERS}
    told |= {f"opens_{answer}" for answer in _ANSWERS}
    told |= {"bytes_large", "opened_cached_bytes", "opened_passed_bytes", "opens_large_passed"}  # traffic.read_bytes
    told |= {"overlay_look_ups", "overlay_look_up_bytes"}
    return (_plain(name, meaning) for name, meaning in COUNTERS.items() if name not in told)


FAMILIES = (*_DECLARED, *_rest())
"""In the order in which they are told."""
