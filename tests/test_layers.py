"""The house rules hold: ranks, exclusive rights, pure policies, light job-side modules, sizes.

The rules are in tests/layers.py and tests/sizes.py. Each rule is also shown to bite, on a planted breach.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.layers import (
    ENCODING_OPTION,
    ENCODING_RIGHTS,
    JOB_SIDE,
    MAX_LINES,
    NEVER_IN_JOBS,
    breaches,
    encoding_names,
    imports,
    project_files,
)
from tests.sizes import BUDGETS, lines_of_rooms, lowered, over_budget, too_large

ROOT = Path(__file__).parent.parent


def test_the_house_rules_hold() -> None:
    found = [
        breach
        for file, text in project_files(ROOT)
        if file.endswith(".py") and file.split("/")[0] in {"hfs", "mountd", "policies"}
        for breach in breaches(file, text)
    ]
    assert not found, "\n".join(found)


def test_no_file_is_longer_than_the_limit() -> None:
    long = {file: text.count("\n") for file, text in project_files(ROOT) if text.count("\n") > MAX_LINES}
    assert not long


def test_nothing_is_too_large() -> None:
    found = [
        f"{what}: {fault}"
        for file, text in project_files(ROOT)
        if file.split("/")[0] in {"hfs", "mountd", "policies"} and file.endswith((".py", ".c", ".h"))
        for what, fault in too_large(file, text)
    ]
    assert not found, "\n".join(["two nouns in one, find the second (tests/sizes.py says how):", *found])


def test_no_room_is_larger_than_its_budget() -> None:
    found = list(over_budget(lines_of_rooms(project_files(ROOT))))
    assert not found, "\n".join(found)


def test_what_a_room_has_is_counted() -> None:
    files = [
        ("mountd/cache/index/rows.py", "\n\n"),
        ("mountd/native/plane/table.c", "\n\n\n"),
        ("hfs/hint.py", "\n"),
        ("tests/plane/driver.c", "\n"),
        ("tests/plane/test_driver.py", "\n\n"),
    ]
    assert lines_of_rooms(files) == {"mountd/cache": 2, "C": 3, "hfs": 1, "PRODUCT": 3, "TESTS": 2}


def test_a_room_above_and_one_far_below_its_budget_are_found_and_budgets_only_fall() -> None:
    lines = Counter(BUDGETS)
    assert not list(over_budget(lines))
    grown, shrunk, little, gone = list(BUDGETS)[:4]
    lines[grown] += 1
    lines[shrunk] -= max(int(lines[shrunk] * 0.03), 60) + 1
    lines[little] -= 60
    lines[gone] = 0
    assert [found.split(":")[0] for found in over_budget(lines)] == sorted([grown, shrunk, gone])
    table = "".join(f'    "{room}": {budget},\n' for room, budget in BUDGETS.items())
    now = dict(line.strip(" ,").replace('"', "").split(": ") for line in lowered(table, lines).splitlines())
    assert now.keys() == BUDGETS.keys() - {gone}
    assert BUDGETS[shrunk] > int(now.pop(shrunk)) >= lines[shrunk]
    assert {room: int(budget) for room, budget in now.items()} == {room: BUDGETS[room] for room in now}


def test_a_room_without_a_budget_is_found() -> None:
    lines = Counter(BUDGETS)
    lines["mountd/newcomer"] = 1
    assert [found.split(":")[0] for found in over_budget(lines)] == ["mountd/newcomer"]


@pytest.mark.parametrize(
    ("file", "text", "entry"),
    [
        ("mountd/fetch/it.py", "\n" * 401, "mountd/fetch/it.py: lines"),
        ("mountd/native/it.c", "\n" * 401, "mountd/native/it.c: lines"),
        (
            "mountd/fetch/it.py",
            "class A:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(21)),
            "mountd/fetch/it.py: methods of A",
        ),
        (
            "hfs/it.py",
            "class A:\n    class B:\n        def __init__(self, a, b, c, d, /, e, f, g, *, h, i): ...\n",
            "hfs/it.py: constructor of A.B",
        ),
        ("hfs/it.py", "class A:\n    def f():\n" + "        x = 1\n" * 60, "hfs/it.py: function A.f"),
    ],
)
def test_what_is_too_large_is_found(file: str, text: str, entry: str) -> None:
    assert [found for found, _ in too_large(file, text)] == [entry]


def test_what_has_the_size_that_is_allowed_passes() -> None:
    assert not list(too_large("hfs/it.py", "\n" * 400))
    assert not list(too_large("hfs/it.py", "@option\ndef f():\n" + "    x = 1\n" * 59))


@pytest.mark.parametrize(
    ("file", "text", "rule"),
    [
        ("mountd/fetch/flight.py", "import hfs.mountd.files", "may not import files"),
        ("mountd/source/source.py", "from hfs.mountd.cache import Cache", "may not import cache"),
        ("mountd/source/source.py", "from hfs.mountd.newcomer import it", "is no room"),
        ("mountd/fetch/fetcher.py", "from hfs.mountd.cache.cache import Cache", "is the inside of cache"),
        ("mountd/fetch/fetcher.py", "from hfs.mountd.cache.index import Index", "is the inside of cache"),
        ("mountd/fetch/fetcher.py", "from hfs.mountd.cache import lock_cache", "is the inside of cache"),
        (
            "mountd/cache/index/rows.py",
            "from hfs.mountd.cache.objects.disk import Disk",
            "may not import cache.objects",
        ),
        ("mountd/cache/objects/disk.py", "from hfs.mountd.cache.cache import Cache", "may not import its cache"),
        ("mountd/core/limits.py", "import hfs.mountd.supervisor.loop", "do not know each other"),
        ("mountd/supervisor/loop.py", "from hfs.mountd.core.errors import HfsError", "do not know each other"),
        ("hfs/client/client.py", "from hfs.mountd.cache.index import Index", "is the inside of cache"),
        ("mountd/__init__.py", "from hfs.mountd.core import errors", "imports nothing"),
        ("mountd/daemon/files.py", "def f():\n    a = A()\n    a.b = 1", "a.b is set from outside"),
        (
            "mountd/daemon/files.py",
            "def f():\n    a = A(lambda: b.c)\n    b = B(a)",
            "a lambda of b, which is made later",
        ),
        (
            "mountd/peers/job.py",
            "class A:\n    def __init__(self, t):\n        t.heard = self.hear\n    def hear(self): ...",
            "t.heard is set from outside",
        ),
        ("mountd/cache/cache.py", "def f(a):\n    a.b, a.c = 1, lambda: 2", "a.c is set from outside"),
        (
            "mountd/hints/hints.py",
            "def f():\n    a = A(lambda: b.c)\n    b = B(a)",
            "a lambda of b, which is made later",
        ),
        ("mountd/daemon/daemon.py", "import hfs.cli", "may not import hfs"),
        ("mountd/daemon/daemon.py", "from .errors import HfsError", "relative import"),
        ("mountd/daemon/daemon.py", "from mountd.core.errors import HfsError", "no such package"),
        ("hfs/hint.py", "import policies", "no such package"),
        ("mountd/files/read_path.py", "import pyfuse3", "may import pyfuse3"),
        ("mountd/daemon/daemon.py", "def f():\n    from mpi4py import MPI", "may import mpi4py"),
        (
            "mountd/files/read_path.py",
            "try:\n    x = 1\nexcept OSError as error:\n    y = error.errno",
            "may not look at the errno",
        ),
        ("mountd/cache/cache.py", "import sqlite3", "may import sqlite3"),
        (
            "hfs/mounting/offline.py",
            "try:\n    f()\nexcept* OSError as group:\n    if group:\n        raise group.exceptions[0] from None",
            "raise inside except*",
        ),
        ("mountd/files/read_path.py", "import os\nos.open('x', 0)", "may not follow paths"),
        ("mountd/namespace/lookups.py", "import os\nstat = os.lstat", "may not follow paths"),
        ("mountd/files/handles.py", "open('x')", "may not follow paths"),
        ("mountd/fuse/fuse.py", "import os\nx = os.environ['X']", "may use os.environ"),
        ("mountd/control/control.py", "import sys\nx = sys.argv", "may use sys.argv"),
        ("mountd/control/control.py", "import subprocess", "may import subprocess"),
        (
            "mountd/cache/reader.py",
            "from hfs.mountd.cache.objects.codec import Encoder",
            "that objects can be encoded",
        ),
        ("mountd/cache/reader.py", "def f(file):\n    return file.encoded", "that objects can be encoded"),
        ("mountd/files/opening.py", "def f(file):\n    return file.encoded", "that objects can be encoded"),
        ("mountd/hints/hints.py", "from hfs.policies.cache.encoding import pays", "that objects can be encoded"),
        ("policies/prefetch/readahead.py", "import time", "policies are pure"),
        ("policies/prefetch/readahead.py", "import trio", "policies are pure"),
        ("policies/prefetch/readahead.py", "from hfs.mountd.core import errors", "policies are pure"),
        ("hfs/client/client.py", "import trio", "may not import trio"),
        ("mountd/wire/protocol.py", "import trio", "may not import trio"),
        ("hfs/cli.py", "\n" * (MAX_LINES + 1), "two nouns"),
        (
            "mountd/fetch/fetcher.py",
            "def f(self):\n    self._nursery.start_soon(self._push, 1)",
            "a fault of self._push",
        ),
        ("mountd/daemon/daemon.py", "def f(nursery):\n    nursery.start_soon(_sweep)", "a fault of _sweep"),
        (
            "mountd/cache/opening.py",
            "async def f():\n    async with trio.open_nursery() as n:\n        n.start_soon(work)\n        yield 1",
            "a fault of work",
        ),
        ("mountd/files/opening.py", "node.passed += 1", "only mountd/namespace/* may write to a node: node.passed"),
        ("mountd/files/opening.py", "handle.node.pushed = False", "may write to a node: handle.node.pushed"),
        ("mountd/hints/hints.py", "other, fresh.stale = 1, True", "may write to a node: fresh.stale"),
        ("mountd/hints/hints.py", "node.hinted: int = 1", "may write to a node: node.hinted"),
    ],
)
def test_a_breach_is_found(file: str, text: str, rule: str) -> None:
    story = '"""What it is."""\n'
    assert any(rule in breach for breach in breaches(file, story + text))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "mountd/cache/cache.py",
            "from hfs.mountd.cache.index import Index\nfrom hfs.mountd.cache.files import Files",
        ),
        ("mountd/cache/index/rows.py", "import sqlite3"),
        ("mountd/namespace/tree.py", "node.stale = True"),
        ("mountd/files/handles.py", "x = node.opens\nself.opens = 1\nhandle.node = x"),
        ("mountd/core/config/loading.py", "import os\nx = os.environ\nfrom hfs.mountd.core.errors import ConfigError"),
        ("mountd/cache/index/rows.py", "def f(name):\n    return name.encode()"),
        ("mountd/peers/messages.py", "from hfs.mountd.wire.hints import encode_layout"),
        ("policies/geometry.py", "import numpy as np\nfrom hfs.policies.prefetch.readahead import advise"),
        ("hfs/client/client.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import trio"),
        ("mountd/cache/files.py", "def f(file):\n    file.object_id = 1"),
        ("mountd/hints/hints.py", "def f(paths):\n    a = A(lambda path: path)\n    path = paths[0]"),
        (
            "mountd/fetch/fetcher.py",
            "async def f():\n    async with trio.open_nursery() as n:\n        n.start_soon(work)",
        ),
    ],
)
def test_what_is_allowed_passes(file: str, text: str) -> None:
    assert breaches(file, '"""What it is."""\n' + text) == []


def test_three_files_know_that_objects_can_be_encoded() -> None:
    """A fourth one is no right to be given: what it needs belongs behind the codec."""
    knowing = {
        file
        for file, text in project_files(ROOT)
        if file.startswith("mountd/") and file.endswith(".py") and file != ENCODING_OPTION
        if re.search("encod|decod", text, re.IGNORECASE)
        if list(encoding_names(ast.parse(text), in_cache=file.startswith("mountd/cache/")))
    }
    assert knowing == set(ENCODING_RIGHTS)
    assert len(ENCODING_RIGHTS) <= 3


def test_a_file_without_its_story_is_found() -> None:
    assert breaches("hfs/cli.py", "x = 1")


def test_job_side_modules_are_light() -> None:
    """Importing them, with all that they import in turn, brings no event loop and no framework into the job."""
    modules = [file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in JOB_SIDE]
    code = f"""
