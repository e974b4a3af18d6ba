"""Running a command with us in front: exit codes, signals by kill and by the terminal, what it inherits."""

import os
import pty
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUNNER = """
import signal, sys
from hfs.mounting import command
from hfs.mounting.command import NEWS, run_command
command._MEANWHILE_S = 0.01
signal.pthread_sigmask(signal.SIG_BLOCK, NEWS)
try:
    code = run_command(sys.argv[1:])
except OSError as error:
    sys.exit(type(error).__name__)
sys.exit(code if code >= 0 else 128 - code)
"""
ON_ITS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
COUNTER = """
import os, signal, sys
counts = {}
def count(number, frame):
    counts[number] = counts.get(number, 0) + 1
for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, count)
print("ready", os.getppid(), flush=True)
for line in sys.stdin:
    print(counts, flush=True)
"""


def runner(*command: str) -> list[str]:
    return [sys.executable, "-c", RUNNER, *command]


def python(code: str) -> list[str]:
    return runner(sys.executable, "-c", code)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(255)", 255),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", 143),
    ],
)
def test_exit_codes(code: str, expected: int) -> None:
    assert subprocess.run(python(code), cwd=ROOT, check=False).returncode == expected


@pytest.mark.parametrize(("command", "error"), [("/absent/x", "FileNotFoundError"), ("/", "PermissionError")])
def test_what_cannot_be_executed(command: str, error: str) -> None:
    done = subprocess.run(runner(command), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == error


def test_signals_are_forwarded_once() -> None:
    with subprocess.Popen(
        python(COUNTER), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready {process.pid}\n"
        for number, name in ((signal.SIGUSR1, "10"), (signal.SIGTERM, "15"), (signal.SIGINT, "2")):
            process.send_signal(number)
            shown = ""
            while f"{name}: 1" not in shown:
                process.stdin.write("\n")
                process.stdin.flush()
                shown = process.stdout.readline()
        process.stdin.close()
        assert process.wait() == 0
        assert shown == "{10: 1, 15: 1, 2: 1}\n"


def test_who_was_stopped_for_long_forwards_nothing() -> None:
    """As by Ctrl-Z: Python's own sigtimedwait gives signals then that never came."""
    with subprocess.Popen(
        python(COUNTER), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready {process.pid}\n"
        for _ in range(5):
            process.send_signal(signal.SIGSTOP)
            assert os.waitid(os.P_PID, process.pid, os.WSTOPPED) is not None
            threading.Event().wait(0.02)  # longer than it waits for signals here
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "{}\n"
        process.stdin.close()
        assert process.wait() == 0


def test_ctrl_c_on_a_terminal_reaches_the_command_once() -> None:
    terminal, its_end = pty.openpty()
    # Not pty.fork: this process has threads.
    process = subprocess.Popen(
        [sys.executable, "-c", ON_ITS_TERMINAL, *python(COUNTER)],
        cwd=ROOT,
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
    )
    os.close(its_end)
    shown = b""

    def wait_shown(wanted: bytes) -> None:
        """Line after line: at Ctrl-C the terminal forgets what waits in it, on both ways."""
        nonlocal shown
        while wanted not in shown:
            os.write(terminal, b"\n")
            if select.select([terminal], [], [], 0.05)[0]:
                shown += os.read(terminal, 1000)

    with process, os.fdopen(terminal, "r+b", buffering=0):
        while b"ready" not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        wait_shown(b"2: ")
        # A second one, forwarded, would be in front of SIGUSR1: signals of one process arrive in the order of its loop.
        process.send_signal(signal.SIGUSR1)
        wait_shown(b"10: 1")
        assert b"2: 2" not in shown
        os.write(terminal, b"\x04")
        assert process.wait() == 0


def test_the_command_inherits_what_we_have(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; print(os.environ['MARK'], os.getcwd() == sys.argv[1], os.read(int(sys.argv[2]), 9),"
        "signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN)"
    )
    readable, writable = os.pipe()
    os.write(writable, b"mark")
    command = runner(sys.executable, "-c", code, str(tmp_path.resolve()), str(readable))
    environment = {**os.environ, "MARK": "x", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, pass_fds=[readable], capture_output=True, text=True, check=False
    )
    os.close(readable)
    os.close(writable)
    assert done.stdout == "x True b'mark' set() True\n"
