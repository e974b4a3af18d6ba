"""How large a noun may be: the limits for files, classes, constructors and functions; and each room, and the whole.

What goes over a limit holds two nouns: find the second one, a thing with a name of its own that callers talk to.
Moving methods into a base class, a mixin or an object that only forwards is no way out.

`python -m tests.sizes` shows lines and files of each, with `--lower` it lowers the budgets of rooms that have become
smaller.

Reads source text, and writes the budgets only. tests/test_layers.py applies it.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.layers import ROOT, project_files

MAX_LINES = 400
"""Of a file of the product. Those of tests and scripts may have more: tests/layers.py."""
MAX_METHODS = 20
"""`def`s in the body of a class, dunder and private ones included."""
MAX_CONSTRUCTOR = 8
"""Parameters of an `__init__`, besides self."""
MAX_FUNCTION = 60
"""Lines of a function, from its `def` on: decorators, such as the options of a command, do not count."""

# Lines of Python of each room of mountd and each package of hfs and policies ("hfs" alone: its modules), of all of them
# (PRODUCT) and of tests; and of the C of mountd. A budget only falls: limits on parts alone bred parts. A room that
# needs more takes it from another in the same commit, and one that has become smaller is lowered in the commit that
# cuts, by `python -m tests.sizes --lower`.
BUDGETS = {
    "hfs": 833,
    "hfs/cli": 5150,
    "hfs/client": 1097,
    "hfs/codecs": 1331,
    "hfs/doctor": 1756,
    "hfs/layouts": 2308,
    "hfs/mounting": 3801,
    "hfs/planning": 702,
    "hfs/shared": 1485,
    "hfs/slurm": 44,
    "hfs/sweeping": 419,
    "hfs/training": 2078,
    "mountd": 22,
    "mountd/cache": 8878,
    "mountd/control": 2371,
    "mountd/core": 3715,
    "mountd/daemon": 2070,
    "mountd/fetch": 3082,
    "mountd/files": 2812,
    "mountd/fuse": 1442,
    "mountd/hints": 2442,
    "mountd/kernel": 1224,
    "mountd/ledger": 948,
    "mountd/monitoring": 795,
    "mountd/namespace": 4200,
    "mountd/native": 413,
    "mountd/peers": 2673,
    "mountd/source": 3177,
    "mountd/supervisor": 3799,
    "mountd/wire": 948,
    "policies": 454,
    "policies/cache": 450,
    "policies/cluster": 535,
    "policies/codecs": 638,
    "policies/diagnosis": 449,
    "policies/prefetch": 1492,
    "policies/schedule": 1554,
    "policies/simulation": 651,
    "PRODUCT": 72200,
    "C": 7325,
    "TESTS": 70265,
}
DUE_SHARE, DUE_LINES = 0.03, 60
"""A room that lies further below its budget than both is to be lowered."""


def lines_of_rooms(files: Iterable[tuple[str, str]]) -> Counter[str]:
    """The lines of everything that BUDGETS names, from (path from the project's root, text) of all files."""
    found: Counter[str] = Counter()
    for file, text in files:
        top, *rest = file.split("/")
        lines = text.count("\n")
        if top == "mountd" and file.endswith((".c", ".h")):
            found["C"] += lines
        elif top == "tests" and file.endswith(".py"):
            found["TESTS"] += lines
        elif top in {"hfs", "mountd", "policies"} and file.endswith(".py"):
            found["PRODUCT"] += lines
            found["/".join([top, *rest[:-1][:1]])] += lines
    return found


def over_budget(lines: Counter[str]) -> Iterator[str]:
    """What is wrong with the sizes of rooms: too large, or so small that the budget is to be lowered."""
    for room in sorted(lines.keys() | BUDGETS.keys()):
        budget = BUDGETS.get(room, 0)
        if lines[room] > budget:
            yield f"{room}: {lines[room]} lines, and its budget is {budget}"
        elif _is_due(lines[room], budget):
            yield f"{room}: {lines[room]} lines, far below its budget of {budget}: python -m tests.sizes --lower"


def _is_due(lines: int, budget: int) -> bool:
    return budget - lines > max(budget * DUE_SHARE, DUE_LINES) or not lines


def lowered(text: str, lines: Counter[str]) -> str:
    """`text`, of this file, with the budgets lowered that are due; rooms that are gone are struck."""

    def line(match: re.Match[str]) -> str:
        room, budget = match[1], int(match[2])
        if not _is_due(lines[room], budget):
            return match[0]
        return f'    "{room}": {lines[room] + lines[room] // 128},\n' if lines[room] else ""

    return re.sub(r'^    "([\w/]+)": (\d+),\n', line, text, flags=re.MULTILINE)


def too_large(file: str, text: str) -> Iterator[tuple[str, str]]:
    """(what it is, what is wrong) of everything in `file`, a path from the project's root, over a limit."""
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{file}: lines", f"{lines} lines, at most {MAX_LINES}"
    if not file.endswith(".py"):
        return
    for name, node in _definitions(ast.parse(text, file)):
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > MAX_METHODS:
                yield f"{file}: methods of {name}", f"{len(methods)} methods, at most {MAX_METHODS}"
            for method in methods:
                parameters = len([*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]) - 1
                if method.name == "__init__" and parameters > MAX_CONSTRUCTOR:
                    yield f"{file}: constructor of {name}", f"{parameters} parameters, at most {MAX_CONSTRUCTOR}"
        else:
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield f"{file}: function {name}", f"{length} lines, at most {MAX_FUNCTION}"


def _definitions(
    tree: ast.AST, within: str = ""
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(dotted name, definition) of every class and function, those inside others too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue  # nothing is defined in one
        name = within
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}.{node.name}" if within else node.name
            yield name, node
        yield from _definitions(node, name)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--lower"]):
        sys.exit("usage: python -m tests.sizes [--lower]")
    found = project_files(ROOT)
    sizes = lines_of_rooms(found)
    if sys.argv[1:]:
        own = Path(__file__)
        own.write_text(lowered(own.read_text(), sizes))
    else:
        files = Counter(room for file in found for room in lines_of_rooms([file]))
        for room, budget in BUDGETS.items():
            print(f"{room:24}{sizes[room]:8} lines of {budget:6}, {files[room]:4} files")
