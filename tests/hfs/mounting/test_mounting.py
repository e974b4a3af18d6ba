"""Starting and ending a daemon, with scripts in its place: the caller gets an answer and no process stays, always."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hfs.mountd.core import socket_places
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, MountError
from hfs.mountd.supervisor import table
from hfs.mounting import logs, mounting, processes
from hfs.mounting.mounting import start


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(source="/caf\udce9", mountpoint=str(tmp_path / "m"), cache="/c", log_file=str(tmp_path / "l/log"))


def refusal(
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    kind: type[Exception] = MountError,
    limit_s: float = 20,
) -> str:
    """What `start` raises when the daemon is this script; its process is gone then."""
    script = (
        f"import os, sys, signal, time; open({str(config.log_file)!r}, 'a').write(f'pid={{os.getpid()}}\\n')\n{script}"
    )
    monkeypatch.setattr(mounting, "_COMMAND", [sys.executable, "-c", script])
    with pytest.raises(kind) as caught:
        start(config, {}, limit_s)
    for line in Path(config.log_file or "").read_text().splitlines():
        if line.startswith("pid="):
            assert processes.open_pid(int(line.removeprefix("pid="))) is None
    return str(caught.value)


def test_the_daemon_gets_its_configuration_and_a_session(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
from hfs.mountd.core.config.loading import undump
config, origins = undump(sys.stdin.buffer.read())
import json
session, package = os.getsid(0) == os.getpid(), os.path.isdir("hfs")
text = ascii([config.source, origins, session, package, os.listdir("/proc/self/fd")])
print(json.dumps({"error": text, "code": 1}))
"""
    source, origins, session, package, descriptors = eval(refusal(config, monkeypatch, script))
    assert (source, origins, session, package) == ("/caf\udce9", {}, True, True)
    assert {int(number) for number in descriptors} <= {0, 1, 2, 3}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
def test_where_another_user_has_made_the_place_of_the_log_there_is_none(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache that several share."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o1777)
    (theirs := tmp_path / "c" / "logs-4243").mkdir()
    os.chown(theirs, 4242, 0)
    monkeypatch.setattr(os, "geteuid", lambda: 4243)
    monkeypatch.setattr(socket_places, "_TMP", str(tmp_path))  # nor is anything left in the place of that user
    config = msgspec.structs.replace(config, cache=str(tmp_path / "c"), log_file=f"{theirs}/log")
    why = "belongs to user 4242, so no log is written; give another with --log-file PATH"
    assert logs.why_none(config) == f"{theirs} {why}"
    said = json.dumps({"error": "its own words", "code": 1})
    monkeypatch.setattr(mounting, "_COMMAND", [sys.executable, "-c", f"print({said!r})"])
    with pytest.raises(MountError, match="its own words"):
        start(config, {}, 20)
    assert not list(theirs.iterdir())


def test_its_own_words_come_through(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print(%r, flush=True); sys.exit(1)"
    assert refusal(config, monkeypatch, script % json.dumps({"error": "in use by 5", "code": 1})) == "in use by 5"
    assert (
        refusal(config, monkeypatch, script % json.dumps({"error": "bad\nkeys", "code": 2}), ConfigError) == "bad\nkeys"
    )
    long = msgspec.structs.replace(config, source="/" + "s" * 100_000)  # more than a pipe takes
    unread = "os.close(0); " + script % json.dumps({"error": "no place", "code": 1})
    assert refusal(long, monkeypatch, unread) == "no place"


def test_a_daemon_that_dies_leaves_the_end_of_its_log(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(config.log_file or "").parent.mkdir()
    Path(config.log_file or "").write_text("of an earlier run\n")
    text = refusal(config, monkeypatch, "sys.stderr.write('one\\nlast words \\xe9\\n'); sys.exit(7)")
    first, *tail = text.splitlines()
    assert first == f"the daemon ended with exit code 7 before the mount answered; its log is {config.log_file}"
    assert tail[1:] == ["one", "last words \xe9"]
    text = refusal(config, monkeypatch, "os.kill(os.getpid(), signal.SIGKILL)")
    assert text.startswith("the daemon was ended by SIGKILL")


def test_a_daemon_that_does_not_answer_is_ended(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did not answer within 0.3 s" in refusal(config, monkeypatch, "time.sleep(1000)", limit_s=0.3)
    monkeypatch.setattr(mounting, "_END_S", 0.1)
    stubborn = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.stdout.write('{'); sys.stdout.flush(); time.sleep(1000)"
    )
    assert "did not answer" in refusal(config, monkeypatch, stubborn, limit_s=0.3)
    assert "before the mount answered" in refusal(config, monkeypatch, "print('{', flush=True); time.sleep(1000)")
    closed = "os.close(1); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    assert "did not end" in refusal(config, monkeypatch, closed)


def test_a_ready_daemon_without_a_mount_is_no_success(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print('{\"ready\": 1}', flush=True); time.sleep(1000)"
    assert "the mount is gone again" in refusal(config, monkeypatch, script)


def test_an_interrupt_ends_the_daemon(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not before it is being waited for: a keeper that gets no order ends by itself.
    script = f"sys.stdin.buffer.read(1); os.kill({os.getpid()}, signal.SIGINT); time.sleep(1000)"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        refusal(config, monkeypatch, script, KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGINT, before)


# -- the daemon's process ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_daemons_process_answers_before_it_ends(tmp_path: Path) -> None:
    """What is no configuration at all: a line on stdout, code 2."""
    done = subprocess.run(mounting._DAEMON, input=b"{}", capture_output=True, check=False)
    assert done.returncode == 2
    imported, answer = map(json.loads, done.stdout.splitlines())
    assert list(imported) == ["imported"]
    assert answer["code"] == 2
    assert "cannot be read" in answer["error"]


# -- other processes --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os.chdir(sys.argv[1])", "its working directory is /"),
        ("import mmap; f = open(sys.argv[1] + '/f'); m = mmap.mmap(f.fileno(), 0, prot=1); f.close()", "/f"),
    ],
)
def test_who_uses_a_mount_that_no_path_leads_to(tmp_path: Path, code: str, how: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
    (tmp_path / "f").write_bytes(b"x")
    number = table.number_at(str(tmp_path))
    assert number is not None
    code = f"import os, sys; {code}; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        subprocess.run(["umount", "-l", tmp_path], check=True)
        (user,) = processes.having([number])
        assert (user.pid, how in user.how) == (process.pid, True)
        process.communicate()
    assert processes.having([number]) == []
