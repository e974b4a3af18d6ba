"""Every call of our programs that stands in a block of the README or of a page of docs/ is run as it stands, and so is
every example of a command's help.

Each page is run in a root of its own (docs_root.py), its blocks one after the other: what a block leaves, the next one
finds. What a page takes for granted is set up before (`BEFORE`). What is not run is named with its reason (`NOT_RUN`).
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.cli import cli
from hfs.cli.command import Command
from hfs.cli.hint import hint
from tests.fuse.docs_root import run_in_root
from tests.support.commands import commands
from tests.support.pages import PAGES, blocks, calls

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a root directory"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare(1)"),
]

SHELL = {"", "sh", "bash"}

MOUNT = "hfs mount /lustre/imagenet /data --cache /nvme/before\n"
LMDB = """
python - <<'END'
import lmdb, os
os.makedirs("/lustre/records")
with lmdb.open("/lustre/records/train.lmdb", subdir=False, map_size=1 << 24) as env, env.begin(write=True) as records:
    for number in range(100):
        records.put(b"%08d" % number, bytes(5000))
END
"""
VOLUMES = """
python - <<'END'
import numpy, os
os.makedirs("/lustre/cosmoflow")
for number in range(3):
    counts = numpy.random.default_rng(number).poisson(0.5, (16, 16, 16, 4)).astype(numpy.int16)
    numpy.save(f"/lustre/cosmoflow/{number}.npy", counts)
END
"""
BEFORE = {
    "encoded-samples.md": VOLUMES,
    "is-it-helping.md": MOUNT,
    "layouts.md": LMDB + "hfs mount /lustre/records /data --cache /nvme/before\n",
    "planning.md": MOUNT + "hfs-hint record --mount /data -o small.trace -- python train.py --data /data/train\n",
    "slurm.md": "mkdir -p /etc/slurm\n",
    "nodes.md": "cp -r /lustre/imagenet /lustre/data\nsrun() { shift; SLURM_JOB_NODELIST=$(hostname) $@; }\n"
    "export -f srun\nexport OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n",
    "sharing.md": "useradd --no-create-home alice\n",
}
"""What a page takes for granted."""

AS = {
    "hfs status /data --watch": "hfs status /data --watch | head -n 3",
    "hfs doctor": "ends_with 0 1 hfs doctor",  # 1: limits of this machine
    "hfs trace simulate": "hfs trace simulate --source-latency 4ms",  # nobody waits for the source of this root
}
"""Calls that are run in another form: the beginning, and what it is replaced by."""

NOT_RUN = {
    "./scripts/setup": "the test runs in what it has made",
    "./scripts/quickstart": "tests/fuse/test_quickstart.py",
    "pip install": "the checkout is installed; what the wheel has is tested where it is built",
    "sbatch": "tests/slurm, with a real Slurm (scripts/check --long), and its stand-in",
    "hfs fd-mount": "two programs, one of them without rights: tests/fuse/test_given_connection.py",
    "hfs mount --foreground": "the same",
    "docker": "no engine runs here; what is run in it as in the two above",
    "apptainer": "a stand-in: tests/fuse/test_given_connection.py",
    "systemctl": "tests/fuse/test_systemd_unit.py, without a systemd that runs",
    "curl": "there may be none; tests/fuse/test_monitoring.py",
    "prometheus-node-exporter": "not ours",
}
"""Lines that are left out: how they begin, and what tests them instead."""


PAGES_NOT_RUN = {"recipes.md": "tests/fuse/test_recipes.py runs its programs, and compares each byte"}
TRANSCRIPTS = {"slurm.md": "of jobs with a real Slurm: tests/slurm/test_prolog.py"}
"""Pages whose blocks with prompts show what was printed somewhere else."""


def lines_of(block: str) -> Iterator[str]:
    """What is typed: all of a block, or where it shows what is printed too, what stands behind its prompts."""
    block = re.sub(r"\\\n\s*", "", block)
    prompts = re.findall(r"^\$ (.*)", block, flags=re.MULTILINE)
    for line in prompts or block.splitlines():
        if line.startswith(tuple(NOT_RUN)):
            continue
        for start, other in AS.items():
            if line.startswith(start):
                line = other + line[len(start) :]
        yield line


def script_of(page: Path) -> str:
    """The blocks of a page with calls of ours, each a script of its own."""
    made = []
    for language, block in blocks(page.read_text() if page.name not in PAGES_NOT_RUN else ""):
        if page.name in TRANSCRIPTS and block.startswith("$ "):
            continue
        if language in SHELL and any(calls(f"```sh\n{block}```\n")):
            made.append("\n".join(lines_of(block)))
    return "".join(as_script(block) for block in made if block.strip())


def as_script(block: str) -> str:
    marker = "END-OF-BLOCK"
    return f"bash -e /dev/fd/9 9<<'{marker}' </dev/null\n{HELPERS}{block}\n{marker}\n"


HELPERS = """ends_with() { local low=$1 high=$2 code=0; shift 2; "$@" || code=$?; (( code >= low && code <= high )); }
"""


def examples() -> Iterator[str]:
    """Of all commands, in the order of the commands."""

    for program in (cli, hint):
        for _, command in commands(program, ""):
            if isinstance(command, Command):
                yield from command.examples


EXAMPLES_BEFORE = (
    LMDB
    + VOLUMES
    + """
