"""The object of `hfs status --json`: every key, in its order. Programs read it, so none may go or come unseen."""

import json
from pathlib import Path

from hfs.mountd.core.config import KEYS
from hfs.mountd.core.metrics import COUNTERS
from tests.fuse.harness import HfsMount, hfs_command, must

STATUS_KEYS = {
    "pid": "",
    "version": "",
    "mountpoint": "",
    "keeper": "pid reason restarts hung last_end mount_uptime_s journal",
    "uptime_s": "",
    "traffic": (
        "read_bytes passed_bytes memory_bytes source_bytes peer_bytes staged_bytes source_wait_s cpu_s "
        "loop_s core_wait_s yielded_s is_at_least minute"
    ),
    "io_mode": (
        "mode reason asked_for passthrough stateless overlay extension overlays backing_files faster_if_reopened"
    ),
    "by_kernel": "overlays look_ups bytes",
    "opens": "cached passed anew stateless",
    "source": (
        "path id file_systems reads bytes opens stats listings errors retries abandoned large_reads large_read_bytes "
        "large_reads_ordered failure direct in_doubt wrong_sizes absolute_links absolute_links_named"
    ),
    "peers": "mode reason reads read_bytes misses faults served served_bytes refused_busy",
    "reads": "staged flight source bypass",
    "read_bytes": "staged flight source bypass",
    "readers": "",
    "hints": "learners past layouts",
    "source_wait_s": "",
    "staged": (
        "files bytes room_bytes capacity_bytes pinned_files pinned_bytes encoded_bytes encoded_stored_bytes "
        "queued_bytes uncommitted_bytes state last_error full_because"
    ),
    "scrub": (
        "state rate_bytes_s measured_bytes_s round_bytes staged_bytes read_bytes damaged_chunks round_began "
        "last_round_ended rounds"
    ),
    "stage_encoding": "wanted on reason",
    "ahead": (
        "prefetched_chunks guessed_chunks prefetch_dropped prefetch_yields stats_ahead sibling_files hinted_bytes "
        "hints_missing pushed_bytes"
    ),
    "queues": (
        "fetches windows fills workers_busy stuck hanging metadata_running metadata_waiting demand_running "
        "demand_waiting prefetch_running prefetch_waiting buffers_waiting threads_refused"
    ),
    "memory": "buffer_bytes resident_bytes",
    "descriptors": "limit refused",
    "open": "nodes names files directories",
    "faults": (
        "staging_errors staging_dropped staged_checksum_failures staged_changed push_errors short_replies "
        "unexpected_errors"
    ),
    "other_users": "asked_as_user asked refused",
    "background_faults": "",
    "evicted": "files bytes",
    "interrupted": "",
    "version_changes": "",
    "stale_served": "",
    "page_cache": "note sampled_files sampled_bytes resident_bytes staged",
    "data_plane": (
        "threads opens_of reads_of opens_cached opens_passed releases reads read_bytes spliced lock_wait_ns "
        "cached_bytes passed_bytes large_passed large_read_bytes overlay_look_ups "
        "overlay_look_up_bytes delegated"
    ),
    "slots": "known held open look_ups attributes",
    "kernel": "read_ahead_kb max_background notes",
    "monitoring": "address error answered refused file file_error",
    "config": " ".join(key.name for key in KEYS),
    "counters": " ".join(COUNTERS),
}
"""Each key of the object with those of what it holds."""


def test_every_key_of_the_status_is_there_in_its_order(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = tmp_path / "source"
    source.mkdir()
    status = json.loads(must(hfs_command(), "status", hfs_mount(source).path, "--json"))
    assert list(status) == list(STATUS_KEYS)
    for key, inner in STATUS_KEYS.items():
        if inner:
            assert " ".join(status[key]) == inner
