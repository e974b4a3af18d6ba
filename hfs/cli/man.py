"""`hfs man`: the man pages of this release, made of what the commands themselves say.

One page a command (hfs-cache-warm.1) and one for each program. The text is that of `--help`; here it becomes man(7).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

import hfs
from hfs.cli.command import Command, contexts, first_sentence
from hfs.cli.exit_codes import TABLE, Meaning
from hfs.cli.figures import count
from hfs.mountd.core.errors import ConfigError, MountError

_COLUMNS = {"hfs doctor": "doctor", "hfs run": "run", "mount.fuse.hfs": "helper"}
"""The column of the exit codes for programs that have one of their own."""


@click.command(cls=Command, examples=["hfs man status | man -l -", "hfs man --to ~/.local/share/man"])
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.option("--to", "directory", metavar="DIR", help="Write all pages below this directory, in man1.")
def man(words: tuple[str, ...], directory: str | None) -> None:
    """Print the man page of COMMAND (hfs itself without one), or write those of all commands below a directory."""
    pages = dict(_all_pages())
    if directory is None:
        name = " ".join(words if not words or " ".join(words) in pages else ["hfs", *words]) or "hfs"
        if name not in pages:
            raise ConfigError(f"{name}: no such command; hfs --help lists them")
        click.echo(pages[name], nl=False)
        return
    if words:
        raise ConfigError("COMMAND and --to: give one of them; --to writes all pages")
    place = os.path.join(directory, "man1")
    try:
        os.makedirs(place, exist_ok=True)
        for name, text in pages.items():
            with open(os.path.join(place, file_name(name)), "w", encoding="utf-8") as page:
                page.write(text)
    except OSError as error:
        raise MountError(
            f"{error.filename or place}: cannot be written ({error.strerror}); give another --to"
        ) from None
    click.echo(f"{place}: {count(len(pages), 'page')}")


def file_name(name: str) -> str:
    """Of the page of a command, `hfs cache warm`."""
    return f"{name.replace(' ', '-')}.1"


def _all_pages() -> Iterator[tuple[str, str]]:
    from hfs.cli import cli
    from hfs.cli.hint import hint
    from hfs.cli.mount_helper import helper

    programs: tuple[tuple[str, click.Command], ...] = (("hfs", cli), ("hfs-hint", hint), ("mount.fuse.hfs", helper))
    for name, program in programs:
        for context in contexts(program, name):
            yield context.command_path, page(context)


def page(context: click.Context) -> str:
    """The man page of a command, as man(7) has it."""
    command, path = context.command, context.command_path
    name = path.replace(" ", "-")
    lines = [
        f'.TH "{name.upper()}" "1" "" "hfs {hfs.__version__}" "hfs"',
        *(".SH NAME", f"{_plain(name)} \\- {_plain(first_sentence(command))}"),
        *(".SH SYNOPSIS", f".B {_plain(path)}", _plain(" ".join(command.collect_usage_pieces(context)))),
        ".SH DESCRIPTION",
    ]
    for number, paragraph in enumerate((command.help or "").split("\n\n")):
        lines += [*([".PP"] if number else []), _plain(" ".join(paragraph.split()))]
    lines += [".SH OPTIONS"]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            lines += [".TP", f".B {_plain(record[0])}", _plain(" ".join(record[1].split()))]
    if isinstance(command, click.Group):
        lines += [".SH COMMANDS"]
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            lines += [".TP", f".BR {_plain(f'{path} {word}'.replace(' ', '-'))} (1)", _plain(first_sentence(below))]
    if isinstance(command, Command) and command.examples:
        lines += [".SH EXAMPLES", ".nf", *(_plain(line) for line in command.examples), ".fi"]
    lines += [".SH EXIT STATUS"]
    for meaning in TABLE:
        if text := _meaning(meaning, path):
            lines += [".TP", f".B {_plain(meaning.code)}", _plain(text)]
    others = [f".BR {_plain(each.replace(' ', '-'))} (1)" for each in _related(context)]
    lines += [".SH SEE ALSO", *(f"{line}," for line in others[:-1]), *others[-1:]] if others else []
    return "\n".join(lines) + "\n"


def _meaning(meaning: Meaning, path: str) -> str:
    text = getattr(meaning, _COLUMNS.get(path, "hfs"))
    assert isinstance(text, str)
    return text


def _related(context: click.Context) -> list[str]:
    """The commands above, and the other program."""
    above = context.parent.command_path if context.parent is not None else ""
    return [above] if above else {"hfs": ["hfs-hint", "mount.fuse.hfs"]}.get(context.command_path, ["hfs"])


def _plain(text: str) -> str:
    """Text that man(7) takes for nothing else."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in {".", "'"} else text
