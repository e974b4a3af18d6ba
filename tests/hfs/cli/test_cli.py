"""The command line without a mount: flags become configuration, errors become lines and exit codes, answers are shown.

Commands that talk to a daemon talk to the real control socket with a fake daemon behind it; the mount table is a table.
"""

import contextlib
import json
import os
from pathlib import Path

import click
import pytest

from hfs.cli import cli, shared
from hfs.cli import mount as mount_module
from hfs.cli import status as status_module
from hfs.cli.shared import printable
from hfs.client.client import Client
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import MountError
from hfs.mounting import joining, mountinfo, mounting, using
from hfs.mounting.mountinfo import Mount, parse
from tests.hfs.cli.running import hfs
from tests.hfs.daemon import FakeCommands


class Started(Exception):
    """Raised instead of starting a daemon, with what it would be given."""


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(config: Config, origins: dict[str, str], **_options: object) -> None:
        raise Started(config, origins)

    monkeypatch.setattr(mounting, "start", start)
    monkeypatch.setattr(mount_module, "check_places", lambda _config: None)
    monkeypatch.setattr(using, "check_places", lambda _config: None)
    monkeypatch.setattr(joining, "start_lock", lambda _config: contextlib.nullcontext())


def started(*arguments: str | Path) -> tuple[Config, dict[str, str]]:
    with pytest.raises(Started) as caught:
        hfs(*arguments)
    config, origins = caught.value.args
    return config, origins


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("starting")
def test_every_flag_reaches_the_configuration(tmp_path: Path) -> None:
    places = [tmp_path / "s", tmp_path / "m", "--cache", tmp_path / "c"]
    plain, origins = started("mount", *places)
    real = tmp_path.resolve()
    assert (plain.source, plain.mountpoint, plain.cache) == (str(tmp_path / "s"), str(real / "m"), str(real / "c"))
    assert plain.log_file is not None
    assert plain.log_file.startswith(f"{real}/c/logs/")
    assert origins["source"] == "command line"
    config, origins = started(
        *("mount", *places, "--cache-size", "5G", "--chunk", "1M", "--ttl", "5", "--immutable", "--over"),
        *("--io-mode", "daemon", "--source-id", "0" * 16, "--eviction", "lru", "--strict", "--control", tmp_path / "x"),
        *("--log-file", tmp_path / "log", "-v", "-o", "push=no,ro", "-o", "source_threads=7"),
    )
    assert config == Config(
        source=plain.source,
        mountpoint=plain.mountpoint,
        cache=plain.cache,
        cache_size_bytes=5 << 30,
        chunk_bytes=1 << 20,
        ttl_s=5.0,
        immutable=True,
        over=True,
        io_mode="daemon",
        source_id="0" * 16,
        eviction="lru",
        strict=True,
        control=str(tmp_path / "x"),
        log_file=str(tmp_path / "log"),
        log_level="debug",
        push=False,
        source_threads=7,
        allow_other=plain.allow_other,
    )
    assert origins["push"] == "command line -o"
    assert origins["ttl_s"] == "command line"


@pytest.mark.usefixtures("starting")
def test_environment_and_file_stand_behind_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text("ttl = 1\nstrict = true\nchunk = '2M'")
    monkeypatch.setenv("HFS_TTL", "2")
    monkeypatch.setenv("HFS_CHUNK", "4M")
    monkeypatch.setenv("HFS_CACHE", "/tmp/from-environment")
    monkeypatch.setenv("XDG_STATE_HOME", "/tmp/state")
    config, origins = started("mount", "--config", tmp_path / "c.toml", "--ttl", "3", "/s", "/m")
    assert (config.ttl_s, config.chunk_bytes, config.strict) == (3.0, 4 << 20, True)
    assert config.log_file is not None
    assert config.log_file.startswith("/tmp/state/hfs/m-")
    assert origins["cache"] == "environment HFS_CACHE"
    config, _ = started("run", "--config", tmp_path / "c.toml", "--source", "/s", "--at", "/m", "--", "true")
    assert (config.ttl_s, config.source, config.mountpoint) == (2.0, "/s", "/m")
    monkeypatch.setenv("HFS_FOREGROUND", "true")
    assert not started("run", "--source", "/s", "--at", "/m", "true")[0].foreground


