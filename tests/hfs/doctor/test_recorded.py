"""What checks of the doctor say in surroundings that are made up, as recorded in checks.txt: every line of it.

Each case is a check of `CHECKS` with what it finds around it. `python -m tests.hfs.doctor.test_recorded` writes into
checks.txt what is said now: read the difference.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hfs.doctor import fuse, libfuse, limits, source
from hfs.doctor.surroundings import CheckResult
from tests.hfs.doctor.surroundings import ALL_CAPABILITIES, found, made_up

FILE = Path(__file__).with_name("checks.txt")
CASES = re.findall(r"^\$ (\S+) (.*)\n((?:(?!\$ ).*\n)*)", FILE.read_text(), flags=re.MULTILINE)
LOADED = {"passthrough": True, "version": "3.17.2", "pyfuse3": "3.5.0", "libfuse": "/lib/libfuse3.so.3.17.2"}
UNLIMITED = (1 << 20, 1 << 20)
CHECKS: dict[str, Callable[[Any, Any], Iterable[CheckResult]]] = {
    "device": lambda around, _: fuse.check_device(around),
    "kernel": lambda around, refused: fuse.check_kernel(around, lambda: set(refused or ())),
    "libfuse": lambda around, said: libfuse.check(
        around, lambda: said if said and "failed" in said else LOADED | (said or {})
    ),
    "limits": lambda around, _: limits.check(around, lambda _which: UNLIMITED),
    "namespaces": lambda around, refused: limits.check_namespaces(around, lambda: refused or 0, ()),
    "overlays": lambda around, why: limits.check_overlays(around, lambda: why or ""),
    "source": lambda around, said: source.check(around, lambda *_: {"at": "/s", **(said or {})}),
}


def said(check: str, arguments: str, folder: Path) -> str:
    """`arguments`: what is around it; under "finds" what it is told."""
    around = json.loads(arguments.replace("ALL_CAPABILITIES", ALL_CAPABILITIES))
    finds = around.pop("finds", None)
    findings = list(CHECKS[check](made_up(folder, **around), finds))
    found(findings)
    return "".join(f"{finding.level.value} {finding.check}: {finding.line()}\n" for finding in findings)


@pytest.mark.parametrize(("check", "arguments", "lines"), CASES)
def test_a_check_says_what_is_recorded(check: str, arguments: str, lines: str, tmp_path: Path) -> None:
    assert said(check, arguments, tmp_path) == lines


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as top:
        texts = (said(*case[:2], Path(top) / str(number)) for number, case in enumerate(CASES))
        FILE.write_text("".join(f"$ {c} {a}\n{text}" for (c, a, _), text in zip(CASES, texts, strict=True)))
