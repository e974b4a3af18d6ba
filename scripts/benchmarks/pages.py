"""`scripts/bench pages`: the tables of the docs that show what is kept in results/, written from there.

A table stands between two lines of a page,

    <!-- kept: first-epoch-cold -->
    <!-- end of what is kept -->

and shows all rows of results/first-epoch-cold.json with the spread of their runs. The texts around are written by hand.

Exit codes: 0 the pages are as they should be now; 1 with --check, one was not; 2 usage, or a file that is not there.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import ROOT
from scripts.benchmarks.pieces import RESULTS
from scripts.benchmarks.table import round_3

BLOCK = re.compile(
    r"^<!-- kept: (?P<name>[\w-]+) -->\n.*?^<!-- end of what is kept -->$",
    re.MULTILINE | re.DOTALL,
)
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_MARKS = {True: "holds", False: "**missed**", None: ""}


def main(arguments: Sequence[str]) -> int:
    words = argparse.ArgumentParser(prog="scripts/bench pages", description="Writes the tables of the docs.")
    words.add_argument("--check", action="store_true", help="change nothing; name the pages that are not up to date")
    args = words.parse_args(arguments)
    changed = 0
    for page in PAGES:
        text = page.read_text()
        try:
            written = rewritten(text)
        except FileNotFoundError as error:
            print(f"{page.relative_to(ROOT)}: {error.filename} is not there: measure it, or take the table out")
            return 2
        if written != text:
            changed += 1
            print(f"{page.relative_to(ROOT)}: {'is not up to date' if args.check else 'written'}")
            if not args.check:
                page.write_text(written)
    return 1 if changed and args.check else 0


def rewritten(text: str, results: Path = RESULTS) -> str:
    """A page with each of its tables as the files in `results` have it. Raises FileNotFoundError."""

    def block(found: re.Match[str]) -> str:
        record = json.loads((results / f"{found['name']}.json").read_text())
        first, rest = found[0].split("\n", 1)[0], "<!-- end of what is kept -->"
        return "\n".join([first, "", *_table(record), "", rest])

    return BLOCK.sub(block, text)


def _table(record: dict[str, Any]) -> Iterator[str]:
    rows = [row for row in record["rows"] if row["value"] is not None]
    commands = list(dict.fromkeys(row["command"] for row in rows))
    machine, versions = record["machine"], record["versions"]
    kind = f"{machine['cores']} cores, {machine['processor']}, commit {versions['commit'][:8]}"
    runs = f"{record['runs']} runs" if record["runs"] > 1 else "1 run"
    beside = "" if record.get("quiet", True) else ", **others ran beside**"
    quick = ", **a quick run**" if record["quick"] else ""
    yield f"{', '.join(f'`{command}`' for command in commands)} ({runs}, {kind}{quick}{beside})"
    yield ""
    yield "| what | measured | bar | |"
    yield "| --- | --- | --- | --- |"
    for row in rows:
        name = row["row"].replace("|", "\\|")
        depth = (len(name) - len(name.lstrip())) // 2
        values = row.get("values") or ()
        spread = f" ({round_3(min(values)):g} to {round_3(max(values)):g})" if len(values) > 1 else ""
        unit = f" {row['unit']}" if row["unit"] else ""
        shown = f"{round_3(row['value']):g}{unit}{spread}"
        bar = row["bar"] or ""
        yield f"| {'&nbsp;&nbsp;' * depth}{name.strip()} | {shown} | {bar} | {_MARKS[row['holds']]} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
