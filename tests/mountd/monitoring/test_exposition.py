"""What monitoring systems read: prometheus-client's parsers find all that is told, with its names, units and labels."""

import math
from collections.abc import Iterable

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser

from hfs.mountd.cache.objects import State
from hfs.mountd.core.metrics import COUNTERS
from hfs.mountd.monitoring import FAMILIES, FIGURES, Exposition
from hfs.mountd.monitoring.families import Family, Sample
from hfs.policies.iomode import Mode

MOUNTPOINT = "/data/a b"
NAMED = {"source.path": "/lustre/x", "version": "1.2"}
WORDS = {"staged.state": "resting", "io_mode.mode": "daemon"}


def figures() -> dict[str, int | float | str]:
    """A value of its own for each figure."""
    return {name: WORDS.get(name, number + 1) for number, name in enumerate(sorted(FIGURES))}


def parsed(openmetrics: bool, mountpoint: str = MOUNTPOINT) -> dict[str, Metric]:
    text = Exposition(FAMILIES, mountpoint, NAMED).text(figures(), openmetrics=openmetrics).decode()
    parser = openmetrics_parser if openmetrics else text_parser
    found: Iterable[Metric] = parser.text_string_to_metric_families(text)
    return {metric.name: metric for metric in found}


@pytest.mark.parametrize("openmetrics", [False, True])
def test_all_of_the_table_is_told(openmetrics: bool) -> None:
    found = parsed(openmetrics)
    given = figures()
    names = {family.name for family in FAMILIES}
    assert len(names) == len(FAMILIES)
    # Of an info Prometheus's own text has only the sample.
    assert set(found) == {f.name if openmetrics or f.kind != "info" else f.sample_name for f in FAMILIES}
    for family in FAMILIES:
        metric = found[family.name if openmetrics or family.kind != "info" else family.sample_name]
        assert metric.documentation == family.help
        assert metric.type == ("gauge" if family.kind == "info" and not openmetrics else family.kind)
        assert metric.unit == (family.unit if openmetrics else "")
        assert len(metric.samples) == len(family.samples)
        for told, sample in zip(metric.samples, family.samples, strict=True):
            assert told.name == family.sample_name
            assert told.timestamp is None
            assert told.labels.pop("mountpoint") == MOUNTPOINT
            if family.kind == "info":
                assert (told.labels, told.value) == ({"source": "/lustre/x", "version": "1.2"}, 1)
                continue
            assert told.labels == dict(sample.labels)
            path, is_word, word = sample.figure.partition("=")
            value = given[path]
            if is_word:
                assert told.value == (value == word)
            else:
                assert isinstance(value, int)
                assert math.isclose(told.value, value / 1e9 if path.endswith("_ns") else value)


def test_every_counter_is_told() -> None:
    """By itself, or as part of a figure of the status that adds what the data plane has answered."""
    added = {f"bytes_{tier}": f"read_bytes.{tier}" for tier in ("staged", "flight", "source", "bypass")}
    added |= {f"reads_{tier}": f"reads.{tier}" for tier in ("staged", "flight", "source", "bypass")}
    added |= {f"opens_{answer}": f"opens.{answer}" for answer in ("cached", "passed", "anew", "stateless")}
    traffic = ("bytes_large", "opened_cached_bytes", "opened_passed_bytes", "opens_large_passed")
    added |= dict.fromkeys(traffic, "traffic.read_bytes")
    added |= {"overlay_look_ups": "by_kernel.look_ups", "overlay_look_up_bytes": "by_kernel.bytes"}
    assert {added.get(name, name) for name in COUNTERS} <= FIGURES


def test_names_are_as_monitoring_systems_want_them() -> None:
    reserved = ("_total", "_info", "_created", "_count", "_sum", "_bucket", "_ns", "_s")
    for family in FAMILIES:
        assert family.name.startswith("hfs_")
        assert not family.name.endswith(reserved), family.name
        assert family.help.endswith(".")
        has_seconds = any(sample.figure.endswith(("_ns", "_s")) for sample in family.samples)
        assert has_seconds == (family.unit == "seconds"), family.name
        if family.kind != "info":
            assert any("bytes" in sample.figure for sample in family.samples) == (family.unit == "bytes"), family.name


def test_labels_are_bounded() -> None:
    """Each is a word of the table, and few: names of files, users and processes are never told."""
    assert sum(len(family.samples) for family in FAMILIES) < 250
    for family in FAMILIES:
        for sample in family.samples:
            assert len(sample.labels) <= 1 or family.kind == "info"
            if family.kind != "info":
                assert all(value.replace("_", "").isalpha() for _, value in sample.labels)
    infos = [family for family in FAMILIES if family.kind == "info"]
    assert [dict(family.samples[0].labels) for family in infos] == [{"source": "source.path", "version": "version"}]


def test_words_of_the_status_are_all_told() -> None:
    for name, words in (("hfs_cache_state", State), ("hfs_io_mode", Mode)):
        (family,) = (family for family in FAMILIES if family.name == name)
        assert [sample.labels[0][1] for sample in family.samples] == list(words.__args__)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_whatever_a_path_holds(openmetrics: bool) -> None:
    """Quotes, backslashes, percent signs, line breaks, bytes that are not UTF-8: one label, and no other line."""
    name = 'a"b\\n%s\n# EOF\r\x85\u2028{}caf\udce9é\x00'
    for metric in parsed(openmetrics, f"/{name}").values():
        for sample in metric.samples:
            shown = 'a"b\\n%s\n# EOF\\x0d\\x85\\x2028{}caf\\udce9é\\x00'
            assert sample.labels["mountpoint"] == f"/{shown}"


def test_figures_keep_what_they_are() -> None:
    family = Family("hfs_a_bytes", "gauge", "A.", (Sample("a"),))
    exposition = Exposition([family], "/m", {})
    large = (1 << 63) - 1
    assert exposition.text({"a": large}).endswith(f'hfs_a_bytes{{mountpoint="/m"}} {large}\n'.encode())
    assert exposition.text({"a": 1e-7}).endswith(b" 1e-07\n")
    with pytest.raises(KeyError):
        exposition.text({"b": 1})
