"""Words in names of the product: those that were given up name nothing, and each of some others names one class."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.layers import ROOT, project_files

BANNED = ("believ", "doubt", "bequest", "vouch", "disown", "homeless")
"""Beginnings of words that no function, class, parameter or attribute has."""
CLASSES = {
    "held": {},
    "turn": {"FetchTurns": "how many fetches that nobody waits for may be under way, and who is next"},
    "place": {"Place": "one read that waits until it may go; `policies.cluster.stagger`"},
    "kept": {},
    "told": {"ToldOrder": "the order of an epoch, as the daemon was sent it"},
    "heard": {},
    "grant": {"SlotGranted": "the answer of a coordinator: the node that grants read slots"},
    "claim": {},
}
"""Classes that have these words, and what is meant: one thing for each word."""


def words(name: str) -> list[str]:
    """In lower case, and one of several without its s."""
    return [word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def names_of(text: str) -> Iterator[tuple[str, bool]]:
    """(name, whether a class has it) of all functions, classes, parameters and attributes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, isinstance(node, ast.ClassDef)
        elif isinstance(node, ast.arg):
            yield node.arg, False
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, False


def wrong_words(text: str) -> list[str]:
    found = []
    for name, is_class in names_of(text):
        banned = any(word.startswith(BANNED) for word in words(name))
        second = is_class and any(name not in CLASSES[word] for word in words(name) if word in CLASSES)
        found += [name] if banned or second else []
    return found


def test_names_have_the_words_of_the_design() -> None:
    product = [each for each in project_files(ROOT) if re.match(r"(hfs|mountd|policies)/.*\.py$", each[0])]
    assert {file: wrong for file, text in product if (wrong := wrong_words(text))} == {}


@pytest.mark.parametrize("text", ["def doubted(): ...", "a.believed = 1", "class HeldMount: ...", "class Turns: ..."])
def test_a_wrong_word_is_found(text: str) -> None:
    assert len(wrong_words(text)) == 1
    assert wrong_words("class FetchTurns: held = 5") == []
