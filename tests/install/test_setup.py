"""What scripts/setup says where it cannot go on. What it makes is what all tests run in."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup"
NEEDED = ("bash", "cat", "dirname", "id", "mkdir", "readlink", "sed", "sort")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout on a machine without any of the packages, and without apt."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SETUP, tmp_path / "scripts" / "setup")
    (tmp_path / "bin").mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        assert found is not None, name
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def setup(checkout: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", checkout / "scripts" / "setup", *arguments],
        env={**os.environ, "PATH": str(checkout / "bin"), "PYTHON": "python3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def words_after(said: str, command: str) -> set[str]:
    return set(said.partition(command)[2].partition("\n")[0].split())


def test_what_is_missing_is_named_by_each_distribution_and_the_way_without_root(bare: Path) -> None:
    code, said = setup(bare)
    assert code == 1
    assert said.startswith("setup: all but PyTorch: 2 to 4 minutes, 0.8 GB"), "before anything is done or refused"
    assert words_after(said, "apt-get install") >= {"gcc", "pkg-config", "fuse3", "libfuse3-dev", "python3-dev"}
    fedora = words_after(said, "dnf install")
    assert fedora >= {"gcc", "pkgconf-pkg-config", "fuse3", "fuse3-devel", "python3-devel"}
    assert not {word for word in fedora if word.endswith("-dev")}
    assert "without root: wheels need no compiler and no headers" in said
    assert "scripts/wheels --wheelhouse daemon" in said
    assert not (bare / ".venv").exists()


@pytest.mark.parametrize(("option", "wanted"), [("--minimal", False), ("--torch", True)])
def test_what_tests_need_is_asked_for_where_tests_are_wanted(bare: Path, option: str, wanted: bool) -> None:
    code, said = setup(bare, option)
    assert code == 1
    assert (words_after(said, "apt-get install") >= {"attr", "acl", "strace"}) == wanted


@pytest.mark.parametrize("arguments", [("--tourch",), ("--minimal", "--torch")])
def test_an_option_that_is_none_ends_it(bare: Path, arguments: tuple[str, ...]) -> None:
    code, said = setup(bare, *arguments)
    assert code == 1
    assert "--minimal" in said
    assert "--torch" in said
    assert "missing" not in said
