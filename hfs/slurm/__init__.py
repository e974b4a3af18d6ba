"""Scripts for Slurm: `*.sh` in this folder, which run as they are, and `printed`, which puts a site's values in.

A value stands in a line of its own, `name=value`, `name=(...)` or a #SBATCH line. What is put in is quoted, but for
variables of the job (`$USER`, `${TMPDIR}`): those are expanded where the script runs, and nothing else is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

NAMES = ("prolog", "epilog", "job", "task")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})", re.ASCII)


def quoted(value: str) -> str:
    """As one word of bash, in which $NAME and ${NAME} stand for variables."""
    if _PLAIN.fullmatch(value):
        return value
    if _VARIABLE.search(value) is None:
        return shlex.quote(value)
    parts = re.split(f"({_VARIABLE.pattern})", value)
    kept = [part if _VARIABLE.fullmatch(part) else re.sub(r'([\\"`$])', r"\\\1", part) for part in parts]
    return f'"{"".join(kept)}"'


def printed(name: str, values: Mapping[str, str | Sequence[str]], settings: Mapping[str, str] | None = None) -> str:
    """The script of this name with these values. `settings`: of #SBATCH lines, by the option's name."""
    text = (Path(__file__).parent / f"{name}.sh").read_text(encoding="utf-8")
    for variable, value in values.items():
        words = quoted(value) if isinstance(value, str) else f"({' '.join(quoted(word) for word in value)})"
        text = _with_line(text, rf"{variable}=", words)
    for option, value in (settings or {}).items():
        text = _with_line(text, rf"#SBATCH --{option}=", value)
    return text


def _with_line(text: str, beginning: str, value: str) -> str:
    changed, count = re.subn(rf"^{beginning}.*$", lambda _: beginning + value, text, flags=re.MULTILINE)
    assert count == 1, beginning
    return changed
