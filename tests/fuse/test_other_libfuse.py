"""pyfuse3 and the extension with two libfuses: the extension steps aside whole, the mount works, status says why."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from hfs.mountd.native.linkage import why_not_one_libfuse
from tests.fuse.harness import ROOT, Hfs, must
from tests.fuse.injection import injected, replaced
from tests.support.pattern import check, write_pattern

PREFIX = ROOT / "build" / "libfuse" / "prefix"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def version_of_the_distribution() -> str:
    """Of its libfuse; skips the test if it has none, or if it is the only one here."""
    if not PREFIX.is_dir():
        pytest.skip("one libfuse is all there is here: the distribution's is new enough, or none could be built")
    environment = {name: value for name, value in os.environ.items() if name != "PKG_CONFIG_PATH"}
    command = ["pkg-config", "--modversion", "fuse3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("the distribution has no libfuse with headers (Debian package libfuse3-dev)")
    return done.stdout.strip()


@pytest.fixture
def other_pyfuse3() -> Path:
    """A folder for PYTHONPATH with a pyfuse3 that is linked with the distribution's libfuse."""
    folder = ROOT / "build" / f"pyfuse3-with-libfuse-{version_of_the_distribution()}"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: scripts/setup builds it")
    return folder


@pytest.fixture
def other_extension(tmp_path: Path) -> Path:
    """The extension, linked with the distribution's libfuse; pyfuse3 has ours."""
    version_of_the_distribution()
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    environment = {name: value for name, value in os.environ.items() if name != "PKG_CONFIG_PATH"}
    asked = ["pkg-config", "--cflags", "--libs", "fuse3"]
    flags = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout.split()
    built = tmp_path / f"_fastpath{SUFFIX}"
    sources = [str(path) for path in sorted((ROOT / "mountd/native").glob("_fastpath*.c"))]
    sources += [str(path) for path in sorted((ROOT / "mountd/native/plane").glob("*.c"))]
    must("gcc", "-shared", "-fPIC", "-O1", "-o", built, f"-I{sysconfig.get_path('include')}", *sources, *flags)
    return built


def works_without_the_extension(hfs: Hfs, source: Path) -> None:
    for number in range(40):
        check(100 + number, 0, (hfs.path / f"{number}").read_bytes())
    assert sorted(os.listdir(hfs.path)) == sorted(os.listdir(source))
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    shown = hfs.status()["io_mode"]
    assert shown["mode"] == "daemon"
    assert shown["extension"].startswith("pyfuse3 was built with another libfuse"), shown
    assert "libfuse3.so" in shown["extension"]
    with open(f"/proc/{hfs.pid}/maps") as lines:
        assert "_fastpath" not in lines.read()
    with open(hfs.path / "7", "rb") as file, open(hfs.path / "8", "rb") as other:
        assert file.read(10) != other.read(10)


def tree(source: Path) -> Path:
    source.mkdir()
    for number in range(40):
        write_pattern(source / f"{number}", 100 + number, 5000 + 3000 * number)
    return source


def test_a_pyfuse3_with_the_distributions_libfuse(
    tmp_path: Path, hfs_mount: Callable[..., Hfs], other_pyfuse3: Path
) -> None:
    """It would run on the extension's libfuse, which has larger structures than it was compiled with."""
    source = tree(tmp_path / "source")
    hfs = hfs_mount(source, env={"PYTHONPATH": str(other_pyfuse3)})
    works_without_the_extension(hfs, source)


def test_an_extension_with_the_distributions_libfuse(
    tmp_path: Path, hfs_mount: Callable[..., Hfs], other_extension: Path
) -> None:
    """It took requests from pyfuse3's session with functions of another libfuse: the mount did not answer."""
    source = tree(tmp_path / "source")
    hfs = hfs_mount(source, env=injected(replaced("hfs.mountd.native._fastpath", other_extension)))
    works_without_the_extension(hfs, source)


def test_one_libfuse_is_seen_to_be_one() -> None:
    import pyfuse3

    from hfs.mountd.native import _fastpath

    assert why_not_one_libfuse(str(_fastpath.__file__), str(pyfuse3.__file__)) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it cannot be seen"),
        (b"\x7fELF", "it cannot be seen"),
        (b"no shared object at all", "is no shared object"),
        (b"\x7fELF\x02\x01" + b"\xff" * 100, "it cannot be seen"),
    ],
)
def test_what_is_no_shared_object_has_the_extension_step_aside(tmp_path: Path, content: bytes, reason: str) -> None:
    from hfs.mountd.native import _fastpath

    (tmp_path / "pyfuse3.so").write_bytes(content)
    found = why_not_one_libfuse(str(_fastpath.__file__), str(tmp_path / "pyfuse3.so"))
    assert found is not None
    assert reason in found


def test_a_libfuse_within_pyfuse3_has_the_extension_step_aside() -> None:
    from hfs.mountd.native import _fastpath

    found = why_not_one_libfuse(str(_fastpath.__file__), "/bin/sh")  # it needs no libfuse
    assert found is not None
    assert "a libfuse of its own" in found
