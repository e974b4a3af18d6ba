"""What commands that must answer at once import: no time is measured here, only what would take it."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from hfs.cli import cli
from tests.hfs.daemon import FakeCommands

SLOW = {
    *("rich", "numpy", "trio", "pyfuse3", "matplotlib", "ctypes", "hashlib", "secrets", "logging", "tomllib"),
    *("hfs.cli.render", "hfs.cli.config", "hfs.client.tunnel", "hfs.mounting.keeper", "hfs.mounting.mounting"),
    *("hfs.mountd.core.config", "hfs.mountd.control", "hfs.mountd.native"),
}
"""What only other commands need, or these in rare cases."""

CODE = """
import sys
from hfs.cli import cli
cli(sys.argv[1:], standalone_mode=False)
print(*sys.modules)
"""


def imported(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", ["status", "why"])
def test_what_answers_at_once_imports_little(command: str, daemon: FakeCommands, tmp_path: Path) -> None:
    """All of it is imported by then: the answer has been printed."""
    found = imported(command, "--control", str(tmp_path / "s"))
    assert {"msgspec", "hfs.client.client", "hfs.cli.status"} <= found
    assert not found & SLOW


def test_the_help_imports_no_command() -> None:
    found = imported("--help")
    assert {name for name in found if name.split(".")[0] in {"hfs", "mountd", "policies"}} == {
        *(
            "hfs",
            "hfs.cli",
            "hfs.cli.command",
            "hfs.cli.streams",
            "hfs.mountd",
            "hfs.mountd.core",
            "hfs.mountd.core.errors",
        )
    }


def test_the_help_says_of_each_command_what_it_says_itself() -> None:
    context = click.Context(cli)
    shown = " ".join(cli.get_help(context).split())
    assert cli.list_commands(context)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert f"{name} {command.get_short_help_str(limit=1000)}" in shown
