"""A log is packed only if it belongs to the mount's user, and no link of another user leads to it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.doctor import bundle
from hfs.mounting import probe

UID = os.geteuid()


def read(path: Path, owner: int = UID) -> bytes:
    return probe.answer(bundle._TAIL, [str(path), "1000", str(owner)], 30.0, modules=["stat"])[0]


@pytest.fixture
def log() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hfs-log-", dir="/tmp") as place:
        (Path(place) / "logs").mkdir()
        (Path(place) / "logs" / "log").write_text("words of the log")
        yield Path(place) / "logs" / "log"


def test_its_owners_log_is_read(log: Path) -> None:
    assert read(log) == b"words of the log"
    (log.parent.parent / "link").symlink_to("logs")
    assert read(log.parent.parent / "link" / "log") == b"words of the log"


def test_a_file_of_somebody_else_is_not(log: Path) -> None:
    """Whatever a daemon says its log is."""
    assert read(log, UID + 1) == b""
    os.mkfifo(log.parent / "fifo")
    assert read(log.parent / "fifo") == b""
    assert read(log.parent) == b""


@pytest.mark.skipif(UID != 0, reason="only root can make a link of another user")
def test_no_link_of_another_user_leads_to_it(log: Path) -> None:
    """Neither the last part of the path, nor one above."""
    above, last = log.parent.parent / "link", log.parent / "last"
    above.symlink_to("logs")
    last.symlink_to("log")
    for link in (above, last):
        os.chown(link, 61001, 61001, follow_symlinks=False)
    assert read(above / "log") == read(last) == b""
