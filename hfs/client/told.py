"""What a daemon or a keeper says, looked at before a command uses it: it may be another user's, and say what it likes.

`check` sees that what commands read has the types by which they read it, and that the whole is a small tree of plain
values. What they do not know is passed over and kept: a newer daemon may say more. Standard library and msgspec only.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NotRequired, Required, TypedDict

import msgspec

from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.printable import printable

_DEEPEST = 12
_MOST_VALUES = 1_000_000
_LONGEST = 65536
"""Of a text; a path has 4096 bytes."""
_SHOWN = 200
_CONVERTING = threading.Lock()
"""At its first use msgspec looks a type up, and two threads that do so at once end the process: SIGSEGV."""


class Nonsense(HfsError):
    """It is not what was asked for."""


class _Epoch(TypedDict, total=False):
    epoch: float | None
    batches: int | None
    workers: int | None
    cores: int | None
    exposed_s: float | None
    compute_s: float | None
    other_s: float | None
    source_wait_s: float | None
    daemon_cpu_s: float | None


class _Learner(TypedDict, total=False):
    name: str | None
    job: str | None
    rank: int
    world: int
    pid: int | None
    epoch: float | None
    position: int
    total: int | None
    staged_share: float | None
    eta_s: float | None
    rate: float | None
    ahead_bytes: float | None
    epochs: list[_Epoch] | None


class _Layout(TypedDict, total=False):
    digest: str
    files: int
    missing: int


class _Hints(TypedDict, total=False):
    learners: list[_Learner] | None
    past: list[_Learner] | None
    layouts: list[_Layout] | None


class _Read(TypedDict, total=False):
    seconds: float
    read_bytes: Required[float]
    source_bytes: Required[float]
    peer_bytes: float
    passed_bytes: float
    memory_bytes: float
    source_wait_s: float
    loop_s: float
    cpu_s: float
    core_wait_s: float
    yielded_s: float
    is_at_least: bool


class _Traffic(_Read, total=False):
    minute: _Read | None


class _Source(TypedDict, total=False):
    path: str | None
    large_reads: float
    large_reads_ordered: float
    absolute_links: float
    errors: int
    failure: str | None


class _Staged(TypedDict, total=False):
    files: int
    bytes: float
    capacity_bytes: float | None
    room_bytes: float
    pinned_bytes: float
    state: str
    last_error: str | None
    full_because: str | None


class _IoMode(TypedDict, total=False):
    mode: str
    reason: str | None
    faster_if_reopened: float


class _ByKernel(TypedDict, total=False):
    overlays: bool
    look_ups: int
    bytes: float


class _Sample(TypedDict, total=False):
    sampled_files: int
    sampled_bytes: float
    resident_bytes: float | None


class _PageCache(_Sample, total=False):
    staged: _Sample


class _Reader(TypedDict):
    command: str
    pid: int
    reads: int
    bytes: float


class _Keeper(TypedDict, total=False):
    pid: int | None
    restarts: int
    last_end: str | None
    reason: str | None


class _Monitoring(TypedDict, total=False):
    address: str | None
    error: str | None
    file: str | None
    file_error: str | None


class _Kernel(TypedDict, total=False):
    notes: list[str]


class _Setting(TypedDict, total=False):
    value: Any
    origin: str


class _Counter(TypedDict, total=False):
    value: float
    meaning: str


class ToldStatus(TypedDict, total=False):
    """The object of `hfs status --json`, as far as commands know it."""

    pid: int
    mountpoint: str
    uptime_s: float | None
    keeper: _Keeper | None
    traffic: _Traffic | None
    io_mode: _IoMode | None
    by_kernel: _ByKernel | None
    page_cache: _PageCache | None
    source: _Source | None
    staged: _Staged | None
    hints: _Hints | None
    readers: list[_Reader] | None
    read_bytes: dict[str, float] | None
    source_wait_s: float
    faults: dict[str, int] | None
    background_faults: dict[str, int] | None
    evicted: dict[str, float] | None
    stale_served: int | None
    kernel: _Kernel | None
    monitoring: _Monitoring | None
    config: dict[str, _Setting] | None
    counters: dict[str, _Counter] | None


class _Holder(TypedDict, total=False):
    pid: int | None
    command: str | None
    session: bool
    job: str


class ToldByKeeper(TypedDict, total=False):
    """What a keeper answers to "status"."""

    pid: int
    mountpoint: str | None
    device: str | None
    given: bool
    identity: list[int] | None
    refusing: str | None
    log_file: str | None
    config: dict[str, Any]
    held_by: list[_Holder]
    ending: bool


class _ClusterNode(TypedDict):
    node: str
    figures: NotRequired[dict[str, float | None]]
    error: NotRequired[str]


class ToldNodes(TypedDict):
    """The answer to `protocol.Cluster`."""

    nodes: list[_ClusterNode]


class _Look(TypedDict):
    ago_s: float
    read_bytes: float
    source_bytes: float
    peer_bytes: float
    staged_bytes: float
    source_wait_s: float


class ToldLooks(TypedDict):
    """The answer to `protocol.History`."""

    looks: list[_Look]


class ToldCounts(TypedDict, total=False):
    """What `protocol.Warm` and `Evict` may add to their figures."""

    pinned_files: int
    held_files: int
    held_bytes: int
    holders: list[int]


class ToldEstimate(TypedDict):
    """What `protocol.Estimate` adds to its figures."""

    missing_bytes: int
    room_bytes: int
    free_bytes: int
    seconds: NotRequired[float | None]


def check(told: object, kind: Any) -> None:  # noqa: ANN401 - a type, as msgspec takes it
    """Raises Nonsense."""
    try:
        _see_that_it_is_plain(told)
        with _CONVERTING:
            msgspec.convert(told, kind)
    except (msgspec.ValidationError, RecursionError, ValueError) as error:
        raise Nonsense(f"what it says makes no sense: {printable(str(error))[:_SHOWN]}") from None


def decode_json(data: bytes | bytearray) -> object:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _see_that_it_is_plain(told: object) -> None:
    """Raises ValueError for what is too deep, too much, too long, or a number that is none."""
    layer, left = [told], _MOST_VALUES
    for _ in range(_DEEPEST):
        left -= len(layer)
        if left < 0:
            raise ValueError("too much of it")
        below: list[object] = []
        for value in layer:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, float) and not math.isfinite(value):
                raise ValueError("a number that is none")
            elif isinstance(value, str) and len(value) > _LONGEST:
                raise ValueError("a text that is too long")
        if not below:
            return
        layer = below
    raise ValueError("too deep")
