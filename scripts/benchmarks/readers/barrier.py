"""The start barrier of the reader programs: what is timed begins when the benchmark says so, not with imports.

A reader calls `serve`: it says "ready", then answers each line on stdin (a JSON object: the arguments) with a line on
stdout (a JSON object: the result with "begin_s" and "end_s", seconds of CLOCK_MONOTONIC, which all processes share).
It ends with stdin.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def serve(work: Callable[..., dict[str, Any] | None]) -> None:
    """Answer until stdin ends. An exception in `work` ends the process: the benchmark then shows its stderr."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        begin = time.monotonic()
        result = work(**arguments)
        end = time.monotonic()
        print(json.dumps({"begin_s": begin, "end_s": end, **(result or {})}), flush=True)
