"""The data plane's C under sanitizers, without Python and without a mount: see driver.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.layers import ROOT

PLANE = ROOT / "mountd" / "native" / "plane"
WRAPPED = ("malloc", "calloc", "mmap", "eventfd", "epoll_create1", "epoll_ctl", "pthread_create")
SANITIZERS = {"addresses": "-fsanitize=address,undefined", "threads": "-fsanitize=thread"}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plane")


def driver(build: Path, sanitizer: str) -> Path:
    program = build / sanitizer
    if not program.exists():
        sources = [path for path in sorted(PLANE.glob("*.c")) if path.name != "python.c"]
        wraps = [f"-Wl,--wrap={name}" for name in WRAPPED]
        flags = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
        command = ["gcc", *flags, SANITIZERS[sanitizer], f"-I{PLANE}", Path(__file__).with_name("driver.c"), *sources]
        subprocess.run([*command, "-o", program, *wraps, "-lpthread"], check=True)
    return program


def run(folder: Path, *command: str | Path, limit_s: float) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("seed", ["1", "20261123"])
def test_random_requests_while_entries_come_and_go(build: Path, sanitizer: str, seed: str) -> None:
    run(build, driver(build, sanitizer), "fuzz", "1.5", seed, limit_s=50)


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_ten_minutes_of_random_requests(build: Path, sanitizer: str) -> None:
    run(build, driver(build, sanitizer), "fuzz", "600", "3", limit_s=690)


def test_every_call_that_may_fail_fails_once(build: Path) -> None:
    run(build, driver(build, "addresses"), "fail", limit_s=50)
