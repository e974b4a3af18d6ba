"""`Masks`: texts, log lines and figures without names of files of the data set; what is said of them stays readable.

Kept is what is known: SOURCE, MOUNTPOINT and places of ours, numbers, and what hfs itself says (`OwnWords`). Everything
else is replaced, the same name by the same mark: /lustre/imagenet/<name-1>/<name-2>. So a name that nobody foresaw is
masked too, and now and then a word that is none. A name that is a word of our own messages stays where it stands in a
running text; in a path it never does.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import Any

from hfs.doctor.own_words import EDGES, OwnWords
from hfs.policies.cache.evictions import POLICIES

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ )([\w.]+): (.*)", re.DOTALL)
_FRAME = re.compile(r'( *File ")([^"]+)(", line \d+)(.*)')
_TOKEN = re.compile(r"""(?<![\w'"])('[^']*'|"[^"]*")(?![\w'"])|(\S+)""")
_AMOUNT = re.compile(r"[-+]?(?:0|[1-9]\d{0,2})(?:[.,]\d+)*(?:%|s|ms|us|ns|B|kB|[MGT]B|[KMGT]iB|x)?")
"""Not 000123 or 20240131, which may be names."""
_NUMBER = re.compile(r"[-+.\de]+")
_LOGGERS = {"hfs.mountd.supervisor", "py.warnings", "pyfuse3", "root", "trio"}
_CHOICES = {
    *("auto", "changed", "daemon", "first-use", "mpi", "none", "ok", "partition", "passthrough"),
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


class Masks:
    """`places`: SOURCEs and MOUNTPOINTs, whose own paths are shown and nothing below. `ours`: directories without names
    of the data set, such as that of the interpreter."""

    def __init__(self, places: Iterable[str], ours: Iterable[str], own: OwnWords) -> None:
        self._places = sorted({place.rstrip("/") for place in places if place.strip("/")}, key=len, reverse=True)
        self._ours = {each.rstrip("/") for each in ours if each.strip("/")}
        self._own = own
        self._marks: dict[str, str] = {}
        below = "|".join(rf"{re.escape(place)}(?:/\S*)?" for place in self._places)
        self._below = re.compile(rf"(?<![\w.-])(?:{below})" if below else r"(?!)")

    def mark(self, name: str) -> str:
        """What stands for a name."""
        return self._marks.setdefault(name, f"<name-{len(self._marks) + 1}>")

    def path(self, path: str) -> str:
        """A path, absolute or of a file below SOURCE: its components are masked."""
        for place in self._places:
            if path == place or path.startswith(f"{place}/"):
                return place + self._components(path[len(place) :])
        if any(path == each or path.startswith(f"{each}/") for each in self._ours):
            return path
        return self._components(path)

    def _components(self, path: str) -> str:
        return "/".join(part if part in {"", ".", ".."} else self.mark(part) for part in path.split("/"))

    def places_in(self, text: str) -> str:
        """A text of which only paths below the places are names, such as a line of the table of mounts."""
        return self._below.sub(lambda found: self.path(found[0]), text)

    def text(self, text: str) -> str:
        """A running text that may have names in it."""
        if text in self._own.texts:
            return text
        where, colon, rest = text.partition(": ")
        if colon and " " not in where and not where.startswith(tuple("'\"")):
            return f"{self._alone(where)}: {self.text(rest)}"
        return _TOKEN.sub(self._token, text)

    def _alone(self, word: str) -> str:
        """What stands before a colon: a name as a rule, however it reads."""
        known = _CHOICES | {"peers", "control"}
        kept = word in known or word in self._own.modules or (word[:1].isupper() and word.lower() in self._own.words)
        return word if kept else self.path(word)

    def _token(self, found: re.Match[str]) -> str:
        if found[1] is not None:
            quote = found[1][0]
            return f"{quote}{self.path(found[1][1:-1])}{quote}"
        token = found[2]
        core = token.strip(EDGES)
        if not core:
            return token
        start = token.index(core)
        return token[:start] + self._word(core) + token[start + len(core) :]

    def _word(self, word: str) -> str:
        if word.lower() in self._own.words or _AMOUNT.fullmatch(word) or word in self._own.modules:
            return word
        return self.path(word)

    def value(self, value: str) -> str:
        """What was put into a message, or stands as a figure: alone it is a name, if it is nothing known."""
        if not value or value in _CHOICES:
            return value
        return self.text(value) if " " in value and not value.startswith("/") else self.path(value)

    def line(self, line: str) -> str:
        """A line of a log."""
        stamped = _LINE.fullmatch(line)
        if stamped is None:
            frame = _FRAME.fullmatch(line)
            return self.text(line) if frame is None else self._frame(*frame.groups())
        before, logger, text = stamped.groups()
        shown = logger if logger in _LOGGERS or logger in self._own.modules else self.path(logger)
        return f"{before}{shown}: {self._said(logger, text)}"

    def _frame(self, before: str, file: str, number: str, function: str) -> str:
        shown = self.path(file)
        return f"{before}{shown}{number}{function if shown == file else ''}"

    def _said(self, logger: str, text: str) -> str:
        found = self._own.message(logger, text)
        if found is None:
            return self.text(text)
        message, match = found
        shown, end = [], 0
        for group, is_own in enumerate(message.own, 1):
            value = match[group]
            shown += [text[end : match.start(group)], value if is_own and self._is_own(value) else self.value(value)]
            end = match.end(group)
        return "".join([*shown, text[end:]])

    def _is_own(self, value: str) -> bool:
        """Looked at all the same: where a name holds the words between two values, the second begins within it."""
        return _NUMBER.fullmatch(value) is not None or value in self._own.functions or value in self._own.errors

    def tree(self, found: Any, key: str = "") -> Any:  # noqa: ANN401 - JSON
        """Figures, as JSON has them. Keys that are no words of ours are names too."""
        if isinstance(found, dict):
            return {self._key(name, key): self.tree(value, name) for name, value in found.items()}
        if isinstance(found, list):
            return [self.tree(value, key) for value in found]
        if not isinstance(found, str):
            return found
        if key in _ALWAYS_NAMES:
            return self.path(found) if found else found
        return found if key in _NEVER_NAMES or found in self._own.texts else self.value(found)

    def _key(self, name: str, above: str) -> str:
        known = name in self._own.fields or name in self._own.words
        return name if known and above not in _ALWAYS_NAMES else self.path(name)
