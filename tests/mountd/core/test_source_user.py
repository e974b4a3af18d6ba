"""The user as whom the source is read: from what people write to numbers; who may be meant."""

import os
import pwd
from pathlib import Path

import pytest

from hfs.mountd.core.config.key import SourceUser, resolve_user, shown_user
from hfs.mountd.core.config.loading import ConfigFile, load
from hfs.mountd.core.errors import ConfigError

PLACES = {"source": "/s", "mountpoint": "/m", "cache": "/c"}


class Database:
    """alice, in two groups besides her own."""

    entry = pwd.struct_passwd(("alice", "x", 61001, 61000, "", "/", "/bin/sh"))

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pwd, "getpwnam", self.named)
        monkeypatch.setattr(pwd, "getpwuid", self.numbered)
        monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 9, 7, 9] if name == "alice" else [gid])

    def named(self, name: str) -> pwd.struct_passwd:
        if name != "alice":
            raise KeyError(name)
        return self.entry

    def numbered(self, uid: int) -> pwd.struct_passwd:
        if uid != 61001:
            raise KeyError(uid)
        return self.entry


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    return Database(monkeypatch)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("alice", "61001:61000:7,9"),
        (" alice ", "61001:61000:7,9"),
        ("61001", "61001:61000:7,9"),
        (61001, "61001:61000:7,9"),
        ("61001:5", "61001:5:"),
        ("99999:5", "99999:5:"),
        ("99999:5:", "99999:5:"),
        ("99999:5:8,6,5,8", "99999:5:6,8"),
        ("", None),
    ],
)
def test_what_people_write(given: object, text: str | None) -> None:
    assert resolve_user(given) == text
    if text is not None:
        assert resolve_user(text) == text, "what the configuration holds may be given again"
        user = SourceUser.of(text)
        assert text == f"{user.uid}:{user.gid}:{','.join(map(str, user.groups))}"


@pytest.mark.parametrize("given", ["bob", "99999", 99999, "1:2:3:4", "4294967295:0", "0x10", "alice:5"])
def test_who_is_not_known(given: object) -> None:
    with pytest.raises(ValueError, match=str(given).split(":")[0]):
        resolve_user(given)


def test_with_the_name_for_people() -> None:
    assert shown_user("61001:61000:7,9") == "alice (61001:61000:7,9)"
    assert shown_user("99999:5:") == "99999:5:"


@pytest.mark.parametrize("own_uid", [0, 61001])
def test_who_names_himself_changes_nothing(own_uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: own_uid)
    for text in ("", f"{own_uid}:5"):
        assert load({**PLACES, "as_user": text}, {}, [])[0].as_user is None


def test_only_root_may_name_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text("as-user = 61001")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    config, origins = load(PLACES, {}, [ConfigFile(str(file), named=True)])
    assert config.as_user == "61001:61000:7,9"
    assert origins["as_user"] == f"file {file}"
    assert config.allow_other, "else root alone could enter"
    assert not load({**PLACES, "allow_other": "no"}, {}, [ConfigFile(str(file), named=True)])[0].allow_other
    monkeypatch.setattr(os, "geteuid", lambda: 61002)
    with pytest.raises(ConfigError) as fault:
        load(PLACES, {}, [ConfigFile(str(file), named=True)])
    assert str(fault.value).startswith(
        f'as-user: "alice (61001:61000:7,9)" is not possible (file {file}); allowed: nothing'
    )
    assert load(PLACES, {}, [ConfigFile(str(file), named=True)], options=["as-user="])[0].as_user is None
