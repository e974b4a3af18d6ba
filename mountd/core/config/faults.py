"""What is wrong with one key of the configuration, in words. Made by `config` and what belongs to it; plain values."""

from __future__ import annotations

import json
from typing import NamedTuple


class Fault(NamedTuple):
    """One thing that is wrong. `text` says what is wrong and what is allowed."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


def impossible(key: str, value: object, origin: str, allowed: str) -> Fault:
    """The fault of a value that cannot be."""
    return Fault(key, f"{shown(value)} is not possible ({origin}); allowed: {allowed}")


def shown(value: object) -> str:
    """A value for a message: quoted, in one line, undecodable bytes escaped."""
    if isinstance(value, str):
        return '"' + value.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n") + '"'
    return json.dumps(value, default=str)
