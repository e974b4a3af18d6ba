"""The build backend: setuptools', behind a look at whether a build from source can succeed.

pyfuse3 has no wheels: where it is not installed yet, pip compiles it, and without a compiler or libfuse's headers ends
with a page of other people's output. So that is said here first, in one line with its remedy, before anything is
compiled. Called by pip through pyproject.toml; imports nothing but setuptools and the standard library.
"""

import importlib.machinery
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, str | list[str] | None] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What the build needs from the index. Raises SystemExit with one line where the build cannot succeed."""
    _check()
    return build_meta.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """The same for an editable installation."""
    _check()
    return build_meta.get_requires_for_build_editable(config_settings)


def missing() -> list[tuple[str, str, str]]:
    """(what, package of Debian and Ubuntu, package of Fedora and RHEL) of each thing that compiling pyfuse3 needs and
    that is not here; none where pyfuse3 is installed: then nothing has to be compiled."""
    # Not by an import: pip builds where the packages of the environment are hidden.
    places = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    if importlib.machinery.PathFinder.find_spec("pyfuse3", places) is not None:
        return []
    found = []
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        found.append((f"a C compiler ({compiler.split()[0]})", "gcc libc6-dev", "gcc"))
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        found.append(("Python's headers", "python3-dev", "python3-devel"))
    pkg_config = os.environ.get("PKG_CONFIG") or "pkg-config"
    if shutil.which(pkg_config) is None:
        found.append(("pkg-config", "pkg-config", "pkgconf-pkg-config"))
        found.append(("libfuse 3's headers", "libfuse3-dev", "fuse3-devel"))
    elif subprocess.run([pkg_config, "--exists", "fuse3"], check=False).returncode != 0:
        found.append(("libfuse 3's headers", "libfuse3-dev", "fuse3-devel"))
    return found


def _check() -> None:
    found = missing()
    if found:
        what, debian, fedora = (dict.fromkeys(column) for column in zip(*found, strict=True))
        raise SystemExit(
            f"hfs-cache cannot be built from source here, missing: {', '.join(what)}. "
            f"Debian, Ubuntu: apt-get install {' '.join(debian)}; Fedora, RHEL: dnf install {' '.join(fedora)}; "
            "or install the wheels, which need none of it (docs/install.md)."
        )
