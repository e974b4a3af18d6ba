"""Surroundings that are made up: a folder stands for /proc, and nothing of this machine is looked at."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hfs.doctor.surroundings import CheckResult, Level, Surroundings
from hfs.mounting.mountinfo import parse

ALL_CAPABILITIES, NONE = "000001ffffffffff", "0000000000000000"


def made_up(
    folder: Path, files: dict[str, str] | None = None, *, capabilities: str = NONE, mounts: str = "", **fields: object
) -> Surroundings:
    """`files`: of /proc, by name; `mounts`: lines of mountinfo."""
    proc = folder / "proc"
    contents = {"self/status": f"Name:\thfs\nCapEff:\t{capabilities}\nNoNewPrivs:\t0\n", "self/mountinfo": mounts}
    for name, text in {**contents, **(files or {})}.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    plain = Surroundings(uid=1000, release="6.10.0", table=tuple(parse(mounts)), proc=str(proc))
    return replace(plain, **fields)  # type: ignore[arg-type]  # names of fields


def found(findings: Iterable[CheckResult]) -> dict[str, tuple[str, str]]:
    """check -> (level, text and remedy)."""
    told = list(findings)
    assert all(finding.remedy for finding in told if finding.level in {Level.LIMIT, Level.FAULT})
    assert len({finding.check for finding in told}) == len(told)
    return {finding.check: (finding.level.value, finding.line()) for finding in told}
