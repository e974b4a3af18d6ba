"""The source trees of the two distributions, made from this checkout.

    stage.py client FOLDER     hfs-cache: all Python, nothing compiled, what training jobs need; `daemon` is an extra
    stage.py native FOLDER     hfs-cache-native: the C parts as the package hfs_native, for one interpreter;
                               scripts/wheels adds a pyfuse3 and the licenses before it builds it
    stage.py unbundled FOLDER  the same for a system that has a libfuse and a pyfuse3, such as conda: the C parts alone

Called by scripts/wheels and scripts/packaging/conda. What the two are made of is read from pyproject.toml, so that
nothing is said twice. Compiles nothing and fetches nothing.
"""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

DAEMON_ONLY = ("outcome", "prometheus-client", "pyfuse3", "trio")
"""Dependencies that nothing in a training job imports (tests/layers.py, JOB_SIDE)."""
NATIVE = "hfs-cache-native"
CHECKOUT_EXTRAS = ("bench", "dev")
"""For what only a checkout has."""
PACKAGES = {"hfs": "hfs", "mountd": "hfs/mountd", "policies": "hfs/policies"}
"""Folders of the checkout, and where they lie in the wheel: links in the folder hfs lead there."""
PYFUSE3_FOLDER = "with_libfuse"
"""As mountd/native/extension.py has it."""

_ABOUT_NATIVE = """The compiled parts of hfs, with a libfuse of their own and a pyfuse3 that is linked with it.

Belongs to hfs-cache of the same version, which loads it; there is nothing here to call. libfuse and pyfuse3 are under
the LGPL and linked dynamically: their licenses are in the folder licenses of the distribution's metadata, and their
sources are published beside the wheels.
"""


def project() -> dict[str, Any]:
    """pyproject.toml of the checkout."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    """The package that a requirement names."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return found[0]


def client_table(whole: dict[str, Any]) -> dict[str, Any]:
    """[project] of hfs-cache as a wheel."""
    table = dict(whole["project"])
    extras = {name: list(needs) for name, needs in table["optional-dependencies"].items()}
    extras["daemon"] = [f"{NATIVE}=={table['version']}"]
    table["dependencies"] = [need for need in table["dependencies"] if name_of(need) not in DAEMON_ONLY]
    table["optional-dependencies"] = {name: needs for name, needs in extras.items() if name not in CHECKOUT_EXTRAS}
    table["classifiers"] = [line for line in table["classifiers"] if line != "Programming Language :: C"]
    return table


def native_table(whole: dict[str, Any]) -> dict[str, Any]:
    """[project] of hfs-cache-native."""
    table = dict(whole["project"])
    brought = [need for need in table["dependencies"] if name_of(need) in DAEMON_ONLY and name_of(need) != "pyfuse3"]
    for absent in ("optional-dependencies", "scripts"):
        del table[absent]
    return {
        **table,
        "name": NATIVE,
        "description": "The compiled parts of hfs-cache, with a libfuse and a pyfuse3 of their own",
        "readme": {"text": _ABOUT_NATIVE, "content-type": "text/plain"},
        "dependencies": [f"{table['name']}=={table['version']}", *brought],
        # hfs; libfuse; pyfuse3; xxHash, which is compiled in.
        "license": "MIT AND LGPL-2.1-only AND LGPL-2.1-or-later AND BSD-2-Clause",
        "license-files": ["LICENSE", "licenses/*"],
        "classifiers": [line for line in table["classifiers"] if not line.startswith("Typing")],
    }


def extensions(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The C parts as hfs_native has them. Not optional: a wheel without them is none."""
    return [
        {
            **{key: value for key, value in module.items() if key not in {"include-dirs", "depends"}},
            "name": module["name"].replace("hfs.mountd.native", "hfs_native"),
            "optional": False,
        }
        for module in whole["tool"]["setuptools"]["ext-modules"]
    ]


def toml(value: object) -> str:
    """A value in TOML's words; tables are inline ones."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(inner) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def write_project(folder: Path, table: dict[str, Any], setuptools: dict[str, Any], build: dict[str, Any]) -> None:
    """A pyproject.toml of these tables."""
    lines = ["[build-system]", f"requires = {toml(build['requires'])}", 'build-backend = "setuptools.build_meta"', ""]
    for title, content in (("project", table), ("tool.setuptools", setuptools)):
        lines += [f"[{title}]", *(f"{json.dumps(key)} = {toml(value)}" for key, value in content.items()), ""]
    (folder / "pyproject.toml").write_text("\n".join(lines))


def files(whole: dict[str, Any]) -> set[Path]:
    """Of the packages, as setuptools takes them: Python, and what package-data names."""
    found = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    for package, patterns in whole["tool"]["setuptools"]["package-data"].items():
        folders = {path.parent for path in found} if package == "*" else {ROOT / package.replace(".", "/")}
        found |= {path for folder in folders for pattern in patterns for path in folder.glob(pattern)}
    return found


def place_of(path: Path) -> Path:
    """Where a file of a package lies in the wheel."""
    folder, *rest = path.relative_to(ROOT).parts
    return Path(PACKAGES[folder], *rest)


def stage_client(folder: Path) -> None:
    """All that is not compiled."""
    whole = project()
    for path in sorted(files(whole)):
        copied = folder / place_of(path)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
    for name in ("README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / name)
    settings = {key: value for key, value in whole["tool"]["setuptools"].items() if key != "ext-modules"}
    write_project(folder, client_table(whole), settings, whole["build-system"])


def stage_native(folder: Path, *, bundled: bool = True) -> None:
    """The C files, and a package for what they become; `bundled`: with room for a pyfuse3 and licenses."""
    whole = project()
    for path in sorted((ROOT / "mountd/native").rglob("*.[ch]")):
        copied = folder / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    inner = f"hfs_native.{PYFUSE3_FOLDER}"
    (folder / "licenses").mkdir()
    (folder / inner.replace(".", "/")).mkdir(parents=True)
    (folder / "hfs_native/__init__.py").write_text(f'"""{_ABOUT_NATIVE}"""\n')
    table = native_table(whole)
    if not bundled:
        for name in ("license", "license-files"):
            table[name] = whole["project"][name]
    settings = {
        "packages": ["hfs_native", inner] if bundled else ["hfs_native"],
        "include-package-data": False,
        "package-data": {inner: ["**/*"]} if bundled else {},
        "ext-modules": extensions(whole),
    }
    write_project(folder, table, settings, whole["build-system"])


def main() -> None:
    """See above."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if what == "client":
        stage_client(folder)
    else:
        stage_native(folder, bundled={"native": True, "unbundled": False}[what])


if __name__ == "__main__":
    main()
