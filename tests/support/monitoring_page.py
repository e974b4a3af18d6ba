"""The table of docs/monitoring.md, made from the table that the daemon tells its metrics by.

    python -m tests.support.monitoring_page

writes it into the page; tests/hfs/test_docs_monitoring.py says when that is to be done.
"""

import re
from pathlib import Path

from hfs.mountd.core.metrics import COUNTERS
from hfs.mountd.monitoring import FAMILIES
from hfs.mountd.monitoring.families import Family, Sample

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"

HEAD = "| metric | kind | meaning | in `hfs status --json` |\n| --- | --- | --- | --- |\n"

# Figures that the status has in other words, or not at all.
ELSEWHERE = {
    "": "",
    "start_time_s": "`uptime_s`",
    "mount_start_time_s": "`keeper.mount_uptime_s`",
    "cpu_ns": "",
    "small_files_running": "",
    "background_faults": "`background_faults`",
}


def with_table(page: str) -> str:
    """The page with the table below its heading as it should be."""
    rows = "".join(row(family) for family in FAMILIES)
    page, found = re.subn(
        r"(^## All metrics\n\n(?:[^|\n].*\n+)*)(?:\|.*\n)*",
        lambda heading: f"{heading[1]}{HEAD}{rows}",
        page,
        flags=re.MULTILINE,
    )
    assert found == 1
    return page


def row(family: Family) -> str:
    labels = {}
    for sample in family.samples:
        for label, value in sample.labels:
            labels.setdefault(label, []).append(value)
    words = {label: "TEXT" if family.kind == "info" else "\\|".join(values) for label, values in labels.items()}
    shown = ",".join(f'{label}="{values}"' for label, values in words.items())
    name = f"{family.sample_name}{{{shown}}}" if shown else family.sample_name
    places = ", ".join(dict.fromkeys(filter(None, map(place, family.samples))))
    return f"| `{name}` | {family.kind} | {family.help} | {places} |\n"


def place(sample: Sample) -> str:
    path = sample.figure.partition("=")[0]
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return f"`counters.{path}`" if path in COUNTERS else f"`{path}`"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