import importlib, sys
for module in {modules!r}:
    importlib.import_module(module)
    if heavy := {NEVER_IN_JOBS!r} & sys.modules.keys():
        sys.exit(f"{{module}} brings {{heavy}}")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_test_file_imports_another() -> None:
    """What they share lies in tests/support, or beside them in a file that holds no tests."""
    found = [
        f"{file} imports {name}"
        for file, text in project_files(ROOT)
        if file.startswith("tests/") and file.endswith(".py") and re.search(r"\btests[\w.]*\.test_", text)
        for _, name in imports(ast.parse(text))
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]
    assert not found, "\n".join(found)


def test_nothing_is_imported_that_only_a_checkout_has() -> None:
    """`mountd` and `policies` without hfs before them: a second copy of each module here, and nothing elsewhere."""
    found = [
        f"{file} imports {name}"
        for file, text in project_files(ROOT)
        if file.endswith(".py") and re.search(r"(?<![\w.])(mountd|policies)\b(?!/)", text)
        for _, name in imports(ast.parse(text))
        if name.startswith("bare ")
    ]
    assert not found, "\n".join(found)


def test_a_public_class_name_means_one_thing() -> None:
    """Messages keep the names of what they ask for or say."""
    where: dict[str, list[str]] = {}
    for file, text in project_files(ROOT):
        if file.endswith(".py") and file.split("/")[0] in {"hfs", "mountd", "policies"} and "/wire/" not in file:
            for name in re.findall(r"^class ([^\W_]\w*)", text, re.MULTILINE):
                where.setdefault(name, []).append(file)
    assert {name: files for name, files in where.items() if len(files) > 1} == {}
