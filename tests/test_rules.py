"""The rules of tests/conftest.py bite: an undeclared warning fails, a missing one too, and CI skips no mount test."""

import logging
from types import SimpleNamespace

import pytest

from tests import conftest


def recorded(*messages: tuple[int, str]) -> conftest.Logs:
    logs = conftest.Logs()
    logger = logging.getLogger("of.this.test")
    logger.propagate = False
    logger.handlers.clear()
    logger.addHandler(logs)
    for level, message in messages:
        logger.log(level, "%s", message)
    return logs


def test_a_quiet_log_passes() -> None:
    assert recorded((logging.INFO, "as usual")).verdict() is None


def test_an_undeclared_warning_fails() -> None:
    assert "WARNING of.this.test: disk full" in str(recorded((logging.WARNING, "disk full")).verdict())


def test_a_declared_warning_passes() -> None:
    logs = recorded((logging.WARNING, "disk full"), (logging.ERROR, "disk full again"))
    logs.expect("disk full")
    assert logs.verdict() is None


def test_a_declared_warning_must_come() -> None:
    logs = recorded()
    logs.expect("disk full")
    assert "but not logged:\n  disk full" in str(logs.verdict())


def test_without_fuse_a_mount_test_skips_and_in_ci_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    item = SimpleNamespace(get_closest_marker=lambda name: name == "fuse")
    monkeypatch.setattr(conftest, "why_no_fuse", lambda: "/dev/fuse is missing")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="/dev/fuse is missing"):
        conftest.pytest_runtest_setup(item)  # type: ignore[arg-type]  # a stand-in
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no test may skip"):
        conftest.pytest_runtest_setup(item)  # type: ignore[arg-type]  # a stand-in
