"""The cache root: what caches are called, and which are found there."""

import os
from pathlib import Path

import pytest

from hfs.mountd.core.attributes import passing_id
from hfs.mountd.core.cache_directory import open_cache_directory
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.ledger.root import CacheRoot, cache_name, caches_below

NAME = cache_name("0" * 16, 5, "/data")


def test_a_name_is_of_what_the_source_is() -> None:
    assert cache_name("0" * 16, 5, "/elsewhere") == NAME
    assert cache_name("0" * 16, 6, "/data") != NAME
    assert NAME.startswith(f"{os.geteuid()}-")
    assert cache_name(passing_id(), 5, "/data") == cache_name(passing_id(), 6, "/data")
    assert cache_name(passing_id(), 5, "/data") != cache_name(passing_id(), 5, "/other\udcff")


def test_a_cache_itself_is_found_by_its_path(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "index.sqlite").touch()
    assert caches_below(str(tmp_path)) == [str(tmp_path)]
    with pytest.raises(FileNotFoundError):
        caches_below(str(tmp_path / "absent"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a directory that is root's")
def test_a_root_that_several_users_share_is_sticky_and_of_root(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    opened = CacheRoot(str(shared))
    assert opened.directory.shared
    opened.close()
    assert (shared / "ledger").stat().st_mode & 0o7777 == 0o1777
    (shared / NAME).mkdir()
    os.chown(shared / NAME, 4242, 4242)
    assert caches_below(str(shared)) == []  # another user's
    with pytest.raises(ConfigError, match="belongs to user 4242"):
        open_cache_directory(str(shared / NAME), make=True)
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="may be written to by others"):
        CacheRoot(str(shared))
