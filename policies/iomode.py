"""I/O modes: whether the kernel reads a file through us, or the staged file by itself.

Two questions, both answered without I/O. Of a mount: which of the modes that --io-mode names, given what is possible
here (`choose`). Of one open of one node: through the page cache or passed through, given who has the node open
(`answer`).

The kernel's rules (fs/fuse/iomode.c of Linux 6.9 and later), which an open must keep or fail with EIO:
- a node has one mode at a time: with cached handles open none may be passed through, and the reverse;
- all handles that are passed through have the same backing file;
- with no handle open, the next open sets the mode.
The kernel counts a handle from our reply until just before its RELEASE, so whoever counts from the reply to the RELEASE
never counts too little.
"""

from __future__ import annotations

import enum
from typing import Literal, NamedTuple

Mode = Literal["passthrough", "stateless", "daemon", "overlay"]
Wanted = Literal["auto", "passthrough", "stateless", "daemon", "overlay"]

SMALL_BYTES = 1 << 20
"""A file up to here is read whole and put into the page cache whole (`read_path`): an open is most of its cost."""

_SMALL_OPENS = 64
"""So many opens of small files, and none of a larger one, show what a data set is made of. It costs a job 64 opens."""

_NEW_OPENS = 2
"""So many small files opened, of which none was staged, show that nobody has read them yet."""


class Choice(NamedTuple):
    """The I/O mode of a mount."""

    mode: Mode
    reason: str
    final: bool
    """False: `auto` may change its mind once it has seen the sizes of the files."""


def choose(
    wanted: Wanted,
    *,
    immutable: bool,
    passthrough_missing: str | None,
    stateless_missing: str | None,
    overlay_missing: str | None = None,
    small_opens: int = 0,
    large_opens: int = 0,
    new_opens: int = 0,
) -> Choice:
    """The mode of a mount that was asked for `wanted`.

    `*_missing`: why that mode cannot be had here, None if it can. `small_opens`, `large_opens`: opens seen so far of
    files up to SMALL_BYTES, and above; `new_opens`: how many of the small ones were not staged, where such files are
    fetched without Python as long as opens are asked for. Raises ValueError, with what is missing, if `wanted` cannot
    be had.
    """
    missing = {
        "passthrough": passthrough_missing,
        "stateless": stateless_missing,
        "overlay": overlay_missing,
        "daemon": None,
        "auto": None,
    }[wanted]
    if missing is not None:
        raise ValueError(missing)
    if wanted != "auto":
        return Choice(wanted, f"--io-mode {wanted}", True)
    if passthrough_missing is None:
        without = Choice("passthrough", "the kernel can read staged files by itself", True)
    else:
        without = Choice("daemon", f"no passthrough: {passthrough_missing}", True)
    if not immutable:
        return without
    if stateless_missing is not None:
        return without._replace(reason=f"{without.reason}; not stateless: {stateless_missing}")
    if large_opens:
        return without._replace(reason=f"{without.reason}, and there are files above 1 MiB")
    if new_opens == small_opens >= _NEW_OPENS or (small_opens >= _SMALL_OPENS and new_opens > small_opens // 2):
        return without._replace(reason=f"{without.reason}; stateless in a mount that finds its small files staged")
    if small_opens >= _SMALL_OPENS:
        return Choice("stateless", f"--immutable, and the first {_SMALL_OPENS} files opened were all small", True)
    return without._replace(reason=f"{without.reason}; stateless if the files turn out to be small", final=False)


class Answer(enum.Enum):
    """How one open is answered."""

    CACHED = enum.auto()
    """Through the node's page cache; what it has not is asked of us."""
    PASSED = enum.auto()
    """The kernel reads the staged file; we are not asked again."""
    ANEW = enum.auto()
    """ESTALE: the kernel looks the name up again and is given another node, with a mode of its own."""


def answer(*, cached: int, passed: int, passable: bool, sent_away: bool) -> Answer:
    """How an open of a node is answered that has `cached` and `passed` handles open.

    `passable`: its staged file is complete and durable, and may be a backing file of the kernel; with handles passed
    through, that it still is the one that they read, and still known to be right. `sent_away`: the same
    caller was answered ANEW for this node already: it did not come by a name (a descriptor below /proc was reopened),
    or its name still led here. It is never sent away twice, so no open fails because of a mode.
    """
    if passed:
        # A damaged file is no longer handed out. Who came by one of its handles gets what that handle reads.
        return Answer.PASSED if passable or sent_away else Answer.ANEW
    if not passable:
        return Answer.CACHED
    if not cached:
        return Answer.PASSED
    return Answer.CACHED if sent_away else Answer.ANEW
