"""One figure for people: a size, a duration, or any value by the unit that its name ends with (`_bytes`, `_s`, `_ns`).

Imports nothing that draws tables, since `hfs status` must answer at once.
"""

from __future__ import annotations

from hfs.mountd.core.errors import printable, show_size

size = show_size
_NUMBERS_THAT_COUNT_NOTHING = {"pid", "inode"}


def duration(seconds: float) -> str:
    """0.25 s, 12.3 s, 5 min 02 s, 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(number: int, noun: str) -> str:
    """1 file, 2,000 files."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def figure(name: str, value: object) -> str:
    """A value for people, by the unit that its name ends with."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name in _NUMBERS_THAT_COUNT_NOTHING:
            return str(value)
        if name == "bytes" or name.endswith("_bytes"):
            return size(value)
        if name.endswith("_ns"):
            return duration(value / 1e9)
        if name.endswith("_s"):
            return duration(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    if isinstance(value, list):
        return "\n".join(figure("", entry) for entry in value) or "-"
    return printable(str(value))
