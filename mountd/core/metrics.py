"""Counters of the daemon: declared once, added to from anywhere, read by `hfs status`.

They only grow, count since the daemon started, and are plain integers changed on the event loop's thread. What runs in
other threads returns its figures and is added by whoever awaited it.
"""

from __future__ import annotations

COUNTERS: dict[str, str] = {
    # what reached the source
    "source_reads": "reads sent to the source",
    "source_read_bytes": "bytes read from the source",
    "source_large_reads": "reads of files of several chunks",
    "source_large_read_bytes": "bytes read from files of several chunks",
    "source_large_reads_ordered": "such reads that began where the one before, of the same file, ended, or behind it",
    "source_opens": "files opened at the source",
    "source_stats": "stat and xattr calls at the source",
    "source_listings": "directories listed at the source",
    "source_errors": "source operations that failed for good",
    "source_retries": "source operations tried again",
    "source_abandoned": "source operations given up with their thread still stuck",
    "racy_reads": "reads of files that were changed so shortly before that they could be changed again unseen",
    "racy_reads_again": "files that were read a second time because they could have been changed again unseen",
    "racy_rewrites": "files that were found changed again without another ctime",
    # other nodes
    "peer_reads": "chunks, small files and parts of chunks that came from other nodes",
    "peer_read_bytes": "bytes that came from other nodes",
    "peer_misses": "chunks and small files that their owner node did not give, so the source was asked",
    "peer_read_slots": "reads of large files that waited for a read slot among all nodes of the job",
    "peer_read_slot_wait_ns": "nanoseconds that reads of large files have waited for a read slot",
    "peer_faults": "other nodes that did not answer, and answers that were wrong",
    "peer_served": "answers given to other nodes",
    "peer_served_bytes": "bytes given to other nodes",
    "peer_refused_busy": "requests of other nodes that were refused because too many waited",
    # what the daemon answered, by tier
    "reads_staged": "reads answered from staged files",
    "reads_flight": "reads that joined a fetch of a chunk under way",
    "reads_source": "reads that started the fetch of a chunk",
    "reads_bypass": "bypass reads: small extents of a large file, fetched for one reader",
    "bytes_staged": "bytes answered from staged files",
    "bytes_flight": "bytes answered from a fetch under way",
    "bytes_source": "bytes answered from a fetch they started",
    "bytes_bypass": "bytes answered from bypass reads",
    "bytes_large": "of all of these those of files of more than 8 MiB",
    "pushed_bytes": "bytes put into the kernel's page cache before they were asked for",
    "push_errors": "pushes that the kernel refused",
    # how opens were answered
    "opens_cached": "opens answered through the page cache",
    "opens_passed": "opens answered with the staged file itself, which the kernel reads without asking",
    "opens_anew": "opens sent to look the name up again, to be read another way then",
    "opens_stateless": "opens answered once and for all: the kernel asks for none after them",
    "opened_cached_bytes": "sizes of the files of at most 8 MiB that were opened through the page cache, for each open",
    "opened_passed_bytes": "the same of those that were passed through",
    "opens_large_passed": "opens of larger files that were passed through",
    "overlay_look_ups": "first look-ups of staged files in an overlay, which opens them by itself from then on",
    "overlay_look_up_bytes": "sizes of these files",
    "passthrough_refused": "staged files that the kernel did not take as a backing file",
    # fetched ahead
    "prefetched_chunks": "chunks fetched before they were asked for",
    "guessed_chunks": "chunks fetched because they followed another chunk before",
    "prefetch_dropped": "requests to fetch ahead that found the queue full",
    "stats_ahead": "files whose attributes were asked for because names are looked up in the order of a listing",
    "hinted_bytes": "bytes fetched because an order names them",
    "hinted_pushes": "files and chunks put into the page cache a moment before their use",
    "hinted_readahead_bytes": "bytes of staged files read into the page cache a moment before their use",
    "hinted_evictions": "staged files evicted because the orders need them last",
    "hints_missing": "files and chunks that an order names and that could not be fetched",
    "hints_refused": "layouts and orders that were refused",
    "learner_exposed_ns": "nanoseconds that learners have waited for their next batch, as they tell it",
    "learner_compute_ns": "nanoseconds that learners have computed, as they tell it",
    "learner_other_ns": "nanoseconds of learners that were neither, as they tell it",
    "learner_batches": "batches that learners have taken, as they tell it",
    "source_wait_ns": "nanoseconds that opens and reads have waited for the source",
    "source_waits": "opens and reads that have waited for the source",
    "prefetch_yields": "times that fetching ahead went back since readers of other mounts of the node wait",
    "prefetch_yielded_ns": "nanoseconds in which less was fetched ahead for that",
    "staging_yields": "times that writing to the cache disk went back since readers of other mounts of the node wait",
    "sibling_files": "small files fetched because their siblings were read",
    # staging
    "staging_errors": "failures of the cache disk or its index",
    "staging_dropped": "chunks not staged because the queue, the disk or the cache was full",
    "staging_behind": "chunks not staged because the queue was full: the cache disk is slower than the source",
    "staging_put_chunks": "chunks staged",
    "staging_put_bytes": "bytes staged",
    "staging_encoded_chunks": "chunks staged encoded",
    "staged_decoded_chunks": "encoded chunks that were read and decoded",
    "staged_decoded_bytes": "bytes of encoded chunks that were read and decoded",
    "staged_checksum_failures": "staged chunks found damaged and dropped",
    "staged_changed": "staged files that others had changed since they were left: verified again",
    "staged_verified_bytes": "staged bytes whose checksum was verified because they were used for the first time",
    "scrubbed_files": "staged files read from the disk again and compared with their checksums, by the scrub",
    "scrubbed_bytes": "bytes that the scrub has read from the disk",
    "scrub_rounds": "rounds of the scrub over all that is staged that came to their end",
    "scrub_damaged_chunks": "staged chunks that the scrub found damaged",
    "evicted_files": "staged files evicted",
    "evicted_bytes": "bytes evicted",
    # other users
    "permissions_asked": "questions to the source, as another user, whether it lets this user open, list or follow",
    "permissions_refused": "such questions that the source answered with no, and those that could not be asked",
    # promises
    "stale_served": "lookups, opens and listings answered from memory because the source did not answer in time",
    "version_changes": "files found changed at the source",
    "inodes_renumbered": "names found with another inode number, and with the size and times that they had",
    "short_replies": "replies that would have been too short and became errors",
    "interrupted": "requests given up because their reader was killed",
    "requests_put_off": "requests that waited since their user had as many under way as is his",
    "unexpected_errors": "exceptions that no rule foresaw (each is in the log)",
}


class Metrics:
    """The counters of one daemon. `add` of an undeclared name raises KeyError: a typing error must not hide."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(COUNTERS, 0)

    def add(self, name: str, n: int = 1) -> None:
        """Add `n` to counter `name`. Event loop only."""
        self._counts[name] += n

    def __getitem__(self, name: str) -> int:
        return self._counts[name]
