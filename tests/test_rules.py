"""The rules of tests/conftest.py bite: undeclared and missing warnings fail, CI skips nothing, alone is alone."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
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


@pytest.mark.parametrize(("marker", "is_left_out"), [("slow", True), ("alone", False)])
def test_when_the_time_of_ci_is_over_what_is_slow_is_left_out(
    marker: str, is_left_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = SimpleNamespace(get_closest_marker=lambda name: name == marker)
    for until, is_over in (("inf", False), ("1", True)):
        monkeypatch.setenv("TESTS_UNTIL", until)
        try:
            conftest.pytest_runtest_setup(item)  # type: ignore[arg-type]  # a stand-in
            assert not (is_over and is_left_out)
        except pytest.skip.Exception:
            assert (is_over, is_left_out) == (True, True)


@pytest.mark.parametrize(("marker", "why_not"), [("fuse", "why_no_fuse"), ("mpi", "why_no_mpi")])
def test_what_cannot_be_run_here_skips_and_in_ci_fails(
    marker: str, why_not: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = SimpleNamespace(get_closest_marker=lambda name: name == marker)
    monkeypatch.setattr(conftest, why_not, lambda: "it is missing")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="it is missing"):
        conftest.pytest_runtest_setup(item)  # type: ignore[arg-type]  # a stand-in
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no test may skip"):
        conftest.pytest_runtest_setup(item)  # type: ignore[arg-type]  # a stand-in


@contextmanager
def under_way(*marks: str) -> Iterator[None]:
    """A test with these marks."""
    item = SimpleNamespace(get_closest_marker=lambda name: name in marks)
    with closing(conftest.pytest_runtest_protocol(item, None)) as wrapper:  # type: ignore[arg-type]  # a stand-in
        next(wrapper)
        yield


def is_free(path: Path, how: int) -> bool:
    """Could another process lock it so at this moment?"""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def test_who_wants_to_be_alone_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, room = tmp_path / "queue", tmp_path / "room"
    for name, path in (("QUEUE", queue), ("ROOM", room)):
        path.touch()
        monkeypatch.setattr(conftest, name, path)
    with under_way(), under_way("fuse"):
        assert is_free(room, fcntl.LOCK_SH)
        assert not is_free(room, fcntl.LOCK_EX)
        assert is_free(queue, fcntl.LOCK_EX)  # whose test has begun is in nobody's way
    with under_way("alone"):
        assert not is_free(room, fcntl.LOCK_SH)
    assert is_free(room, fcntl.LOCK_EX)
