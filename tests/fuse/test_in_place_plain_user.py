"""In place without privilege: a plain user's command sees the data at its source, as himself; ranks share a daemon."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.benchmarks.plain_user import UID, as_plain_user
from tests.fuse.harness import environment, processes_of_run, run, wait_gone
from tests.support.pattern import pattern

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")

COUNT, SIZE, RANKS = 40, 50_000, 4

# Each rank says that it is there and goes on when all are: none ends before the last one has come.
RANK = """
import json, os, sys
folder, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
open(f"{folder}/there/{rank}", "w").close()
while len(os.listdir(f"{folder}/there")) < ranks:
    os.sched_yield()
mount = [line for line in open("/proc/self/mountinfo") if f" {folder}/source " in line]
contents = {name: open(f"{folder}/source/{name}", "rb").read().hex() for name in os.listdir(f"{folder}/source")}
daemon = os.getxattr(f"{folder}/source", "user.hfs.socket").decode()
told = {"uid": os.getuid(), "gid": os.getgid(), "mounts": len(mount), "daemon": daemon}
told["right"] = contents == json.load(open(f"{folder}/expected"))
os.write(1, json.dumps(told).encode() + b"\\n")
"""

ALL_RANKS = """
for rank in $(seq $2); do
    hfs run --source "$1/source" --cache "$1/own/cache" --quiet -- python3 "$1/rank.py" "$1" $rank $2 &
done
wait
cmp "$1/source/0" "$1/source/1" > /dev/null
stat -f -c %T "$1/source"
grep -c "hfs.043$1/" /proc/self/mountinfo
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        made = Path(name)
        made.chmod(0o755)
        for own in ("own", "there"):
            (made / own).mkdir()
            shutil.chown(made / own, UID, UID)
        (made / "source").mkdir()
        contents = {str(number): pattern(number + 1, 0, SIZE) for number in range(COUNT)}
        for file, data in contents.items():
            (made / "source" / file).write_bytes(data)
        (made / "expected").write_text(json.dumps({file: data.hex() for file, data in contents.items()}))
        (made / "rank.py").write_text(RANK)
        yield made


def test_ranks_of_a_plain_user_are_himself_and_share_one_daemon(folder: Path) -> None:
    home = ("env", f"HOME={folder}/own", f"HFS_LOG_FILE={folder}/own/log", f"PATH={environment()['PATH']}")
    done = run(*as_plain_user(folder), *home, "sh", "-c", ALL_RANKS, "sh", str(folder), str(RANKS))
    # Who ends together with others is not the last and does not wait: the keeper then takes the mount away by itself.
    assert all(wait_gone(pid) for pid in processes_of_run(folder))
    *told, below, mounts = done.stdout.splitlines()
    ranks = [json.loads(line) for line in told]
    assert len(ranks) == RANKS, done
    daemons = {rank.pop("daemon") for rank in ranks}
    assert ranks == [{"uid": UID, "gid": UID, "mounts": 1, "right": True}] * RANKS
    assert len(daemons) == 1
    assert below != "fuseblk", "outside of the commands nothing is seen"
    assert mounts == "0", "nothing is left"
