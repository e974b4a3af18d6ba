"""Any tree of figures as tables.

`hfs status`, `hfs run` and `hfs cache` print through this file. It knows units by the ends of names (`_bytes`, `_s`,
`_ns`) and no figure by itself, so what a newer daemon tells shows up too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import IO, Any, cast

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hfs.cli.figures import figure
from hfs.mountd.core.errors import printable

_PIPE_COLUMNS = 160
"""Into a file or a pipe there is no terminal whose width would matter; lines should not be folded at 80."""

_ROOMY = 7
"""So many columns stand three blanks apart; more of them have two."""


def stdout() -> Console:
    """Results."""
    return Console() if sys.stdout.isatty() else _piped(sys.stdout)


def stderr() -> Console:
    """Progress and summaries."""
    return Console(stderr=True) if sys.stderr.isatty() else _piped(sys.stderr)


def _piped(file: IO[str]) -> Console:
    return Console(file=cast("IO[str]", _Unpadded(file)), width=_PIPE_COLUMNS)


class _Unpadded:
    """A file that is given no blanks at the ends of lines: Rich fills up all lines of a table to one width."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def render_tree(tree: Mapping[str, Any]) -> Iterator[Table]:
    """A table of what is plain in the tree, then one for each of its branches.

    A branch whose values are all maps with the same keys has these as columns; deeper ones are written a.b.
    """
    plain = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    if plain:
        yield _two_columns("", plain)
    for name, branch in tree.items():
        if isinstance(branch, dict) and branch:
            yield _columns(name, branch) or _two_columns(name, dict(_flat(branch)))


def new_table(title: str, *columns: str) -> Table:
    """A table with these columns, whose cells are folded, and no word of whose titles is cut on 80 columns; without any
    it shows no header."""
    table = Table(
        title=escape(printable(title)) or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_header=bool(columns),
        pad_edge=False,
        padding=(0, 1, 0, 0) if len(columns) > _ROOMY else (0, 1),
    )
    for column in columns:
        widest = max(map(len, printable(column).split()), default=0)
        table.add_column(escape(printable(column)), overflow="fold", min_width=widest)
    return table


def _two_columns(title: str, branch: Mapping[str, Any]) -> Table:
    table = new_table(title.replace("_", " "))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in branch.items():
        # Within "read_bytes" every figure is one of bytes.
        unit = name if not title.endswith("_bytes") or not isinstance(value, int) else title
        table.add_row(escape(printable(_label(name))), escape(figure(unit, value)))
    return table


def _label(name: str) -> str:
    """Words; the unit stands with the value."""
    return name.removesuffix("_ns").removesuffix("_s").replace("_", " ")


def _columns(title: str, branch: Mapping[str, Any]) -> Table | None:
    rows = list(branch.values())
    if not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        return None
    table = new_table(title.replace("_", " "), "", *map(str, rows[0]))
    for name, row in branch.items():
        table.add_row(
            escape(printable(name)), *(escape(figure(name if c == "value" else c, v)) for c, v in row.items())
        )
    return table


def _flat(branch: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in branch.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
