"""Where the compiled parts come from: built with this package, or from the distribution hfs-cache-native.

An installation from source builds them beside this file. The wheel of hfs-cache is pure Python and has none; then those
of hfs-cache-native are taken, whose package `hfs_native` also has a libfuse of its own and a pyfuse3 that is linked
with it, since the extension and pyfuse3 must have one libfuse. A pyfuse3 that is installed besides stays as it is and
is not used then. Compiled parts of another release than this one are not loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType

_OWN = "hfs.mountd.native"
_WHEEL = "hfs_native"
_PYFUSE3_FOLDER = "with_libfuse"
"""Below `hfs_native`: what is put in front of all other places that modules are imported from."""
_DISTRIBUTION, _WHEEL_DISTRIBUTION = "hfs-cache", "hfs-cache-native"


class OtherRelease(ImportError):
    """hfs-cache-native is there, and of another release than hfs-cache; the message has the remedy."""


def find(name: str) -> ModuleSpec | None:
    """Where a compiled part (`_fastpath`) would be loaded from; None if it is nowhere. Raises OtherRelease."""
    own = importlib.util.find_spec(f"{_OWN}.{name}")
    if own is not None or importlib.util.find_spec(_WHEEL) is None:
        return own
    reason = _why_other_release()
    if reason is not None:
        raise OtherRelease(reason)
    return importlib.util.find_spec(f"{_WHEEL}.{name}")


def load(name: str) -> ModuleType:
    """Import a compiled part. Raises ImportError; of it ModuleNotFoundError where it was not built."""
    spec = find(name)
    return importlib.import_module(spec.name if spec is not None else f"{_OWN}.{name}")


def prefer_bundled_pyfuse3() -> None:
    """Have `import pyfuse3` find the one that hfs-cache-native brings, where the extension would come from there too.

    Before the first import of it; it can be called again.
    """
    wheel = importlib.util.find_spec(_WHEEL)
    if importlib.util.find_spec(f"{_OWN}._fastpath") is not None or wheel is None:
        return
    for place in wheel.submodule_search_locations or ():
        folder = f"{place}/{_PYFUSE3_FOLDER}"
        if folder not in sys.path:
            sys.path.insert(0, folder)


def _why_other_release() -> str | None:
    try:
        ours, theirs = metadata.version(_DISTRIBUTION), metadata.version(_WHEEL_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None  # taken out of a wheel by hand: nothing to compare
    if ours == theirs:
        return None
    return (
        f"{_WHEEL_DISTRIBUTION} is of another release ({theirs}) than {_DISTRIBUTION} ({ours}): "
        f"pip install its wheel hfs_cache_native-{ours}-*.whl"
    )
