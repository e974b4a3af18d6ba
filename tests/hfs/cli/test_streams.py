"""Stdout and stderr that are closed, full or read by nobody: commands do their work, and end as they would."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a command is started for each case

HFS = str(Path(sys.executable).parent / "hfs")

CLOSED = ("2>&-", "<&- >&- 2>&-", ">&-")
UNHEARD = ("2>/dev/full", "2> >(exec <&-)")


def code(redirection: str, *words: str) -> tuple[int, str]:
    """How a command ends under a redirection, and what it still says on stderr."""
    line = ["bash", "-c", f'"$@" {redirection}', "bash", HFS, *words]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=50)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("redirection", [*CLOSED, *UNHEARD])
def test_work_is_done_whoever_hears_of_it(redirection: str, tmp_path: Path) -> None:
    """Not least: no file that the command opens is given the number of what was closed, and the messages with it."""
    pages = tmp_path / "pages"
    assert code(redirection, "man", "--to", str(pages))[0] == 0
    assert len(list(pages.rglob("*.1"))) > 30
    assert all(page.read_text().startswith(".") for page in pages.rglob("*.1"))


def test_a_result_that_cannot_be_printed_is_an_error() -> None:
    """`hfs slurm prolog > FILE` on a full disk must not leave an empty prolog, and say that all is well."""
    for words in ("slurm", "prolog"), ("config",), ("man", "status"):
        assert code(">/dev/full", *words) == (
            1,
            "hfs: stdout cannot be written (No space left on device): the output is not whole\n",
        )


def test_what_is_said_beside_the_work_may_be_lost(tmp_path: Path) -> None:
    """A log on a full disk ends no job."""
    assert code(">/dev/full 2>&1", "sweep", "--dry-run")[0] == 0
    assert code(">/dev/full 2>&1", "umount", str(tmp_path))[0] == 1  # its own fault
