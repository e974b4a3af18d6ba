"""What a command that mounts says of what never keeps a mount from being made: that there is no cache, and where the
metrics are that were asked for, or why there are none. This is the moment in which somebody can be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hfs.cli.shared import complain, target_of
from hfs.mountd.core.config import Config
from hfs.mountd.core.config.key import address_of
from hfs.mountd.core.errors import HfsError


def tell_what_is_missing(config: Config, mountpoint: str) -> None:
    """Say it on stderr. `mountpoint`: of the mount that was made, or joined."""
    try:
        status = target_of(mountpoint).client.status()
    except HfsError as error:  # mounted it is all the same
        if config.metrics is not None or config.metrics_file is not None:
            complain(f"metrics: not known whether there are any: {error}")
        return
    for line in notes(config, status):
        complain(line)


def notes(config: Config, status: Mapping[str, Any]) -> Iterator[str]:
    """The lines."""
    told, made, staged = status.get("monitoring", {}), status.get("config", {}), status.get("staged", {})
    if staged.get("state") == "off":
        yield f"{staged.get('last_error') or 'there is no cache'}; all is read from the source until it is well"
    for key, wanted, error in (
        ("metrics", config.metrics, told.get("error")),
        ("metrics-file", config.metrics_file, told.get("file_error")),
    ):
        has = made.get(key, {}).get("value")
        if wanted is None:
            continue
        if has != wanted:
            yield f"{key}: the mount that is there has {has or 'none'}, and keeps that; {wanted} is not used"
        elif error is not None:
            yield f"metrics: {error}"
        elif key == "metrics":
            yield from _where(wanted, str(told.get("address")))


def _where(wanted: str, found: str) -> Iterator[str]:
    address = address_of(wanted)
    if address.port == 0:
        yield f"metrics are at http://{found}/metrics"
    if not address.is_loopback:
        yield f"metrics: whoever reaches {found} over the network can read them, and the paths of SOURCE and MOUNTPOINT"
