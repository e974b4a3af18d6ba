"""`hfs doctor` as a command: lines, JSON, exit codes, and what it makes of a configuration that cannot be read."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hfs.cli import cli
from hfs.doctor import CheckResult, Surroundings
from hfs.doctor.surroundings import fault, good, limit, note

Run = Callable[..., Result]


@pytest.fixture
def told() -> list[CheckResult]:
    """What the checks find."""
    return [good("kernel", "Linux 6.10"), note("container", "this is one")]


@pytest.fixture
def looked_at() -> list[Surroundings]:
    """What they were given."""
    return []


@pytest.fixture
def hfs(
    told: list[CheckResult], looked_at: list[Surroundings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    def examine(around: Surroundings) -> list[CheckResult]:
        looked_at.append(around)
        return told

    monkeypatch.setattr(importlib.import_module("hfs.cli.doctor"), "examine", examine)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    for name in ("HFS_CACHE", "HFS_SOURCE", "HFS_CACHE_SIZE", "HFS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: CliRunner().invoke(cli, ["doctor", *map(str, arguments)], prog_name="hfs")


@pytest.mark.parametrize(
    ("more", "code", "verdict"),
    [
        ([], 0, "nothing is wrong"),
        ([limit("open-files", "few", "raise it")], 1, "mounts work, with the limits above"),
        ([limit("open-files", "few", "raise it"), fault("cache", "none", "make it")], 3, "mounts cannot work"),
    ],
)
def test_the_worst_decides(hfs: Run, told: list[CheckResult], more: list[CheckResult], code: int, verdict: str) -> None:
    told += more
    done = hfs()
    assert done.exit_code == code
    lines = done.stdout.splitlines()
    assert lines[0] == "good   kernel: Linux 6.10"
    assert lines[1] == "note   container: this is one"
    assert lines[-1].startswith(verdict)
    assert len(lines) == len(told) + 1
    if more:
        assert lines[2] == "limit  open-files: few; raise it"
    shown = hfs("--json")
    assert shown.exit_code == code
    record = json.loads(shown.stdout)
    assert record["exit_code"] == code
    assert record["findings"][0] == {"check": "kernel", "level": "good", "text": "Linux 6.10", "remedy": ""}


def test_names_that_hold_what_terminals_obey_are_shown_in_one_line(hfs: Run, told: list[CheckResult]) -> None:
    told.append(limit("source-rights", "may not read /s/a\n\x1b[2Jb\udce9", "mend it"))
    assert hfs().stdout.splitlines()[2] == "limit  source-rights: may not read /s/a\\n\\x1b[2Jb\\udce9; mend it"


def test_places_are_those_of_the_options_and_else_of_the_configuration(
    hfs: Run, looked_at: list[Surroundings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hfs()
    hfs("--source", tmp_path / "s", "--cache", "c")
    monkeypatch.setenv("HFS_CACHE", "/nvme/cache")
    monkeypatch.setenv("HFS_CACHE_SIZE", "1G")
    hfs()
    first, second, third = looked_at
    assert (first.source, first.cache) == (None, None)
    assert (second.source, second.cache) == (str(tmp_path / "s"), str(Path.cwd() / "c"))
    assert (third.cache, third.cache_size_bytes) == ("/nvme/cache", 1 << 30)


def test_a_configuration_that_cannot_be_read_is_a_finding(hfs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFS_CACHE_SIZE", "much")
    done = hfs()
    assert done.exit_code == 3
    assert "fault  configuration: HFS_CACHE_SIZE: " in done.stdout
    assert "kernel: Linux 6.10" in done.stdout, "the checks go on"
