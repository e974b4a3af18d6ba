"""The installation matrix: each interpreter at hand, in five ways. What docs/install.md says of them was seen here.

Takes everything from the package index as pip is set up on this machine, compiles pyfuse3 several times, and so takes
minutes for each of its cells.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks.plain_user import as_plain_user
from scripts.packaging.stage import name_of, project
from tests.fuse.modes import why_no_passthrough
from tests.install.environments import (
    LIBFUSE,
    ROOT,
    SMOKE,
    Environment,
    copy_of_checkout,
    interpreters,
    own_libfuse,
    what_a_mount_says,
)

pytestmark = [pytest.mark.long, pytest.mark.fuse, pytest.mark.timeout(1800)]

EXTRAS = ("hdf5", "lmdb", "tfrecord", "parquet", "encoding", "plot")
"""Not mpi, which is a cluster's own, nor torch."""
WHEELS_ONLY = ("--only-binary", ":all:")
COMPILED = ("--no-cache-dir",)
"""pip keeps the pyfuse3 that it has compiled, and takes it for one with another libfuse."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # They are looked for only where these tests run.
    if "python" in metafunc.fixturenames and metafunc.config.getoption("--long"):
        found = interpreters()
        metafunc.parametrize("python", found.values(), ids=found.keys(), scope="module", indirect=True)


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def build_wheels(*arguments: str | Path) -> None:
    """scripts/wheels."""
    command = [ROOT / "scripts/wheels", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all wheels of this release, new."""
    folder = tmp_path_factory.mktemp("dist")
    build_wheels("--into", folder, *interpreters().values())
    return folder


@pytest.fixture
def inside(python: Path, tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv", python)


def mounted_well(found: dict[str, Any], *, passthrough: bool) -> None:
    """What smoke.py saw of a mount is as it must be."""
    assert (found["wrong"], found["names"], found["learners"]) == (0, 25, 1), found
    assert found["refused"] == errno.EROFS
    assert found["io_mode"]["extension"].startswith("loaded"), found["io_mode"]
    assert len(found["libfuse"]) == len(found["pyfuse3"]) == 1, found
    if passthrough:
        assert found["io_mode"]["passthrough"] == "available", found["io_mode"]
        assert found["passed"] > 0, found


def lowest(inside: Environment, folder: Path, *extras: str) -> list[str]:
    """Each direct dependency as name==version: the lowest that pyproject.toml allows and this interpreter has a wheel
    of; of pyfuse3, which has none, the lowest."""
    table = project()["project"]
    needs = [*table["dependencies"], *(need for extra in extras for need in table["optional-dependencies"][extra])]
    (bindings,) = [need for need in needs if need.startswith("pyfuse3")]
    # uv alone can choose so; pip takes the newest.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--target", folder / "uv", "uv"]
    subprocess.run(pip, check=True, capture_output=True)
    asked = folder / "direct.txt"
    asked.write_text("\n".join(need for need in needs if need != bindings))
    choice = ["--resolution", "lowest-direct", "--only-binary", ":all:", "--python", inside.python]
    command = [folder / "uv/bin/uv", "pip", "compile", "-q", "--no-annotate", "--no-header", *choice, asked]
    settings = {"UV_CACHE_DIR": str(folder / "cache"), "UV_PYTHON_DOWNLOADS": "never"}
    if certificates := os.environ.get("PIP_CERT"):
        settings["SSL_CERT_FILE"] = certificates
    done = inside.run(*command, extra=settings)
    assert done.returncode == 0, done.stderr
    names = {name_of(need) for need in needs}
    pins = [line for line in done.stdout.split() if name_of(line) in names]
    assert len(pins) == len(names) - 1, pins
    return [*pins, bindings.partition(",")[0].replace(">=", "==")]


def test_the_client_wheel_needs_no_compiler(dist: Path, inside: Environment, tmp_path: Path) -> None:
    inside.install(*WHEELS_ONLY, *dist.glob("*-py3-none-any.whl"))
    assert inside.smoke("job", tmp_path / "job") == {"brought": []}
    inside.use_commands("alone", tmp_path / "commands")
    code, lines = what_a_mount_says(inside, tmp_path / "mounted")
    assert (code, len(lines)) == (1, 1), lines
    assert "hfs_cache_native-*.whl" in lines[0]


def test_the_daemon_wheel_has_a_libfuse_of_its_own(dist: Path, inside: Environment, tmp_path: Path) -> None:
    """Another pyfuse3 stays as it is and is not used: here it would not even import."""
    other = inside.packages / "pyfuse3/__init__.py"
    other.parent.mkdir()
    other.write_text("raise RuntimeError('this pyfuse3 is not meant')")
    inside.install(*WHEELS_ONLY, "--find-links", dist, "hfs-cache[daemon]")
    assert inside.smoke("job", tmp_path / "job") == {"brought": []}
    found = inside.smoke("daemon", tmp_path / "daemon")
    mounted_well(found, passthrough=why_no_passthrough() is None)
    inside.use_commands("all", tmp_path / "commands")
    assert all(path.startswith(str(inside.folder)) for path in [*found["libfuse"], *found["pyfuse3"]]), found
    assert "not meant" in other.read_text()


def test_from_source_with_the_libfuse_of_the_distribution(inside: Environment, tmp_path: Path) -> None:
    inside.install(*COMPILED, copy_of_checkout(tmp_path / "checkout"), compilers=True)
    found = inside.smoke("daemon", tmp_path / "daemon")
    mounted_well(found, passthrough=False)
    assert not any(path.startswith(str(LIBFUSE)) for path in found["libfuse"]), found


def test_from_source_without_a_compiler_a_line_says_what_is_missing(inside: Environment, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        inside.python,
        "install",
        copy_of_checkout(tmp_path / "checkout"),
    ]
    done = inside.run(*command)
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if "cannot be built from source here" in line]
    assert "missing: a C compiler" in line
    assert "apt-get install" in line


