"""The quickstart, small: an unmodified script trains directly and through `hfs run`, and the losses agree."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.fuse.harness import ROOT, run


# What runs them is the same for both; the second starts slowly.
@pytest.mark.parametrize("model", ["numpy", pytest.param("torch", marks=pytest.mark.long)])
@pytest.mark.slow
@pytest.mark.timeout(180)  # it trains twice: twenty seconds, and on a machine with much else to do a minute and more
def test_quickstart(tmp_path: Path, model: str) -> None:
    if importlib.util.find_spec(model) is None:
        pytest.skip(f"{model} is not installed")
    program = ROOT / "scripts" / "quickstart_files" / "quickstart.py"
    work = tmp_path / "work"
    command = (sys.executable, program, "--work", work, "--images", "24", "--preset", "lustre", "--model", model)
    drawn = tmp_path / "epochs.svg"
    if importlib.util.find_spec("matplotlib") is not None:
        command = (*command, "--plot", drawn)
    done = run(*command, env={"COLUMNS": "80"}, limit_s=150)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    rows = re.findall(r"(direct|hfs run) +│ +[\d.]+ s │ +(\d+) │ +([\d.]+) │ +[\d.]+ s │ +(\d+) │ +([\d.]+) │", said)
    assert [row[0] for row in rows] == ["direct", "hfs run"], said
    (_, _, direct_mb, _, _), (_, _, mount_mb, _, again_mb) = rows
    assert float(mount_mb) <= float(direct_mb)
    assert float(again_mb) == 0
    assert {"numpy": "NumPy", "torch": "PyTorch"}[model] in said
    assert "The losses of every epoch are the same in all ways." in said
    assert not work.exists()
    if "--plot" in command:
        assert "<svg" in drawn.read_text()
