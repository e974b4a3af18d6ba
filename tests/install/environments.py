"""Environments to install into: interpreters at hand, one that has only named packages, commands inside of it.

Nothing of the checkout is seen in there: commands run with -I, elsewhere, and without compilers where that is asked.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
COMMANDS = Path(__file__).with_name("commands.py")
LIBFUSE = ROOT / "build/libfuse/prefix"

DISTRIBUTIONS = Path("/usr/bin/python3")

NEWEST_MINOR = 20
"""Of the names python3.11, python3.12, ... that are looked for."""


@functools.cache
def interpreters() -> dict[str, Path]:
    """ "3.12" -> an interpreter that can make environments and has headers; of PATH, of pyenv, this one. And the
    distribution's own: it has headers in places of its own, and may be older than all others of its minor version."""
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(":")]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [folder / f"python3.{minor}" for minor in range(11, NEWEST_MINOR) for folder in folders]
    candidates = [Path(sys.executable), *sorted(pyenv.glob("versions/*/bin/python3")), *candidates, DISTRIBUTIONS]
    code = (
        "import ensurepip, pathlib, sys, sysconfig, venv\n"
        "assert sys.version_info >= (3, 11) and (pathlib.Path(sysconfig.get_path('include')) / 'Python.h').exists()\n"
        "print('%d.%d' % sys.version_info[:2])"
    )
    found: dict[str, Path] = {}
    for candidate in candidates:
        if candidate.is_file():
            done = subprocess.run([candidate, "-I", "-c", code], capture_output=True, text=True, check=False)
            if done.returncode == 0:  # a shim of a version that is not chosen fails
                found.setdefault(done.stdout.strip(), candidate)
                if candidate == DISTRIBUTIONS and not candidate.samefile(found[done.stdout.strip()]):
                    found[f"{done.stdout.strip()} of the distribution"] = candidate
    return dict(sorted(found.items()))


class Environment:
    """A venv in `folder`."""

    def __init__(self, folder: Path, python: Path = Path(sys.executable)) -> None:
        self.folder = folder
        self.python = folder / "bin/python"
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
        self.packages = next(folder.glob("lib/python3*/site-packages"))

    def share(self, *modules: str) -> None:
        """Have these packages of this interpreter's environment, and no others."""
        here = Path(sys.prefix) / "lib" / self.packages.parent.name / "site-packages"
        for module in modules:
            for path in (here / module, here / f"{module}.libs"):
                if path.exists():
                    (self.packages / path.name).symlink_to(path)

    def environment(self, *, compilers: bool) -> dict[str, str]:
        """Of commands inside. Without `compilers` PATH has this environment's programs and fusermount3."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HFS_", "PYTHON", "XDG_")) and key not in {"CC", "CFLAGS", "LDFLAGS"}
        }
        if compilers:
            return {**kept, "PATH": f"{self.folder / 'bin'}:{kept.get('PATH', os.defpath)}"}
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        for name in ("fusermount3", "mount", "umount"):
            if (there := shutil.which(name)) and not (programs / name).exists():
                (programs / name).symlink_to(there)
        return {**kept, "PATH": f"{self.folder / 'bin'}:{programs}", "CC": "no-compiler"}

    def run(
        self,
        *command: str | Path,
        compilers: bool = False,
        extra: Mapping[str, str] | None = None,
        limit_s: float = 900,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end, away from the checkout."""
        return subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env={**self.environment(compilers=compilers), **(extra or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )

    def install(self, *arguments: str | Path, compilers: bool = False, extra: Mapping[str, str] | None = None) -> None:
        """pip install, with the pip of this interpreter's environment."""
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python, "install"]
        done = self.run(*command, "-q", *arguments, compilers=compilers, extra=extra)
        assert done.returncode == 0, f"pip install {arguments}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"

    def smoke(self, what: str, folder: Path, *, extra: Mapping[str, str] | None = None) -> dict[str, Any]:
        """One part of smoke.py, in a new folder."""
        return dict(self._said(SMOKE, what, folder, extra))

    def use_commands(self, which: str, folder: Path) -> None:
        """One part of commands.py, in a new folder."""
        self._said(COMMANDS, which, folder, None)

    def _said(self, program: Path, what: str, folder: Path, extra: Mapping[str, str] | None) -> Any:
        folder.mkdir(parents=True)
        done = self.run(self.python, "-I", program, what, folder, extra=extra)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        return json.loads(done.stdout)


def what_a_mount_says(inside: Environment, folder: Path) -> tuple[int, list[str]]:
    """Exit code and lines of an `hfs mount` with nothing wrong but what was not installed."""
    for name in ("source", "mount"):
        (folder / name).mkdir(parents=True)
    places = [folder / "source", folder / "mount", "--cache", folder / "cache"]
    done = inside.run(inside.folder / "bin/hfs", "mount", *places)
    return done.returncode, done.stderr.splitlines()


def copy_of_checkout(folder: Path) -> Path:
    """What git knows of the checkout, with changes and new files: a build must not write into the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        path = ROOT / name
        if (path.is_symlink() or path.is_file()) and not name.startswith(("tests/", "results/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name, follow_symlinks=False)
    return folder


def own_libfuse() -> dict[str, str]:
    """Variables for a build with the libfuse of scripts/libfuse; none where the distribution's is new enough."""
    if not LIBFUSE.is_dir():
        return {}
    return {
        "PKG_CONFIG_PATH": f"{LIBFUSE}/lib/pkgconfig",
        "CFLAGS": f"-O1 -DNDEBUG -fwrapv -I{LIBFUSE}/include/fuse3",
        "LDFLAGS": f"-L{LIBFUSE}/lib -Wl,-rpath,{LIBFUSE}/lib",
    }
