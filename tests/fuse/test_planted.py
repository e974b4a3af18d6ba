"""What a plain user leaves in the way of root's commands, all of it at once, changes none of them (`planted.py`)."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.fuse.harness import ROOT, environment
from tests.fuse.users import needs_root

pytestmark = [needs_root, pytest.mark.long]

_LIMIT_S = 600
_WAITED_S = 45.0
"""A few limits of some seconds on a machine that has much else to do; what waits for ever is ended after 90."""
_THEIRS = ("/tmp/w/theirs", "/tmp/w/cache/61001-", "61001")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    squeue = tmp_path_factory.mktemp("bin") / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
    squeue.chmod(0o755)
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.fuse.planted", squeue.parent],
        cwd=ROOT,
        env=environment({"SLURM_JOB_ID": "4711"}),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return told


@pytest.mark.timeout(_LIMIT_S + 30)
def test_no_command_of_root_is_changed(found: dict[str, dict[str, Any]]) -> None:
    """Each ends in time, with the same code, and leaves root's mount as it does otherwise."""
    for name, alone in found["without"].items():
        beside = found["with"][name]
        assert beside["took_s"] - alone["took_s"] < _WAITED_S, (name, beside)
        assert "Traceback" not in beside["said"], (name, beside)
        for what in ("code", "there", "right"):
            assert beside[what] == alone[what], (name, what, beside)
    assert [found["without"][name]["code"] for name in found["without"]] == [0] * len(found["without"])
    assert found["without"]["sweep --config"]["right"], "the mount of root"


def test_what_they_say_is_theirs_and_on_one_line(found: dict[str, dict[str, Any]]) -> None:
    """No line is forged: what is there in addition names what is the plain user's."""
    for name, beside in found["with"].items():
        assert not {"\x1b", "\x07", "\u202e"} & set(beside["said"]), name
        assert not any(line.startswith("FORGED") for line in beside["said"].splitlines()), (name, beside)
    swept = found["with"]["sweep --config"]["said"].splitlines()
    assert all(any(theirs in line for theirs in _THEIRS) for line in swept), swept


def test_no_file_of_root_is_packed(found: dict[str, dict[str, Any]]) -> None:
    assert [found[how]["debug bundle"]["secret"] for how in ("without", "with")] == [False, False]
