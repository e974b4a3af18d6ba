"""A daemon whose extension is missing, or has another libfuse than pyfuse3: the mount is refused, in one line."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.fuse.harness import ROOT, hfs_command, mounts_below, must, run
from tests.fuse.injection import hidden, injected, replaced

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


def refused(tmp_path: Path, environment: dict[str, str]) -> str:
    """What `hfs mount` says, in one line, where its daemon finds what it needs nowhere; nothing is left mounted."""
    source, mnt = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mnt.mkdir()
    done = run(hfs_command(), "mount", source, mnt, "--cache", tmp_path / "cache", env=environment)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1, done
    assert mounts_below(mnt) == []
    return line


def test_without_the_extension_there_is_no_mount(tmp_path: Path) -> None:
    line = refused(tmp_path, injected(hidden("hfs.mountd.native._fastpath")))
    assert line.startswith("hfs: the daemon's C extension was not built: pip install the wheel hfs_cache_native-*.whl")


def test_a_pyfuse3_with_the_distributions_libfuse(tmp_path: Path, other_pyfuse3: Path) -> None:
    """It would run on the extension's libfuse, which has larger structures than it was compiled with."""
    line = refused(tmp_path, {"PYTHONPATH": str(other_pyfuse3)})
    assert "pyfuse3 and the extension have two libfuses" in line
    assert line.count("libfuse3.so") == 2


def test_an_extension_with_the_distributions_libfuse(tmp_path: Path, other_extension: Path) -> None:
    """It took requests from pyfuse3's session with functions of another libfuse: the mount did not answer."""
    line = refused(tmp_path, injected(replaced("hfs.mountd.native._fastpath", other_extension)))
    assert "pyfuse3 and the extension have two libfuses" in line
