"""What may import what, and which file alone may do what: the house rules as data, and the checker over the AST.

Called by tests/test_layers.py, for the real files and for planted breaches. A new file in mountd gets its rank here; a
file that needs a right gets it here with its reason, or better, asks the file that has it.

Only reads source text; imports nothing of what it checks.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 500

# A file imports only lower ranks. Files of one noun (staging, staging_files) count as one: they may import each other.
RANKS = {
    "version": 1,
    "errors": 1,
    "metrics": 1,
    "protocol": 1,
    "socket_places": 0,
    "config": 1,
    "handover": 1,
    "supervisor": 1,
    "ending": 2,
    "background": 1,
    "open_files": 1,
    "buffers": 1,
    "memory": 1,
    "openat2": 1,
    "beneath": 1,
    "workers": 1,
    "statx": 1,
    "small_native": 1,
    "attributes": 1,
    "listing": 1,
    "path_numbers": 1,
    "cache": 1,
    "identity": 1,
    "caller": 1,
    "as_user": 1,
    "flight": 2,
    "kept": 2,
    "silence": 2,
    "blocks": 2,
    "source": 2,
    "peers": 2,
    "index": 2,
    "staging": 2,
    "fastpath": 2,
    "node": 2,
    "journal": 2,
    "readers": 2,
    "recorder": 3,
    "interrupts": 2,
    "layout": 2,
    "tally": 3,
    "passthrough": 3,
    "io_mode": 3,
    "fetcher": 3,
    "small_files": 3,
    "sibling_watch": 3,
    "namespace": 3,
    "answers": 3,
    "xattrs": 4,
    "permissions": 4,
    "handles": 3,
    "history": 3,
    "prefetch": 3,
    "believing": 4,
    "learners": 3,
    "hints": 4,
    "read_path": 4,
    "opening": 4,
    "residency": 4,
    "inheritance": 4,
    "serving": 4,
    "status": 4,
    "fuse": 5,
    "control": 5,
    "commands": 5,
    "daemon": 6,
}
# The imports inside a rank: staged files are found through their index; the commands implement what control asks for.
SAME_RANK = {
    ("staging", "index"),
    ("commands", "control"),
    ("read_path", "hints"),
    ("opening", "hints"),
    ("fetcher", "recorder"),
    ("status", "residency"),
    ("io_mode", "passthrough"),
    ("journal", "node"),  # what it notes
    ("workers", "background"),
    ("caller", "open_files"),
    ("memory", "open_files"),
    ("statx", "attributes"),
    ("statx", "openat2"),
    ("beneath", "openat2"),
    ("as_user", "caller"),
    ("status", "permissions"),
    ("flight", "source"),  # the progress of a batch that a reader may hurry
    ("flight", "node"),
    ("small_files", "fetcher"),
    ("small_files", "namespace"),
}
# Every file of mountd may use the plain words; they know nobody.
WORDS = {"version", "errors", "metrics"}

# Modules that only these files may import. A name ending in * stands for all files of that noun.
IMPORT_RIGHTS = {
    "pyfuse3": ("mountd/fuse_polling.py", "mountd/fuse.py", "mountd/fuse_push.py", "mountd/fuse_session.py"),
    "mpi4py": (
        "mountd/peers_mpi.py",
        "hfs/shared/batches.py",  # inside MPI programs, and only once a NodeBatches is made
        "tests/*",
    ),
    "sqlite3": ("mountd/index*",),
    "numcodecs": ("mountd/staging_encoding.py",),  # imported only where something is encoded
    "subprocess": (
        "mountd/fastpath*",  # mount(8), for the kernel's settings of a mount
        "mountd/supervisor/*",  # daemons; fusermount3
        "hfs/*",
    ),
    "click": ("hfs/*",),
    "rich": ("hfs/*",),
}
# Code that training jobs import must not bring an event loop or a framework with it.
JOB_SIDE = (
    "hfs/__init__.py",
    "hfs/client.py",
    "hfs/directory.py",
    "hfs/codecs/__init__.py",
    "hfs/codecs/codec.py",
    "hfs/codecs/container.py",
    "hfs/codecs/cosmoflow.py",
    "hfs/codecs/dataset.py",
    "hfs/codecs/deepcam.py",
    "hfs/codecs/plain.py",
    "hfs/codecs/registry.py",
    "hfs/codecs/sample.py",
    "hfs/exposed.py",
    "hfs/hint.py",
    "hfs/hint_session.py",
    "hfs/job.py",
    "hfs/layouts/files.py",
    "hfs/layouts/layout.py",
    "hfs/layouts/layout_file.py",
    "hfs/learner.py",
    "hfs/loading.py",
    "hfs/mountinfo.py",
    "hfs/orders.py",
    "hfs/samplers.py",
    "hfs/shared/__init__.py",
    "hfs/shared/batch.py",
    "hfs/shared/reader.py",
    "hfs/shared/samples.py",
    "hfs/shared/semaphores.py",
    "hfs/shared/window.py",
    "hfs/whole_file.py",
    "mountd/__init__.py",
    "mountd/protocol.py",
    "mountd/protocol_hints.py",
)
NEVER_IN_JOBS = {"trio", "pyfuse3", "torch", "mpi4py"}

# policies: state in, decision out. The modules of the standard library that they may use; numpy besides.
PURE_MODULES = {
    *("__future__", "abc", "bisect", "collections", "dataclasses", "enum", "fractions", "functools", "heapq"),
    *("itertools", "math", "operator", "typing", "numpy"),
}

# attribute -> the files that may name it
ATTRIBUTE_RIGHTS = {
    ("os", "environ"): (
        "mountd/config.py",
        "mountd/socket_places.py",  # XDG_RUNTIME_DIR
        "mountd/fastpath_linkage.py",  # LD_LIBRARY_PATH: where the loader looks
        "mountd/supervisor/*",
        "hfs/*",
    ),
    ("os", "getenv"): ("mountd/config.py", "hfs/*"),
    ("sys", "argv"): ("mountd/config.py", "hfs/*"),
}

# Who may look at the errno of an exception that was caught. To raise one with an errno is everybody's right.
ERRNO_RIGHTS = (
    "mountd/errors.py",  # the table
    "mountd/fuse.py",  # the decorator
    # These make system calls and tell one OSError from another:
    "mountd/open_files.py",
    "mountd/source*",
    "mountd/beneath.py",
    "mountd/cache_*",
    "mountd/staging*",
    "mountd/index*",
    "mountd/fastpath*",
    "mountd/control.py",
    "mountd/daemon.py",
    "mountd/supervisor/*",
    "mountd/namespace.py",  # the source's ENOENT becomes a negative entry
    "mountd/xattrs.py",  # and ENODATA and EOPNOTSUPP say that there is no ACL
    "hfs/*",
)

# Who may start a task that nobody waits for where it was started: its fault would end the nursery, and the mount.
LOOSE_TASK_RIGHTS = (
    "mountd/background.py",  # the guard itself
    "mountd/fuse_polling.py",  # pyfuse3's workers: one that fails is the end of the session
)

# Calls that follow a path, by name in os, and the files that may make them. Calls on a descriptor are not limited.
PATH_CALLS = {
    *("open", "stat", "lstat", "statvfs", "scandir", "listdir", "readlink", "walk", "access", "getxattr", "listxattr"),
    *("mkdir", "makedirs", "unlink", "remove", "rmdir", "rename", "replace", "link", "symlink", "truncate", "chmod"),
    *("chown", "utime", "mknod", "mkfifo"),
}
PATH_RIGHTS = (
    "mountd/source*",  # paths under the source
    "mountd/beneath.py",  # its system call
    "mountd/cache_*",  # the way to the cache directory, and names in it
    "mountd/index*",  # paths under the cache directory
    "mountd/staging*",
    "mountd/config.py",  # configuration files
    "mountd/control.py",  # the control socket
    "mountd/socket_places.py",  # where it lies
    "mountd/fastpath*",  # /sys: kernel settings of the mount
    "mountd/daemon.py",  # the mountpoint, the log file
    "mountd/open_files.py",  # /proc, /sys, for others
    "mountd/memory.py",  # /proc, /sys/fs/cgroup
    "mountd/supervisor/*",  # /dev/fuse, the mountpoint, /proc, its socket
    "mountd/identity*",  # which file system it is: /proc, /sys, and block devices and image files below it
    "hfs/*",
)


def matches(file: str, allowed: tuple[str, ...]) -> bool:
    """Whether `file` ("mountd/index_rows.py") is one of `allowed` ("mountd/index*": all files of that noun)."""
    return any(file.startswith(name[:-1]) if name.endswith("*") else file == name for name in allowed)


def noun(module: str) -> str:
    """The noun of a file of mountd: the longest name in RANKS that it begins with."""
    names = [name for name in RANKS if module == name or module.startswith(f"{name}_")]
    return max(names, key=len, default=module)


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """(statement, dotted module) of every import; `from mountd import errors` gives mountd.errors."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                yield node, f".{module}"
            elif module in {"hfs", "mountd", "policies"}:
                for alias in node.names:
                    yield node, f"{module}.{alias.name}"
            else:
                yield node, module


