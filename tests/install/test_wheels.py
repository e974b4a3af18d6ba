"""The wheel of a training job, as scripts/wheels builds it, and what both distributions are made of.

Quick: nothing is compiled or fetched. The wheels with compiled parts are built in tests/install/test_matrix.py.
"""

import email.message
import email.parser
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts.packaging import backend, stage
from tests.install.environments import ROOT, Environment, copy_of_checkout, what_a_mount_says

CLIENT_MODULES = ("numpy", "msgspec", "click", "rich", "xxhash", "markdown_it", "mdurl", "pygments")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scripts/wheels --client."""
    folder = tmp_path_factory.mktemp("dist")
    command = [ROOT / "scripts/wheels", "--client", "--into", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


def files_of_packages() -> set[str]:
    """All that the packages hold in the checkout, code and what it reads, but for what is compiled."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *stage.PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.splitlines() if not name.endswith((".c", ".h"))]
    return {str(stage.place_of(path)) for path in paths if path.exists() and not path.is_symlink()}


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        return email.parser.BytesParser().parsebytes(packed.read(name))


@pytest.mark.slow
def test_the_client_wheel_is_pure_python_and_whole(wheel: Path) -> None:
    assert wheel.name == f"hfs_cache-{stage.project()['project']['version']}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert {name for name in names if ".dist-info/" not in name} == files_of_packages()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"hfs"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_client_wheel_wants_what_a_training_job_imports_and_the_daemon_as_an_extra(wheel: Path) -> None:
    found = metadata(wheel)
    needs = [str(need) for need in found.get_all("Requires-Dist", [])]
    base = {stage.name_of(need) for need in needs if "extra ==" not in need}
    assert base == {"click", "msgspec", "numpy", "rich", "xxhash"}
    assert base == {stage.name_of(need) for need in stage.project()["project"]["dependencies"]} - {*stage.DAEMON_ONLY}
    assert f'hfs-cache-native=={found["Version"]}; extra == "daemon"' in needs
    assert not {"bench", "dev"} & {str(name) for name in found.get_all("Provides-Extra", [])}
    assert "Typing :: Typed" in found.get_all("Classifier", [])


@pytest.mark.slow
@pytest.mark.timeout(180)  # an environment and a dozen programs, 12 s of CPU
def test_a_training_job_needs_nothing_but_the_client_wheel(wheel: Path, tmp_path: Path) -> None:
    """Imports, orders, layouts and codecs where there is no trio, pyfuse3 or torch; a mount says in a line what is
    missing."""
    inside = Environment(tmp_path / "venv")
    inside.share(*CLIENT_MODULES)
    inside.install("--no-deps", "--no-index", wheel)
    assert inside.smoke("job", tmp_path / "job") == {"brought": []}
    code, (line,) = what_a_mount_says(inside, tmp_path / "mounted")
    assert code == 1
    assert f"the daemon of hfs is not installed in {inside.folder} (trio, outcome, pyfuse3 not found)" in line
    assert "hfs_cache_native-*.whl" in line
    checked = inside.run(inside.folder / "bin/hfs", "cache", "check", "--cache", tmp_path / "mounted")
    assert (checked.returncode, checked.stderr.splitlines()) == (1, [line])
    inside.use_commands("alone", tmp_path / "commands")
    examined = inside.run(inside.folder / "bin/hfs", "doctor")
    assert "fault  pyfuse3: the daemon of hfs is not installed in" in examined.stdout


def test_the_native_distribution_has_all_c_parts_and_the_licenses_of_what_is_within(tmp_path: Path) -> None:
    stage.stage_native(tmp_path)
    made = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    whole = stage.project()
    modules = made["tool"]["setuptools"]["ext-modules"]
    names = {module["name"].removeprefix("hfs.mountd.native") for module in whole["tool"]["setuptools"]["ext-modules"]}
    assert {module["name"].removeprefix("hfs_native") for module in modules} == names
    assert not any(module["optional"] for module in modules)
    assert all((tmp_path / source).exists() for module in modules for source in module["sources"])
    version = whole["project"]["version"]
    needs = {stage.name_of(need) for need in made["project"]["dependencies"]}
    assert made["project"]["dependencies"][0] == f"hfs-cache=={version}"
    assert needs == {"hfs-cache", *stage.DAEMON_ONLY} - {"pyfuse3"}
    assert "licenses/*" in made["project"]["license-files"]
    assert {"LGPL-2.1-only", "LGPL-2.1-or-later"} <= {*made["project"]["license"].split(" AND ")}


@pytest.mark.slow
def test_an_sdist_has_all_that_it_is_built_with(tmp_path: Path) -> None:
    checkout = copy_of_checkout(tmp_path / "checkout")
    code = "import sys; sys.path.insert(0, 'scripts/packaging'); import backend; backend.build_sdist('..')"
    subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, check=True)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path / "unpacked", filter="data")
    c_files = {str(path.relative_to(ROOT)) for path in (ROOT / "mountd/native").rglob("*.[ch]")}
    assert {"scripts/packaging/backend.py", "pyproject.toml", "LICENSE", *files_of_packages(), *c_files} <= names
    assert names_of_build(next((tmp_path / "unpacked").iterdir()), tmp_path) == {"hfs"}
    assert names_of_build(checkout, tmp_path) == {"hfs"}


def names_of_build(folder: Path, tmp_path: Path) -> set[str]:
    """The top-level names that an installation of this source brings; its files are those of the packages."""
    built = tmp_path / f"built-{folder.name}"
    command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build_py", "--build-lib", built]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    assert {str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()} == files_of_packages()
    return {path.name for path in built.iterdir()}


def test_toml_is_read_back_as_it_was() -> None:
    table = {"text": 'a "quote", a \\ and a line\nbreak', "list": ["ä", "b"], "inner": {"a.b": True, "c": [{"d": "e"}]}}
    assert tomllib.loads(f"x = {stage.toml(table)}")["x"] == table


def test_every_package_is_marked_as_typed() -> None:
    assert all((ROOT / package / "py.typed").exists() for package in stage.PACKAGES)
    assert "py.typed" in stage.project()["tool"]["setuptools"]["package-data"]["*"]


def test_pyfuse3_is_held_below_the_first_release_that_was_not_tried() -> None:
    from importlib.metadata import version

    (need,) = [need for need in stage.project()["project"]["dependencies"] if need.startswith("pyfuse3")]
    _, _, upper = need.partition("<")
    tried, limit = (tuple(int(part) for part in text.split(".")) for text in (version("pyfuse3"), upper))
    assert limit == (*tried[:-1], tried[-1] + 1), f"tests run with {version('pyfuse3')}: {need}"


def test_a_build_from_source_says_in_a_line_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.sysconfig, "get_path", lambda _name: str(tmp_path))  # no pyfuse3, no Python.h
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-compiler -pthread")
    with pytest.raises(SystemExit) as said:
        backend.get_requires_for_build_wheel()
    line = str(said.value)
    assert "\n" not in line
    for part in (
        "a C compiler (no-compiler), Python's headers, pkg-config, libfuse 3's headers",
        "apt-get install gcc libc6-dev python3-dev pkg-config libfuse3-dev",
        "dnf install gcc python3-devel pkgconf-pkg-config fuse3-devel",
        "or install the wheels",
    ):
        assert part in line


def test_a_build_from_source_needs_no_compiler_where_pyfuse3_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "no-compiler")
    assert backend.missing() == []  # it is installed in the environment of these tests
