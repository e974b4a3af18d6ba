"""What all commands of `hfs` have in common: examples in their help, paths and words that the shell completes, faults
of the command line in one line with what is meant or the way to the help, and the end after Ctrl-C.

Knows nothing of what a command does. `hfs.cli.man` writes the same as man pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from hfs.cli import streams
from hfs.mountd.core.errors import HfsError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PATHS = frozenset({
    *("DIR", "FILE", "FILE...", "PATH", "LIST", "NPY", "LAYOUT", "OUT", "TRACE", "SRC", "DST"),
    *("SIZE|PATH", "SOURCE", "MOUNTPOINT", "source", "mountpoint", "trace"),
})  # fmt: skip
"""What a parameter is called that takes a path."""


class _Completed(click.types.StringParamType):
    """A text, taken as it is, since whoever uses it judges it; the shell completes it: as one of `words`, else as a
    path."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._words = words

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's
        param: click.Parameter,  # noqa: ARG002 - click's
        incomplete: str,
    ) -> list[CompletionItem]:
        """The words that begin so; or files and directories, as the shell lists them."""
        from click.shell_completion import CompletionItem

        if not self._words:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


class WrongUsage(click.UsageError):
    """A fault of the command line, in one line."""

    def __init__(self, message: str, ctx: click.Context | None, exit_code: int = 2) -> None:
        super().__init__(message, ctx)
        self._exit_code = exit_code

    @property
    def exit_code(self) -> int:  # type: ignore[override] # click has a variable of the class
        """2, or what the command has for it."""
        return self._exit_code

    def show(self, file: IO[Any] | None = None) -> None:
        """Say it on stderr, with the command whose help says what is allowed."""
        message = " ".join(self.format_message().split()).rstrip(".")
        message = message[:1].lower() + message[1:]
        program = "hfs --help" if self.ctx is None else f"{self.ctx.command_path} --help"
        click.echo(f"hfs: {message}; see {program}", file=file, err=True)


class _NoCommand(WrongUsage):
    """Of a group: its help, and the fault below it."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Say both on stderr."""
        assert self.ctx is not None
        click.echo(f"{self.ctx.get_help()}\n", file=file, err=True)
        super().show(file)


class Command(click.Command):
    """A command with examples behind its options."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **extra: Any) -> None:
        """`examples`: whole lines, as they are typed."""
        super().__init__(*arguments, **extra)
        self.examples = tuple(examples)
        for parameter in self.params:
            if {parameter.metavar, parameter.name} & _PATHS and type(parameter.type) in _TEXTS:
                parameter.type = _Completed()
            elif type(parameter.type) in _TEXTS and len(words := (parameter.metavar or "").split("|")) > 1:
                parameter.type = _Completed(words)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, which does not say whose option has no value. Raises click's UsageError."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        """Run the command. Raises click's Exit where it was to print and cannot."""
        streams.begin(ctx.info_name)
        try:
            return super().invoke(ctx)
        except streams.CannotPrint as error:
            from hfs.cli.shared import complain

            streams.begin(None)  # what is left is left out
            complain(str(error))
            raise click.exceptions.Exit(1) from None

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - click's
        """The first sentence, whole, for the list of commands."""
        return first_sentence(self)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, each on a line of its own whatever its length: lines are copied."""
        if self.examples:
            with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)


_TEXTS = (click.types.StringParamType, click.types.UnprocessedParamType)


_MEANT = {
    **dict.fromkeys(("ls", "list", "ps", "info", "stats", "mounts", "df"), "hfs status"),
    **dict.fromkeys(("top", "monitor", "watch"), "hfs status --watch"),
    **dict.fromkeys(("hint", "hints"), "hfs-hint"),
    **dict.fromkeys(("warmup", "preload", "prefetch", "stage"), "hfs cache warm"),
    "pin": "hfs cache warm --pin",
    **dict.fromkeys(("rm", "remove", "delete", "clear", "drop", "purge", "unstage", "unwarm"), "hfs cache evict"),
    **dict.fromkeys(("clean", "cleanup", "gc", "prune"), "hfs sweep"),
    **dict.fromkeys(("hfs cache clean", "hfs cache prune"), "hfs cache evict"),
    "hfs cache ls": "hfs cache list",
    **dict.fromkeys(("exec", "start"), "hfs run"),
    **dict.fromkeys(("unmount", "dismount", "stop"), "hfs umount"),
    **dict.fromkeys(("diagnose", "health"), "hfs doctor"),
    **dict.fromkeys(("report", "logs"), "hfs debug bundle"),
    "reload": "hfs refresh",
    "version": "hfs --version",
}
"""What people who know other programs type, and what it is here. A word alone is one of the two programs themselves, or
of the group that has what it is here; of other groups it may be anything."""
_NEARLY = 0.75
"""So alike a word and a command of another group are, where it is meant by it."""
_GONE = {
    "hfs status --plot": "hfs mount --metrics has monitoring draw the traffic (docs/monitoring.md)",
    "hfs plan --imbalance": "hfs plan --step-samples N counts it into its epochs",
}
"""Options that earlier builds had, and what there is instead."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C, and what has become of the work, for people."""


