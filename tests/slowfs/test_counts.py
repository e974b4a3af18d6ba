"""What slowfs counts and charges. What an operation costs is read from its counters, never from a clock."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slowfs.mounted import PAGE, PATIENCE_S, Mount, files, read_direct


@pytest.mark.fuse
class TestCounts:
    def test_operations_and_bytes(self, mount: Callable[..., Mount]) -> None:
        slow = mount("--preset", "lustre")
        files(slow.backing, 2)
        slow.tell("reset")
        for _ in range(2):  # the second time comes from the kernel's caches, but for the open
            assert (slow.path / "file0").read_bytes() == b"A" * 100
        assert not (slow.path / "missing").exists()
        state = slow.state()
        assert [state[kind] for kind in ("lookup", "open", "read", "read_bytes")] == [2, 2, 1, 100]
        assert state["latency_us"] == dict.fromkeys(state["latency_us"], 0) | {
            "lookup": 2000,
            "open": 4000,
            "read": 1000,
            "getattr": 1000 * state["getattr"],
        }
        slow.tell("reset")
        state = slow.state()
        assert (state["lookup"], state["read_bytes"], state["latency_us"]["open"]) == (0, 0, 0)

    def test_seeks_of_disks(self, mount: Callable[..., Mount]) -> None:
        """Each place of each file that no read has led to costs one; without spindles none does."""
        slow = mount("--preset", "disk", "--set", "seek_us=1")
        far = (4 << 20) // PAGE
        for name in ("a", "b"):
            (slow.backing / name).touch()
            os.truncate(slow.backing / name, 16 << 20)
        for name, page in (("a", 0), ("b", 0), ("a", 1), ("a", far), ("a", far + 1), ("a", 2), ("a", 1)):
            assert read_direct(slow.path / name, PAGE, page * PAGE) == bytes(PAGE)
        # The last one begins before all ends but that of the first read.
        state = slow.state()
        assert (state["read"], state["seeks"]) == (7, 3)
        slow.tell("set spindles 0")
        read_direct(slow.path / "a", PAGE, 2 * far * PAGE)
        assert slow.state()["seeks"] == 3
        assert {key: state["settings"][key] for key in ("spindles", "seek_us", "read_us")} == {
            "spindles": 48,
            "seek_us": 1,
            "read_us": 1000,
        }
        slow.tell("set preset flash")
        settings = slow.state()["settings"]
        assert (settings["spindles"], settings["lookup_us"], settings["inflight"]) == (0, 300, 128)

    def test_reads_in_the_order_of_their_file(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        for name in ("a", "b"):
            (slow.backing / name).write_bytes(bytes(8 * PAGE))
        for name, page in (("a", 0), ("b", 4), ("a", 2), ("b", 2), ("a", 2), ("a", 1), ("a", 3)):
            assert read_direct(slow.path / name, PAGE, page * PAGE) == bytes(PAGE)
        # Each file is a row of its own: of a all but the step from 2 to 1, of b all but that from 4 to 2.
        assert (slow.state()["read"], slow.state()["read_ordered"]) == (7, 5)
        slow.tell("reset")
        assert slow.state()["read_ordered"] == 0

    def test_listings_cost_by_the_thousand_and_carry_no_attributes(self, mount: Callable[..., Mount]) -> None:
        slow = mount("--set", "readdir_us=7")
        names = files(slow.backing, 1)
        for i in range(2500):
            os.link(slow.backing / "file0", slow.backing / f"link {i:04}")
            names.append(f"link {i:04}")
        assert sorted(os.listdir(slow.path)) == sorted(names)
        state = slow.state()
        assert (state["readdir_names"], state["latency_us"]["readdir"], state["lookup"]) == (2501, 21, 0)
        os.lstat(slow.path / "link 0000")
        assert slow.state()["lookup"] == 1

    def test_lookups_in_one_directory_overlap(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount()
        names = files(slow.backing, 3)
        slow.tell("fault lookup hang")
        started = [readers(slow.path / name) for name in names]
        slow.until(lambda state: state["parked"] == 3)  # else the kernel sends one at a time
        slow.tell("clear")
        assert [len(process.communicate(timeout=PATIENCE_S)[0]) for process in started] == [100] * 3

    def test_no_more_in_flight_than_allowed(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount("--set", "inflight=2")
        names = files(slow.backing, 6)
        slow.tell("fault read hang")
        started = [readers(slow.path / name) for name in names]
        slow.until(lambda state: state["parked"] == 6)
        assert slow.state()["in_flight"] == 0
        slow.tell("set read_us 20000", "reset", "release")
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
        assert outputs == [(slow.backing / name).read_bytes() for name in names]
        assert slow.state()["in_flight_max"] == 2

    def test_the_time_with_something_in_flight(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount()
        names = files(slow.backing, 3)
        slow.tell("fault read hang")
        started = [readers(slow.path / name) for name in names]
        slow.until(lambda state: state["parked"] == 3)
        slow.tell("set read_us 200000", "reset")
        # What hangs is in no place, so the source is idle.
        assert slow.state()["busy_us"] == 0
        slow.tell("release")
        for process in started:
            process.communicate(timeout=PATIENCE_S)
        slow.until(lambda state: state["in_flight"] == 0)
        busy_us = slow.state()["busy_us"]
        # The reads of the three files overlap: time counts once, however many there are.
        assert 200_000 <= busy_us < slow.state()["latency_us"]["read"]
        assert slow.state()["busy_us"] == busy_us
