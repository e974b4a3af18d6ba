"""What a daemon or a keeper says, looked at before a command uses it: it may be another user's, and say what it likes.

`check` sees that what commands read is of the kind as which they read it, and that the whole is a small tree of plain
values. What they do not know is passed over and kept: a newer daemon may say more. Standard library and msgspec only.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from hfs.mountd.core.errors import HfsError, printable

_DEEPEST = 12
_MOST_VALUES = 1_000_000
_LONGEST = 65536
"""Of a text; a path has 4096 bytes."""
_SHOWN = 200

Kind = str | list[Any] | dict[str, Any]
"""A name of `_PLAIN`, where "?" says that it may be null; or [kind], a list of such; or a map by names: "*" stands for
all of them, "!" behind one says that it must be there. A field of a map may be null in place of a map or a list."""

_PLAIN: dict[str, tuple[type, ...]] = {"number": (int, float), "whole": (int,), "text": (str,), "flag": (bool,)}


class Nonsense(HfsError):
    """It is not what was asked for."""


def _are(kind: Kind, names: str) -> dict[str, Any]:
    """Fields of one kind."""
    return dict.fromkeys(names.split(), kind)


_EPOCH = {
    **_are("number?", "epoch exposed_s compute_s other_s source_wait_s daemon_cpu_s"),
    **_are("whole?", "batches workers cores"),
}
_LEARNER = {
    **_are("text?", "name job"),
    **_are("whole", "rank world position"),
    **_are("whole?", "pid total"),
    **_are("number?", "epoch staged_share eta_s rate ahead_bytes"),
    "epochs": [_EPOCH],
}
_LAYOUT = {"digest": "text", **_are("whole", "files missing")}
_READ = {
    **_are("number", "read_bytes! source_bytes! peer_bytes passed_bytes memory_bytes"),
    **_are("number", "seconds source_wait_s loop_s cpu_s core_wait_s yielded_s"),
    "is_at_least": "flag",
}
_SAMPLE = {"sampled_files": "whole", "sampled_bytes": "number", "resident_bytes": "number?"}

ReportedStatus: Kind = {
    **_are("whole", "pid"),
    **_are("text", "mountpoint"),
    **_are("number", "source_wait_s"),
    **_are("number?", "uptime_s"),
    **_are("whole?", "stale_served"),
    "keeper": {**_are("whole?", "pid"), "restarts": "whole", **_are("text?", "last_end reason")},
    "traffic": {**_READ, "minute": _READ},
    "io_mode": {"mode": "text", "reason": "text?", "faster_if_reopened": "number"},
    "by_kernel": {"overlays": "flag", "look_ups": "whole", "bytes": "number"},
    "page_cache": {**_SAMPLE, "staged": _SAMPLE},
    "source": {
        **_are("text?", "path failure"),
        **_are("number", "large_reads large_reads_ordered absolute_links"),
        "errors": "whole",
    },
    "staged": {
        "files": "whole",
        **_are("number", "bytes room_bytes pinned_bytes"),
        "capacity_bytes": "number?",
        "state": "text",
        **_are("text?", "last_error full_because"),
    },
    "hints": {"learners": [_LEARNER], "past": [_LEARNER], "layouts": [_LAYOUT]},
    "readers": [{"command!": "text", **_are("whole", "pid! reads!"), "bytes!": "number"}],
    **_are({"*": "number"}, "read_bytes evicted"),
    **_are({"*": "whole"}, "faults background_faults"),
    "kernel": {"notes": ["text"]},
    "monitoring": _are("text?", "address error file file_error"),
    "config": {"*": {"origin": "text"}},
    "counters": {"*": {"value": "number", "meaning": "text"}},
}
"""The object of `hfs status --json`, as far as commands know it."""

ReportedByKeeper: Kind = {
    "pid": "whole",
    **_are("text?", "mountpoint device refusing log_file"),
    **_are("flag", "given ending"),
    "identity": ["whole"],
    "config": {},
    "held_by": [{"pid": "whole?", "command": "text?", "session": "flag", "job": "text"}],
}
"""What a keeper answers to "status"."""

ReportedNodes: Kind = {"nodes!": [{"node!": "text", "figures": {"*": "number?"}, "error": "text"}]}
"""The answer to `protocol.Cluster`."""

ReportedCounts: Kind = {**_are("whole", "pinned_files held_files held_bytes"), "holders": ["whole"]}
"""What `protocol.Warm` and `Evict` may add to their figures."""

ReportedEstimate: Kind = {**_are("whole", "missing_bytes! room_bytes! free_bytes!"), "seconds": "number?"}
"""What `protocol.Estimate` adds to its figures."""


def check(told: object, kind: Kind) -> None:
    """Raises Nonsense."""
    try:
        _see_that_it_is_plain(told)
        _see_that_it_is(kind, told, "it")
    except (TypeError, ValueError) as error:
        raise Nonsense(f"what it says makes no sense: {printable(str(error))[:_SHOWN]}") from None


def decode_json(data: bytes | bytearray) -> object:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _see_that_it_is(kind: Kind, value: Any, name: str) -> None:  # noqa: ANN401 - of a tree that is plain
    """Raises ValueError."""
    if isinstance(kind, str):
        plain = kind.removesuffix("?")
        if value is None and plain != kind:
            return
        if not isinstance(value, _PLAIN[plain]) or isinstance(value, bool) != (plain == "flag"):
            raise ValueError(f"{name} is no {plain}")
    elif isinstance(kind, list):
        if not isinstance(value, list):
            raise TypeError(f"{name} is no list")
        for each in value:
            _see_that_it_is(kind[0], each, name)
    else:
        _see_that_it_is_a_map(kind, value, name)


def _see_that_it_is_a_map(kind: dict[str, Any], value: Any, name: str) -> None:  # noqa: ANN401 - as above
    if not isinstance(value, dict):
        raise TypeError(f"{name} is no map")
    for key, of in (dict.fromkeys(value, kind["*"]) if "*" in kind else kind).items():
        must, key = key.endswith("!"), key.removesuffix("!")
        if key not in value:
            if must:
                raise ValueError(f"{name} lacks {key}")
        elif value[key] is not None or isinstance(of, str) or must or "*" in kind:
            _see_that_it_is(of, value[key], key)


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
                if not all(isinstance(key, str) for key in value):
                    raise ValueError("a name that is no text")
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
