"""What a command that mounts says of cache and metrics: nothing where all is as it was asked for."""

from typing import Any

import pytest

from hfs.cli.mount_notes import notes
from hfs.mountd.core.config import Config

PATHS = "and the paths of SOURCE and MOUNTPOINT"


def told(
    *,
    metrics: str | None = None,
    file: str | None = None,
    made: tuple[str | None, str | None] | None = None,
    **more: Any,
) -> list[str]:
    config = Config(source="/s", mountpoint="/m", cache="/c", metrics=metrics, metrics_file=file)
    has = (metrics, file) if made is None else made
    status = {
        "config": {"metrics": {"value": has[0]}, "metrics-file": {"value": has[1]}},
        "monitoring": {"address": "127.0.0.1:1234", "error": None, "file_error": None, **more},
    }
    return list(notes(config, status))


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({}, []),
        ({"metrics": "127.0.0.1:1234", "file": "/f"}, []),
        ({"metrics": "127.0.0.1:0"}, ["metrics are at http://127.0.0.1:1234/metrics"]),
        ({"metrics": "127.0.0.1:9", "error": "in use"}, ["metrics: in use"]),
        ({"file": "/f", "file_error": "gone"}, ["metrics: gone"]),
        (
            {"metrics": "127.0.0.1:9", "made": ("127.0.0.1:8", None), "error": "of another"},
            ["metrics: the mount that is there has 127.0.0.1:8, and keeps that; 127.0.0.1:9 is not used"],
        ),
        (
            {"file": "/f", "made": (None, None)},
            ["metrics-file: the mount that is there has none, and keeps that; /f is not used"],
        ),
        (
            {"metrics": "0.0.0.0:9", "address": "0.0.0.0:9"},
            [f"metrics: whoever reaches 0.0.0.0:9 over the network can read them, {PATHS}"],
        ),
    ],
)
def test_notes(given: dict[str, Any], lines: list[str]) -> None:
    assert told(**given) == lines


def test_a_daemon_of_an_older_release() -> None:
    config = Config(source="/s", mountpoint="/m", cache="/c", metrics="127.0.0.1:9")
    assert list(notes(config, {"config": {}})) == [
        "metrics: the mount that is there has none, and keeps that; 127.0.0.1:9 is not used"
    ]


def test_a_mount_without_a_cache() -> None:
    config = Config(source="/s", mountpoint="/m", cache="/c")
    assert list(notes(config, {"staged": {"state": "full", "last_error": "No space left on device"}})) == []
    assert list(notes(config, {"staged": {"state": "off", "last_error": "there is no cache: why"}})) == [
        "there is no cache: why; all is read from the source until it is well"
    ]
