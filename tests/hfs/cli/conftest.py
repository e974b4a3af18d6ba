"""The command line without a mount: an environment without settings, a mount table without mounts, a fake daemon."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.cli import shared
from hfs.cli import status as status_module
from hfs.client.client import DaemonSilent
from hfs.mounting.mountinfo import parse
from tests.hfs.daemon import FakeCommands, serving


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("HFS_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    # Other mounts of hfs on this machine are not ours.
    table = parse("1 0 0:1 / / rw - ext4 dev rw\n2 1 0:2 / /proc rw - proc proc rw")
    monkeypatch.setattr(shared.mountinfo, "mounts", lambda: table)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCommands]:
    """A daemon whose mount the command line sees at tmp_path/m."""
    place = tmp_path.resolve() / "m"
    table = parse(f"1 0 0:1 / / rw - ext4 dev rw\n2 1 0:2 / {place} ro - fuse.hfs hfs#/s ro")
    monkeypatch.setattr(shared.mountinfo, "mounts", lambda: table)

    def find_socket(path: str, **_options: object) -> str:
        if path != str(place):
            raise DaemonSilent(f"{path}: not a mount of hfs")
        return str(tmp_path / "s")

    monkeypatch.setattr(shared, "find_socket", find_socket)
    monkeypatch.setattr(status_module, "find_socket", find_socket)
    commands = FakeCommands(str(place))
    with serving(tmp_path / "s", commands):
        yield commands
