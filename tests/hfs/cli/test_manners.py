"""What every command has: an example, a line for each fault of the command line, no colours where nobody sees them,
a man page, completion. And the one table of exit codes, and what commands that must answer
at once import: no time is measured there, only what would take it.

In process; mounts nothing.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hfs.cli import cli
from hfs.cli.command import Command
from hfs.cli.exit_codes import TABLE
from hfs.cli.hint import hint
from hfs.cli.mount_helper import helper
from tests.hfs.cli.running import hfs
from tests.hfs.daemon import FakeCommands
from tests.support.commands import commands

COMMANDS_PAGE = Path(__file__).parents[3] / "docs" / "commands.md"
PROGRAMS: dict[str, click.Command] = {"hfs": cli, "hfs-hint": hint, "mount.fuse.hfs": helper}


ALL = [pair for name, program in PROGRAMS.items() for pair in commands(program, name)]
LEAVES = [(name, command) for name, command in ALL if not isinstance(command, click.Group)]
NAMES = [name for name, _ in LEAVES]


def words_of(example: str) -> list[str]:
    """The call of ours in an example: `eval "$(hfs ...)"` and `... | man -l -` have more around it."""
    inside = re.search(r"\$\((.*?)\)", example)
    return shlex.split(re.split(r" [|>] ", inside[1] if inside else example)[0])


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=NAMES)
def test_examples_are_calls_that_are_understood(name: str, command: click.Command) -> None:
    assert isinstance(command, Command)
    assert command.examples
    for example in command.examples:
        words = words_of(example)
        if words[0] == "mount":
            words = ["mount.fuse.hfs", *words[3:]]
        assert words[: len(name.split())] == name.split()
        # Raises what the command would say. SRC of encode and decode does not exist here.
        command.make_context(name, words[len(name.split()) :], resilient_parsing="/lustre/cosmoflow" in example)
        rest = words[: words.index("--")] if "--" in words else words
        assert {word for word in rest if word.startswith("--")} <= {o for p in command.params for o in p.opts}


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_them_uncoloured(name: str) -> None:
    program, *words = name.split()
    done = CliRunner().invoke(PROGRAMS[program], [*words, "--help"], prog_name=program)
    assert (done.exit_code, done.stderr) == (0, "")
    assert re.search(r"^Examples?:\n  \S", done.stdout, flags=re.MULTILINE)
    assert "\x1b" not in done.stdout


def test_without_a_command_the_help_is_shown() -> None:
    for program, *words in (["hfs"], ["hfs", "cache"], ["hfs", "debug"], ["hfs-hint"]):
        result = CliRunner().invoke(PROGRAMS[program], words, prog_name=program)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Usage: {program} ")
        assert result.stderr.endswith(f"\nhfs: give one of these commands; see {' '.join([program, *words])} --help\n")
    assert hfs("-V").output == hfs("--version").output


def test_the_table_of_exit_codes_is_the_one_of_the_page() -> None:
    rows = [line for line in COMMANDS_PAGE.read_text().splitlines() if re.match(r"\| [\d, +N]+ \|", line)]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in rows] == [list(row) for row in TABLE]


@pytest.mark.parametrize("name", [name for name, _ in ALL])
def test_a_man_page_has_what_the_help_has(name: str) -> None:
    command = dict(ALL)[name]
    text = hfs("man", *name.split()).stdout
    assert text == hfs("man", *(name.split()[1:] if name.startswith("hfs ") else name.split())).stdout
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert max(parameter.opts, key=len).replace("-", "\\-") in text
    assert ".SH EXIT STATUS" in text
    assert not re.search(r"^'", text, flags=re.MULTILINE)


def test_all_man_pages_are_written_and_are_man_pages(tmp_path: Path) -> None:
    assert hfs("man", "--to", tmp_path).exit_code == 0
    pages = sorted(page.name for page in (tmp_path / "man1").iterdir())
    assert pages == sorted(f"{name.replace(' ', '-')}.1" for name, _ in ALL)
    lint = shutil.which("mandoc")
    if lint is not None:
        said = subprocess.run(
            [lint, "-T", "lint", "-W", "warning", *sorted((tmp_path / "man1").iterdir())],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        assert [line for line in said.splitlines() if "missing date" not in line] == []


def test_man_refuses_what_cannot_be(tmp_path: Path) -> None:
    assert hfs("man", "nope").stderr == "hfs: hfs nope: no such command; hfs --help lists them\n"
    assert hfs("man", "status", "--to", tmp_path).exit_code == 2
    (tmp_path / "man1").write_text("")
    result = hfs("man", "--to", tmp_path)
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


@pytest.mark.parametrize(
    ("program", "words", "offered"),
    [
        ("hfs", "hfs sta", "plain,status"),
        ("hfs", "hfs mount /so", "file,/so"),
        ("hfs", "hfs mount --cache /nv", "file,/nv"),
        ("hfs", "hfs mount --io-mode pa", "plain,passthrough"),
        ("hfs", "hfs layout build --format np", "plain,npy\nplain,npz"),
        ("hfs", "hfs encode --codec co", "plain,cosmoflow"),
        ("hfs", "hfs cache warm /absent", "file,/absent"),
        ("hfs-hint", "hfs-hint replay tr", "file,tr"),
    ],
)
def test_completion(program: str, words: str, offered: str) -> None:
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    environment = {variable: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    said = CliRunner().invoke(PROGRAMS[program], [], env=environment, prog_name=program)
    assert said.output.strip() == offered


def test_the_completion_script_is_for_both_programs() -> None:
    script = hfs("completion", "bash").stdout
    assert "_HFS_COMPLETE=bash_complete" in script
    assert "_HFS_HINT_COMPLETE=bash_complete" in script


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
