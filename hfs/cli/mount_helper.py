"""`mount.fuse.hfs`: what mount(8) calls for the type fuse.hfs, from a shell, /etc/fstab or a unit of systemd.

    mount.fuse.hfs SOURCE MOUNTPOINT [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]

The same mount as `hfs mount SOURCE MOUNTPOINT -o OPTIONS`. Exit codes are those of mount(8): 0 mounted, 1 what was
given cannot be, 2 the system lacks something, 32 the mount failed. Never asks anything, and stays in no foreground.
"""

from __future__ import annotations

import re

import click

import hfs
from hfs.cli import streams
from hfs.cli.command import Command
from hfs.mountd.core.errors import ConfigError, HfsError

DONE, GIVEN, SYSTEM, FAILED = 0, 1, 2, 32
"""mount(8), section EXIT STATUS."""

TYPE = "fuse.hfs"


@click.command(
    cls=Command,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=["mount -t fuse.hfs /lustre/imagenet /data -o cache=/nvme/hfs"],
)
@click.argument("source", type=click.UNPROCESSED)
@click.argument("mountpoint", type=click.UNPROCESSED)
@click.option("-o", "options", multiple=True, metavar="OPTIONS", help="As of hfs mount -o, and those of mount(8).")
@click.option("-t", "type_", default=TYPE, metavar="TYPE", help="Only fuse.hfs.")
@click.option("-N", "namespace", default=None, metavar="NAMESPACE", help="Refused: use nsenter.")
@click.option("-f", "fake", is_flag=True, help="Check what was given, and mount nothing.")
@click.option("-s", "sloppy", is_flag=True, help="Accepted.")
@click.option("-n", "no_mtab", is_flag=True, help="Accepted: there is no mtab.")
@click.option("-v", "verbose", is_flag=True, help="Say how files will be read.")
@click.version_option(hfs.__version__, prog_name="mount.fuse.hfs")
def helper(
    source: str,
    mountpoint: str,
    options: tuple[str, ...],
    type_: str,
    namespace: str | None,
    fake: bool,
    sloppy: bool,  # noqa: ARG001 - mount(8) gives it
    no_mtab: bool,  # noqa: ARG001 - mount(8) gives it
    verbose: bool,
) -> None:
    """Mount SOURCE at MOUNTPOINT; called by mount(8)."""
    if type_ != TYPE:
        raise ConfigError(f"-t {type_}: only {TYPE} is mounted by mount.fuse.hfs")
    if namespace is not None:
        raise ConfigError(f"-N {namespace}: not possible; enter it: nsenter --mount={namespace} hfs mount ...")
    from hfs.cli.config import load_config
    from hfs.cli.mount import mount

    words = ["-o", _without_rw(options)] if options else []
    if fake:
        given = {"source": source, "mountpoint": mountpoint, "options": tuple(words[1:])}
        load_config({**given, "config_file": None, "verbose": False})
        return
    arguments = [source, mountpoint, *words, *(["-v"] if verbose else [])]
    with mount.make_context("mount.fuse.hfs", arguments) as context:
        mount.invoke(context)


def _without_rw(options: tuple[str, ...]) -> str:
    """mount(8) says `rw` where nobody has said `ro`; the mount is read-only all the same."""
    return ",".join(part for text in options for part in re.split(r"(?<!\\),", text) if part != "rw")


def main() -> None:
    """The entry point of the command `mount.fuse.hfs`."""
    streams.guard()
    raise SystemExit(_run())


def _run() -> int:
    from hfs.cli.shared import complain, complain_of

    try:
        helper.main(prog_name="mount.fuse.hfs", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return GIVEN
    except ConfigError as error:
        complain_of(error)
        return GIVEN
    except HfsError as error:
        complain_of(error)
        return FAILED
    except OSError as error:
        complain(f"{error.filename or 'mount.fuse.hfs'}: cannot be used ({error.strerror}); give another")
        return SYSTEM
    except (KeyboardInterrupt, click.Abort):
        return FAILED
    return DONE
