"""What the kernel says of directories: each event once, whatever names it brings."""

from pathlib import Path

from hfs.mountd.supervisor.inotify import IGNORED, MOVED_TO, Inotify

DELETE_SELF = 0x400


def test_each_event_is_heard_once(tmp_path: Path) -> None:
    for name in ("names", "goes"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    inotify = Inotify()
    names, goes = inotify.watch_names(str(tmp_path / "names")), inotify.watch_end(str(tmp_path / "goes"))
    assert inotify.heard() == []
    (tmp_path / "file").rename(tmp_path / "names" / "of more than sixteen bytes")
    (tmp_path / "goes").rmdir()
    assert inotify.heard() == [(names, MOVED_TO), (goes, DELETE_SELF), (goes, IGNORED)]
    assert inotify.watch_end(str(tmp_path / "goes")) == -1
    for _ in range(2):
        inotify.close()
