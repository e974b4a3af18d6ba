"""The text that monitoring systems read, in both of its forms: Prometheus's own (0.0.4) and OpenMetrics (1.0).

Nearly all of it is always the same, so it is made once, with gaps for the figures. (A registry of prometheus-client
takes a millisecond for as many series, which ten times a second is a hundredth of a core; this takes a twentieth.)
Tests read it with prometheus-client's parsers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hfs.mountd.monitoring.families import Family, Sample

Figure = int | float | str

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Content types."""


class Exposition:
    """Of one daemon."""

    def __init__(self, families: Sequence[Family], mountpoint: str, named: Mapping[str, str]) -> None:
        """`named`: texts for the labels of infos, by figure. Both may hold surrogates."""
        self._figures = [sample.figure for family in families for sample in family.samples if sample.figure]
        gaps = list(enumerate(self._figures))
        self._seconds = [(gap, figure) for gap, figure in gaps if figure.endswith("_ns")]
        split = [(gap, figure.partition("=")) for gap, figure in gaps]
        self._words = [(gap, path, word) for gap, (path, is_word, word) in split if is_word]
        mount = ("mountpoint", mountpoint)
        self._text = "".join(_gaps(families, mount, named, openmetrics=False))
        self._openmetrics = "".join(_gaps(families, mount, named, openmetrics=True)) + "# EOF\n"

    def text(self, figures: Mapping[str, Figure], *, openmetrics: bool = False) -> bytes:
        """All families, with these figures. Raises KeyError for one that is missing."""
        values = [figures.get(figure) for figure in self._figures]
        for gap, figure in self._seconds:
            values[gap] = int(figures[figure]) / 1e9
        for gap, path, word in self._words:
            values[gap] = int(figures[path] == word)
        if None in values:
            raise KeyError(self._figures[values.index(None)])
        return ((self._openmetrics if openmetrics else self._text) % tuple(values)).encode()


def _gaps(
    families: Sequence[Family], mount: tuple[str, str], named: Mapping[str, str], *, openmetrics: bool
) -> Iterator[str]:
    for family in families:
        # In Prometheus's own form a counter is called by the name of its samples, and an info is a gauge.
        name = family.name if openmetrics else family.sample_name
        kind = "gauge" if family.kind == "info" and not openmetrics else family.kind
        yield f"# HELP {name} {_escaped(family.help, quoted=openmetrics)}\n# TYPE {name} {kind}\n".replace("%", "%%")
        if openmetrics and family.unit:
            yield f"# UNIT {name} {family.unit}\n"
        for sample in family.samples:
            labels = dict([mount, *_labels(family, sample, named)])
            shown = ",".join(f'{label}="{_escaped(value, quoted=True)}"' for label, value in labels.items())
            yield f"{family.sample_name}{{{shown}}} ".replace("%", "%%") + ("%s\n" if sample.figure else "1\n")


def _labels(family: Family, sample: Sample, named: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for label, value in sample.labels:
        yield label, named[value] if family.kind == "info" else value


def _escaped(text: str, *, quoted: bool) -> str:
    """In one line, whatever a path holds: bytes that are not UTF-8 and control characters as \\xNN."""
    text = text.encode("utf-8", "backslashreplace").decode()
    text = "".join(f"\\x{ord(one):02x}" if one != "\n" and not one.isprintable() else one for one in text)
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text
