"""docs/monitoring.md and what comes with it: the table is that of the daemon, and all that is named is told."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hfs.mountd.monitoring import FAMILIES
from tests.support.monitoring_page import PAGE, with_table

FOLDER = PAGE.with_suffix("")
DASHBOARD, ALERTS = FOLDER / "dashboard.json", FOLDER / "alerts.yml"
NAMES = {family.sample_name for family in FAMILIES}
LABELS = {
    (family.sample_name, label): {value for sample in family.samples for name, value in sample.labels if name == label}
    for family in FAMILIES
    for sample in family.samples
    for label, _ in sample.labels
}


def test_the_table_is_that_of_the_daemon() -> None:
    text = PAGE.read_text()
    assert with_table(text) == text, "write it: python -m tests.support.monitoring_page"


@pytest.mark.parametrize("path", [PAGE, DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_metrics_that_are_named_are_told(path: Path) -> None:
    named = set(re.findall(r"\bhfs_[a-z_]+", path.read_text()))
    assert named
    assert named <= NAMES


@pytest.mark.parametrize("path", [DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_labels_that_are_chosen_by_are_told(path: Path) -> None:
    """A selector of a word that a label never has is a panel that stays empty, and an alert that never fires."""
    text = path.read_text().replace('\\"', '"')
    chosen = 0
    for name, selector in re.findall(r"\b(hfs_[a-z_]+)\{([^}]*)\}", text):
        for label, words in re.findall(r'(\w+)=~?"([^"]*)"', selector):
            if label not in ("instance", "mountpoint"):
                chosen += 1
                assert set(words.split("|")) <= LABELS[name, label], (name, label, words)
    assert chosen


def test_the_dashboard_can_be_imported() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "panels", "templating", "schemaVersion"} <= dashboard.keys()
    assert "id" not in dashboard  # of a dashboard that is there already
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in panels]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(set(cells)) == len(cells)  # none lies on another
    assert all(x + w <= 24 for x, _, w, _ in places)
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {*variables, "__rate_interval"}
            assert target["expr"].count("(") == target["expr"].count(")")


def test_what_a_wrong_name_looks_like() -> None:
    assert "hfs_read_bytes" not in NAMES
    assert "hfs_read_bytes_total" in NAMES
    assert LABELS["hfs_cache_state", "state"] == {"ok", "cleaning", "resting", "full", "off"}
