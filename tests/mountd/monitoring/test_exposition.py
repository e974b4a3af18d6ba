"""What monitoring systems read: prometheus-client's parsers find all that is told, with its names, units and labels."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser

from hfs.mountd.cache.objects.context import State
from hfs.mountd.core.metrics import COUNTERS
from hfs.mountd.monitoring import FAMILIES, exposition
from hfs.mountd.monitoring.exposition import Exposition
from hfs.policies.iomode import Mode

MOUNTPOINT = "/data/a b"
TEXTS = {"source.path": "/lustre/x", "version": "1.2", "staged.state": "resting", "io_mode.mode": "daemon"}
FIGURES = {
    part
    for family in FAMILIES
    for sample in family.samples
    for part in (sample.figure.partition("=")[0], *(value for _, value in sample.labels if family.kind == "info"))
    if part
}
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def figures() -> dict[str, Any]:
    """A value of its own for each figure, where the status has it."""
    found: dict[str, Any] = {"counters": {}}
    for number, name in enumerate(sorted(FIGURES)):
        if name in COUNTERS:
            found["counters"][name] = {"value": number + 1}
            continue
        *keys, last = name.split(".")
        inner = found
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = TEXTS.get(name, number + 1)
    return found


def parsed(openmetrics: bool, mountpoint: str = MOUNTPOINT) -> dict[str, Metric]:
    kind, text = Exposition(mountpoint, figures).text(PROMETHEUS if openmetrics else "")
    assert kind.startswith("application/openmetrics-text" if openmetrics else "text/plain; version=0.0.4")
    parser = openmetrics_parser if openmetrics else text_parser
    found: Iterable[Metric] = parser.text_string_to_metric_families(text.decode())
    return {metric.name: metric for metric in found}


@pytest.mark.parametrize("openmetrics", [False, True])
def test_all_of_the_table_is_told(openmetrics: bool) -> None:
    found = parsed(openmetrics)
    given = {name: TEXTS.get(name, number + 1) for number, name in enumerate(sorted(FIGURES))}
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


def test_a_figure_that_is_missing_is_a_fault() -> None:
    given = figures()
    del given["open"]["nodes"]
    with pytest.raises(KeyError):
        Exposition("/m", lambda: given).text()


def test_a_version_that_is_none_is_no_fault() -> None:
    """Which form is told then is the library's to say, and differs between its releases."""
    _, text = Exposition("/m", figures).text("application/openmetrics-text;version=x.y")
    assert b"\nhfs_learners{" in text


def test_figures_are_gathered_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often, and in whichever form, they are asked for."""
    now_s = 1000.0
    monkeypatch.setattr(exposition.time, "monotonic", lambda: now_s)
    given = figures()
    gathered = 0

    def gather() -> dict[str, Any]:
        nonlocal gathered
        gathered += 1
        given["hints"]["learners"] = gathered
        return given

    found = Exposition("/m", gather)
    texts = {found.text(accept)[1] for accept in ("", PROMETHEUS, "", PROMETHEUS)}
    assert (gathered, len(texts)) == (1, 2)
    assert all(b'hfs_learners{mountpoint="/m"} 1.0\n' in text for text in texts)
    now_s += exposition.KEPT_S
    assert b'hfs_learners{mountpoint="/m"} 2.0\n' in found.text()[1]
