"""`CheckResult`: one thing that doctor has looked at, how it stands, and the remedy in the same line."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Level(Enum):
    """How much it matters."""

    GOOD = "good"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    LIMIT = "limit"
    """Mounts work, slower or with limits that the text names."""
    FAULT = "fault"
    """A mount cannot work, or one that is there does not."""


class CheckResult(NamedTuple):
    """`text` says what and where; `remedy`, of limits and faults, what to do about it."""

    check: str
    """What was looked at: a name that stays the same from release to release."""
    level: Level
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Text and remedy."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


def good(check: str, text: str) -> CheckResult:
    """All is well."""
    return CheckResult(check, Level.GOOD, text)


def note(check: str, text: str, remedy: str = "") -> CheckResult:
    """Nothing is wrong."""
    return CheckResult(check, Level.NOTE, text, remedy)


def limit(check: str, text: str, remedy: str) -> CheckResult:
    """It works, but slower or with limits."""
    return CheckResult(check, Level.LIMIT, text, remedy)


def fault(check: str, text: str, remedy: str) -> CheckResult:
    """It does not work."""
    return CheckResult(check, Level.FAULT, text, remedy)


def worst(findings: Iterable[CheckResult]) -> Level:
    """The level that matters most; GOOD where nothing is wrong."""
    order = list(Level)
    found = max((order.index(finding.level) for finding in findings), default=0)
    return order[found] if order[found] is not Level.NOTE else Level.GOOD
