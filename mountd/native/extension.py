"""The C extension of the daemon, loaded before pyfuse3: built with this package, or brought by hfs-cache-native.

An installation from source builds it beside this file. The wheel of hfs-cache is pure Python and has none; then that of
hfs-cache-native is taken, whose package `hfs_native` also has a libfuse of its own and a pyfuse3 that is linked with
it, since the extension and pyfuse3 must have one libfuse. A pyfuse3 that is installed besides stays as it is and is not
used then. An extension of another release than this one is not loaded.

Importing this module loads it, in front of libfuse; where that cannot be, it raises MountError, with its remedy.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType

from hfs.mountd.core.errors import MountError

_OWN = "hfs.mountd.native"
_WHEEL = "hfs_native"
_NAME = "_fastpath"
_PYFUSE3_FOLDER = "with_libfuse"
"""Below `hfs_native`: what is put in front of all other places that modules are imported from."""
_DISTRIBUTION, _WHEEL_DISTRIBUTION = "hfs-cache", "hfs-cache-native"
_BUILD = (
    "pip install the wheel hfs_cache_native-*.whl of this release, or install a C compiler and libfuse 3's headers and "
    "build hfs-cache again (docs/install.md)"
)


def find(name: str = _NAME) -> ModuleSpec:
    """Where it would be loaded from. Raises MountError where there is none."""
    own = importlib.util.find_spec(f"{_OWN}.{name}")
    if own is not None:
        return own
    if importlib.util.find_spec(_WHEEL) is not None:
        reason = _why_other_release()
        if reason is not None:
            raise MountError(reason)
        found = importlib.util.find_spec(f"{_WHEEL}.{name}")
        if found is not None:
            return found
    raise MountError(f"the daemon's C extension was not built: {_BUILD}")


def load() -> ModuleType:
    """Load it in front of libfuse. Raises MountError."""
    if "pyfuse3" in sys.modules:
        raise MountError("pyfuse3 was loaded before the daemon's C extension, which must stand in front of its libfuse")
    prefer_bundled_pyfuse3()
    found = find()
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    try:
        extension = importlib.import_module(found.name)
    except ImportError as error:
        raise MountError(f"the daemon's C extension cannot be loaded: {error}: {_BUILD}") from error
    finally:
        sys.setdlopenflags(flags)
    if not hasattr(extension, "look"):
        raise MountError("the daemon's C extension was built before the rest of hfs: run scripts/setup again")
    return extension


def prefer_bundled_pyfuse3() -> None:
    """Have `import pyfuse3` find the one that hfs-cache-native brings, where the extension would come from there too.

    Before the first import of it; it can be called again.
    """
    wheel = importlib.util.find_spec(_WHEEL)
    if importlib.util.find_spec(f"{_OWN}.{_NAME}") is not None or wheel is None:
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


EXTENSION = load()
