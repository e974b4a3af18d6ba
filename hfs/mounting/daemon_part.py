"""Whether the daemon can run in this environment, or only what a training job needs was installed.

The wheel of hfs is enough for hints, samplers, layouts and codecs; the daemon also needs what the wheel of its compiled
parts brings. Looks for modules and imports none of them.
"""

from __future__ import annotations

from importlib.util import find_spec

REMEDY = (
    "pip install the wheel hfs_cache_native-*.whl of this release, or from a checkout pip install . (docs/install.md)"
)

_EVENT_LOOP = ("trio", "outcome")
_LIBFUSE_BINDINGS = ("pyfuse3", "hfs_native")
"""One of them: hfs-cache-native has a pyfuse3 of its own."""
NAMES = frozenset({*_EVENT_LOOP, *_LIBFUSE_BINDINGS})
"""Modules whose absence means that the daemon was not installed."""


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
    return f"the daemon of hfs is not installed here ({', '.join(names)} not found): {REMEDY}"
