"""`scripts/bench all` and `pages`: which runs are kept, what is measured again, and the tables of the docs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import all_pieces, guard, main, pages, pieces, quiet
from scripts.benchmarks.common import BenchError
from scripts.benchmarks.compare import Measured
from scripts.benchmarks.pieces import Piece
from scripts.benchmarks.quiet import Quiet

ROW = {"unit": "x", "command": "scripts/bench mount --only images", "bar": ">= 1", "holds": True}
ROWS: list[dict[str, Any]] = [
    ROW | {"row": "epoch 1 | lustre", "value": 1.354, "values": [1.39, 1.354, 1.3]},
    ROW | {"row": "  direct", "value": 22.1, "unit": "s", "values": [22.1], "bar": None, "holds": None},
    ROW | {"row": "epoch 2", "value": 0.9, "values": [], "holds": False},
]


def kept(folder: Path, name: str = "mount-images", **more: object) -> Path:
    """A file of results in `folder`."""
    record = {
        "benchmark": "mount",
        "quick": False,
        "runs": 3,
        "machine": {"cores": 2, "processor": "a processor"},
        "versions": {"commit": "0123456789abcdef"},
        "rows": ROWS,
    }
    (folder / f"{name}.json").write_text(json.dumps(record | more))
    return folder


def test_a_table_shows_what_is_kept_and_nothing_else_changes(tmp_path: Path) -> None:
    page = "before\n<!-- kept: mount-images -->\nstale\n<!-- end of what is kept -->\nafter | 3 |\n"
    written = pages.rewritten(page, kept(tmp_path))
    assert written.startswith(
        "before\n<!-- kept: mount-images -->\n\n`scripts/bench mount --only images` (3 runs, 2 cores"
    )
    assert "| epoch 1 \\| lustre | 1.35 x (1.3 to 1.39) | >= 1 | holds |\n" in written
    assert "| &nbsp;&nbsp;direct | 22.1 s |  |  |\n| epoch 2 | 0.9 x | >= 1 | **missed** |\n" in written
    assert written.endswith("\n<!-- end of what is kept -->\nafter | 3 |\n")
    assert pages.rewritten(written, tmp_path) == written
    assert "**others ran beside**" in pages.rewritten(page, kept(tmp_path, quiet=False))


def test_every_table_of_what_is_kept_is_what_its_file_says() -> None:
    late = [page.name for page in pages.PAGES if pages.rewritten(text := page.read_text()) != text]
    assert not late, "run scripts/bench pages"


@pytest.mark.parametrize(
    ("others", "steal", "is_quiet"), [(0.1, 0.05, True), (0.11, 0.0, False), (0.0, 0.06, False), (None, 0.0, False)]
)
def test_a_run_is_kept_where_others_took_little_and_the_host_withheld_little(
    others: float | None, steal: float, is_quiet: bool
) -> None:
    assert Quiet(others, steal).is_quiet is is_quiet


def test_what_others_took_is_the_busy_time_that_is_not_the_groups() -> None:
    clock = quiet._Clock
    was = quiet.between(clock(0.0, 10.0, 1.0, 5.0), clock(10.0, 16.0, 1.0, 10.0))
    assert (was.others_cores, was.steal_share) == (pytest.approx(0.1), 0.0)
    assert quiet.between(clock(0.0, 10.0, 1.0, None), clock(10.0, 16.0, 1.0, None)).others_cores is None


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results go of runs that measure nothing and write a file."""
    monkeypatch.setattr(pieces, "RESULTS", tmp_path)

    def run(words: list[Any], _group: object) -> tuple[int, str]:
        kept(tmp_path, Path(words[words.index("--json") + 1]).stem)
        (tmp_path / "mount-images.json").rename(words[words.index("--json") + 1])
        return 0, ""

    monkeypatch.setattr(all_pieces, "_run", run)
    return tmp_path


@pytest.mark.parametrize("anyway", [False, True])
def test_a_run_beside_others_is_kept_only_where_that_is_asked_for_and_marked(
    measured: Path, monkeypatch: pytest.MonkeyPatch, anyway: bool
) -> None:
    monkeypatch.setattr(quiet, "between", lambda *_: Quiet(0.5, 0.0))
    piece = Piece("mount", "images")
    if anyway:
        assert "0.50 cores" in all_pieces._measure(piece, keep_anyway=True)
        record = json.loads((measured / "mount-images.json").read_text())
        assert (record["quiet"], record["beside"]["others_cores"]) == (False, 0.5)
    else:
        with pytest.raises(BenchError, match="not kept"):
            all_pieces._measure(piece, keep_anyway=False)
        assert not list(measured.iterdir())


def test_what_is_kept_of_a_quiet_run_says_how_long_it_took(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "between", lambda *_: Quiet(0.01, 0.0))
    piece = Piece("mount", "images")
    all_pieces._measure(piece, keep_anyway=False)
    assert piece.kept() is not None
    assert piece.expected_s() < 60.0, "it took no time, and that is known now"
    assert Piece("mount", "hang").expected_s() == pieces.USUAL_S


def test_what_has_no_file_or_names_an_unknown_commit_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "RESULTS", tmp_path)
    names = [piece.name for piece in pieces.pieces(quick=False)]
    assert len(names) == len(set(names)) > 90
    assert {*guard.PIECES, *map("-".join, pieces.NIGHTLY)} <= set(names)
    assert Piece("mount", "images").commits_since() is None
    kept(tmp_path)
    assert Piece("mount", "images").commits_since() is None
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=pieces.ROOT, capture_output=True, text=True, check=False)
    if head.returncode == 0:
        kept(tmp_path, versions={"commit": head.stdout.strip()})
        assert Piece("mount", "images").commits_since() == 0


def test_a_guard_holds_the_runs_of_both_sides_together_and_fails_where_one_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "hfs").touch()
    sides = {tmp_path: [2.0, 2.1, 1.9], pieces.ROOT: [1.0, 1.1, 0.9]}

    def measured(checkout: Path, *_: object) -> guard.Rows:
        return {("c", "speed-up"): Measured(sides[checkout].pop(), "x", (), 1)}

    monkeypatch.setattr(guard, "_measured", measured)
    assert main.main(["guard", str(tmp_path)]) == 1
    sides |= {tmp_path: [2.0, 2.1, 1.9], pieces.ROOT: [2.0, 2.2, 1.95]}
    assert main.main(["guard", str(tmp_path)]) == 0


def test_whoever_ends_all_ends_what_is_being_measured_first(tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(tmp_path / "never")
    ends, waits = f"echo ended > {told}; exit 130", f"while :; do read -t 1 <> {tmp_path}/never; done"
    child = f"trap '{ends}' TERM; > {tmp_path}/begun; {waits}"
    program = (
        "import sys; from scripts.benchmarks import all_pieces, quiet; import signal;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130));"
        f"all_pieces._run(['bash', '-c', {child!r}], quiet.Group(None))"
    )
    running = subprocess.Popen([sys.executable, "-c", program], cwd=pieces.ROOT)
    while not (tmp_path / "begun").exists():
        assert running.poll() is None
    running.terminate()
    assert running.wait(30) == 130
    assert told.read_text() == "ended\n"
