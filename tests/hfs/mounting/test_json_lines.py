"""The log as JSON: an object a line, whatever is logged; and as text, as before."""

import json
import logging
import logging.handlers
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.mountd.core.config import Config
from hfs.mountd.supervisor.log import Log
from hfs.mounting import logs

NAMES = ["plain", "caf\udce9\udcff", "a\nb\rc", "\u2028\x85", '"{}\\', "é€😀", "\0\x1b[31m", "\ud83d alone"]


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    root.handlers[:], level = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def written(path: Path, monkeypatch: pytest.MonkeyPatch, form: str, *records: Any) -> bytes:
    """What is in the file after these calls, each arguments of Logger.info."""
    config = Config(
        source="/s",
        mountpoint="/m",
        cache="/c",
        log_file=str(path),
        log_format="json" if form == "json" else "text",
    )
    stops: list[Any] = []
    monkeypatch.setattr(logs.atexit, "register", stops.append)
    logs.configure(config)
    for arguments, keywords in records:
        logging.getLogger("hfs.mountd.test").info(*arguments, **keywords)
    for stop in stops:
        stop()
        for handler in stop.__self__.handlers:
            handler.close()
    for handler in logging.getLogger().handlers:
        assert isinstance(handler, logging.handlers.QueueHandler)
    return path.read_bytes()


def objects(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode("ascii").splitlines()]


def test_names_of_any_bytes(root: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(
        tmp_path / "log",
        monkeypatch,
        "json",
        *((("%s: %r", name, name.encode("utf-8", "surrogatepass")), {}) for name in NAMES),
    )
    found = objects(data)
    assert len(found) == len(NAMES)
    assert data.count(b"\n") == len(NAMES)
    for line, name in zip(found, NAMES, strict=True):
        assert list(line) == ["time", "level", "logger", "message"]
        line["message"].encode()  # no surrogates: other programs refuse them
        assert line["message"].startswith(name.encode("utf-8", "backslashreplace").decode() + ": ")
    assert (found[0]["level"], found[0]["logger"]) == ("INFO", "hfs.mountd.test")


def test_exceptions(root: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from the message; in one text with it where the log is text."""
    try:
        raise OSError(5, "broken", "caf\udce9")
    except OSError:
        record = (("failed",), {"exc_info": sys.exc_info()})
    (line,) = objects(written(tmp_path / "json", monkeypatch, "json", record))
    assert list(line) == ["time", "level", "logger", "message", "exception"]
    assert line["message"] == "failed"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("OSError: [Errno 5] broken: 'caf\\udce9'")
    text = written(tmp_path / "text", monkeypatch, "text", record).decode()
    first, *rest = text.splitlines()
    assert first.endswith(" INFO hfs.mountd.test: failed")
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "OSError: [Errno 5] broken: 'caf\\udce9'"


FORGED = "x\n2026-01-01 00:00:00,000 ERROR hfs: forged\r\x1b[2J\x85\u2028\u202e\t\udce9"


def test_a_line_of_text_is_one_line(root: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and words of others are in it: no line is forged, and no terminal obeys. In the keeper's lines too."""

    def raised(error: Exception) -> Any:
        try:
            try:
                raise OSError(5, FORGED)
            except OSError as cause:
                raise error from cause
        except (ValueError, ExceptionGroup):
            return (("failed: %s", FORGED), {"exc_info": sys.exc_info()})

    records = [(("%s", FORGED), {}), raised(ValueError(FORGED)), raised(ExceptionGroup(FORGED, [KeyError(FORGED)]))]
    written(tmp_path / "log", monkeypatch, "text", *records)
    Log(str(tmp_path / "log"), None).warning(FORGED)
    text = (tmp_path / "log").read_text()
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert sum(line.startswith("2026-01-01") for line in lines) == 0
    assert sum(" INFO hfs.mountd.test: " in line for line in lines) == len(records)
    assert len([line for line in lines if line.startswith("20")]) == len(records) + 1


@pytest.mark.parametrize(
    ("created", "time"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1795493390.2559, "2026-11-24T04:09:50.255Z"),
        (1.9999, "1970-01-01T00:00:01.999Z"),
    ],
)
def test_times_are_rfc_3339_in_utc(created: float, time: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = logging.makeLogRecord({"msg": "x", "created": created, "msecs": created % 1 * 1000})
    assert json.loads(logs.JsonLines().format(record))["time"] == time
    monkeypatch.setattr("hfs.mountd.supervisor.log.time.time", lambda: created)
    Log(str(tmp_path / "log"), None, "json").info("x")
    assert json.loads((tmp_path / "log").read_text())["time"] == time