def test_an_error_is_one_line_for_a_fault_and_never_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise MountError("/m: in use by\n  process 5 (\udce9)")

    monkeypatch.setattr(mounting, "unmount", refuse)
    result = hfs("umount", "/m")
    assert (result.exit_code, result.stderr) == (1, "hfs: /m: in use by\n  process 5 (\\udce9)\n")


def test_interrupted_before_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(using, "check_places", interrupt)
    result = hfs("run", "--source", "/s", "--at", "/m", "--cache", "/c", "true")
    assert (result.exit_code, result.stderr) == (125, "hfs: interrupted before the command was started\n")


# -- config, completion -----------------------------------------------------------------------------------------------


def test_config_shows_values_and_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFS_TTL", "2")
    shown = json.loads(hfs("config", "--cache-size", "1G", "--json").stdout)
    assert shown["ttl"] == {"value": 2.0, "origin": "environment HFS_TTL"}
    assert shown["cache-size"] == {"value": 1 << 30, "origin": "command line"}
    assert shown["strict"] == {"value": False, "origin": "default"}
    text = hfs("config").stdout
    assert "environment HFS_TTL" in text
    assert "a power of two from 64K to 64M" in text
    assert hfs("config", "--ttl", "x").exit_code == 2


def test_completion_of_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = parse("1 0 0:1 / /mnt/a\\040b ro - fuse.hfs hfs#/s ro\n2 0 0:1 / /mnt/x rw - ext4 dev rw")
    monkeypatch.setattr(shared.mountinfo, "mounts", lambda: table)
    context, argument = click.Context(cli), click.Argument(["mount"])
    assert [item.value for item in shared.complete_mounts(context, argument, "/m")] == ["/mnt/a b"]
    assert [item.type for item in shared.complete_mounts(context, argument, "/x")] == ["file"]


