"""pyfuse3, its libfuse and the extension: loaded as a daemon loads them, in a process of its own.

What comes of it decides which I/O modes a mount can have (docs/io-modes.md).
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from hfs.doctor.fuse import io_mode_missing
from hfs.doctor.surroundings import CheckResult, Surroundings, fault, good, limit, note
from hfs.mountd.core.errors import MountError
from hfs.mounting import own_process

_LOAD_S = 60.0
"""Python, trio and pyfuse3 from a shared file system that is busy."""


def load() -> dict[str, Any]:
    """What a daemon would have, by name; "refused" if it would end with these words, "failed" if it could not even
    begin."""
    command = own_process.command("hfs.doctor.libfuse")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOAD_S, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"nothing was loaded within {_LOAD_S:g} s"}
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        words = done.stderr.decode(errors="backslashreplace").strip().splitlines()
        return {"failed": words[-1] if words else f"the interpreter ended with {done.returncode}"}


def check(around: Surroundings, loaded: Callable[[], dict[str, Any]] = load) -> Iterator[CheckResult]:
    """Of pyfuse3, of the extension, and of the I/O modes that follow."""
    said = loaded()
    if not {"failed", "refused"}.isdisjoint(said):
        if names := own_process.missing():
            text = f"the daemon of hfs is not installed in {sys.prefix}: {', '.join(names)} not found"
            yield fault("pyfuse3", text, own_process.REMEDY)
        elif "refused" in said:
            text, _, remedy = str(said["refused"]).rpartition(": ")
            yield fault("extension", text, remedy)
        else:
            text = f"pyfuse3: cannot be loaded ({said['failed']})"
            remedy = "install hfs again in this environment: scripts/setup, or pip install of its wheels"
            yield fault("pyfuse3", text, remedy)
        return
    yield good("pyfuse3", f"pyfuse3 {said['pyfuse3']} with {said['libfuse']}")
    yield good("extension", f"the extension is loaded, with libfuse {said['version']}")
    yield _io_modes(around, said)


def _io_modes(around: Surroundings, said: dict[str, Any]) -> CheckResult:
    """Only what the installation is to blame for is a limit: many people never have root, and need not."""
    name = "io-modes"
    why = io_mode_missing(around)
    if why is not None:
        return note(name, f"daemon, stateless with --immutable; no passthrough: {why}")
    if not said["passthrough"]:
        text = f"daemon, stateless with --immutable; no passthrough: libfuse {said['version']} is too old"
        return limit(
            name,
            text,
            "the wheels bring libfuse 3.17, which has it; on Debian scripts/setup builds it (docs/install.md)",
        )
    return good(name, "passthrough, daemon, stateless with --immutable")


def _loaded() -> dict[str, Any]:
    said: dict[str, Any] = {}
    try:
        from hfs.mountd.kernel import fastpath
        from hfs.mountd.native.extension import EXTENSION

        said["passthrough"] = bool(EXTENSION.HAS_PASSTHROUGH)
        said["version"] = fastpath.LIBFUSE
        pyfuse3, _ = map(importlib.import_module, ("pyfuse3", "trio"))  # only here, of all commands
        said["pyfuse3"] = pyfuse3.__version__
        said["libfuse"] = fastpath.libfuse_in_use()
    except MountError as error:
        said["refused"] = str(error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what a daemon would end with
        said["failed"] = f"{type(error).__name__}: {error}"
    return said


def main() -> int:
    """In the process of its own."""
    sys.stdout.write(json.dumps(_loaded()))
    return 0
