"""The scripts that `hfs slurm` prints: shellcheck finds nothing in them, and what is put in stays as it was given."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hfs.cli import cli
from hfs.slurm import NAMES, printed, quoted

ALL = {
    "prolog": ("--config", "/etc/hfs/a b.toml", "--config", "/etc/hfs/$SLURMD_NODENAME.toml"),
    "epilog": (),
    "job": (
        *("--source", "/a 'b'", "--at", "/tmp/$USER", "--cache", "/nvme", "--cache-size", "5G", "--nodes", "3"),
        *("--peers", "--", "python", "a.py", "--data", "$data", "--x", 'a"b'),
    ),
    "task": ("--source", "/a", "--cache", "/nvme/${USER}/`c`", "--", "python", "a.py", "$SLURM_ARRAY_TASK_ID"),
}


def script(name: str, *arguments: str) -> str:
    done = CliRunner().invoke(cli, ["slurm", name, *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_shellcheck_finds_nothing(name: str) -> None:
    command = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")
    assert command is not None, "scripts/setup installs it"
    for arguments in ((), ALL[name]):
        done = subprocess.run(
            [command, "-"], input=script(name, *arguments), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def test_values_are_words_and_variables_stay_variables() -> None:
    text = 'echo "$a"' + "".join(f"; printf '%s|' {quoted(word)}" for word in ("a b", "x$a'", '"$(date)`$b`', "${a}\\"))
    done = subprocess.run(["bash", "-c", f"a=1 b=2; {text}"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n" + "a b|" + "x1'|" + '"$(date)`2`|' + "1\\|"


def test_what_is_given_stands_in_the_script() -> None:
    text = script("job", *ALL["job"])
    for line in (
        "#SBATCH --nodes=3",
        """source='/a '"'"'b'"'"''""",
        'mountpoint="/tmp/$USER"',
        "options=(--cache-size 5G --peers mpi)",
        """training=(python a.py --data "$data" --x 'a"b')""",
    ):
        assert line in text.splitlines()


def test_a_line_that_is_not_there_is_no_line_to_fill() -> None:
    with pytest.raises(AssertionError):
        printed("epilog", {"no_such": "x"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("prolog", "--config", "hfs.toml"), "absolute"), (("task", "--cache-size", "much"), "500G")],
)
def test_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, ["slurm", *arguments])
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_the_command_is_the_one_that_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a --user installation another package may have one of that name beside the interpreter (hfsutils)."""
    for folder in ("usr", "home"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "hfs").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "usr" / "python3"))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "home" / "hfs"), "slurm", "epilog"])
    assert f"\nhfs={tmp_path}/home/hfs\n" in script("epilog")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["home/hfs", "slurm", "epilog"])
    assert f"\nhfs={tmp_path}/home/hfs\n" in script("epilog")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "home" / "__main__.py")])
    assert f"\nhfs={tmp_path}/usr/hfs\n" in script("epilog")