def typing_only(tree: ast.AST) -> set[ast.stmt]:
    """Statements below `if TYPE_CHECKING:`: they name types and bring nothing at run time."""
    found: set[ast.stmt] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for statement in node.body:
                found.update(inner for inner in ast.walk(statement) if isinstance(inner, ast.stmt))
    return found


def breaches(file: str, text: str) -> list[str]:
    """The rules that `file` (a path from the project's root) with this text breaks, one line each."""
    found = []
    tree = ast.parse(text, file)
    package, module = file.split("/", maxsplit=1)[0], file.split("/")[1].removesuffix(".py")
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
        elif package == "policies" and top != "policies" and top not in PURE_MODULES:
            breach(statement, f"policies are pure: {name} is not in PURE_MODULES")
        elif package == "mountd" and top == "hfs":
            breach(statement, "mountd may not import hfs")
        elif package == "mountd" and top == "mountd":
            found.extend(f"{file}:{statement.lineno}: {rule}" for rule in rank_breaches(module, name))
        if top in IMPORT_RIGHTS and not matches(file, IMPORT_RIGHTS[top]):
            breach(statement, f"only {', '.join(IMPORT_RIGHTS[top])} may import {top}")
        if file in JOB_SIDE and statement not in types and top in NEVER_IN_JOBS:
            breach(statement, f"runs inside training jobs, so it may not import {top}")

    if package == "mountd" and file not in LOOSE_TASK_RIGHTS:
        for call in loose_tasks(tree):
            breach(call, f"a fault of {ast.unparse(call.args[0])} would end the mount: use mountd/background.py")

    path_right = package not in {"mountd", "policies"} or matches(file, PATH_RIGHTS)
    for node in ast.walk(tree):
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
            breach(node, "may not look at the errno of an exception: catch what mountd/errors.py calls it")
        if not path_right and isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in {"open", "Path", "pathlib.Path"}:
                breach(node, f"may not follow paths: {called}() (see PATH_RIGHTS)")
    return found


