"""The keeper's process: `python -I -S .../hfs/mountd/supervisor`, started by `hfs.mounting` and by nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

# Isolated, Python looks for its own modules and in the directory that it was given. Behind its own: beside an installed
# hfs there may be modules of the same names.
sys.path[:1] = []
sys.path.append(os.path.abspath(__file__).removesuffix("/hfs/mountd/supervisor/__main__.py"))

from hfs.mountd.supervisor.keeper import Keeper  # noqa: E402 - the line above finds it


def main() -> int:
    """Read the order, keep the mount; the exit code."""
    given = json.loads(sys.stdin.buffer.read())
    os.chdir("/")  # else the directory that we were started in could not be unmounted
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)

    def answer(record: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the caller was killed; the mount is there all the same
            os.write(answers, json.dumps(record).encode() + b"\n")
        os.close(answers)

    def tell(record: dict[str, Any]) -> None:
        text = f"{given['config']['mountpoint']}: mounted" if "ready" in record else record.get("error")
        text = text or f"the daemon ended before the mount answered (exit code {record.get('died')})"
        lines = "".join(f"hfs: {line}\n" for line in text.splitlines())
        with contextlib.suppress(OSError):
            os.write(2, lines.encode("utf-8", "backslashreplace"))

    return Keeper(given, tell if given["keeper"].get("foreground") else answer).run()


if __name__ == "__main__":
    sys.exit(main())
