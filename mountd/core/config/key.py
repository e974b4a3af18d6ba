"""One key of the configuration, declared once: how it is read and shown, what is allowed, and what it means to people.

The fields of `mountd.core.config.Config` carry these; the options of hfs, their help, docs/configuration.md and every
check of a value are made from them. Blocks nothing, reads nothing.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

from hfs.mountd.base.socket_path import MAX_SOCKET_PATH_BYTES
from hfs.mountd.core.config.address import parse_address
from hfs.mountd.core.config.quantities import parse_count, parse_duration, parse_flag, parse_size
from hfs.mountd.core.config.source_user import resolve, shown

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

    name: str
    """`cache-size` in TOML, in -o and on the command line, HFS_CACHE_SIZE in the environment."""
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
SOCKET = ValueKind(_socket_path, f"a path for the control socket, at most {MAX_SOCKET_PATH_BYTES} bytes", "PATH")
FLAG = ValueKind(parse_flag, "true or false", show=lambda value: "on" if value else "off")
SIZE = ValueKind(parse_size, "a size like 500G or 1.5TB (K=KiB=1024, KB=1000)", "SIZE", show_exactly)
CHUNK = ValueKind(_chunk, "a power of two from 64K to 64M", "SIZE", show_exactly)
RATE = ValueKind(_rate, "a size like 32M, to be read each second, or off", "SIZE", show_exactly)
DURATION = ValueKind(parse_duration, "seconds, or like 500ms, 10m, 2h", "SECONDS", lambda value: f"{value:g}")
IDENTITY = ValueKind(_identity, "16 hexadecimal digits, as hfs status shows them", "HEX")
USER = ValueKind(resolve, "the name of a user, UID, or UID:GID of one that this machine does not know", "USER", shown)
NICE = ValueKind(parse_count, "", "N").within("a whole number from 0 to 19", 0, 19)
ANSWER_THREADS = ValueKind(parse_count, "", "N").within("a whole number from 0 to 64", 0, 64)
THREADS = ValueKind(parse_count, "", "N").within("a whole number from 1 to 1024", 1, 1024)