def loose_tasks(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of start_soon on a nursery that is not left, by who starts the task, before its fault could reach others.

    A nursery opened in the same function is waited for there, unless the function yields inside it.
    """
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)]
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


def _of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Everything in `scope` but what lies in a function of its own."""
    if isinstance(scope, ast.Yield):
        yield scope
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda):
            yield from _of_scope(child)


def rank_breaches(module: str, imported: str) -> Iterator[str]:
    """What is wrong with mountd/`module` importing `imported` ("mountd.index")."""
    target = imported.split(".")[1] if "." in imported else ""
    if module == "__init__":
        yield "mountd/__init__ imports nothing: training jobs import it"
        return
    here, there = noun(module), noun(target)
    if here not in RANKS or there not in RANKS:
        yield f"{here if here not in RANKS else there} has no rank: give it one in tests/layers.py"
    elif here != there and RANKS[there] >= RANKS[here] and there not in WORDS and (here, there) not in SAME_RANK:
        yield f"{here} (rank {RANKS[here]}) may not import {there} (rank {RANKS[there]})"


def project_files(root: Path) -> Iterator[tuple[str, str]]:
    """(path from the root, text) of every Python file of the project, and of its scripts and C files."""
    for folder in ("hfs", "mountd", "policies", "tests", "scripts"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                try:
                    yield str(path.relative_to(root)), path.read_text()
                except UnicodeDecodeError:
                    continue  # compiled