class CommandGroup(click.Group):
    """Turns every error of ours into its lines and its exit code, and a fault of the command line into one line."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's. Raises WrongUsage, which says what may be meant."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            meant = self.meant(ctx, name)
            raise WrongUsage(f"no such command {name!r}" + (f" (did you mean {meant}?)" if meant else ""), ctx)
        return super().resolve_command(ctx, args)

    def meant(self, ctx: click.Context, name: str) -> str | None:
        """The command lines of both programs that may be meant by a name that is no command of this group."""
        import difflib

        here, name = ctx.command_path, name.lower()
        if name == "help":
            return f"{here} --help"
        meaning = _MEANT.get(f"{here} {name}") or _MEANT.get(name, "")
        if meaning and (ctx.parent is None or meaning.startswith(here)):
            return meaning
        paths = _paths_of_commands()
        if name in paths:
            return " or ".join(paths[name])
        if near := difflib.get_close_matches(name, self.list_commands(ctx), n=1):
            return f"{here} {near[0]}"
        near = difflib.get_close_matches(name, paths, n=1, cutoff=_NEARLY)
        return " or ".join(paths[near[0]]) if near else None

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - click's
        """The first sentence, whole."""
        return first_sentence(self)

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Parse. Raises WrongUsage."""
        try:
            return super().make_context(*arguments, **extra)
        except click.UsageError as error:
            raise _in_a_line(error) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Raises click's Exit with the code of an HfsError, after Ctrl-C, or where the daemon is not
        installed that the command needs."""
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _in_a_line(error) from None
        except HfsError as error:
            from hfs.cli.exit_codes import code_of
            from hfs.cli.shared import complain_of

            complain_of(error)
            raise click.exceptions.Exit(code_of(error)) from None
        except KeyboardInterrupt as stopped:
            from hfs.cli.shared import complain

            complain("interrupted" + (f": {stopped}" if stopped.args else ""))
            raise click.exceptions.Exit(1) from None
        except OSError as error:
            if error.filename is None:
                raise  # not of a path that was given
            from hfs.cli.shared import complain

            complain(f"{os.fsdecode(error.filename)}: cannot be used ({error.strerror}); give another")
            raise click.exceptions.Exit(1) from None
        except ModuleNotFoundError as error:
            from hfs.cli.shared import complain
            from hfs.mounting import own_process

            reason = own_process.why_missing() if error.name in own_process.DAEMON_MODULES else None
            if reason is None:
                raise
            complain(reason)
            raise click.exceptions.Exit(1) from None


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Of a command and all below it."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=80)
    yield context
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield from contexts(below, word, context)


def _paths_of_commands() -> dict[str, list[str]]:
    """How the commands of each name are called, of both programs and their groups."""
    from hfs.cli import cli
    from hfs.cli.hint import hint

    paths: dict[str, list[str]] = {}
    for context in (*contexts(cli, "hfs"), *contexts(hint, "hfs-hint")):
        if context.parent is not None and context.info_name is not None:
            paths.setdefault(context.info_name, []).append(context.command_path)
    return paths


def first_sentence(command: click.Command) -> str:
    """What a command does, in a sentence."""
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return text.split(". ")[0].rstrip(".")


def _in_a_line(error: click.UsageError) -> click.UsageError:
    if isinstance(error, WrongUsage):
        return error
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return _NoCommand("give one of these commands", error.ctx)
    return WrongUsage(said(error), error.ctx, error.exit_code)


def said(error: click.UsageError) -> str:
    """The message of click, which knows nothing of keys that have no option of their own."""
    if isinstance(error, click.NoSuchOption):
        from hfs.mountd.core.config import KEYS

        if error.ctx and (instead := _GONE.get(f"{error.ctx.command_path} {error.option_name}")):
            return f"no option {error.option_name} any more: {instead}"
        name = error.option_name.lstrip("-")
        takes_keys = error.ctx and any(one.name == "options" for one in error.ctx.command.params)
        if takes_keys and any(key.name == name for key in KEYS):
            return f"no option {error.option_name}: give that key as -o {name}=VALUE"
        if error.possibilities:
            return f"no such option {error.option_name!r} (did you mean {' or '.join(sorted(error.possibilities))}?)"
    return error.format_message()
