"""The programs and commands of docs/recipes.md, and how to run them as a user would.

A block of Python there begins with the name of its file, and the block of commands behind it says how to run it, with
the data set at /data. `lay_out` saves all programs into a folder, beside the `training.py` that takes the place of the
user's; `run` runs the commands of one there, on other data. The page is read and never written.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import ROOT, BenchError

PAGE = ROOT / "docs" / "recipes.md"
TRAINING = Path(__file__).parent / "readers" / "training.py"
TENSORFLOW = ROOT / "build" / "tensorflow" / "bin"
"""Programs of the environment with TensorFlow, which scripts/tensorflow makes."""

LIMIT_S = 600.0
"""A recipe that has not ended by then hangs."""


@dataclass(frozen=True)
class Recipe:
    """One section of the page: its program, and the lines that are run in a shell."""

    name: str
    program: str
    lines: tuple[str, ...]

    @property
    def needs_tensorflow(self) -> bool:
        return "import tensorflow" in self.program

    @property
    def epochs(self) -> int:
        said = re.search(r"(?:in range\(|max_epochs=)(\d+)\b", self.program)
        return int(said[1]) if said else 1

    @property
    def hinted(self) -> bool:
        return "hinted(" in self.program

    def commands(self, data: Path, *, prepares: bool) -> list[list[str]]:
        """Its commands on the data set at `data`: those of hfs, which come before, or the program itself."""
        words = [line.replace("/data", str(data)).split() for line in self.lines]
        return [command for command in words if (command[0] == "hfs") == prepares]


def recipes() -> dict[str, Recipe]:
    """All of the page, by the name of the program without its ending."""
    found: dict[str, Recipe] = {}
    name = program = ""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL):
        if language == "python":
            named = re.match(r"# (\w+)\.py\n", block)
            if named is None:
                raise BenchError(f"{PAGE}: a block of Python begins without the name of its file: {block[:60]!r}")
            name, program = named[1], block
        elif language == "sh" and f"{name}.py" in block:
            lines = tuple(line.partition("  #")[0] for line in block.splitlines())
            found[name] = Recipe(name, program, lines)
    return found


def lay_out(folder: Path, *, hinted: bool = True) -> None:
    """Save all programs, and `training.py`. Not `hinted`: the same that give no hints."""
    for recipe in recipes().values():
        program = recipe.program
        if not hinted:
            program = program.replace("from hfs.hint import hinted", "from training import unhinted as hinted")
        (folder / f"{recipe.name}.py").write_text(program)
    (folder / "training.py").write_bytes(TRAINING.read_bytes())


@dataclass(frozen=True)
class Done:
    """What the commands of a recipe have said."""

    trained: list[dict[str, Any]]
    """A line of `training.py` for each process."""
    stderr: str


def run(
    recipe: Recipe,
    data: Path,
    folder: Path,
    *,
    prepares: bool = False,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run its commands in `folder`, where `lay_out` has been, with these options at the end. Raises BenchError where
    one fails."""
    first = TENSORFLOW if recipe.needs_tensorflow and not prepares else Path(sys.executable).parent
    given = dict(os.environ if env is None else env)
    given["PATH"] = f"{first}:{Path(sys.executable).parent}:{given.get('PATH', os.defpath)}"
    given["PYTHONPATH"] = str(ROOT)  # where hfs is not installed
    trained, stderr = [], ""
    for command in recipe.commands(data, prepares=prepares):
        try:
            done = subprocess.run(
                [*command, *options],
                cwd=folder,
                env=given,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"{command} did not end in {LIMIT_S:g} s") from None
        if done.returncode != 0:
            raise BenchError(f"{command} ended with exit code {done.returncode}: {(done.stdout + done.stderr)[-4000:]}")
        trained += [json.loads(line) for line in re.findall(r'^\{"training".*\}$', done.stdout, flags=re.MULTILINE)]
        stderr += done.stderr
    return Done(trained, stderr)
