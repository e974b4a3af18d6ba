"""Each command of an installation, used once and asked for its help. Prints JSON: the commands that were used.

    python -I commands.py alone FOLDER    those that need no daemon
    python -I commands.py all FOLDER      all of them, with real mounts

Run by the interpreter of an environment (tests/install/environments.py), so it imports nothing of the tests. A command
that is in nobody's list is a fault.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from click import Context, Group
from click.testing import CliRunner

from hfs.cli import cli
from hfs.cli.hint import hint
from hfs.cli.mount_helper import helper

PROGRAMS = {"hfs": cli, "hfs-hint": hint, "mount.fuse.hfs": helper}
PLACE = Path(sys.executable).parent
READ = (sys.executable, "-Ic", "import sys; [print(open(path).read(), end='') for path in sys.argv[1:]]")
"""A command that reads: an environment need not have cat."""
SAMPLES = 8
LIMIT_S = 120


class Used:
    """Runs commands below one folder, and keeps which."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: set[str] = set()

    def line(self, words: str, *more: str | Path) -> list[str]:
        """`words`, of which those that begin with ./ are paths in the folder, and `more`."""
        given = [str(self.folder / word) if word.startswith("./") else word for word in words.split()]
        return [*given, *map(str, more)]

    def here(self, name: str, words: str = "", *more: str | Path, codes: tuple[int, ...] = (0,)) -> str:
        """Run the command of this name in this process, which is quick; what it says."""
        self.commands.add(name)
        program, *line = self.line(f"{name} {words}", *more)
        done = CliRunner().invoke(PROGRAMS[program], line, prog_name=program)
        assert done.exit_code in codes, f"{program} {line} ended with {done.exit_code}\n{done.output}"
        assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
        return done.stdout

    def __call__(self, name: str, words: str = "", *more: str | Path) -> str:
        """Run the command of this name as a program; what it says on stdout."""
        self.commands.add(name)
        program, *line = self.line(f"{name} {words}", *more)
        command = [PLACE / program, *line]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout


def alone(use: Used) -> None:
    """What needs no daemon."""
    import numpy as np

    (use.folder / "arrays").mkdir()
    (use.folder / "slurm.toml").write_text(f'source = "{use.folder}"\nmountpoint = "/data"\ncache = "/nvme"\n')
    np.save(use.folder / "arrays/a.npy", np.arange(SAMPLES * 50, dtype=np.float32).reshape(SAMPLES, 50))
    use.here("hfs layout build", "./arrays/a.npy --root ./arrays -o ./a.layout")
    assert json.loads(use.here("hfs layout show", "--json ./a.layout"))["samples"] == SAMPLES
    use.here("hfs layout check", "--root ./arrays ./a.layout")
    use.here("hfs encode", "./arrays ./encoded")
    use.here("hfs decode", "./encoded ./decoded")
    rates = "--dataset 150GB --samples 1000000 --storage-rate 5GB/s --train-rate"
    assert use.here("hfs plan", rates, "1400 samples/s")
    assert "cache" in json.loads(use.here("hfs config", "--json"))
    assert "hfs" in use.here("hfs completion", "bash")
    assert use.here("hfs man", "status").startswith(".")
    for script in ("prolog --config ./slurm.toml", "epilog", "job", "task"):
        name, _, words = script.partition(" ")
        assert use.here(f"hfs slurm {name}", words).startswith("#!/bin/bash"), script
    use.here("hfs sweep", "--dry-run")
    use.here("hfs cache du", "--cache ./cache", codes=(0, 1, 2))
    use.here("hfs status", codes=(0, 1))


def mounted(use: Used) -> None:
    """What needs a mount, or makes one."""
    import numpy as np

    folder = use.folder
    for name in ("source", "mount", "other"):
        (folder / name).mkdir()
    files = [folder / "mount" / f"{number}" for number in range(SAMPLES)]
    for file in files:
        (folder / "source" / file.name).write_bytes(file.name.encode() * 5000)
    (folder / "files").write_text("".join(f"{file}\n" for file in files))
    np.save(folder / "order.npy", np.arange(SAMPLES)[::-1])
    assert use("hfs run", "--source ./source --cache ./cache --", *READ, folder / "source/3") == "3" * 5000
    use("hfs mount", "./source ./mount --cache ./cache")
    try:
        use("hfs-hint record", "--mount ./mount -o ./a.trace --", *READ, *files)
        use("hfs trace simulate", "--source-latency 4ms --source-rate 500MB/s ./a.trace")
        use("hfs-hint send", "--mount ./mount --order ./order.npy --files ./files --until-staged")
        use("hfs-hint replay", "--mount ./mount --warm ./a.trace")
        use("hfs-hint show", "--mount ./mount")
        use("hfs cache warm", "--pin ./mount")
        assert len(use("hfs cache list", "./mount").splitlines()) >= SAMPLES
        for name in ("check", "unpin", "evict"):
            use(f"hfs cache {name}", "./mount")
        use("hfs refresh", "./mount")
        use("hfs why", "./mount")
        use.here("hfs doctor", codes=(0, 1, 3))
        use.here("hfs debug bundle", "-o ./bundle.tar.gz ./mount")
        assert (folder / "bundle.tar.gz").stat().st_size
        assert json.loads(use("hfs status", "--json ./mount"))["mountpoint"] == str(folder / "mount")
    finally:
        use("hfs umount", "./mount")
    use("mount.fuse.hfs", "./source ./other -o", f"cache={folder / 'cache'}")
    use("hfs umount", "./other")
    use("hfs cache du", "--cache ./cache")


def given(use: Used) -> None:
    """`hfs fd-mount`, which only root may."""
    use.commands.add("hfs fd-mount")
    socket = use.folder / "given.sock"
    _, *line = use.line("hfs fd-mount ./other --user 0 --socket", socket)
    giver = subprocess.Popen([PLACE / "hfs", *line], stderr=subprocess.PIPE)
    try:
        while not socket.exists():
            assert giver.poll() is None, giver.communicate()
            time.sleep(0.01)
    finally:
        giver.send_signal(signal.SIGTERM)
    said = giver.communicate(timeout=LIMIT_S)
    assert b"Traceback" not in said[1], said


def everything() -> Iterator[tuple[str, bool]]:
    """(command, whether it is a group) of all programs, each having said its help."""
    left = list(PROGRAMS.items())
    while left:
        name, command = left.pop()
        asked = CliRunner().invoke(command, ["--help"], prog_name=name)
        assert (asked.exit_code, asked.output[:6]) == (0, "Usage:"), f"{name}: {asked.output}\n{asked.exception!r}"
        yield name, isinstance(command, Group)
        if isinstance(command, Group):
            context = Context(command, info_name=name)
            for word in command.list_commands(context):
                below = command.get_command(context, word)
                assert below is not None
                left.append((f"{name} {word}", below))


def main() -> None:
    """See above."""
    which, use = sys.argv[1], Used(Path(sys.argv[2]))
    there = {name for name, is_group in everything() if not is_group}
    alone(use)
    if which == "all":
        mounted(use)
        given(use)
        assert use.commands == there, (use.commands - there, there - use.commands)
    print(json.dumps(sorted(use.commands)))


if __name__ == "__main__":
    main()
