"""A key of the configuration: what it means to people, and its kind of value: how that is read, shown and judged.

Values come from TOML (already typed), environment and command line (text). Each parser takes either and raises
ValueError or TypeError; the caller knows the key and says what is allowed. Only a user is looked up, in the user
database; nothing else is read here.
"""

from __future__ import annotations

import math
import os
import pwd
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, get_args

from hfs.mountd.core.hostlist import parse_peers
from hfs.mountd.core.socket_places import MAX_SOCKET_PATH_BYTES

# K = KiB = 1024 as in dd, truncate and most schedulers; KB = 1000 as on the box of a disk.
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}ib"] = 1024**_power
    _UNITS[f"{_letter}b"] = 1000**_power
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_MAX_SIZE = 2**63 - 1
"""What off_t and SQLite's integers hold."""

_SECONDS = {"": Fraction(1), "ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
_SECONDS["d"] = Fraction(86400)
_MAX_SECONDS = 100 * 365 * 86400
"""A century: the kernel counts cache lifetimes in whole 64-bit seconds, but nobody means more than this."""

_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def parse_size(value: object) -> int:
    """Bytes, 0..2**63-1. 10, "10", "10K" and "10KiB" (10240), "10KB" (10000), "1.5G", in any case; up to P.

    A fraction of a byte is cut off.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(value)
    size = int(Fraction(match[1]) * _UNITS[match[2].lower()])
    if size > _MAX_SIZE:
        raise ValueError(value)
    return size


def parse_duration(value: object) -> float:
    """Seconds, 0..a century. 60, 0.5, "60", "60s", "500ms", "10m", "2h", "1d"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None or match[2].lower() not in _SECONDS:
            raise ValueError(value)
        seconds = float(Fraction(match[1]) * _SECONDS[match[2].lower()])
    else:
        seconds = float(value)
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(value)
    return seconds


def parse_count(value: object) -> int:
    """A whole number, 0 or more: 16 or "16"."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    if not re.fullmatch(r"[0-9]{1,18}", str(value).strip()):
        raise ValueError(value)
    return int(value)


def parse_flag(value: object) -> bool:
    """True or false: a TOML boolean, or true/false, yes/no, on/off, 1/0 in any case."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | str) and str(value).strip().lower() in _FLAGS:
        return _FLAGS[str(value).strip().lower()]
    raise ValueError(value)


_PARTS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<four>[0-9.]+)|(?P<name>localhost)):(?P<port>[0-9]{1,5})")
_LOOPBACK = "127.0.0.1"
_MAX_PORT = 65_535


class Address(NamedTuple):
    """Where to listen."""

    host: str
    """A number of IPv4 or IPv6, in its shortest form."""
    port: int
    """0: any that is free."""

    @property
    def is_loopback(self) -> bool:
        """Only processes of this machine can connect."""
        import ipaddress

        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(value: object) -> str | None:
    """9567, "9567" (of 127.0.0.1), "10.1.2.3:9567", "[::1]:9567", "localhost:9567", as `Address` shows it; None for
    "off". Raises ValueError, also for ":9567", which other programs take for all addresses; TypeError."""
    if value is False or (isinstance(value, str) and value.strip().lower() in {"off", "no", "false"}):
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    text = str(value).strip()
    return str(address_of(f"{_LOOPBACK}:{text}" if re.fullmatch("[0-9]{1,5}", text) else text))


def address_of(text: str) -> Address:
    """From what `Address` shows. Raises ValueError."""
    import ipaddress

    found = _PARTS.fullmatch(text)
    if found is None or int(found["port"]) > _MAX_PORT:
        raise ValueError(text)
    host = _LOOPBACK if found["name"] else found["six"] or found["four"]
    return Address(str(ipaddress.ip_address(host)), int(found["port"]))


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
        """From what `resolve_user` gives."""
        uid, gid, groups = text.split(":")
        return cls(int(uid), int(gid), tuple(int(group) for group in groups.split(",") if group))


def resolve_user(value: object) -> str | None:
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


def shown_user(text: str) -> str:
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


KIB, MIB = 1024, 1024**2


@dataclass(frozen=True, slots=True)
class ValueKind:
    """What the values of a key are."""

    parse: Callable[[object], Any]
    """From TOML (typed already) or text. Raises ValueError or TypeError."""
    allowed: str
    """In words, for messages."""
    metavar: str = ""
    """For the help of options; empty for a switch, which takes no value."""
    show: Callable[[Any], str] = str
    """As one would write it."""

    def within(self, allowed: str, low: float = 0, high: float = math.inf) -> ValueKind:
        """The same, for one key: limits, both of which are possible, and its own words for what is allowed."""

        def parse(value: object) -> float:
            number: float = self.parse(value)
            if not low <= number <= high:
                raise ValueError(value)
            return number

        return ValueKind(parse, allowed, self.metavar, self.show)


