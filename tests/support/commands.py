"""All commands of a program, as click has them."""

from collections.abc import Iterator

import click


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """(name as it is typed, command) of this one and of all below it."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from commands(found, f"{name} {word}")
