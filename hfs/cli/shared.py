"""What several commands share: the options of a mount, messages, finding the mount that a path means.

Nothing here prints to stdout.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from hfs.client.client import Client, find_socket
from hfs.mounting import mountinfo
from mountd.base.errors import ConfigError
from mountd.core.config import KEYS, Config
from mountd.core.config.key import Key
from mountd.core.config.loading import config_files, load, state_directory

_Command = TypeVar("_Command", bound=Callable[..., Any])

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with what is not UTF-8 escaped, so that any terminal takes it, and what a terminal would obey: names of
    files and learners are other users' words."""
    text = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    return text.encode("utf-8", "backslashreplace").decode()


def complain(text: str) -> None:
    """Say it on stderr, `hfs: ` before each line; indented lines belong to the one before."""
    for line in text.splitlines():
        click.echo(printable(line if line.startswith(" ") else f"hfs: {line}"), err=True)


def _option(key: Key) -> Callable[[_Command], _Command]:
    """The option of a key. Its value is plain text here: `config_loading` judges it, so that all faults are told
    together."""
    if not key.kind.metavar:
        return click.option(f"--{key.name}", is_flag=True, default=None, help=key.help)
    default = "" if key.missing else f" [default: {key.default}]".replace("`", "")
    return click.option(f"--{key.name}", metavar=key.kind.metavar, help=key.help + default)


_FLAGS: tuple[Callable[[_Command], _Command], ...] = (
    *(_option(key) for key in KEYS if key.option),
    click.option("-v", "--verbose", is_flag=True, help="Log more (log-level=debug), say how reads will be served."),
    click.option("-o", "options", metavar="KEY=VALUE,...", multiple=True, help="Any key of the configuration."),
    click.option("--config", "config_file", metavar="FILE", help="Read this TOML file instead of the usual two."),
)


def mount_flags(command: _Command) -> _Command:
    """Add the options that `hfs mount`, `hfs run` and `hfs config` share."""
    for option in reversed(_FLAGS):
        command = option(command)
    return command


def load_config(arguments: Mapping[str, Any], *, required: bool = True) -> tuple[Config, dict[str, str]]:
    """The configuration from a command's arguments, the environment and the files. Raises ConfigError."""
    given = dict(arguments)
    options, config_file = given.pop("options"), given.pop("config_file")
    if given.pop("verbose"):
        given["log_level"] = "debug"
    files = config_files(os.environ, config_file)
    return load(given, os.environ, files, options=options, required=required, warn=complain)


def prepared(config: Config) -> Config:
    """The same with absolute paths, and a log file unless in the foreground."""
    from hfs.mounting import logs
    from hfs.mounting.preflight import absolute

    config = absolute(config)
    if config.log_file is None and not config.foreground:
        config = msgspec.structs.replace(config, log_file=logs.default_log_file(config, state_directory(os.environ)))
    return config


def without_stale(config: Config) -> Config:
    """The same, once a mount that a dead daemon has left at MOUNTPOINT is out of the way."""
    from hfs.mounting import mounting

    if mounting.clean_stale(config.mountpoint):
        complain(f"{config.mountpoint}: removed the mount that a dead daemon had left")
    return config


@contextlib.contextmanager
def hold() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that what it has started is taken back."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


control_option = click.option(
    "--control", metavar="PATH", help="The daemon's control socket, where the mount is not seen."
)


class MountTarget(NamedTuple):
    """A mount that a command works on, and the paths that were given below it."""

    mountpoint: str
    client: Client
    paths: list[bytes]
    """Relative to its root; b"" is the root."""
    part: str = ""
    """The directory of the mount that is seen at `mountpoint`; empty: all of it."""

    def named(self, path: bytes) -> bytes:
        """A path relative to `mountpoint` as the daemon names it."""
        return b"/".join(piece for piece in (os.fsencode(self.part), path) if piece)

    def seen(self, path: bytes) -> bytes | None:
        """The inverse; None: it is not seen here."""
        part = os.fsencode(self.part)
        if not part or path == part:
            return path[len(part) :]
        return path[len(part) + 1 :] if path.startswith(part + b"/") else None

    def shown(self, path: bytes) -> str:
        """A path of this mount as the user would write it."""
        seen = self.seen(path)
        if seen is None:
            return f"{os.fsdecode(path)} (not seen at {self.mountpoint})"
        return os.path.join(self.mountpoint, os.fsdecode(seen)) if seen else self.mountpoint


def target_of(path: str, control: str | None = None) -> MountTarget:
    """The mount that a path lies in. Raises ConfigError when it lies in none, DaemonSilent when that is dead."""
    (target,) = targets_of([path], control)
    return target


def targets_of(paths: Iterable[str], control: str | None = None) -> list[MountTarget]:
    """The mounts that the paths lie in, each with its paths, in the order of their first path.

    With `control` they are all of the mount behind that socket, as its daemon names it.
    """
    found: dict[str, MountTarget] = {}
    if control is not None:
        client = Client(control)
        mountpoint = str(client.status()["mountpoint"])
        found[mountpoint] = MountTarget(mountpoint, client, [])
    table = mountinfo.mounts()
    for path in paths:
        place, part = mountinfo.canonical(path, table), ""
        if control is not None:
            mountpoint = next(iter(found))
            inside = place == mountpoint or place.startswith(mountpoint.rstrip("/") + "/")
        else:
            mount = mountinfo.enclosing(place, table)
            inside = mount is not None and mount.fstype == mountinfo.HFS_TYPE
            mountpoint, part = (mount.mountpoint, mount.part) if mount is not None else ("", "")
        if not inside:
            raise ConfigError(f"{path}: not in a mount of hfs; hfs status lists the mounts")
        if mountpoint not in found:
            found[mountpoint] = MountTarget(mountpoint, Client(find_socket(mountpoint)), [], part)
        target = found[mountpoint]
        target.paths.append(target.named(os.fsencode(place[len(mountpoint.rstrip("/")) :].lstrip("/"))))
    return list(found.values())


def sole_mount() -> str:
    """The mountpoint that a command means when none was given: the only one. Raises ConfigError if it is not alone."""
    found = mountinfo.hfs_mounts()
    if len(found) == 1:
        return found[0].mountpoint
    names = ", ".join(mount.mountpoint for mount in found)
    raise ConfigError(f"no PATH, and {f'there are several mounts: {names}; name one' if found else 'no mount of hfs'}")


def complete_mounts(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Mountpoints of hfs, and whatever other paths the shell knows."""
    ours = [CompletionItem(m.mountpoint) for m in mountinfo.hfs_mounts() if m.mountpoint.startswith(incomplete)]
    return ours or [CompletionItem(incomplete, type="dir")]
