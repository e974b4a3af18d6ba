"""Metrics of real mounts: the same figures as hfs status, whatever hangs, for as long as the mount lives; and its log.

Ports are those that the kernel gives; what the collectors read goes through prometheus-client's parsers.
"""

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from hfs.client.client import Client
from hfs.mountd.core.metrics import COUNTERS
from hfs.mountd.monitoring import FAMILIES
from hfs.mountd.monitoring.server import CLIENTS
from tests.fuse.harness import Hfs, HfsMount, hfs_command, kill, must, run
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
SIZE = 200_000
HUNG = 128
OPENMETRICS = "application/openmetrics-text"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(4):
        (folder / str(number)).write_bytes(pattern(number + 1, 0, SIZE))
    return folder


@pytest.fixture
def port() -> Iterator[int]:
    """One that nobody else is given: it is bound, and not listened at."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def monitoring(hfs: Hfs) -> dict[str, Any]:
    told: dict[str, Any] = Client(str(hfs.socket)).status()["monitoring"]
    return told


def address(hfs: Hfs) -> str:
    return str(monitoring(hfs)["address"])


def scrape(where: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://{where}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith(accept)
        return str(answer.read().decode())


def series(text: str, mountpoint: Path) -> Series:
    """All of it, whose labels are those of this mount."""
    found: Series = {}
    parser = openmetrics_parser if text.endswith("# EOF\n") else text_parser
    for metric in parser.text_string_to_metric_families(text):
        for sample in metric.samples:
            assert sample.labels.pop("mountpoint") == str(mountpoint)
            found[sample.name, tuple(sample.labels.items())] = sample.value
    return found


def of_status(status: dict[str, Any], figure: str) -> float | None:
    """What the status says of a figure; None: it does not, or it changes by itself."""
    if figure in COUNTERS:
        return float(status["counters"][figure]["value"])
    path, is_word, word = figure.partition("=")
    found: Any = status
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if is_word:
        return float(found == word)
    return float(found) if isinstance(found, int | float) and key != "resident_bytes" else None


def test_they_are_the_figures_of_the_status(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, "--metrics", "0")
    for number in range(4):
        assert (hfs.path / str(number)).read_bytes() == pattern(number + 1, 0, SIZE)
    where = address(hfs)
    while True:
        old = scrape(where, OPENMETRICS)
        before = json.loads(must(hfs_command(), "status", hfs.path, "--json"))
        while (text := scrape(where, OPENMETRICS)) == old:
            pass  # figures are gathered once a second
        status = json.loads(must(hfs_command(), "status", hfs.path, "--json"))
        changing = ("uptime_s", "keeper", "traffic", "memory", "monitoring", "page_cache")
        names = [key for key in before if key not in changing]
        if all(before[key] == status[key] for key in names):
            break  # nothing is under way any more
    found = series(text, hfs.path)
    compared = 0
    for family in FAMILIES:
        for sample in family.samples:
            labels = () if family.kind == "info" else sample.labels
            if family.kind == "info":
                continue
            value = found[family.sample_name, labels]
            said = of_status(status, sample.figure)
            if said is not None:
                compared += 1
                assert value == (said / 1e9 if sample.figure.endswith("_ns") else said), sample
    assert compared > 100
    info = ("hfs_mount_info", (("source", str(source)), ("version", status["version"])))
    assert found[info] == 1
    read_bytes = sum(value for (name, _), value in found.items() if name == "hfs_read_bytes_total")
    assert read_bytes + found["hfs_pushed_bytes_total", ()] >= 4 * SIZE
    assert found["hfs_fetched_bytes_total", (("origin", "source"),)] == 4 * SIZE
    assert found["hfs_cpu_seconds_total", ()] > 0
    assert found["hfs_start_time_seconds", ()] >= found["hfs_mount_start_time_seconds", ()] > 1.6e9
    assert series(scrape(where), hfs.path).keys() == found.keys()


@pytest.mark.slow
def test_they_are_answered_while_all_readers_hang(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """128 readers wait for a source that gives nothing: a scrape, and the file, do not."""
    (tmp_path / "backing").mkdir()
    for number in range(HUNG):
        (tmp_path / "backing" / str(number)).write_bytes(pattern(number + 1, 0, 3000))
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path, "--metrics", "0", "--metrics-file", str(tmp_path / "m.prom"), "-o", "push=no")
    where = address(hfs)
    slow.order("fault read hang")
    readers = [
        subprocess.Popen(["cat", str(hfs.path / str(number))], stdout=subprocess.DEVNULL) for number in range(HUNG)
    ]
    try:
        while hfs.status()["open"]["files"] < HUNG:
            assert series(scrape(where), hfs.path)
        while True:
            found = series(scrape(where), hfs.path)
            running = sum(value for (name, _), value in found.items() if name == "hfs_source_calls_running")
            if running + found["hfs_small_files_running", ()] > 0 and found["hfs_nodes", ()] > 0:
                break  # figures are gathered once a second
    finally:
        slow.order("clear")
        assert [reader.wait() for reader in readers] == [0] * HUNG


def test_a_port_in_use_and_a_directory_that_is_missing_keep_no_data_set_away(
    source: Path, hfs_mount: HfsMount, tmp_path: Path
) -> None:
    """It is said on the console, in the log and in the status; and once the port is free it is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hfs = Hfs(source, tmp_path / "m", tmp_path / "cache", tmp_path / "log", ("--cache-size", "1G"))
        hfs.path.mkdir()
        command = (hfs_command(), "mount", source, hfs.path, "--cache", hfs.cache, *hfs.options)
        gone = tmp_path / "gone" / "x.prom"
        told = run(*command, "--metrics", str(port), "--metrics-file", gone, env={"HFS_LOG_FILE": str(hfs.log)})
        try:
            assert told.returncode == 0
            assert "is no directory; make it" in told.stderr
            why = f"cannot listen at 127.0.0.1:{port}: Address already in use"
            assert f"hfs: metrics: {why}" in told.stderr
            assert (hfs.path / "0").read_bytes() == pattern(1, 0, SIZE)
            hfs.look()
            assert (monitoring(hfs)["address"], why in monitoring(hfs)["error"]) == (None, True)
            taken.close()
            while monitoring(hfs)["address"] is None:
                pass
            assert series(scrape(f"127.0.0.1:{port}"), hfs.path)
            assert hfs.log.read_text().count("WARNING hfs.mountd.monitoring.server") == 1
        finally:
            must(hfs_command(), "umount", hfs.path)


