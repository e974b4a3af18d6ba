"""Python processes of this very release, wherever it lies: `python -P own_process.py MODULE ARGUMENT...`.

`python -m` looks for everything in the current directory first, also for what belongs to Python itself. Where hfs is
installed that is site-packages, and a backport there (`dataclasses`, `typing`) would end us, though it harms no other
program. So `hfs` is taken from where this file lies, and all else from where Python finds it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def command(module: str, *arguments: str) -> list[str]:
    """What to execute to call `main` of a module of hfs in a process of its own; it gives the exit code."""
    return [sys.executable, "-P", __file__, module, *arguments]


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
