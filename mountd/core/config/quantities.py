"""Numbers as people write them: sizes, durations, counts, yes and no.

They come from TOML (already typed), environment and command line (text). Each parser takes either and raises ValueError
or TypeError; the caller knows the key and says what is allowed.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

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


def show_size(size_bytes: int) -> str:
    """Bytes with three digits, as disks are sold: 999 B, 12.3 MB, 1.00 GB."""
    count, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if count < 999.5:
            break
        count, unit = count / 1000, larger
    return f"{count:.0f} B" if unit == "B" else f"{count:.{max(0, 3 - len(f'{count:.0f}'))}f} {unit}"


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
