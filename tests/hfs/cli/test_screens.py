"""What `hfs status` and the end of `hfs run` show of what a daemon says, as recorded in screens.txt: all lines of it.

Each case has a name, what a daemon says besides `QUIET`, and what is shown. `python -m tests.hfs.cli.test_screens`
writes into screens.txt what is shown now: read the difference.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hfs.cli.status_screen import MOST_LINES, run_lines, screen
from tests.support.statuses import STATUS

FILE = Path(__file__).with_name("screens.txt")
CASES = re.findall(r"^# (.*)\n((?:[{ ].*\n)+)--- hfs status\n((?:(?!# ).*\n)*)", FILE.read_text(), flags=re.MULTILINE)
QUIET = {**STATUS, "hints": {}, "readers": STATUS["readers"][:1]}


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: merged(base[key], value) for key, value in change.items() if isinstance(value, dict) and key in base}
    return {**base, **change, **both}


def shown(said: str) -> str:
    status = merged(QUIET, json.loads(said))
    lines, end = screen(status), run_lines(status)
    assert len(lines) <= MOST_LINES
    assert len(end) <= 5
    return "".join(f"{line}\n" for line in (*lines, "--- hfs run", *end))


@pytest.mark.parametrize(("said", "lines"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_a_daemon_says_is_shown(said: str, lines: str) -> None:
    assert shown(said) == lines


if __name__ == "__main__":
    FILE.write_text("".join(f"# {name}\n{said}--- hfs status\n{shown(said)}" for name, said, _ in CASES))
