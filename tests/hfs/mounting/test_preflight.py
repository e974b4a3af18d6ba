"""The places of a mount: each that cannot be is told in one line with a remedy, all together, and nothing is made."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hfs.client.client import DaemonSilent
from hfs.doctor import fuse
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, MountError
from hfs.mounting import preflight as places
from hfs.mounting import probe
from hfs.mounting.mountinfo import parse
from hfs.mounting.preflight import absolute, check_places, describe_mount
from tests.hfs.doctor.surroundings import made_up


@pytest.fixture(autouse=True)
def _fuse_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "check_device", lambda _around: [])
    monkeypatch.setattr(places, "check_fusermount", lambda _around: [])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    root = tmp_path.resolve()
    for name in ("s", "m", "c"):
        (root / name).mkdir()
    (root / "s/file").write_text("x")
    return Config(source=f"{root}/s", mountpoint=f"{root}/m", cache=f"{root}/c")


def changed(config: Config, **fields: object) -> Config:
    import msgspec

    return msgspec.structs.replace(config, **fields)


def refusal(config: Config, kind: type[Exception]) -> list[str]:
    with pytest.raises((ConfigError, MountError)) as caught:
        check_places(config)
    assert type(caught.value) is kind
    return str(caught.value).splitlines()


def test_good_places_pass_and_the_cache_is_made(config: Config, tmp_path: Path) -> None:
    check_places(config)
    assert list((tmp_path / "c").iterdir()) == []
    check_places(changed(config, cache=f"{config.cache}/new/deep"))
    assert os.stat(f"{config.cache}/new/deep").st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        ("source", PermissionError(13, "Permission denied"), f"may not be read by user {os.geteuid()}"),
        ("source", TimeoutError(), "does not answer within 10 s"),
        ("source", OSError(5, "Input/output error"), "cannot be read (Input/output error)"),
        ("mountpoint", TimeoutError(), ""),
        ("mountpoint", PermissionError(13, "Permission denied"), ""),
    ],
)
def test_a_place_that_fails(
    config: Config, monkeypatch: pytest.MonkeyPatch, place: str, error: OSError, words: str
) -> None:
    look, where = probe.look, getattr(config, place)

    def failing(path: str, _user: str | None = None) -> probe.Look:
        if path == where:
            raise error
        return look(path)

    monkeypatch.setattr(places.probe, "look", failing)
    (line,) = refusal(config, MountError)
    assert line.startswith(f"{place.upper()} {where}: {words}")


def test_all_bad_places_together_and_nothing_made(config: Config, tmp_path: Path) -> None:
    bad = changed(config, source="/absent/s", mountpoint="/absent/m", cache=f"{config.cache}/new")
    assert [line.split(":")[0] for line in refusal(bad, ConfigError)] == ["SOURCE /absent/s", "MOUNTPOINT /absent/m"]
    assert not os.path.exists(f"{config.cache}/new")


def test_links_lead_where_they_lead(config: Config, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to("s")
    via_link = absolute(changed(config, cache=f"{tmp_path}/way/x"))
    assert "inside SOURCE" in refusal(via_link, ConfigError)[0]
    assert (
        "inside SOURCE"
        in refusal(absolute(changed(config, source=f"{tmp_path}/way", cache=f"{tmp_path}/s/x")), ConfigError)[0]
    )


def test_the_source_by_another_name(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind mount: another path, the same directory."""
    look = probe.look
    here = os.path.dirname(config.cache)
    monkeypatch.setattr(places.probe, "look", lambda path, _user=None: look(here if path == config.source else path))
    assert "inside SOURCE" in refusal(config, ConfigError)[0]


def test_over(config: Config) -> None:
    check_places(changed(config, mountpoint=config.source, over=True))
    assert (
        "inside SOURCE"
        in refusal(changed(config, mountpoint=config.source, over=True, cache=config.source), ConfigError)[0]
    )


def test_a_mountpoint_below_the_source_would_read_itself(config: Config) -> None:
    os.mkdir(f"{config.source}/below")
    for over in (False, True):
        inside = changed(config, mountpoint=f"{config.source}/below", over=over)
        assert "the daemon would read itself" in refusal(inside, ConfigError)[0]


def test_a_cache_that_cannot_be_written(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EACCES, "Permission denied")

    def refused(**_options: object) -> None:
        raise error

    monkeypatch.setattr(places.tempfile, "TemporaryFile", refused)
    assert refusal(config, MountError) == [
        f"cache {config.cache}: cannot be written to (Permission denied); give a directory that you can write to"
    ]
    for number in (errno.EROFS, errno.ENOSPC, errno.EIO):
        error = OSError(number, os.strerror(number))
        check_places(config)  # its disk is not well: there is a mount without it until then
    assert "cannot be made" in refusal(changed(config, cache="/proc/nothing/here"), MountError)[0]


def test_something_is_mounted_there(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = parse(f"1 0 0:1 / {config.mountpoint} ro - fuse.hfs hfs#/s ro")
    theirs = parse(f"1 0 0:1 / {config.mountpoint} rw - nfs4 server:/x rw")
    monkeypatch.setattr(places.mountinfo, "mounts", lambda: ours)
    monkeypatch.setattr(places, "_pid_of", lambda _path: 4711)
    for over in (False, True):
        (line,) = refusal(changed(config, over=over), MountError)
        assert line == (
            f"MOUNTPOINT {config.mountpoint}: hfs is already mounted there (hfs#/s, process 4711); "
            f"end it first: hfs umount {config.mountpoint}"
        )

    def silent(_path: str) -> int:
        raise DaemonSilent("no answer")

    monkeypatch.setattr(places, "_pid_of", silent)
    assert describe_mount(ours[0]) == "hfs is already mounted there (hfs#/s) and does not answer"
    monkeypatch.setattr(places.mountinfo, "mounts", lambda: theirs)
    assert "nfs4 of server:/x is already mounted there; choose another, or --over" in refusal(config, MountError)[0]
    check_places(changed(config, over=True))


def test_what_fuse_lacks_for_certain(config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the checks of `hfs doctor`. That a fusermount3 has no rights is for itself to say: it may be a proxy's."""
    device = str(tmp_path / "absent")
    around = made_up(tmp_path, device=device, search_path="/nothing", fuse_config=device, allow_other=True)
    monkeypatch.setattr(places, "check_device", fuse.check_device)
    monkeypatch.setattr(places, "check_fusermount", fuse.check_fusermount)
    monkeypatch.setattr(places, "here", lambda **_: around)
    assert [line.split(":")[0] for line in refusal(config, MountError)] == [device, "fusermount3"]
    (tmp_path / "fusermount3").write_text("")
    (tmp_path / "fusermount3").chmod(0o755)
    monkeypatch.setattr(places, "here", lambda **_: replace(around, search_path=str(tmp_path)))
    assert [line.split(" ")[0] for line in refusal(config, MountError)] == [f"{device}:", "allow-other"]
