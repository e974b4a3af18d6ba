"""`Masks`: texts, log lines and figures without names of files of the data set; what is said of them stays readable.

Kept is what is known: SOURCE, MOUNTPOINT and places of ours, numbers, and the words that hfs itself says. Everything
else is replaced, the same name by the same mark: /lustre/imagenet/<name-1>/<name-2>. So a name that nobody foresaw is
masked too, and now and then a word that is none. A name that is a word of ours stays where it stands in a running
text; in a path it never does.
"""

from __future__ import annotations

import ast
import builtins
import errno
import functools
import os
import re
import signal
import string
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hfs.policies.cache.eviction import POLICIES

_ROOT = Path(__file__).parents[2]
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ )([\w.]+): (.*)", re.DOTALL)
_FRAME = re.compile(r'( *File ")([^"]+)(", line \d+)(.*)')
_TOKEN = re.compile(r"""(?<![\w'"])('[^']*'|"[^"]*")(?![\w'"])|(\S+)""")
_EDGES = string.punctuation.translate(str.maketrans("", "", "<>/_%+~"))
"""What stands before and behind words, and is none of them."""
_AMOUNT = re.compile(r"[-+]?(?:0|[1-9]\d{0,6})(?:[.,]\d+)*(?:%|s|ms|us|ns|B|kB|[MGT]B|[KMGT]iB|x)?")
"""Not 000123 or 20240131, which may be names."""
_LOGGERS = {"hfs.mountd.supervisor", "py.warnings", "pyfuse3", "root", "trio"}
_CHOICES = {
    *("auto", "changed", "control", "daemon", "first-use", "mpi", "none", "ok", "partition", "passthrough", "peers"),
    *("replicate", "resting", "stateless"),
    *POLICIES,
    *("btrfs", "ext4", "gpfs", "lustre", "nfs", "nfs4", "overlay", "tmpfs", "xfs"),
    *(number.name for number in signal.Signals),
}
"""Single words that stand for themselves as values."""
_ALWAYS_NAMES = {"absolute_links_named", "file", "files", "layout", "layouts", "name", "path", "paths", "title"}
"""Keys whose texts are names, whatever they look like."""
_NEVER_NAMES = {"control", "device", "extension", "id", "kind", "log_file", "passthrough", "stateless", "version"}
"""Keys whose texts are made by hfs, the kernel or the configuration alone."""


@functools.cache
def own_words() -> frozenset[str]:
    """What hfs says, by its own files: its modules, and in lower case the words of all strings but docstrings, and the
    names of classes, fields and keys. Also those of Python's and the system's errors. Without the files there are none,
    and more is masked."""
    words = {"errno", "traceback", "(most", "most", "recent", "call", "last"}
    words.update(name.lower() for name in dir(builtins) if isinstance(getattr(builtins, name), type))
    words.update(word for number in errno.errorcode for word in _words_of(os.strerror(number)))
    # Of a checkout, the daemon and its decisions are links in the folder of the package.
    for folder, _, names in os.walk(_ROOT / "hfs", followlinks=True):
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            words.add(".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__"))
            words.update(_said_in(ast.parse(path.read_bytes())))
    return frozenset(words)


def _said_in(tree: ast.Module) -> Iterator[str]:
    stories = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in stories:
                yield from _words_of(text)
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)) | ast.keyword(arg=str(name)):
                yield name.lower()


def _words_of(text: str) -> Iterator[str]:
    for token in text.split():
        word = token.strip(_EDGES).lower()
        if word and not re.search(r"[%{}\\]", word):
            yield word


class Masks:
    """`places`: SOURCEs and MOUNTPOINTs, whose own paths are shown and nothing below. `ours`: directories without names
    of the data set, such as that of the interpreter."""

    def __init__(self, places: Iterable[str], ours: Iterable[str]) -> None:
        self._places = sorted({place.rstrip("/") for place in places if place.strip("/")}, key=len, reverse=True)
        self._ours = {each.rstrip("/") for each in ours if each.strip("/")}
        self._words = own_words()
        self._marks: dict[str, str] = {}
        below = "|".join(rf"{re.escape(place)}(?:/\S*)?" for place in self._places)
        self._below = re.compile(rf"(?<![\w.-])(?:{below})" if below else r"(?!)")

    def path(self, path: str) -> str:
        """A path, absolute or of a file below SOURCE: its components are masked."""
        for place in self._places:
            if path == place or path.startswith(f"{place}/"):
                return place + self._components(path[len(place) :])
        if "/../" not in path and any(path == each or path.startswith(f"{each}/") for each in self._ours):
            return path
        return self._components(path)

    def _components(self, path: str) -> str:
        return "/".join(part if part in {"", ".", ".."} else self._mark(part) for part in path.split("/"))

    def _mark(self, name: str) -> str:
        return self._marks.setdefault(name, f"<name-{len(self._marks) + 1}>")

    def places_in(self, text: str) -> str:
        """A text of which only paths below the places are names, such as a line of the table of mounts."""
        return self._below.sub(lambda found: self.path(found[0]), text)

    def text(self, text: str) -> str:
        """A running text that may have names in it."""
        where, colon, rest = text.partition(": ")
        if colon and " " not in where and not where.startswith(tuple("'\"")):
            return f"{self._alone(where)}: {self.text(rest)}"
        return _TOKEN.sub(self._token, text)

    def _alone(self, word: str) -> str:
        """What stands before a colon: a name as a rule, however it reads."""
        may_be_ours = word[:1].isupper() or word.startswith("hfs.")
        return word if word in _CHOICES or (may_be_ours and word.lower() in self._words) else self.path(word)

    def _token(self, found: re.Match[str]) -> str:
        if found[1] is not None:
            quote = found[1][0]
            return f"{quote}{self.path(found[1][1:-1])}{quote}"
        token = found[2]
        core = token.strip(_EDGES)
        if not core or core.lower() in self._words or _AMOUNT.fullmatch(core):
            return token
        start = token.index(core)
        return token[:start] + self.path(core) + token[start + len(core) :]

    def line(self, line: str) -> str:
        """A line of a log."""
        if stamped := _LINE.fullmatch(line):
            before, logger, text = stamped.groups()
            is_ours = logger in _LOGGERS or (logger.startswith("hfs.") and logger in self._words)
            return f"{before}{logger if is_ours else self.path(logger)}: {self.text(text)}"
        if frame := _FRAME.fullmatch(line):
            before, file, number, function = frame.groups()
            shown = self.path(file)
            return f"{before}{shown}{number}{function if shown == file else ''}"
        return self.text(line)

    def tree(self, found: Any, key: str = "") -> Any:  # noqa: ANN401 - JSON
        """Figures, as JSON has them. Keys that are no words of ours are names too, and so is a text of one word that is
        nothing known."""
        if isinstance(found, dict):
            return {self._key(name, key): self.tree(value, name) for name, value in found.items()}
        if isinstance(found, list):
            return [self.tree(value, key) for value in found]
        if not isinstance(found, str) or not found or key in _NEVER_NAMES:
            return found
        if key in _ALWAYS_NAMES or (found not in _CHOICES and (" " not in found or found.startswith("/"))):
            return self.path(found)
        return self.text(found)

    def _key(self, name: str, above: str) -> str:
        return name if name.lower() in self._words and above not in _ALWAYS_NAMES else self.path(name)
