"""The text that monitoring systems read, in the form that each of them likes: written by prometheus-client.

To gather the figures and to write them down takes some milliseconds, so it is done once a second at most, however often
somebody asks, and not on the event loop: `text` is for threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hfs.mountd.core.metrics import COUNTERS
from hfs.mountd.monitoring.families import FAMILIES, Family, Sample

KEPT_S = 1.0
"""Figures are told again for so long. Collectors ask every 15 s by custom."""

Figures = Mapping[str, Any]


class Exposition(Collector):
    """The text of one mount."""

    def __init__(self, mountpoint: str, gather: Callable[[], Figures]) -> None:
        """`gather()`: the status, and what the table names besides; called in the thread that asks."""
        self._mountpoint = _printable(mountpoint)
        self._gather = gather
        self._lock = threading.Lock()
        self._figures: Figures = {}
        self._texts: dict[str, bytes] = {}
        """Of these figures, by content type."""
        self._gather_again_s = 0.0

    def text(self, accept: str = "") -> tuple[str, bytes]:
        """(content type, all metrics), as a field Accept of HTTP wants them. Raises what `gather` does."""
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is none
            encode, kind = choose_encoder("")
        with self._lock:
            if time.monotonic() >= self._gather_again_s:
                self._figures = self._gather()
                self._texts.clear()
                self._gather_again_s = time.monotonic() + KEPT_S
            if kind not in self._texts:
                self._texts[kind] = encode(self)
            return kind, self._texts[kind]

    def collect(self) -> Iterator[Metric]:
        """The table, for prometheus-client."""
        for family in FAMILIES:
            metric = Metric(family.name, family.help, family.kind, family.unit)
            for sample in family.samples:
                labels = {"mountpoint": self._mountpoint, **dict(self._labels(family, sample))}
                metric.add_sample(family.sample_name, labels, value_of(self._figures, sample.figure))
            yield metric

    def _labels(self, family: Family, sample: Sample) -> Iterator[tuple[str, str]]:
        for label, value in sample.labels:
            yield label, _printable(_found(self._figures, value)) if family.kind == "info" else value


def value_of(figures: Figures, figure: str) -> float:
    """What a sample's figure is just now. Raises KeyError: there is none."""
    path, is_word, word = figure.partition("=")
    if not path:
        return 1
    found = figures["counters"][path]["value"] if path in COUNTERS else _found(figures, path)
    if is_word:
        return int(found == word)
    return float(found / 1e9 if path.endswith("_ns") else found)


def _found(figures: Figures, path: str) -> Any:  # noqa: ANN401 - the status has figures and texts
    found: Any = figures
    for key in path.split("."):
        found = found[key]
    return found


def _printable(text: str) -> str:
    """What a path holds besides, as \\xNN: bytes that are not UTF-8, and control characters other than line breaks,
    which the library escapes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(f"\\x{ord(one):02x}" if one != "\n" and not one.isprintable() else one for one in text)
