"""Compiled parts of the package itself come before those of hfs-cache-native, which must be of the same release."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from hfs.mountd.native import attributes, compiled

OWN = "hfs.mountd.native._attributes"


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """hfs-cache-native of this release, with parts that are Python; the package has none of its own."""
    for name in ("_attributes", "_fastpath"):
        monkeypatch.setitem(sys.modules, f"hfs.mountd.native.{name}", None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    package = tmp_path / "hfs_native"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_attributes.py").write_text("look = len")
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


def test_without_parts_of_its_own_those_of_the_distribution_are_loaded(distribution: Path) -> None:
    loaded = compiled.load("_attributes")
    assert (loaded.__name__, loaded.__file__) == ("hfs_native._attributes", f"{distribution}/hfs_native/_attributes.py")
    assert attributes.load() is loaded


def test_parts_of_its_own_come_first(distribution: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hfs.mountd.native._fastpath")
    monkeypatch.setattr("hfs.mountd.native.__path__", [str(distribution / "hfs_native")])
    found = compiled.find("_fastpath")
    assert found is not None
    assert found.name == "hfs.mountd.native._fastpath"
    before = list(sys.path)
    compiled.prefer_bundled_pyfuse3()
    assert sys.path == before


def test_its_pyfuse3_comes_before_any_other(distribution: Path) -> None:
    compiled.prefer_bundled_pyfuse3()
    assert sys.path[0] == f"{distribution}/hfs_native/with_libfuse"
    compiled.prefer_bundled_pyfuse3()
    assert sys.path[1] == str(distribution)


def test_parts_of_another_release_are_not_loaded(distribution: Path) -> None:
    of_release(distribution, "0.0.1")
    with pytest.raises(
        compiled.OtherRelease, match=r"another release \(0\.0\.1\).*pip install its wheel hfs_cache_native-"
    ):
        compiled.load("_attributes")
    assert attributes.load() is None


def test_neither_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, OWN, None)
    assert compiled.find("_attributes") is None
    with pytest.raises(ModuleNotFoundError):
        compiled.load("_attributes")
