"""What others say to the keeper, by type: a line that is something else is refused before anything is done with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

Kind = TypeVar("Kind")


class Malformed(Exception):
    """It is not what it should be; the text says what is wrong."""


def read(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None: it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def field(record: Mapping[str, Any], name: str, kind: type[Kind], default: Kind | None = None) -> Kind:
    """One of its fields, which is of this type. `default` stands for one that is not there; None: it has to be. A float
    may come as an integer, and is finite; a list is of texts. Raises Malformed."""
    value = record.get(name, default)
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        value = float(value)
    is_right = type(value) is kind and (not isinstance(value, float) or math.isfinite(value))
    if isinstance(value, list):
        is_right = is_right and bool(value) and all(isinstance(part, str) for part in value)
    if not is_right:
        raise Malformed(f"{name} is no {kind.__name__}")
    assert isinstance(value, kind)
    return value
