"""The tables of docs/configuration.md, made from the keys as they are declared.

    python -m tests.support.configuration_page

writes them into the page; tests/hfs/test_docs.py says when that is to be done. What stands around them is written by
people.
"""

import re
from pathlib import Path

from hfs.mountd.core.config import KEYS
from hfs.mountd.core.config.key import Key

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

HEAD = "| key | option | default | meaning |\n| --- | --- | --- | --- |\n"


def with_tables(page: str) -> str:
    """The page with the table below the heading of each section as it should be."""
    for section in dict.fromkeys(key.section for key in KEYS):
        rows = "".join(row(key) for key in KEYS if key.section == section)
        table = rf"(^## {re.escape(section)}\n\n)(?:\|.*\n)*"
        page, found = re.subn(table, lambda heading: f"{heading[1]}{HEAD}{rows}", page, flags=re.MULTILINE)  # noqa: B023 - called at once
        assert found == 1, f"no heading: {section}"
    return page


def row(key: Key) -> str:
    option = key.given or (f"`--{key.name}`" if key.option else "")
    return f"| `{key.name}` | {option} | {key.default} | {key.meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
