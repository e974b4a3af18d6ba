"""The configuration of one mount: one frozen object, and the one place where its keys are declared.

A key is a field of `Config`: its type and default, and beside them its `Key`: section, kind of value, what it means.
Its name is that of the field without the unit. `loading` fills and checks it; the options of hfs, `hfs config`, `hfs
status` and the tables of docs/configuration.md are made from it. A new key is a new field here and its user, nothing
else. Units are in the names of the fields: `_s` seconds, `_bytes`, `_bytes_s` bytes a second.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal, get_args

import msgspec

from hfs.mountd.core.config.key import (
    ADDRESS,
    ANSWER_THREADS,
    CHUNK,
    DIRECTORY,
    DURATION,
    FILE,
    FILE_OR_DIRECTORY,
    FLAG,
    IDENTITY,
    LISTEN,
    MIB,
    NICE,
    PEERS,
    RATE,
    SIZE,
    SOCKET,
    THREADS,
    USER,
    Key,
    choice,
    one_of,
)
from hfs.mountd.core.hostlist import DEFAULT_LISTEN
from hfs.policies.cache.encoding import EncodingWanted
from hfs.policies.cache.eviction import DEFAULT, POLICIES
from hfs.policies.iomode import Wanted

# The headings of docs/configuration.md that keys stand under.
PLACES = partial(Key, "Places")
READERS = partial(Key, "What readers see")
KEPT = partial(Key, "What is kept")
FETCHED = partial(Key, "What is fetched, and how")
NODES = partial(Key, "Several nodes")
TOLD = partial(Key, "Logs and metrics")

# The words that some keys choose from.
Direct = Literal["auto", "off"]
PlacementWanted = Literal["auto", "partition", "replicate"]
VerifyWanted = Literal["first-use", "changed"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What one mount was told. Paths are absolute once `hfs mount` hands it to the daemon; they may hold surrogates."""

    source: Annotated[
        str,
        PLACES(
            DIRECTORY,
            "The directory to show.",
            given="SOURCE, or `--source` of `hfs run`",
            missing="the directory to show",
        ),
    ]
    mountpoint: Annotated[
        str,
        PLACES(
            DIRECTORY,
            "Where to show it: an existing, empty directory.",
            given="MOUNTPOINT, or `--at` of `hfs run`",
            missing="the directory to show it at",
        ),
    ]
    cache: Annotated[
        str,
        PLACES(
            DIRECTORY,
            "Keep what was read below this directory, on a disk of this machine: a cache for each source and user, see "
            "[one cache for the node](sharing.md).",
            option=True,
            missing="--cache DIR, a directory on a disk of this machine",
        ),
    ]
    cache_size_bytes: Annotated[
        int | None,
        PLACES(
            SIZE,
            "At most this much in all of `cache`, like 500G, as long as a twentieth of the disk (at most 1 GB) stays "
            "free. Must be given on tmpfs.",
            option=True,
            default="all but max(10 %, 10 GB) of the disk",
        ),
    ] = None
    chunk_bytes: Annotated[
        int,
        KEPT(
            CHUNK,
            "Read SOURCE, and keep it, in pieces of this size. A power of two, 64K to 64M, so large that bandwidth, "
            "not latency, is what a piece costs (42 ms at 200 MB/s against 1 ms).",
            option=True,
        ),
    ] = 8 * MIB
    ttl_s: Annotated[
        float,
        READERS(
            DURATION.within("seconds, or like 500ms, 10m, 2h; 0 asks the source every time"),
            "Believe names, attributes and listings this long. 0 asks the source every time. A data set rarely changes "
            "under a job, NFS clients wait as long, and one stat per minute and file costs nothing.",
            option=True,
        ),
    ] = 60.0
    immutable: Annotated[
        bool, READERS(FLAG, "Believe them for ever: SOURCE does not change. Wins over `ttl`.", option=True)
    ] = False
    over: Annotated[bool, PLACES(FLAG, "Allow a MOUNTPOINT that is not empty, also SOURCE itself.", option=True)] = (
        False
    )
    linger_s: Annotated[
        float,
        PLACES(
            DURATION.within("seconds, or like 10m; 0 unmounts at once"),
            "How long a mount of `hfs run` stays after the last command that used it, so that the next one finds it.",
            option=True,
            default="0s; 10m in a job array (PBS, LSF, Slurm without cgroups)",
        ),
    ] = 0.0
    io_mode: Annotated[
        Wanted,
        READERS(
            choice(Wanted),
            "How reads are served. `auto` takes the fastest that is possible; see [I/O modes](io-modes.md).",
            option=True,
        ),
    ] = "auto"
    foreground: Annotated[bool, PLACES(FLAG, "Stay, and log to stderr; Ctrl-C unmounts.", given="`--foreground`")] = (
        False
    )
    source_id: Annotated[
        str | None,
        READERS(
            IDENTITY,
            "A fixed identity of SOURCE's file system, 16 hex digits. For two nodes or mounts that do not agree on it, "
            "or where none can be found (tmpfs, overlay, some FUSE file systems): see "
            "[promises](promises.md#file-systems-below-source).",
            option=True,
            default="found by itself",
        ),
    ] = None
    eviction: Annotated[
        str,
        KEPT(
            one_of(POLICIES),
            "What goes when the cache is full. " + " ".join(f"`{one.name}`: {one.help}." for one in POLICIES.values()),
            option=True,
        ),
    ] = DEFAULT
    expire_s: Annotated[
        float,
        KEPT(
            DURATION.within("seconds, or like 12h, 30d; 0 never"),
            "What nobody has used for so long goes, though there is room. Looked at each hour; 0: nothing goes so.",
        ),
    ] = 0.0
    stage_encoding: Annotated[
        EncodingWanted,
        KEPT(
            choice(EncodingWanted),
            "`auto`: where the data does not fit the cache, keep what shrinks by a third or more encoded. It is then "
            "not handed to the kernel: see [encoded samples](encoded-samples.md#only-in-the-cache).",
            option=True,
        ),
    ] = "none"
    source_timeout_s: Annotated[
        float,
        READERS(
            DURATION.within("seconds, or like 10m, 2h; 0 waits for ever"),
            "Seconds until a source read that hangs is an error. 0 waits for ever; ten minutes outlast a Lustre "
            "failover.",
        ),
    ] = 600.0
    strict: Annotated[bool, READERS(FLAG, "Wait for a silent SOURCE; never serve what may be old.", option=True)] = (
        False
    )
    buffer_bytes: Annotated[
        int,
        FETCHED(
            SIZE.within("a size like 128M, at least two chunks"),
            "Memory for chunks in flight, at least two. Sixteen fill a shared 500 MB/s source several times over and "
            "keep the daemon well below 300 MB.",
        ),
    ] = 128 * MIB
    answer_threads: Annotated[
        int,
        FETCHED(
            ANSWER_THREADS,
            "Threads that answer requests without Python: opens, closes, look-ups and reads of what is known and in "
            "memory. 0: as many as cores, 4 at most; one serves some 20 000 files a second.",
        ),
    ] = 0
    nice: Annotated[int, FETCHED(NICE, "How far the daemon steps back for others, as nice(1).")] = 0
    source_threads: Annotated[
        int,
        FETCHED(
            THREADS,
            "Demand reads that wait for the source at a time; 128 that hang in one server leave room for others.",
        ),
    ] = 256
    prefetch_threads: Annotated[int, FETCHED(THREADS, "Fetches ahead at a time.")] = 16
    staging_threads: Annotated[int, FETCHED(THREADS, "Writers to the cache disk.")] = 2
    verify: Annotated[
        VerifyWanted,
        KEPT(
            choice(VerifyWanted),
            "When staged bytes that the daemon reads are compared with their checksum. `first-use`: once in its life. "
            "`changed`: only those of files that another program may have changed; for a cache on btrfs or ZFS, which "
            "have checksums of their own.",
        ),
    ] = "first-use"
    scrub_bytes_s: Annotated[
        int,
        KEPT(
            RATE,
            "Read what is staged again at so many bytes a second, in about a day, and drop what the disk has damaged. "
            "A hundredth of an NVMe drive, at idle priority, around the page cache; `off`.",
        ),
    ] = 32 * MIB
    sibling_bytes: Annotated[
        int,
        FETCHED(
            SIZE.within("a size like 256MB; 0 fetches no siblings"),
            "Small files fetched ahead of their first use: at most this much. Besides, four times what was opened in "
            "their directory, and never more than a quarter of the cache. 0 turns it off.",
            name="siblings",
        ),
    ] = 256_000_000
    coalesce_bytes: Annotated[
        int | None,
        FETCHED(
            SIZE.within(
                "a size like 2.5GB: chunks that hints name are fetched in the order of the file by so much; 0 never"
            ),
            "So much of what hints name is fetched in the order of the file, where samples are so small that no reader "
            "gains from another order. 0 fetches all in the order of use.",
            default="2.5GB, or a quarter of the available memory if that is less",
        ),
    ] = None
    stagger: Annotated[
        int,
        FETCHED(
            THREADS.within("how many chunks of one file are read at a time, from 1 to 1024"),
            "Chunks of one file that one node reads from the source at a time, in the order of the file. Three streams "
            "fill a file system that limits each to two fifths of what it has; many more reach one server in no order.",
        ),
    ] = 8
    stagger_job: Annotated[
        int,
        FETCHED(
            THREADS.within("how many chunks of one file all nodes of a job read at a time, from 1 to 1024"),
            "The same for all nodes of a job together: see [many nodes](nodes.md). Smaller jobs need no read slots; "
            "64 chunks of 8 MiB keep ten gigabytes a second busy that take 50 ms each.",
        ),
    ] = 64
    source_direct: Annotated[
        Direct, FETCHED(choice(Direct), "O_DIRECT for large files, where the source takes it: `auto` or `off`.")
    ] = "auto"
    push: Annotated[bool, FETCHED(FLAG, "Put fetched data into the kernel's page cache before it is read.")] = True
    allow_other: Annotated[
        bool,
        READERS(
            FLAG,
            "Other users may read, as the permissions at the source say. Refused where they cannot be asked for. A "
            "plain user needs `user_allow_other` in /etc/fuse.conf.",
            default="on for root",
        ),
    ] = False
    as_user: Annotated[
        str | None,
        READERS(
            USER,
            "Read SOURCE as this user, where root may not: a name, UID, or UID:GID. Only for root; see "
            "[a source that root may not read](sharing.md#a-source-that-root-may-not-read).",
            option=True,
            default="as who mounts",
        ),
    ] = None
    noexec: Annotated[bool, READERS(FLAG, "Nothing on the mount may be executed.")] = False
    control: Annotated[
        str | None,
        PLACES(
            SOCKET,
            "Put the control socket here.",
            option=True,
            default="below /run/hfs for root, else `$XDG_RUNTIME_DIR/hfs`, or /tmp/hfs-UID",
        ),
    ] = None
    peers: Annotated[
        str,
        NODES(
            PEERS,
            "Share with the daemons of these hosts: a list, `slurm`, `torchrun`, `dns:NAME`, or `auto` for what the "
            "launcher says; with `mpi` with those of one `mpirun`, in the foreground. See [many nodes](nodes.md).",
            option=True,
        ),
    ] = "none"
    peer_secret: Annotated[
        str | None,
        NODES(FILE, "The file with the secret of the job, of one user alone; `env:NAME`: a variable.", default="none"),
    ] = None
    peer_listen: Annotated[str, NODES(LISTEN, "Where other nodes reach this one.")] = DEFAULT_LISTEN
    placement: Annotated[
        PlacementWanted,
        NODES(
            choice(PlacementWanted),
            "What each node stages: its share, or all. `auto`: all, where the data fits every node.",
            option=True,
        ),
    ] = "auto"
    peer_timeout_s: Annotated[
        float,
        NODES(  # Nodes say that they are there in a fifth of it.
            DURATION.within(
                "seconds, or like 500ms, 2m, at least 100ms: a node of the job that is silent so long is left alone",
                0.1,
                86_400,
            ),
            "A node of the job that has said nothing for so many seconds is left alone for a while, and the source is "
            "read. A node whose cores are all busy may be silent for seconds.",
        ),
    ] = 10.0

    log_level: Annotated[
        LogLevel,
        TOLD(choice(LogLevel), "What is logged: `debug`, `info`, `warning` or `error`.", given="`-v` is `debug`"),
    ] = "info"
    log_file: Annotated[
        str | None,
        TOLD(
            FILE,
            "Write the daemon's log here. `hfs status` shows the file.",
            option=True,
            default="in `$XDG_STATE_HOME/hfs`, or `logs` in the cache directory; stderr in the foreground",
        ),
    ] = None
    log_format: Annotated[
        LogFormat,
        TOLD(
            choice(LogFormat),
            "How the log is written: as lines for people, or `json`, an object a line. See "
            "[monitoring](monitoring.md#logs).",
            option=True,
        ),
    ] = "text"
    metrics: Annotated[
        str | None,
        TOLD(
            ADDRESS,
            "Answer monitoring systems (Prometheus, OpenMetrics) at this address, like 127.0.0.1:9567. A port alone is "
            "of 127.0.0.1, port 0 is any that is free, `off` is none. See [monitoring](monitoring.md).",
            option=True,
            default="off",
        ),
    ] = None
    metrics_file: Annotated[
        str | None,
        TOLD(
            FILE_OR_DIRECTORY,
            "Write the metrics here every 15 s, for the textfile collector of node_exporter. In a directory: to a file "
            "of its own for each mountpoint; `off` is none.",
            option=True,
            default="off",
        ),
    ] = None

    @property
    def wants_overlays(self) -> bool:
        """They are offered where they can be, so that some may lie over the mount."""
        return self.immutable and self.io_mode in ("auto", "overlay")


def _keys() -> Iterator[Key]:
    for field in msgspec.structs.fields(Config):
        (key,) = (found for found in get_args(field.type) if isinstance(found, Key))
        name = key.name or re.sub("(_s|_bytes|_bytes_s)$", "", field.name).replace("_", "-")
        default = key.default or ("required" if field.required else key.kind.show(field.default))
        yield dataclasses.replace(key, name=name, field=field.name, default=default)


KEYS: tuple[Key, ...] = tuple(_keys())
"""In the order of the fields. `default` is what is taken where nothing is given, in words."""
