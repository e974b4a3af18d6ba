"""The user as whom SOURCE is read, key `as-user`: from what people write to numbers, once, by the command.

The configuration holds `UID:GID:GROUP,GROUP...` with the supplementary groups in order, so that keeper and daemons need
no user database, which may be on a server that is away, and two of them can be compared.
"""

from __future__ import annotations

import os
import pwd
import re
from typing import NamedTuple

_NUMBERS = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10})(?::([0-9]{1,10}(?:,[0-9]{1,10})*)?)?)?")
_MOST_ID = 2**32 - 2
"""The next number is nobody's."""
_MOST_GROUPS = 65_536
"""NGROUPS_MAX of Linux."""


class SourceUser(NamedTuple):
    """A user in numbers."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> SourceUser:
        """From what `resolve` gives."""
        uid, gid, groups = text.split(":")
        return cls(int(uid), int(gid), tuple(int(group) for group in groups.split(",") if group))


def resolve(value: object) -> str | None:
    """A user's name, UID, UID:GID, or UID:GID:GROUP,GROUP... as the configuration holds it; None for "".

    A name, and a UID by itself, are looked up in the user database, with their groups; of UID:GID nothing is, and there
    are no more groups than are given. Raises ValueError for a user that is not known, TypeError.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    text = str(value).strip()
    if not text:
        return None
    numbers = _NUMBERS.fullmatch(text)
    if numbers is not None and numbers[2] is not None:
        groups = [int(group) for group in (numbers[3] or "").split(",") if group]
        return _checked(int(numbers[1]), int(numbers[2]), groups)
    try:
        entry = pwd.getpwnam(text) if numbers is None else pwd.getpwuid(int(text))
    except (KeyError, OverflowError):
        raise ValueError(value) from None
    return _checked(entry.pw_uid, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid))


def shown(text: str) -> str:
    """For people: with the name, where the user database has one."""
    user = SourceUser.of(text)
    try:
        return f"{pwd.getpwuid(user.uid).pw_name} ({text})"
    except KeyError:
        return text


def _checked(uid: int, gid: int, groups: list[int]) -> str:
    others = sorted(set(groups) - {gid})
    if max(uid, gid, *others) > _MOST_ID or len(others) > _MOST_GROUPS:
        raise ValueError(uid)
    return f"{uid}:{gid}:{','.join(map(str, others))}"
