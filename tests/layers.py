"""What may import what, and which file alone may do what: the house rules as data, and the checker over the AST.

Called by tests/test_layers.py, for the real files and for planted breaches. A new file in mountd gets its rank here; a
file that needs a right gets it here with its reason, or better, asks the file that has it.

Only reads source text; imports nothing of what it checks.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

MAX_LINES = 500

# The rooms of mountd. A file imports rooms of lower rank only; rooms of one rank do not know each other.
RANKS = {
    "core": 0,
    "wire": 1,
    "native": 1,
    "ledger": 2,
    "kernel": 2,
    "source": 3,
    "cache": 3,
    "peers": 3,
    "namespace": 4,
    "fetch": 5,
    "hints": 6,
    "files": 7,
    "fuse": 8,
    "control": 8,
    "monitoring": 8,
    "daemon": 9,
}
# Rooms within a room, lowest first; the room itself comes last. Nobody else imports them.
INNER = {
    "cache": ("index", "objects"),
    "namespace": ("journal", "nodes"),
    "fetch": ("chunks",),
}
# Rooms whose modules are public. Of all others only what their `__init__` names.
OPEN_ROOMS = {"core", "wire", "native"}
# The parent of all daemons: it imports no room, and only `daemon` knows it.
APART = "supervisor"

# Modules that only these files may import. A name ending in * stands for all that begin so.
IMPORT_RIGHTS = {
    "pyfuse3": ("mountd/fuse/*",),
    "mpi4py": (
        "mountd/peers/mpi.py",
        "hfs/shared/node_ranks.py",  # inside MPI programs, and only once a NodeBatches is made
        "hfs/shared/batches.py",  # names the type of a communicator
        "tests/*",
    ),
    "zmq": ("mountd/peers/sockets.py", "mountd/peers/wires.py", "tests/*"),
    "sqlite3": ("mountd/cache/index/*",),
    "numcodecs": ("mountd/cache/objects/codec.py",),  # imported only where something is encoded
    "subprocess": (
        "mountd/kernel/*",  # mount(8), for the kernel's settings of a mount
        "mountd/files/residency.py",  # a look at the mount, for which the daemon must not wait
        "mountd/supervisor/*",  # daemons; fusermount3
        "hfs/*",
    ),
    "prometheus_client": ("mountd/monitoring/exposition.py", "tests/*"),  # loaded only where somebody wants metrics
    **dict.fromkeys(("click", "rich"), ("hfs/*",)),
}
# Code that training jobs import must not bring an event loop or a framework with it.
JOB_SIDE = (
    "hfs/__init__.py",
    "hfs/client/__init__.py",
    "hfs/client/client.py",
    "hfs/client/cluster_map.py",
    "hfs/client/control_socket.py",
    "hfs/client/tunnel.py",
    "hfs/codecs/__init__.py",
    "hfs/codecs/codec.py",
    "hfs/codecs/sample.py",
    "hfs/codecs/cosmoflow.py",
    "hfs/codecs/dataset.py",
    "hfs/codecs/deepcam.py",
    "hfs/codecs/plain.py",
    "hfs/codecs/sample.py",
    "hfs/exposed.py",
    "hfs/hint.py",
    "hfs/training/__init__.py",
    "hfs/training/hint_session.py",
    "hfs/training/launcher.py",
    "hfs/training/locality.py",
    "hfs/layouts/files.py",
    "hfs/layouts/layout.py",
    "hfs/training/hint_connection.py",
    "hfs/loading.py",
    "hfs/mounting/__init__.py",
    "hfs/mounting/mountinfo.py",
    "hfs/training/copied_sampler.py",
    "hfs/training/hinted_iterator.py",
    "hfs/training/known_orders.py",
    "hfs/training/told_order.py",
    "hfs/samplers.py",
    "hfs/shared/__init__.py",
    "hfs/shared/batch.py",
    "hfs/shared/batches.py",
    "hfs/shared/reader.py",
    "hfs/shared/samples.py",
    "hfs/shared/window.py",
    "hfs/training/atomic_write.py",
    "mountd/__init__.py",
    "mountd/supervisor/__init__.py",
    "mountd/supervisor/table.py",
    "mountd/wire/protocol.py",
    "mountd/wire/hints.py",
    "mountd/wire/layout.py",
    "mountd/wire/tunnel.py",
    "mountd/core/hostlist.py",
)
NEVER_IN_JOBS = {"trio", "prometheus_client", "pyfuse3", "torch", "mpi4py", "zmq"}

# policies: state in, decision out. The modules of the standard library that they may use; numpy besides.
PURE_MODULES = {
    *("__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "fractions", "functools", "heapq"),
    *("itertools", "math", "operator", "typing", "numpy"),
}

# attribute -> the files that may name it
ATTRIBUTE_RIGHTS = {
    ("os", "environ"): (
        "mountd/core/config/loading.py",
        "mountd/core/socket_places.py",  # XDG_RUNTIME_DIR
        "mountd/supervisor/*",
        "hfs/*",
    ),
    ("os", "getenv"): ("mountd/core/config/loading.py", "hfs/*"),
    ("sys", "argv"): ("mountd/core/config/loading.py", "hfs/*"),
    ("socket", "recv_fds"): ("tests/*",),  # what comes so is inherited: mountd/supervisor/daemons.py has another
}

# Who may look at the errno of an exception that was caught. To raise one with an errno is everybody's right.
ERRNO_RIGHTS = (
    "mountd/core/errors.py",  # the table
    # These make system calls and tell one OSError from another:
    "mountd/core/limits.py",
    "mountd/source/*",
    "mountd/native/*",
    "mountd/core/cache_*",
    "mountd/cache/*",
    "mountd/kernel/*",
    "mountd/control/control.py",
    "mountd/daemon/*",
    "mountd/supervisor/*",
    "mountd/namespace/lookups.py",  # the source's ENOENT becomes a negative entry
    "mountd/namespace/permissions.py",  # and ENODATA and EOPNOTSUPP say that there is no ACL
    "hfs/*",
)

# Who may know that objects of the cache can be encoded: three files, and never more.
ENCODING_RIGHTS = (
    "mountd/cache/objects/codec.py",  # how
    "mountd/daemon/daemon.py",  # whether
    "mountd/daemon/status.py",  # what `hfs status` says of it
)
ENCODING_OPTION = "mountd/core/config/config.py"

# Who may start a task that nobody waits for where it was started: its fault would end the nursery, and the mount.
LOOSE_TASK_RIGHTS = ("mountd/core/background.py",)  # the guard itself

# Calls that follow a path, by name in os, and the files that may make them. Calls on a descriptor are not limited.
PATH_CALLS = {
    *("open", "stat", "lstat", "statvfs", "scandir", "listdir", "readlink", "walk", "access", "getxattr", "listxattr"),
    *("mkdir", "makedirs", "unlink", "remove", "rmdir", "rename", "replace", "link", "symlink", "truncate", "chmod"),
    *("chown", "utime", "mknod", "mkfifo"),
}
PATH_RIGHTS = (
    "mountd/source/*",  # paths under the source; which file system it is: /proc, /sys, devices and images below it
    "mountd/native/statx.py",  # its system call
    "mountd/native/cachestat.py",  # as a program, files of a mount: how much of them is in memory
    "mountd/core/cache_*",  # the way to the cache directory, and names in it
    "mountd/cache/*",  # paths under the cache directory
    "mountd/ledger/*",  # the cache root, and records below it
    "mountd/core/config/loading.py",  # configuration files
    "mountd/control/traffic.py",  # /proc: how long the event loop waits for a processor
    "mountd/control/control.py",  # the control socket
    "mountd/core/path_steps.py",  # directories on the way to something
    "mountd/core/socket_places.py",  # where it lies
    "mountd/monitoring/service.py",  # the metrics as a file
    "mountd/kernel/*",  # /sys: kernel settings of the mount
    "mountd/daemon/*",  # SOURCE, the mountpoint
    "mountd/core/limits.py",  # /proc, /sys, for others
    "mountd/core/limits.py",  # /proc, /sys/fs/cgroup
    "mountd/supervisor/*",  # /dev/fuse, the mountpoint, /proc, its socket
    "hfs/*",
)

# Only this room writes to a node of the namespace. What others know of a node they keep in tables of their own, or tell
# the room by a method.
NODE_WRITER = "mountd/namespace/*"
# Attributes that nothing but a node has, so that an assignment is found whatever the variable is called.
NODE_ATTRIBUTES = {"answers", "children", "holds", "links", "lookups", "own_opens", "own_passed", "pushed", "stale"}


def matches(file: str, allowed: tuple[str, ...]) -> bool:
    """Whether `file` ("mountd/cache/index/rows.py") is one of `allowed` ("mountd/cache/*": all files of that room)."""
    return any(file.startswith(name[:-1]) if name.endswith("*") else file == name for name in allowed)


def room(file: str) -> tuple[str, str]:
    """(room, room within it or "") of a file of mountd: ("cache", "index") of mountd/cache/index/rows.py."""
    parts = file.split("/")[1:-1]
    outer = parts[0] if parts else ""
    return outer, parts[1] if len(parts) > 1 else ""


@functools.lru_cache(maxsize=1)
def walked(tree: ast.AST) -> list[ast.AST]:
    """Everything in it. Each rule asks, and to walk takes longer than to judge."""
    return list(ast.walk(tree))


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """(statement, dotted name) of every import; of what is ours the name too: mountd.cache.Cache of
    `from hfs.mountd.cache import Cache`."""
    for node in walked(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, _without_hfs(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                yield node, f".{module}"
            elif module.split(".")[0] in {"hfs", "mountd", "policies"}:
                for alias in node.names:
                    yield node, _without_hfs(f"{module}.{alias.name}")
            else:
                yield node, module


def _without_hfs(name: str) -> str:
    """What lies beside the folder hfs is linked in it, and called as its folder is. Without the hfs it is a mistake."""
    top, _, rest = name.partition(".")
    if top == "hfs" and rest.split(".")[0] in {"mountd", "policies"}:
        return rest
    return f"bare {name}" if top in {"mountd", "policies"} else name


def typing_only(tree: ast.AST) -> set[ast.stmt]:
    """Statements below `if TYPE_CHECKING:`: they name types and bring nothing at run time."""
    found: set[ast.stmt] = set()
    for node in walked(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for statement in node.body:
                found.update(inner for inner in ast.walk(statement) if isinstance(inner, ast.stmt))
    return found


def breaches(file: str, text: str) -> list[str]:
    """The rules that `file` (a path from the project's root) with this text breaks, one line each."""
    found = []
    tree = ast.parse(text, file)
    package = file.split("/", maxsplit=1)[0]
    types = typing_only(tree)

    def breach(node: ast.AST, rule: str) -> None:
        found.append(f"{file}:{getattr(node, 'lineno', 1)}: {rule}")

    if text.count("\n") > MAX_LINES:
        breach(tree, f"{text.count(chr(10))} lines, at most {MAX_LINES}: it holds two nouns")
    if package in {"hfs", "mountd", "policies"} and not ast.get_docstring(tree):
        breach(tree, "opens without its story (a docstring)")

    for statement, name in imports(tree):
        top = name.split(".")[0]
        if name.startswith("."):
            breach(statement, "relative import: say the package")
        elif name.startswith("bare "):
            breach(statement, f"{name}: an installation has no such package, say hfs.{name.removeprefix('bare ')}")
        elif package == "policies" and top != "policies" and top not in PURE_MODULES:
            breach(statement, f"policies are pure: {name} is not in PURE_MODULES")
        elif package == "mountd" and top == "hfs":
            breach(statement, "mountd may not import hfs")
        elif package in {"hfs", "mountd"} and top == "mountd":
            found.extend(f"{file}:{statement.lineno}: {rule}" for rule in room_breaches(file, name))
        if top in IMPORT_RIGHTS and not matches(file, IMPORT_RIGHTS[top]):
            breach(statement, f"only {', '.join(IMPORT_RIGHTS[top])} may import {top}")
        if file in JOB_SIDE and statement not in types and top in NEVER_IN_JOBS:
            breach(statement, f"runs inside training jobs, so it may not import {top}")

    for node in walked(tree):
        if isinstance(node, ast.TryStar):
            for statement in (inner for handler in node.handlers for inner in ast.walk(handler)):
                if isinstance(statement, ast.Raise):
                    breach(statement, "raise inside except*, a group up to Python 3.11.3: see mountd/core/errors.py")

    if package == "mountd" and file not in LOOSE_TASK_RIGHTS and "start_soon" in text:
        for call in loose_tasks(tree):
            breach(call, f"a fault of {ast.unparse(call.args[0])} would end the mount: use mountd/core/background.py")

    if package == "mountd" and not matches(file, (NODE_WRITER,)):
        for target in node_writes(tree):
            breach(target, f"only {NODE_WRITER} may write to a node: {ast.unparse(target)}")

    if package == "mountd":
        for node, rule in knots(tree, any_attribute=file.startswith("mountd/daemon/")):
            breach(node, rule)

    may_know = file == ENCODING_OPTION or matches(file, ENCODING_RIGHTS)
    if package == "mountd" and not may_know and re.search("encod|decod", text, re.IGNORECASE):
        for node, name in encoding_names(tree, in_cache=file.startswith("mountd/cache/")):
            breach(node, f"{name}: only {', '.join(ENCODING_RIGHTS)} may know that objects can be encoded")

    path_right = package not in {"mountd", "policies"} or matches(file, PATH_RIGHTS)
    for node in walked(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pair = (node.value.id, node.attr)
            if pair in ATTRIBUTE_RIGHTS and not matches(file, ATTRIBUTE_RIGHTS[pair]):
                breach(node, f"only {', '.join(ATTRIBUTE_RIGHTS[pair])} may use {'.'.join(pair)}")
            if not path_right and pair[0] == "os" and pair[1] in PATH_CALLS:
                breach(node, f"may not follow paths: os.{pair[1]} (see PATH_RIGHTS)")
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "errno"
            and isinstance(node.ctx, ast.Load)
            and not matches(file, ERRNO_RIGHTS)
        ):
            breach(node, "may not look at the errno of an exception: catch what mountd/core/errors.py calls it")
        if not path_right and isinstance(node, ast.Call):
            last = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if last in {"open", "Path"} and (called := ast.unparse(node.func)) in {"open", "Path", "pathlib.Path"}:
                breach(node, f"may not follow paths: {called}() (see PATH_RIGHTS)")
    return found


def encoding_names(tree: ast.AST, *, in_cache: bool) -> Iterator[tuple[ast.AST, str]]:
    """Names in code that speak of encoded objects: in the cache all that encode or decode something other than text; in
    other rooms, which encode messages, those that say that something is encoded, or name the option."""
    pattern = "encod|decod" if in_cache else "encoding|encoded|decoded"
    of_text = {"encode", "decode", "encoding"}
    for node in walked(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            name = getattr(node, field, None)
            if not isinstance(name, str) or not re.search(pattern, name, re.IGNORECASE):
                continue
            if not (isinstance(node, ast.Attribute | ast.keyword) and name in of_text):
                yield node, name


def node_writes(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Assignments to an attribute of a node, and deletions: of what is called `node` or `*.node`, or by the name of the
    attribute."""
    for target in walked(tree):
        if not isinstance(target, ast.Attribute) or isinstance(target.ctx, ast.Load):
            continue
        owner = ast.unparse(target.value)
        if owner.split(".")[-1] == "node" or (target.attr in NODE_ATTRIBUTES and owner != "self"):
            yield target


def loose_tasks(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of start_soon on a nursery that is not left, by who starts the task, before its fault could reach others.

    A nursery opened in the same function is waited for there, unless the function yields inside it.
    """
    scopes = [node for node in walked(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)]
    for scope in [tree, *scopes]:
        own = list(_of_scope(scope))
        waited_for: dict[str, bool] = {}
        for node in own:
            if not isinstance(node, ast.AsyncWith):
                continue
            for item in node.items:
                if ast.unparse(item.context_expr) == "trio.open_nursery()" and isinstance(item.optional_vars, ast.Name):
                    gives = any(isinstance(inner, ast.Yield) for part in node.body for inner in _of_scope(part))
                    waited_for[item.optional_vars.id] = not gives
        for node in own:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "start_soon":
                nursery = node.func.value
                if not (isinstance(nursery, ast.Name) and waited_for.get(nursery.id, False)):
                    yield node


def knots(tree: ast.AST, *, any_attribute: bool) -> Iterator[tuple[ast.AST, str]]:
    """Where parts are tied together after they were built: an object that gets itself, a method or a function of
    another as an attribute, or a lambda of what is made later.

    `any_attribute`: nothing may be set from outside; for the room that only builds. Elsewhere the attributes of records
    are theirs to change who keep them.
    """
    for scope, methods in _functions(tree):
        own = list(_of_scope(scope))
        callables = methods | {f.name for f in own if isinstance(f, ast.AsyncFunctionDef | ast.FunctionDef)}
        made: dict[str, int] = {}
        for node in own:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                made.setdefault(node.id, node.lineno)
        for node in own:
            for target, value in _assigned(node):
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self":
                    named = isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in {"self", *callables}
                    tied = isinstance(value, ast.Lambda) or named
                    if tied or any_attribute:
                        yield node, f"{ast.unparse(target)} is set from outside: give it to the constructor"
            if isinstance(node, ast.Lambda):
                given = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
                for inner in ast.walk(node.body):
                    if isinstance(inner, ast.Name) and inner.id not in given and made.get(inner.id, 0) > node.lineno:
                        yield node, f"a lambda of {inner.id}, which is made later"


def _functions(
    tree: ast.AST, methods: frozenset[str] = frozenset()
) -> Iterator[tuple[ast.AsyncFunctionDef | ast.FunctionDef, frozenset[str]]]:
    """Every function, with the methods of the class that it is in: {"self.close", ...}."""
    for node in ast.iter_child_nodes(tree):
        inner = methods
        if isinstance(node, ast.ClassDef):
            inner = frozenset(
                f"self.{part.name}"
                for part in node.body
                if isinstance(part, ast.AsyncFunctionDef | ast.FunctionDef) and not part.decorator_list
            )
        elif isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            yield node, methods
        yield from _functions(node, inner)


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of every single assignment of a statement; `a, b = c, d` is two."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Everything in `scope` but what lies in a function of its own."""
    if isinstance(scope, ast.Yield):
        yield scope
    waiting = [*ast.iter_child_nodes(scope)][::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda):
            waiting += [*ast.iter_child_nodes(node)][::-1]


def room_breaches(file: str, imported: str) -> Iterator[str]:
    """What is wrong with a file of mountd or hfs importing `imported` ("mountd.cache.index")."""
    here, inner = room(file) if file.startswith("mountd/") else ("", "")
    there, *rest = imported.split(".")[1:] or [""]
    if file == "mountd/__init__.py":
        yield "mountd/__init__ imports nothing: training jobs import it"
    elif APART in {here, there}:
        if here not in {there, "daemon", ""}:
            yield f"{APART} and the rooms do not know each other"
    elif there not in RANKS or (here and here not in RANKS):
        yield f"{there if there not in RANKS else here} is no room: give it a rank in tests/layers.py"
    elif here == there:
        order = (*INNER.get(here, ()), "")
        target, inner = (name if name in order else "" for name in (rest[0] if rest else "", inner))
        if order.index(target) > order.index(inner):
            yield f"{here}.{inner} may not import {here}.{target}" if target else f"{inner} may not import its {here}"
    else:
        if here and RANKS[there] >= RANKS[here]:
            yield f"{here} (rank {RANKS[here]}) may not import {there} (rank {RANKS[there]})"
        if rest and there not in OPEN_ROOMS and rest[0] not in public_names(there):
            yield f"{'.'.join(rest)} is the inside of {there}: only what its __init__ names is for others"


@functools.cache
def public_names(of: str) -> frozenset[str]:
    """What the `__init__` of a room imports for others, or names in `__all__`."""
    tree = ast.parse((ROOT / "mountd" / of / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset(name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names)


@functools.cache
def project_files(root: Path) -> list[tuple[str, str]]:
    """(path from the root, text) of every Python file of the project, and of its scripts and C files."""
    found = []
    for folder in ("hfs", "mountd", "policies", "tests", "scripts"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                try:
                    found.append((str(path.relative_to(root)), path.read_text()))
                except UnicodeDecodeError:
                    continue  # compiled
    return found