def test_the_next_daemon_has_the_port(source: Path, hfs_mount: HfsMount, port: int, tmp_path: Path) -> None:
    """After a crash, and after another release has taken the mount over; and the same file."""
    file = tmp_path / "m.prom"
    hfs = hfs_mount(source, "--metrics", str(port), "--metrics-file", str(file))
    first = series(scrape(f"127.0.0.1:{port}"), hfs.path)
    assert first["hfs_restarts_total", ()] == 0
    with socket.create_connection(("127.0.0.1", port)) as half:  # open when the daemon is killed
        half.sendall(b"GET /met")
        hfs.crash()
    second = series(scrape(f"127.0.0.1:{port}"), hfs.path)
    assert second["hfs_restarts_total", ()] == 1
    assert second["hfs_mount_start_time_seconds", ()] == first["hfs_mount_start_time_seconds", ()]
    assert second["hfs_start_time_seconds", ()] > first["hfs_start_time_seconds", ()]
    assert series(file.read_text(), hfs.path)["hfs_restarts_total", ()] == 1

    options = ("--cache", hfs.cache, *hfs.options)
    done = run(hfs_command(), "mount", "--take-over", source, hfs.path, *options, env={"HFS_LOG_FILE": str(hfs.log)})
    assert done.returncode == 0, done.stderr
    assert "metrics" not in done.stderr
    hfs.look()
    third = series(scrape(f"127.0.0.1:{port}"), hfs.path)
    assert third["hfs_start_time_seconds", ()] > second["hfs_start_time_seconds", ()]
    assert series(file.read_text(), hfs.path)["hfs_start_time_seconds", ()] == third["hfs_start_time_seconds", ()]
    assert not re.search("metrics: ", hfs.log_text())


