"""Files that appear whole or not at all: written under another name beside the place, made durable, then renamed.

Never leaves a part behind, unless it is killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[BinaryIO]:
    """The file at `path`, to be written within; what was there before stays until the end. Raises OSError."""
    part = f"{path}.{secrets.token_hex(4)}.part"
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
