"""What the runs of a group gave for each row, or why they gave nothing: a row that fails leaves the others alone."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from scripts.benchmarks.common import BenchError
from scripts.benchmarks.table import Bar, Row, failed_row, median_row


class Results:
    """Values by key, one a run. A key that has failed in one run has no row of the others."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._values: dict[str, list[float]] = {}
        self._reasons: dict[str, str] = {}

    def add(self, key: str, value: float) -> None:
        self._values.setdefault(key, []).append(value)

    def last(self, key: str) -> float:
        """Its value of this run. Raises BenchError with the reason where there is none."""
        return self.values(key)[-1]

    def values(self, key: str) -> list[float]:
        """Those of all runs so far. Raises BenchError with the reason where there is none."""
        if key in self._reasons:
            raise BenchError(self._reasons[key])
        return self._values[key]

    @contextlib.contextmanager
    def attempt(self, *keys: str) -> Iterator[None]:
        """What is measured inside is for these keys; a BenchError becomes the reason of each."""
        try:
            yield
        except BenchError as error:
            for key in keys:
                self._reasons.setdefault(key, str(error))

    def row(self, name: str, key: str, bar: Bar | None = None, unit: str = "x") -> Row:
        if key in self._reasons:
            failed = failed_row(name, self._reasons[key], self._command)
            return replace(failed, bar=str(bar) if bar else None, holds=False if bar else None)
        return median_row(name, self._values.get(key, []), unit, self._command, bar)
