"""Whoever has started the mount: told once, that it answers or why there is none."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Any


class Starter:
    """`answer` is called once, with the one line: `{"ready": pid}` or `{"error": text, "code": n}`."""

    def __init__(self, answer: Callable[[dict[str, Any]], None], when_mounted: Sequence[str], directory: str) -> None:
        """`when_mounted`: a command to run, in `directory`, once the mount answers; empty: none."""
        self._answer = answer
        self._when_mounted = when_mounted
        self._directory = directory
        self.is_told = False

    def tell(self, record: dict[str, Any]) -> None:
        """The first record is the answer; others change nothing."""
        if self.is_told:
            return
        self.is_told = True
        self._answer(record)
        if "ready" in record and self._when_mounted:
            started = subprocess.Popen(self._when_mounted, stdin=subprocess.DEVNULL, cwd=self._directory)
            started.returncode = 0  # waited for as all children are