@pytest.mark.parametrize("which", ["lowest", "newest"])
def test_with_the_lowest_and_the_newest_versions(which: str, inside: Environment, tmp_path: Path) -> None:
    checkout = copy_of_checkout(tmp_path / "checkout")
    pins = lowest(inside, tmp_path, *EXTRAS) if which == "lowest" else []
    # Only what has wheels nowhere is compiled.
    options = [*COMPILED, *WHEELS_ONLY, "--no-binary", "pyfuse3,hfs-cache", "--upgrade"]
    inside.install(*options, f"{checkout}[{','.join(EXTRAS)}]", *pins, compilers=True, extra=own_libfuse())
    assert inside.smoke("job", tmp_path / "job") == {"brought": []}
    samples = {"hdf5": 8, "parquet": 4, "lmdb": 8, "tfrecord": 8}
    assert inside.smoke("formats", tmp_path / "formats") == {"samples": samples, "encoded": True, "plot": True}
    mounted_well(inside.smoke("daemon", tmp_path / "daemon"), passthrough=why_no_passthrough() is None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_daemon_wheel_serves_a_plain_user(dist: Path, tmp_path: Path) -> None:
    """With the interpreter of these tests, as nobody, without capabilities."""
    public = Path(tempfile.mkdtemp(prefix="hfs-install."))  # tmp_path is shut to others
    try:
        public.chmod(0o755)
        inside = Environment(public / "venv")
        inside.install(*WHEELS_ONLY, "--find-links", dist, "hfs-cache[daemon]")
        for name in ("device", "own"):
            (public / name).mkdir(mode=0o777)
            (public / name).chmod(0o777)
        smoke = shutil.copy(SMOKE, public)
        command = [*as_plain_user(public / "device"), inside.python, "-I", smoke, "daemon", public / "own"]
        done = inside.run(*command, compilers=True, extra={"HOME": "/nonexistent"})
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        mounted_well(found, passthrough=False)
        assert "CAP_SYS_ADMIN" in found["io_mode"]["passthrough"]
    finally:
        shutil.rmtree(public)


def test_offline_from_a_wheelhouse(dist: Path, tmp_path: Path) -> None:
    """With the interpreter of these tests: nothing is asked of an index."""
    inside = Environment(tmp_path / "venv")
    build_wheels("--into", dist, "--wheelhouse", "daemon")
    # No index, and none of those that pip is set up with here.
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "1"}
    inside.install("--no-index", "--find-links", dist / "wheelhouse", "hfs-cache[daemon]", extra=alone)
    mounted_well(inside.smoke("daemon", tmp_path / "daemon"), passthrough=why_no_passthrough() is None)
