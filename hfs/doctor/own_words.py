"""`OwnWords`: what hfs itself says, taken from its own source text, so that the rest of a log can be told from it.

Log lines are made of a text of ours and what was put into it. The texts stand in the installed files: the messages of
each module, with their places for values, and the words of all strings. What is in neither came from outside. Where
there is no source text there are no words, and everything counts as from outside.
"""

from __future__ import annotations

import ast
import builtins
import errno
import os
import re
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[2]
_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
_PLACE = re.compile(r"%(?:%|\((\w+)\))?[-#0 +]*[\d.]*([sdrgfxi])?")
_NUMBER, _ANYTHING = r"([-+]?[\d.]+(?:e[-+]?\d+)?)", "(.*?)"
_LEAST = 4
"""Letters of ours that a message must have to be known by them."""
EDGES = string.punctuation.translate(str.maketrans("", "", "<>/_%+~"))
"""What stands before and behind words, and is none of them."""
_OWN_ATTRIBUTES = {"__name__", "strerror", "pid"}
"""What is said of an object and is no name of a file, whatever the object."""


class Message(NamedTuple):
    """The text of a log call."""

    texts: tuple[str, ...]
    """Between, before and behind the places for values."""
    pattern: re.Pattern[str]
    own: tuple[bool, ...]
    """Of each place for a value, whether no name of a file can stand there."""

    @property
    def letters(self) -> int:
        """How many of the text are ours."""
        return sum(len(re.findall(r"\w", text)) for text in self.texts)


class OwnWords:
    """Read once, when it is made: some hundred files, about a second."""

    def __init__(self, root: Path = _ROOT) -> None:
        self.words = set(_outside_words())
        """In lower case, without punctuation around them."""
        self.texts: set[str] = set()
        """Whole strings of several words."""
        self.fields: set[str] = set()
        """Names of fields: keys of what is told as JSON."""
        self.functions: set[str] = set()
        """Names of functions: what requests are called."""
        self.modules: set[str] = set()
        """In full."""
        self.errors = {os.strerror(number) for number in errno.errorcode}
        """What the system calls its errors."""
        self._messages: dict[str, list[Message]] = {}
        # Of a checkout, the daemon and its decisions are links in the folder of the package.
        for folder, _, names in sorted(os.walk(root / "hfs", followlinks=True)):
            for path in sorted(Path(folder, name) for name in names if name.endswith(".py")):
                try:
                    tree = ast.parse(path.read_bytes())
                except (OSError, SyntaxError):
                    continue
                self._read(tree, ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))

    def message(self, logger: str, text: str) -> tuple[Message, re.Match[str]] | None:
        """What a module has said, and the values in it; None: no message of it."""
        found = None
        for message in self._messages.get(logger, []):
            match = message.pattern.fullmatch(text)
            if match is not None and (found is None or message.letters > found[0].letters):
                found = message, match
        return found

    def messages(self) -> Iterator[tuple[str, Message]]:
        """All that is known, with the name of their log."""
        for logger, messages in self._messages.items():
            for message in messages:
                yield logger, message

    def _read(self, tree: ast.Module, module: str) -> None:
        # The keeper's modules write into the log under one name.
        logger = "hfs.mountd.supervisor" if module.startswith("hfs.mountd.supervisor") else module
        self.modules.add(module)
        stories = set(_stories(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in stories:
                self.words.update(words_of(node.value))
                if " " in node.value:
                    self.texts.add(node.value)
            elif isinstance(node, ast.ClassDef):
                self.words.add(node.name.lower())
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.fields.add(node.target.id)
            elif isinstance(node, ast.keyword) and node.arg is not None:
                self.fields.add(node.arg)
            elif isinstance(node, ast.Call) and (message := _message(node)) is not None:
                self._messages.setdefault(logger, []).append(message)


def words_of(text: str) -> Iterator[str]:
    """The words of a text as `OwnWords.words` has them."""
    for token in text.split():
        word = token.strip(EDGES).lower()
        if word and not re.search(r"[%{}\\]", word):
            yield word


def _outside_words() -> Iterator[str]:
    """Of the system's and the language's errors."""
    for number in errno.errorcode:
        yield from words_of(os.strerror(number))
    yield from (name.lower() for name in dir(builtins) if isinstance(getattr(builtins, name), type))
    yield from ("errno", "traceback", "(most", "most", "recent", "call", "last")


def _stories(tree: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings: they are never said."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def _message(call: ast.Call) -> Message | None:
    """Of log.warning("...%s", ...) and of the keeper's log.warning(f"...{...}")."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _LEVELS or not call.args:
        return None
    said = call.args[0]
    if isinstance(said, ast.Constant) and isinstance(said.value, str):
        return _of_format(said.value, call.args[1:])
    if isinstance(said, ast.JoinedStr):
        return _of_parts(said.values)
    return None


def _of_parts(parts: Sequence[ast.expr]) -> Message | None:
    texts: list[str] = [""]
    patterns: list[str] = []
    own: list[bool] = []
    for part in parts:
        if isinstance(part, ast.FormattedValue):
            texts.append("")
            patterns.append(_ANYTHING)
            own.append(_is_own(part.value))
        elif isinstance(part, ast.Constant):
            texts[-1] += str(part.value)
    return _made(texts, patterns, own)


def _of_format(text: str, values: Sequence[ast.expr]) -> Message | None:
    texts: list[str] = [""]
    patterns: list[str] = []
    own: list[bool] = []
    end = 0
    for place in _PLACE.finditer(text):
        texts[-1] += text[end : place.start()]
        end = place.end()
        if place[0] == "%%":
            texts[-1] += "%"
            continue
        is_number = place[2] in {"d", "g", "f", "i"}
        texts.append("")
        patterns.append(_NUMBER if is_number else _ANYTHING)
        own.append(is_number or (len(own) < len(values) and _is_own(values[len(own)])))
    texts[-1] += text[end:]
    return _made(texts, patterns, own)


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and value.attr in _OWN_ATTRIBUTES


def _made(texts: Sequence[str], patterns: Sequence[str], own: Sequence[bool]) -> Message | None:
    """`patterns`: of the values, one fewer than the texts. None: there is too little of ours to know it by."""
    pattern = re.escape(texts[0]) + "".join(
        value + re.escape(text) for value, text in zip(patterns, texts[1:], strict=True)
    )
    message = Message(tuple(texts), re.compile(pattern, re.DOTALL), tuple(own))
    return message if message.letters >= _LEAST else None