mkdir /etc/slurm
mv /lustre/records/train.lmdb /lustre/imagenet
mkdir /lustre/imagenet/old
cp /lustre/imagenet/train/1.jpg /lustre/imagenet/old
useradd --no-create-home alice
(cd /lustre/imagenet; ls -d train/*) >train.txt
python -c 'import numpy; numpy.save("epoch0.npy", numpy.array([3, 1, 4, 0, 2]))'
hfs mount /lustre/imagenet /data --cache /nvme/hfs
"""
)
EXAMPLES_NOT_RUN = {
    "hfs completion fish | source": "needs fish",
    "hfs man status | man -l -": "needs man(1)",
    "hfs fd-mount /data --socket /run/hfs/data.sock --user 65534": "stays; tests/fuse/test_given_connection.py",
}
GROUPS = {
    "mounted": ("hfs status", "hfs why", "hfs cache", "hfs refresh", "hfs layout"),
    "by themselves": ("hfs plan", "hfs encode", "hfs decode", "hfs config", "hfs doctor", "hfs completion", "hfs man"),
    "orders": ("hfs-hint", "hfs trace", "hfs debug"),
    "mounting": ("hfs umount", "hfs mount", "hfs run"),
}
"""Which examples share a root; what comes later in a group may need what comes before."""
NOT_WHILE_MOUNTED = ("hfs cache evict --cache", "hfs cache list --cache")


def group_of(example: str) -> str:
    """Whose root an example is run in."""
    word = example.removeprefix('eval "$(')
    return next((name for name, starts in GROUPS.items() if word.startswith(starts)), "by themselves")


@pytest.mark.parametrize("group", GROUPS)
def test_the_examples_of_all_commands(group: str, tmp_path: Path) -> None:
    wanted = [line for line in examples() if line not in EXAMPLES_NOT_RUN and group_of(line) == group]
    assert wanted
    first = {"mounting": "hfs umount", "orders": "hfs-hint"}.get(group, "")
    wanted = sorted(wanted, key=lambda line: not line.startswith(first))
    unmounted = [line for line in wanted if line.startswith(NOT_WHILE_MOUNTED)]
    lines = [line for line in wanted if line not in unmounted] + (["hfs umount /data", *unmounted] if unmounted else [])
    done = run_in_root(tmp_path, EXAMPLES_BEFORE + as_script("\n".join(lines_of("\n".join(lines)))))
    assert done.returncode == 0, done.stdout


RUN = [page for page in PAGES if script_of(page)]


def test_what_is_left_out_is_still_there() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for start in NOT_RUN:
        assert re.search(rf"^(?: {{4}})?(?:\$ )?{re.escape(start)}", text, flags=re.MULTILINE), start
    assert {"README.md", "sharing.md", "planning.md"} <= {page.name for page in RUN}


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_blocks_of_a_page(page: Path, tmp_path: Path) -> None:
    done = run_in_root(tmp_path, BEFORE.get(page.name, "") + script_of(page))
    assert done.returncode == 0, done.stdout


def test_a_block_that_fails_is_seen(tmp_path: Path) -> None:
    done = run_in_root(tmp_path, as_script("hfs mount /lustre/absent /data --cache /nvme/hfs") + "echo not reached\n")
    assert done.returncode == 2
    assert "not reached" not in done.stdout
