"""What several commands share: messages, and finding the mount that a path means.

Nothing here prints to stdout, nor imports what only commands that mount need (`config`): `hfs status` must
answer at once.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import signal
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from hfs.cli.exit_codes import CANNOT_EXECUTE, NOT_FOUND
from hfs.client.client import Client, find_socket
from hfs.mountd.core.errors import ConfigError, printable
from hfs.mounting import mountinfo

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hfs.mounting.keeper import FoundKeeper

_PLAIN = re.compile(r"[\w./+-]+")
"""What no shell reads anything else in."""


def complain(*lines: str) -> None:
    """Say each on stderr, after `hfs: `; indented ones belong to the one before."""
    for line in lines:
        click.echo(printable(line if line.startswith(" ") else f"hfs: {line}"), err=True)


def complain_of(error: Exception) -> None:
    """Say the lines of an error of ours."""
    complain(*str(error).split("\n"))


def not_started(command: str, error: OSError) -> int:
    """Say that it was not, and why; the exit code."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        complain(f"{command}: not found ({error.strerror}); give the path of a program, or one that is in PATH")
        return NOT_FOUND
    complain(f"{command}: cannot be executed ({error.strerror}); chmod +x, or give what runs it: python {command}")
    return CANNOT_EXECUTE


def lines_of(text: bytes) -> list[bytes]:
    """The lines of a list of names, of one that was written on Windows too."""
    text = text.removeprefix(codecs.BOM_UTF8)
    if text.count(b"\r\n") == text.count(b"\n"):  # else what stands before some ends is part of names
        text = text.replace(b"\r\n", b"\n")
    return text.removesuffix(b"\n").split(b"\n")


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
            inside = mount is not None and mount.may_be_hfs
            mountpoint, part = (mount.mountpoint, mount.part) if mount is not None else ("", "")
            if not inside and (given := _of_given(place)) is not None:
                inside, mountpoint, part = True, given.name, ""
                found.setdefault(mountpoint, MountTarget(mountpoint, Client(given.control()), []))
        if not inside:
            raise ConfigError(f"{path}: {_not_in_a_mount(place)}; hfs status lists the mounts")
        if mountpoint not in found:
            found[mountpoint] = MountTarget(mountpoint, Client(find_socket(mountpoint)), [], part)
        target = found[mountpoint]
        target.paths.append(target.named(os.fsencode(place[len(mountpoint.rstrip("/")) :].lstrip("/"))))
    return list(found.values())


def _of_given(place: str) -> FoundKeeper | None:
    from hfs.mounting import keeper  # a usual mount needs none

    return keeper.of_given(place)


def _not_in_a_mount(place: str) -> str:
    if mountinfo.lies_in_overlay(place):
        return "in an overlay over a mount that is not seen here: give its path where it is"
    return "not in a mount of hfs"


def sole_mount(argument: str = "MOUNT") -> str:
    """The mountpoint that a command means when none was given: the only one of ours; where we have none, of those that
    others let us into, and root into all. Raises ConfigError if it is not alone; `argument` names it."""
    from hfs.mounting import keeper

    mounts, uid = mountinfo.hfs_mounts(), os.geteuid()
    found = [mount.mountpoint for mount in mounts if mount.owner_uid in {None, uid}]
    found += [given.name for given in keeper.of_given_mounts() if given.seen_at not in found]
    found = found or [mount.mountpoint for mount in mounts if uid == 0 or mount.is_for_others]
    if len(found) == 1:
        return found[0]
    names = printable(", ".join(found))
    raise ConfigError(
        f"no {argument}, and there are several mounts: {names}; name one"
        if found
        else f"no {argument}, and no mount of hfs that is yours; hfs mount makes one"
    )


def complete_mounts(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Mountpoints of hfs, our own and root's first, and whatever other paths the shell knows. Its script puts the text
    into the line as it is: of other users' mountpoints, who name them as they like, only plain ones are offered."""
    from click.shell_completion import CompletionItem

    found = [
        CompletionItem(mount.mountpoint)
        for mount in mountinfo.in_fair_order(mountinfo.hfs_mounts())
        if mount.mountpoint.startswith(incomplete) and (_PLAIN.fullmatch(mount.mountpoint) or not mount.is_of_others)
    ]
    return found or [CompletionItem(incomplete, type="file")]
