"""Modules of a job that are called as parts of ours are: nothing of hfs breaks beside them, and they not beside hfs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount

pytestmark = pytest.mark.fuse

HFS = Path(sys.executable).parent / "hfs"
NAMES = ("mountd", "policies", "hfs_native", "wire", "core", "cli")

JOB = """
import mountd, policies
assert mountd.OF_THE_JOB and policies.OF_THE_JOB
import hfs.codecs, hfs.exposed, hfs.hint, hfs.layouts.layout, hfs.loading, hfs.samplers, hfs.shared, sys
files = [f"{sys.argv[1]}/{i}" for i in range(8)]
order = list(reversed(range(8)))
for i in hfs.hint.hinted(order, files=files, mount=sys.argv[1]):
    assert open(files[i]).read() == str(i)
"""


@pytest.mark.parametrize("kind", ["modules", "packages"])
def test_commands_and_jobs_beside_modules_of_our_names(tmp_path: Path, hfs_mount: HfsMount, kind: str) -> None:
    """With PYTHONPATH=. and in the working directory, as reinforcement learning has its policies."""
    job, source = tmp_path / "job", tmp_path / "source"
    for folder in (job, source):
        folder.mkdir()
    for name in NAMES:
        path = job / f"{name}.py" if kind == "modules" else job / name / "__init__.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("OF_THE_JOB = True\n")
    for number in range(8):
        (source / str(number)).write_text(str(number))
    (job / "job.py").write_text(JOB)
    environment = {**os.environ, "PYTHONPATH": "."}

    def must_do(*command: str | Path) -> None:
        done = subprocess.run(
            command, cwd=job, env=environment, capture_output=True, text=True, check=False, timeout=50
        )
        assert done.returncode == 0, done.stderr

    hfs = hfs_mount(source, env={"PYTHONPATH": str(job)})
    must_do(sys.executable, "job.py", hfs.path)
    must_do(HFS, "cache", "warm", hfs.path)
    must_do(HFS, "status", hfs.path)
    must_do(
        HFS, "run", "--source", source, "--cache", tmp_path / "other", "--", sys.executable, "-c", "import policies"
    )
    hfs.crash()
    assert (hfs.path / "3").read_text() == "3"
