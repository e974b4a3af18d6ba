"""What is mounted where, from /proc/self/mountinfo (proc(5)): nothing here touches a mount.

An overlay of ours (overlay.py) is not what is meant where a mount is looked for: it lies over one, and shows that. Most
here see through it. `hfs.mounting.mountinfo` is the same for commands.
"""

from __future__ import annotations

import os

_OURS = b"hfs\\043"
"""How the source of our mounts begins: `hfs#`."""
_TABLE = "/proc/self/mountinfo"
_ESCAPES = ((b"\\", b"\\134"), (b" ", b"\\040"), (b"\t", b"\\011"), (b"\n", b"\\012"))


def device_at(mountpoint: str) -> str | None:
    """ "MAJOR:MINOR" of the mount on top at exactly this path; None: nothing is mounted there."""
    fields = _at(mountpoint)
    return fields[2].decode() if fields else None


def number_at(mountpoint: str) -> int | None:
    """Of that mount, as mountinfo has it."""
    fields = _at(mountpoint)
    return int(fields[0]) if fields else None


def is_shown(device: str) -> bool:
    """Whether a mount of this device lies on top anywhere in this mount namespace."""
    return bool(places_of(device))


def places_of(device: str) -> list[str]:
    """Where the mount of this device lies on top, the one that was mounted last first."""
    tops = []
    for place, stack in _stacks().items():
        found = [fields for fields in stack if not _is_overlay(fields)]
        if found and found[-1][2].decode() == device:
            tops.append((int(found[-1][0]), _plain(place)))
    return [place for _, place in sorted(tops, reverse=True)]


def overlay_lies_at(place: str) -> bool:
    """Whether an overlay of ours lies on top there."""
    stack = _stacks(place).get(_escaped(place), [])
    return bool(stack) and _is_overlay(stack[-1])


def is_overlay(number: int) -> bool:
    """Whether this mount is an overlay of ours."""
    line = _line_of(number)
    return bool(line) and _is_overlay(line.split(b" "))


def device_of(number: int) -> str | None:
    """ "MAJOR:MINOR" of a mount; None: it is gone."""
    line = _line_of(number)
    return line.split(b" ", 3)[2].decode() if line else None


def options_of(number: int) -> str:
    """Of the file system of a mount; empty: it is gone."""
    return os.fsdecode(_line_of(number).rstrip(b"\n").rpartition(b" ")[2])


def number_of(descriptor: int) -> int:
    """Of the mount that it leads to, as mountinfo has it."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


def _at(place: str) -> list[bytes]:
    found = [fields for fields in _stacks(place).get(_escaped(place), []) if not _is_overlay(fields)]
    return found[-1] if found else []


def _stacks(place: str | None = None) -> dict[bytes, list[list[bytes]]]:
    """By mountpoint the fields of what is mounted there, the uppermost last. `place`: only what is mounted there. The
    table has them in the order in which they were made, and a mount may have been put beneath another."""
    wanted = None if place is None else _escaped(place)
    found: dict[bytes, list[list[bytes]]] = {}
    with open(_TABLE, "rb") as lines:
        for line in lines:
            fields = line.split(b" ")
            if wanted is None or fields[4] == wanted:
                found.setdefault(fields[4], []).append(fields)
    return {each: _in_order(stack) if len(stack) > 1 else stack for each, stack in found.items()}


def _in_order(stack: list[list[bytes]]) -> list[list[bytes]]:
    by_number = {fields[0]: fields for fields in stack}
    covered = {fields[1] for fields in stack if fields[1] != fields[0]}  # a root may be its own parent
    above: list[bytes] | None = by_number.pop([fields[0] for fields in stack if fields[0] not in covered][-1])
    found: list[list[bytes]] = []
    while above is not None:
        found.append(above)
        above = by_number.pop(above[1], None)
    return found[::-1]


def _is_overlay(fields: list[bytes]) -> bool:
    at = fields.index(b"-", 6) if b"-" in fields[6:] else 0
    return bool(at) and fields[at + 1] == b"overlay" and fields[at + 2].startswith(_OURS)


def _line_of(number: int) -> bytes:
    with open(_TABLE, "rb") as lines:
        return next((line for line in lines if line.startswith(b"%d " % number)), b"")


def _escaped(path: str) -> bytes:
    found = os.fsencode(path)
    for byte, code in _ESCAPES:
        found = found.replace(byte, code)
    return found


def _plain(place: bytes) -> str:
    for byte, code in reversed(_ESCAPES):
        place = place.replace(code, byte)
    return os.fsdecode(place)
