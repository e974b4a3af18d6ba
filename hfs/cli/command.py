"""What all commands of `hfs` have in common: examples in their help, paths that the shell completes, and faults of the
command line in one line with the way to the help.

Knows nothing of what a command does. `hfs.cli.man` writes the same as man pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from hfs.cli import streams
from hfs.mountd.base.errors import HfsError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PATHS = frozenset({
    *("DIR", "FILE", "FILE...", "PATH", "LIST", "NPY", "LAYOUT", "OUT", "TRACE", "SRC", "DST"),
    *("SIZE|PATH", "SOURCE", "MOUNTPOINT", "source", "mountpoint", "trace"),
})  # fmt: skip
"""What a parameter is called that takes a path."""


class _Path(click.types.StringParamType):
    """A path, taken as it is: the shell completes it, and whoever uses it judges it."""

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's
        param: click.Parameter,  # noqa: ARG002 - click's
        incomplete: str,
    ) -> list[CompletionItem]:
        """Files and directories, as the shell lists them."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


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


class Command(click.Command):
    """A command with examples behind its options."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **extra: Any) -> None:
        """`examples`: whole lines, as they are typed."""
        super().__init__(*arguments, **extra)
        self.examples = tuple(examples)
        for parameter in self.params:
            if {parameter.metavar, parameter.name} & _PATHS and type(parameter.type) in _TEXTS:
                parameter.type = _Path()

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


class CommandGroup(click.Group):
    """Turns every error of ours into its lines and its exit code, and a fault of the command line into one line."""

    command_class = Command

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
        """Run the command. Raises click's Exit with the code of an HfsError, or where the daemon is not installed that
        the command needs."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _in_a_line(error) from None
        except HfsError as error:
            from hfs.cli.exit_codes import code_of
            from hfs.cli.shared import complain_of

            complain_of(error)
            raise click.exceptions.Exit(code_of(error)) from None
        except ModuleNotFoundError as error:
            from hfs.cli.shared import complain
            from hfs.mounting import daemon_part

            reason = daemon_part.why_missing() if error.name in daemon_part.NAMES else None
            if reason is None:
                raise
            complain(reason)
            raise click.exceptions.Exit(1) from None


def first_sentence(command: click.Command) -> str:
    """What a command does, in a sentence."""
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return text.split(". ")[0].rstrip(".")


def _in_a_line(error: click.UsageError) -> click.UsageError:
    if isinstance(error, WrongUsage | click.exceptions.NoArgsIsHelpError):
        return error
    return WrongUsage(error.format_message(), error.ctx, error.exit_code)
