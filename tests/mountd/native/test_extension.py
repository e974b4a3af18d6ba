"""The extension of the package itself comes before that of hfs-cache-native, which must be of the same release."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from hfs.mountd.core.errors import MountError
from hfs.mountd.native import extension

OWN = "hfs.mountd.native._fastpath"


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """hfs-cache-native of this release, whose extension is Python; the package has none of its own."""
    monkeypatch.setitem(sys.modules, OWN, None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    package = tmp_path / "hfs_native"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_fastpath.py").write_text("")
    of_release(tmp_path, metadata.version("hfs-cache"))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "hfs_native"]:
        del sys.modules[name]


def of_release(folder: Path, version: str) -> None:
    """Its metadata say so."""
    described = folder / "hfs_cache_native-1.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hfs-cache-native\nVersion: {version}\n")


def test_without_one_of_its_own_that_of_the_distribution_is_found(distribution: Path) -> None:
    found = extension.find()
    assert (found.name, found.origin) == ("hfs_native._fastpath", f"{distribution}/hfs_native/_fastpath.py")


def test_its_own_comes_first(distribution: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, OWN)
    monkeypatch.setattr("hfs.mountd.native.__path__", [str(distribution / "hfs_native")])
    assert extension.find().name == OWN
    before = list(sys.path)
    extension.prefer_bundled_pyfuse3()
    assert sys.path == before


def test_its_pyfuse3_comes_before_any_other(distribution: Path) -> None:
    extension.prefer_bundled_pyfuse3()
    assert sys.path[0] == f"{distribution}/hfs_native/with_libfuse"
    extension.prefer_bundled_pyfuse3()
    assert sys.path[1] == str(distribution)


def test_one_of_another_release_is_not_loaded(distribution: Path) -> None:
    of_release(distribution, "0.0.1")
    with pytest.raises(MountError, match=r"another release \(0\.0\.1\).*pip install its wheel hfs_cache_native-"):
        extension.find()


def test_where_there_is_none_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, OWN, None)
    with pytest.raises(MountError, match=r"was not built: pip install the wheel hfs_cache_native-\*\.whl"):
        extension.find()


def test_it_is_not_loaded_behind_libfuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyfuse3", sys)
    with pytest.raises(MountError, match=r"pyfuse3 was loaded before"):
        extension.load()
