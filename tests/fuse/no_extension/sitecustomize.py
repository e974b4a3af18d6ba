"""Hides the compiled extensions: Python imports this file by itself when its folder is first in PYTHONPATH.

For tests of a daemon on a machine where they were not built (tests/fuse/modes.py).
"""

import sys

sys.modules["hfs.mountd.native._fastpath"] = None  # type: ignore[assignment]  # an import of it is then a ModuleNotFoundError
sys.modules["hfs.mountd.native._small_files"] = None  # type: ignore[assignment]  # as above
sys.modules["hfs.mountd.native._attributes"] = None  # type: ignore[assignment]  # as above