@dataclass(frozen=True, slots=True)
class Key:
    """What the user can set, in the file, the environment and on the command line alike."""

    section: str
    """The heading of docs/configuration.md that it stands under."""
    kind: ValueKind
    meaning: str
    """One sentence or more, in Markdown. The first is the help of the option."""
    option: bool = False
    """Whether hfs has an option of this name. All can be given with -o."""
    given: str = ""
    """How else it is given on the command line, for people."""
    default: str = ""
    """In words, where the value of the field does not say it."""
    missing: str = ""
    """What is to be given, where the key is required."""
    name: str = ""
    """`cache-size` in TOML, in -o and on the command line, HFS_CACHE_SIZE in the environment; made of `field`, where
    nothing else is said."""
    field: str = ""
    """Of Config; filled in by it."""

    @property
    def help(self) -> str:
        """The first sentence, without Markdown."""
        sentence = re.split(r"(?<=[.]) (?=[A-Z`0-9])", self.meaning)[0]
        sentence = re.sub(r"see \[[^]]*\]\(([^)#]*)[^)]*\)", r"see docs/\1", sentence)
        return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence).replace("`", "")

    def written(self, value: Any) -> str:  # noqa: ANN401 - of any kind
        """A value of the field as one would write it, for messages; where nothing is set, what is taken then."""
        return (self.default if value is None else self.kind.show(value)).replace("`", "") or '""'


def choice(literal: object) -> ValueKind:
    """One of the words of a Literal."""
    return one_of(get_args(literal))


def one_of(words: Iterable[str]) -> ValueKind:
    """One of these."""
    choices = tuple(words)

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(value)
        return str(value)

    return ValueKind(parse, " or ".join(choices), "|".join(choices), lambda value: f"`{value}`")


def show_exactly(size_bytes: int) -> str:
    """A size as one would write it: 8M, 256MB."""
    written = [str(size_bytes)]
    for thousand, ending in ((1024, ""), (1000, "B")):
        for power, letter in enumerate("KMGT", start=1):
            if size_bytes % thousand**power == 0:
                written.append(f"{size_bytes // thousand**power}{letter}{ending}")
    return min(written, key=len)


def _chunk(value: object) -> int:
    size = parse_size(value)
    if not 64 * KIB <= size <= 64 * MIB or size & (size - 1):
        raise ValueError(value)
    return size


def _rate(value: object) -> int:
    return 0 if value is False or (isinstance(value, str) and value.lower() in {"off", "no"}) else parse_size(value)


def _path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(value)
    return value


def _path_or_off(value: object) -> str | None:
    return None if value is False or value == "off" else _path(value)


def _socket_path(value: object) -> str:
    path = _path(value)
    if len(os.fsencode(os.path.abspath(path))) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(value)
    return path


def _listen(value: object) -> str:
    text = str(value).strip()
    return str(address_of(f"0.0.0.0:{text}" if text.isdecimal() else text))


def _identity(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-fA-F]{16}", value):
        raise ValueError(value)
    return value.lower()


DIRECTORY = ValueKind(_path, "the path of a directory", "DIR")
FILE = ValueKind(_path, "the path of a file", "PATH")
FILE_OR_DIRECTORY = ValueKind(_path_or_off, "the path of a file or a directory, or off", "PATH")
ADDRESS = ValueKind(
    parse_address, "a port, ADDRESS:PORT or [ADDRESS]:PORT with an address in numbers, or off", "ADDRESS"
)
LISTEN = ValueKind(
    _listen, "a port of all addresses, ADDRESS:PORT or [ADDRESS]:PORT with an address in numbers", "ADDRESS"
)
PEERS = ValueKind(
    parse_peers,
    "none, mpi, auto, slurm, torchrun, dns:NAME or hosts like A,B,C:PORT",
    "NODES",
    lambda value: f"`{value}`",
)
SOCKET = ValueKind(_socket_path, f"a path for the control socket, at most {MAX_SOCKET_PATH_BYTES} bytes", "PATH")
FLAG = ValueKind(parse_flag, "true or false", show=lambda value: "on" if value else "off")
SIZE = ValueKind(parse_size, "a size like 500G or 1.5TB (K=KiB=1024, KB=1000)", "SIZE", show_exactly)
CHUNK = ValueKind(_chunk, "a power of two from 64K to 64M", "SIZE", show_exactly)
RATE = ValueKind(_rate, "a size like 32M, to be read each second, or off", "SIZE", show_exactly)
DURATION = ValueKind(parse_duration, "seconds, or like 500ms, 10m, 2h", "SECONDS", lambda value: f"{value:g}")
IDENTITY = ValueKind(_identity, "16 hexadecimal digits, as hfs status shows them", "HEX")
USER = ValueKind(
    resolve_user, "the name of a user, UID, or UID:GID of one that this machine does not know", "USER", shown_user
)
NICE = ValueKind(parse_count, "", "N").within("a whole number from 0 to 19", 0, 19)
ANSWER_THREADS = ValueKind(parse_count, "", "N").within("a whole number from 0 to 64", 0, 64)
THREADS = ValueKind(parse_count, "", "N").within("a whole number from 1 to 1024", 1, 1024)
