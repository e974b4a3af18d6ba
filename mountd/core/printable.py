"""`printable`: somebody else's words as one line that any terminal takes and none obeys; `shown_path`: their paths;
`show_size`: a size.

Names of files, mounts and learners, and whatever a daemon, a keeper or a record says, are other users' words. All that
prints one, or puts one into a line or an error, has it go through here.
"""

from __future__ import annotations

import os
import re

_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # controls: escapes, and what ends a line
    "\u2028\u2029"  # what some take for the end of a line
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # what shows the rest in another order
)


def printable(text: str) -> str:
    """The text with controls, ends of lines and marks of direction as escapes, and what is not UTF-8 too."""
    text = _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    return text.encode("utf-8", "backslashreplace").decode()


def shown_path(path: bytes) -> str:
    """A path relative to the root of SOURCE, for messages: in quotes, since it may have blanks in it."""
    return repr(os.fsdecode(path)) if path else "the root of SOURCE"


def show_size(size_bytes: float) -> str:
    """Bytes with three digits, as disks are sold: 999 B, 12.3 MB, 1.00 GB."""
    count, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if abs(count) < 999.5:
            break
        count, unit = count / 1000, larger
    return f"{count:.0f} B" if unit == "B" else f"{count:.{max(0, 3 - len(f'{abs(count):.0f}'))}f} {unit}"
