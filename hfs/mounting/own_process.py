"""Python processes of this very release, wherever it lies: `python -P own_process.py MODULE ARGUMENT...`.

`python -m` looks for everything in the current directory first, also for what belongs to Python itself. Where hfs is
installed that is site-packages, and a backport there (`dataclasses`, `typing`) would end us, though it harms no other
program. So `hfs` is taken from where this file lies, and all else from where Python finds it.

And whether a daemon can run in this environment, or only what a training job needs was installed: the wheel of hfs is
enough for hints, samplers, layouts and codecs, the daemon also needs what the wheel of its compiled parts brings. That
looks for modules and imports none of them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

REMEDY = (
    "call the hfs of an environment that has it, or pip install the wheel hfs_cache_native-*.whl of this release, or "
    "pip install . in a checkout (docs/install.md)"
)

_EVENT_LOOP = ("trio", "outcome")
_LIBFUSE_BINDINGS = ("pyfuse3", "hfs_native")
"""One of them: hfs-cache-native has a pyfuse3 of its own."""
DAEMON_MODULES = frozenset({*_EVENT_LOOP, *_LIBFUSE_BINDINGS})
"""Modules whose absence means that the daemon was not installed."""


def command(module: str, *arguments: str) -> list[str]:
    """What to execute to call `main` of a module of hfs in a process of its own; it gives the exit code."""
    return [sys.executable, "-P", __file__, module, *arguments]


def missing() -> list[str]:
    """The packages that the daemon needs and that are not there."""
    names = [name for name in _EVENT_LOOP if find_spec(name) is None]
    if not any(find_spec(name) for name in _LIBFUSE_BINDINGS):
        names.append("pyfuse3")
    return names


def why_missing() -> str | None:
    """One line with its remedy if there can be no daemon here; else None."""
    names = missing()
    if not names:
        return None
    return f"the daemon of hfs is not installed in {sys.prefix} ({', '.join(names)} not found): {REMEDY}"


def _run() -> None:
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("hfs", Path(__file__).parents[1] / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["hfs"] = module_from_spec(spec)
    spec.loader.exec_module(package)
    sys.exit(import_module(sys.argv.pop(1)).main())


if __name__ == "__main__":
    _run()