def test_the_file_lives_as_long_as_the_mount(source: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """One for each mount in a directory, there when the mount answers, readable for all, gone with it."""
    folder = tmp_path / "textfiles"
    folder.mkdir()
    (folder / "other.prom").write_text("other 1\n")
    options = ("--metrics-file", str(folder), "--source-id", "0123456789abcdef")
    mounts = [hfs_mount(source, *options, cache=tmp_path / f"cache{number}") for number in range(2)]
    assert len(os.listdir(folder)) == 3
    for hfs in mounts:
        path = Path(monitoring(hfs)["file"])
        assert path.parent == folder
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert ("hfs_nodes", ()) in series(path.read_text(), hfs.path)
        hfs.umount()
        assert not path.exists()
    assert os.listdir(folder) == ["other.prom"]


def test_hostile_clients_harm_nobody(source: Path, hfs_mount: HfsMount) -> None:
    """Connections that say nothing, or rubbish, or read nothing: reads, scrapes and the unmount go on."""
    hfs = hfs_mount(source, "--metrics", "0")
    where = address(hfs)
    host, _, port = where.partition(":")
    with contextlib.ExitStack() as stack:
        for number in range(3 * CLIENTS):
            client = stack.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(OSError):
                client.sendall((b"", b"GET /metrics HTTP/1.1\r\n", b"\0\r\n\r\n", b"x" * 10_000)[number % 4])
        for number in range(4):
            assert (hfs.path / str(number)).read_bytes() == pattern(number + 1, 0, SIZE)
        assert series(scrape(where), hfs.path)
        hfs.umount()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)))


def test_who_joins_a_mount_is_told_of_its_metrics(source: Path, hfs_mount: HfsMount, tmp_path: Path, port: int) -> None:
    """A second mount of the source does not fail for them, nor changes them."""
    hfs = hfs_mount(source)
    command = (hfs_command(), "mount", source, hfs.path, "--cache", hfs.cache, *hfs.options)
    file = tmp_path / "x.prom"
    done = run(*command, "--metrics", str(port), "--metrics-file", file, "--log-format", "json")
    assert done.returncode == 0, done.stderr
    assert f"metrics: the mount that is there has none, and keeps that; 127.0.0.1:{port} is not used" in done.stderr
    assert f"metrics-file: the mount that is there has none, and keeps that; {file} is not used" in done.stderr
    ran = run(hfs_command(), "run", "--source", source, "--cache", hfs.cache, *hfs.options, "--metrics", "0", "true")
    assert ran.returncode == 0, ran.stderr
    assert "metrics: the mount that is there has none" in ran.stderr
    assert not file.exists()
    assert monitoring(hfs)["address"] is None


def test_other_addresses_are_warned_of(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, "--metrics", "0.0.0.0:0")
    hfs.expect_warning("whoever reaches 0.0.0.0:0 over the network")
    assert address(hfs).startswith("0.0.0.0:")
    assert "whoever reaches 0.0.0.0:0 over the network" in hfs.log_text()


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_bytes().decode("ascii").splitlines()]


def test_the_log_as_json(source: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """Lines of the daemon and of its keeper, each an object, whatever bytes the names have."""
    hfs = hfs_mount(source, "--log-format", "json", at=tmp_path / os.fsdecode(b"caf\xe9\nx"))
    hfs.expect_warning("was ended by SIGKILL")
    kill(hfs.pid)
    hfs.look()
    hfs.umount()
    lines = lines_of(hfs.log)
    for line in lines:
        assert list(line) == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}\.[0-9]{3}Z", line["time"])
    for is_keepers in (True, False):  # two processes write, each in its order
        times = [line["time"] for line in lines if line["logger"].startswith("hfs.mountd.supervisor") == is_keepers]
        assert times == sorted(times)
    (serving,) = (line for line in lines if "as daemon 2 of this mount" in line["message"])
    assert serving["message"].startswith(f"{tmp_path}/caf\\udce9\nx: serving {source}")
    warnings = [line for line in lines if line["level"] == "WARNING"]
    assert [line["logger"] for line in warnings] == ["hfs.mountd.supervisor"]


def test_a_take_over_changes_the_form_of_the_log(source: Path, hfs_mount: HfsMount) -> None:
    """Of the keeper's lines too."""
    hfs = hfs_mount(source)
    text = hfs.log.read_bytes()
    options = ("--cache", hfs.cache, *hfs.options, "--log-format", "json")
    must(hfs_command(), "mount", "--take-over", source, hfs.path, *options, env={"HFS_LOG_FILE": str(hfs.log)})
    hfs.look()
    hfs.crash()
    assert hfs.log.read_bytes().startswith(text)
    found = [json.loads(line) for line in hfs.log.read_text().splitlines() if line.startswith("{")]
    assert {"hfs.mountd.supervisor", "hfs.mountd.daemon.service"} <= {line["logger"] for line in found}
    assert any("SIGKILL" in line["message"] for line in found)
