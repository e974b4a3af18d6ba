"""Changes the daemon of one test: this folder is the first that its Python finds (see tests/fuse/injection.py).

MOUNT_TEST_INJECTED holds a JSON list: {"at": "module:attribute", "set": value} puts a value there once the module has
been imported; {"at": "module:Class.method", "raises": times} has that function raise RuntimeError at its first calls,
with "task": name only those that the background task of this name makes, with "after": count those after so many.
{"hide": "module"} hides a module; {"replace": "module", "by": path} has it loaded from another shared object.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def _raising(function: Callable[..., Any], times: int, task: str | None, after: int) -> Callable[..., Any]:
    left, before = [times], [after]

    def fail() -> None:
        if left[0] > 0 and (task is None or sys.modules["trio"].lowlevel.current_task().name == task):
            if before[0] > 0:
                before[0] -= 1
                return
            left[0] -= 1
            raise RuntimeError("injected by a test")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            fail()
            return await function(*args, **kwargs)

        return waiting

    @functools.wraps(function)
    def calling(*args: Any, **kwargs: Any) -> Any:
        fail()
        return function(*args, **kwargs)

    return calling


def _apply(module: ModuleType, change: dict[str, Any]) -> None:
    *owners, name = change["at"].partition(":")[2].split(".")
    owner: Any = functools.reduce(getattr, owners, module)
    if "set" in change:
        setattr(owner, name, change["set"])
    else:
        setattr(
            owner, name, _raising(getattr(owner, name), change["raises"], change.get("task"), change.get("after", 0))
        )


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, changes: list[dict[str, Any]]) -> None:
        self.loader, self.changes = loader, changes

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        for change in self.changes:
            _apply(module, change)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes: list[dict[str, Any]]) -> None:
        self.changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for change in self.changes:
            if change.get("replace") == name:
                loader = importlib.machinery.ExtensionFileLoader(name, change["by"])
                return importlib.util.spec_from_file_location(name, change["by"], loader=loader)
        changes = [change for change in self.changes if change.get("at", "").partition(":")[0] == name]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if changes else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, changes)
        return spec


_CHANGES = json.loads(os.environ.get("MOUNT_TEST_INJECTED", "[]"))
for _change in _CHANGES:
    if "hide" in _change:
        sys.modules[_change["hide"]] = None  # type: ignore[assignment]  # an import is then a ModuleNotFoundError
    elif (_module := sys.modules.get(_change.get("at", "").partition(":")[0])) is not None:
        _apply(_module, _change)  # a daemon of tests/fuse/warm.py has imported before it is told of its changes
sys.meta_path.insert(0, _Finder(_CHANGES))
