"""What MOUNTPOINT stands for where somebody else has mounted, and what the configuration takes from that."""

import os
import socket
from pathlib import Path

import msgspec
import pytest

from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, MountError
from hfs.mounting import given
from hfs.mounting.given import GivenMount, is_given, settled, take

OTHERS = frozenset({"ro", "allow_other"})
CONFIG = Config(source="/s", mountpoint="/dev/fd/7", cache="/c")


def test_a_descriptor_or_a_socket_is_given(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))  # short enough
        assert is_given(str(path))
    assert is_given("/dev/fd/0")
    assert not is_given("/dev/fd/0/x")
    assert not is_given("/dev/fdx/0")
    assert not is_given(str(tmp_path))
    assert not is_given(str(tmp_path / "none.sock"))


def test_a_descriptor_that_is_no_connection_is_wrong_usage() -> None:
    with pytest.raises(ConfigError, match=r"^MOUNTPOINT /dev/fd/987: not open; give a descriptor of /dev/fuse"):
        take("/dev/fd/987")
    with open(os.devnull, "rb") as file, pytest.raises(ConfigError, match="open, but not as /dev/fuse"):
        take(f"/dev/fd/{file.fileno()}")


@pytest.mark.parametrize(
    ("options", "owner", "said", "others"),
    [
        (None, None, None, True),
        (OTHERS, 0, None, True),
        (frozenset({"ro"}), os.geteuid(), None, False),
        (frozenset({"ro"}), os.geteuid() + 1, None, True),
        (frozenset({"ro"}), os.geteuid(), True, True),
        (None, None, False, False),
    ],
)
def test_who_may_enter_is_what_the_mount_says(
    options: frozenset[str] | None, owner: int | None, said: bool | None, others: bool
) -> None:
    """Else what the user says; else everybody."""
    config = msgspec.structs.replace(CONFIG, allow_other=bool(said))
    origins = {"allow_other": "default" if said is None else "command line -o"}
    found, _ = settled(config, origins, GivenMount(9, -1, options, owner))
    assert found.allow_other is others


def test_a_user_who_says_that_nobody_else_enters_must_be_right() -> None:
    with pytest.raises(ConfigError, match="allow-other: false, and others may enter the mount behind /dev/fd/7"):
        settled(CONFIG, {"allow_other": "file x"}, GivenMount(9, -1, OTHERS, 0))


def test_a_socket_where_nobody_gives_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(given, "_ANSWER_S", 0.01)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("x.sock")
        with pytest.raises(MountError, match=r"^MOUNTPOINT x.sock: Connection refused; is hfs fd-mount running"):
            take("x.sock")
        listener.listen()
        with pytest.raises(MountError, match="nobody gives a connection"):
            take("x.sock")
