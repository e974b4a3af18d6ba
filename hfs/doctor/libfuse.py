"""pyfuse3, its libfuse and the extension: loaded as a daemon loads them, in a process of its own.

What comes of it decides which I/O modes a mount can have (docs/io-modes.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hfs.doctor.check_result import CheckResult, fault, good, limit, note
from hfs.doctor.kernel import io_mode_missing
from hfs.doctor.surroundings import Surroundings
from hfs.mounting import daemon_part

_ROOT = Path(__file__).parents[2]
"""Of the package: what a daemon of this release would load."""
_LOAD_S = 60.0
"""Python, trio and pyfuse3 from a shared file system that is busy."""
_CODE = """
import json
said = {}
try:
    from hfs.mountd.kernel import fastpath
    said["extension"] = fastpath.is_loaded()
    said["why"] = None if fastpath.is_loaded() else fastpath.extension_missing()
    extension = fastpath.extension()
    said["passthrough"] = bool(extension and extension.HAS_PASSTHROUGH)
    said["version"] = fastpath.libfuse_version()
    import pyfuse3, trio
    said["pyfuse3"] = pyfuse3.__version__
    from hfs.mountd.native.linkage import libfuse_in_use
    said["libfuse"] = sorted(libfuse_in_use())
    said["two"] = fastpath.two_libfuses()
except BaseException as error:
    said["failed"] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def load() -> dict[str, Any]:
    """What a daemon would have, by name; "failed" if it could not even begin."""
    command = [sys.executable, "-c", _CODE]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOAD_S, check=False
        )
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
    if "failed" in said:
        if names := daemon_part.missing():
            text = f"the daemon of hfs is not installed here: {', '.join(names)} not found"
            yield fault("pyfuse3", text, daemon_part.REMEDY)
            return
        text = f"pyfuse3: cannot be loaded ({said['failed']})"
        yield fault(
            "pyfuse3", text, "install hfs again in this environment: scripts/setup, or pip install of its wheels"
        )
        return
    libraries = ", ".join(said["libfuse"]) or "a libfuse within itself"
    yield good("pyfuse3", f"pyfuse3 {said['pyfuse3']} with {libraries}")
    if said["two"]:
        yield limit("libfuse", str(said["two"]), "have one libfuse in all of them")
    if not said["extension"]:
        text = f"the extension is not used ({said['why']}): requests cost four times as much"
        remedy = "pip install the wheel hfs_cache_native-*.whl, or build it: a C compiler, libfuse3-dev, scripts/setup"
        yield limit("extension", text, remedy)
    else:
        yield good("extension", f"the extension is loaded, with libfuse {said['version']}")
    yield _io_modes(around, said)


def _io_modes(around: Surroundings, said: dict[str, Any]) -> CheckResult:
    """Only what the installation is to blame for is a limit: many people never have root, and need not."""
    name = "io-modes"
    if not said["extension"]:
        return note(name, "daemon only: stateless (with --immutable) and passthrough need the extension")
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
