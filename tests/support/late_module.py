"""A module that is imported when a test first uses it, not when tests are collected: torch takes seconds."""

from typing import Any

import pytest


class LateModule:
    """Stands for a module in a test file. A test that uses it is skipped where it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks at what a test file holds: is it a fixture, is it a mock
            raise AttributeError(name)
        return getattr(pytest.importorskip(self._name), name)
