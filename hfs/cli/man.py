"""`hfs man` and `hfs completion SHELL`: what people have of our commands beside `--help`, made of the same text.

One man page a command (hfs-cache-warm.1) and one for each program: its help, with what man(1) wants around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
from click.shell_completion import get_completion_class

import hfs
from hfs.cli.command import Command, contexts, first_sentence
from hfs.cli.exit_codes import TABLE
from hfs.cli.figures import count
from hfs.mountd.core.errors import ConfigError, MountError

_COLUMNS = {"hfs doctor": "doctor", "hfs run": "run", "mount.fuse.hfs": "helper"}
"""The column of the exit codes for programs that have one of their own."""


@click.command(cls=Command, examples=['eval "$(hfs completion bash)"', "hfs completion fish | source"])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL for hfs and hfs-hint.

    Paths are completed, and mountpoints of hfs where a mount is meant.
    """
    from hfs.cli.hint import hint

    kind = get_completion_class(shell)
    if kind is None:
        raise MountError(f"this release of click knows no completion for {shell}; update click")
    for program, command in (("hfs", ctx.find_root().command), ("hfs-hint", hint)):
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        click.echo(kind(command, {}, program, variable).source())


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
            with open(os.path.join(place, f"{_page_name(name)}.1"), "w", encoding="utf-8") as page:
                page.write(text)
    except OSError as error:
        where = error.filename or place
        raise MountError(f"{where}: cannot be written ({error.strerror}); give another --to") from None
    click.echo(f"{place}: {count(len(pages), 'page')}")


def _all_pages() -> Iterator[tuple[str, str]]:
    from hfs.cli import cli
    from hfs.cli.hint import hint
    from hfs.cli.mount_helper import helper

    programs: tuple[tuple[str, click.Command], ...] = (("hfs", cli), ("hfs-hint", hint), ("mount.fuse.hfs", helper))
    for name, program in programs:
        for context in contexts(program, name):
            yield context.command_path, _page(context)


def _page_name(path: str) -> str:
    return path.replace(" ", "-")


def _page(context: click.Context) -> str:
    """As man(7) has it."""
    path = context.command_path
    lines = [
        f'.TH "{_page_name(path).upper()}" "1" "" "hfs {hfs.__version__}" "hfs"',
        *(".SH NAME", f"{_plain(_page_name(path))} \\- {_plain(first_sentence(context.command))}"),
        *(".SH DESCRIPTION", ".nf", *map(_plain, context.command.get_help(context).splitlines()), ".fi"),
        ".SH EXIT STATUS",
    ]
    for meaning in TABLE:
        if text := str(getattr(meaning, _COLUMNS.get(path, "hfs"))):
            lines += [".TP", f".B {_plain(meaning.code)}", _plain(text)]
    others = {"hfs": ["hfs-hint", "mount.fuse.hfs"]}.get(path, ["hfs"])
    others = others if context.parent is None else [context.parent.command_path]
    words = context.command.list_commands(context) if isinstance(context.command, click.Group) else ()
    related = [*others, *(f"{path} {word}" for word in words)]
    links = [f".BR {_plain(_page_name(each))} (1)" for each in related]
    return "\n".join([*lines, ".SH SEE ALSO", *(f"{link}," for link in links[:-1]), links[-1]]) + "\n"


def _plain(text: str) -> str:
    """Text that man(7) takes for nothing else."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in {".", "'"} else text