def test_completion_offers_no_words_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell puts them into the line, and into a list of lines, as they are."""
    places = ["/tmp/a;cmd;", "/tmp/$(cmd)", "/tmp/x\nfile,/etc", "/tmp/a b", "/tmp/théâtre", "/tmp/-o", "/tmp/'x"]
    theirs = [(place, "rw,user_id=70001,allow_other") for place in places]
    roots = [("/tmp/roots", "rw,user_id=0"), ("/tmp/own of ours", f"rw,user_id={os.geteuid()}")]
    mounts = [
        Mount(number, f"0:{number}", place, "ro", mountinfo.HFS_TYPE, "hfs#/s", options)
        for number, (place, options) in enumerate([*theirs, *roots])
    ]
    monkeypatch.setattr(mountinfo, "hfs_mounts", lambda: mounts)
    context = click.Context(click.Command("hfs"))
    found = [item.value for item in shared.complete_mounts(context, click.Argument(["mount"]), "/tmp")]
    assert found == ["/tmp/roots", "/tmp/own of ours", "/tmp/théâtre", "/tmp/-o"]


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_as_json_is_the_daemons_object(daemon: FakeCommands) -> None:
    for arguments in ([daemon.mountpoint], [f"{daemon.mountpoint}/below/it"], ["--wait", "5", daemon.mountpoint]):
        found = json.loads(hfs("status", *arguments, "--json").stdout)
        assert (found["pid"], found["source"]["reads"], found["staged"]["bytes"]) == (4711, 12, 30)


def test_the_page_cache_is_looked_at_only_for_who_shows_it(daemon: FakeCommands) -> None:
    """It takes the daemon up to 50 ms."""
    for options, looks in (((), 0), (("--json",), 1), (("--all",), 2)):
        hfs("status", daemon.mountpoint, *options)
        assert daemon.page_cache_looks == looks


def test_status_for_people_shows_every_figure(daemon: FakeCommands, tmp_path: Path) -> None:
    text = hfs("status", "--all", "--control", tmp_path / "s").stdout
    for part in (
        "4711",
        "123 MB",
        "[red]caf\\udce9",
        "3.00 MB",
        "later.figure ",
        "1 min 30 s",
        "never reach the daemon",
        "python (17)",
        "python (21)",
        "1.87 MB",
    ):
        assert part in text
    assert "python (22)" not in text  # the few that read most
    assert "counters" in text
    assert "counters" not in hfs("status", daemon.mountpoint).stdout


def test_status_of_all_mounts(daemon: FakeCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    result = hfs("status", "--json")
    (row,) = json.loads(result.stdout)["mounts"]
    assert (row["mountpoint"], row["pid"], row["answers"], row["staged"]["files"]) == (
        daemon.mountpoint,
        os.getpid(),
        True,
        2,
    )
    assert result.exit_code == 0
    assert "2 files, 30 B" in hfs("status").stdout
    table = [*shared.mountinfo.mounts(), *parse("3 1 0:3 / /mnt/dead ro - fuse.hfs hfs#/s ro")]
    monkeypatch.setattr(shared.mountinfo, "mounts", lambda: table)
    result = hfs("status")
    assert result.exit_code == 1
    assert "/mnt/dead: not a mount" in result.stdout
    monkeypatch.setattr(shared.mountinfo, "mounts", list)
    assert hfs("status").stdout == "no mounts of hfs\n"


def test_without_any_mount_it_is_said() -> None:
    for arguments in (("why",), ("status", "--watch"), ("status", "--cluster")):
        result = hfs(*arguments)
        assert (result.exit_code, "no mount of hfs" in result.stderr) == (2, True)


def test_what_the_figures_of_all_nodes_say_together() -> None:
    known = {
        "a": {"share": 200_000, "bytes of b": 30_000_000, "us of b": 1_000_000, "bytes of c": 9, "us of c": 10**9},
        "b": {"share": 300_000, "bytes of a": 90_000_000, "us of a": 300_000, "peer_misses": 1200},
        "c": {"share": 0, "peer_misses": 34, "peer_dropped": 5},
    }
    assert list(status_module.links_shown(known)) == [
        "shares of the data: a 20.0%, b 30.0%, c 0.0%, no cache has room for 50.0%",
        "a has read 30 MB from b, 0 MB from c",
        "b has read 90 MB from a",
        "slowest: a from b, 30 MB/s of a request; the fastest has 300",
        "read from the source twice: 1,234 requests without an answer, 5 chunks that came too fast for a cache disk",
    ]
    assert list(status_module.links_shown({"a": {"share": 1_000_000}})) == ["shares of the data: a 100.0%"]


def test_status_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(status_module.time, "sleep", waits.append)
    monkeypatch.setattr(status_module.time, "monotonic", lambda: sum(waits))
    result = hfs("status", "--control", "/absent", "--wait", "1")
    assert result.exit_code == 1
    assert sum(waits) == pytest.approx(1.0, abs=0.2)


def test_names_where_a_part_of_a_mount_is_seen() -> None:
    """As in a container that is shown a directory of it."""
    whole = shared.MountTarget("/data", Client("/absent"), [])
    assert (whole.named(b"a/b"), whole.seen(b"a/b"), whole.shown(b"a/b"), whole.shown(b"")) == (
        *(b"a/b", b"a/b", "/data/a/b", "/data"),
    )
    part = shared.MountTarget("/data", Client("/absent"), [], "train/x")
    assert (part.named(b"a/b"), part.named(b"")) == (b"train/x/a/b", b"train/x")
    assert (part.seen(b"train/x/a/b"), part.seen(b"train/x")) == (b"a/b", b"")
    assert (part.shown(b"train/x/a/b"), part.shown(b"train/x")) == ("/data/a/b", "/data")
    for elsewhere in (b"train/xy", b"train", b"other/a", b""):
        assert part.seen(elsewhere) is None
    assert part.shown(b"other/a") == "other/a (not seen at /data)"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    """Names of files and of other users' learners are shown, each on one line, in the order of its letters."""
    assert printable("a\x1b]0;owned\x07\x9b31m\udcff\r") == "a\\x1b]0;owned\\x07\\x9b31m\\udcff\\r"
    assert printable("grüße \u6570") == "grüße \u6570"
    obeyed = [*map(chr, (*range(0x20), *range(0x7F, 0xA0))), *"\u2028\u2029\u061c\u200e\u200f\u202e\u2066\u2069"]
    for letter in obeyed:
        shown = printable(f"a{letter}removed /etc/passwd")
        assert (letter in shown, shown.isascii(), len(shown.splitlines())) == (False, True, 1)
