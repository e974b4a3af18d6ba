"""The pages of the documentation as tests read them: their code, and the calls of our programs in it.

Reads text only.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("hfs", "hfs-hint")

# A fenced block, or an indented one behind an empty line.
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```|(?<=\n\n)((?: {4}[^\n]*\n)+)", flags=re.MULTILINE | re.DOTALL)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, code) of each block of code, in the order of the page; an indented one has no language."""
    for found in _BLOCK.finditer(text):
        if found[3] is not None:
            yield "", re.sub(r"^ {4}", "", found[3], flags=re.MULTILINE)
        else:
            yield found[1], found[2]


def code_in_lines(text: str) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", text)


def calls(text: str) -> Iterator[list[str]]:
    """The words of each call of ours: in code blocks at the beginning of a line, or behind a launcher; in lines, where
    the code begins with the program."""
    for _, block in blocks(text):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            words = words_of(re.sub(r"^\s*\$ ", "", line))
            for i, word in enumerate(words):
                if word in PROGRAMS:
                    yield words[i:]
                    break
    for code in code_in_lines(text):
        words = words_of(code)
        if words and words[0] in PROGRAMS:
            yield words


def words_of(line: str) -> list[str]:
    line = line.replace(r"\|", "|")
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()
