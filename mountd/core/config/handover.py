"""A configuration on its way to another process: from the command that has read it to the daemon that lives by it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from hfs.mountd.base.errors import ConfigError
from hfs.mountd.core.config.config import Config


def dump(config: Config, origins: Mapping[str, str]) -> bytes:
    """Both as JSON, for another process. ASCII, so that paths that are not UTF-8 survive as surrogates."""
    return json.dumps({"config": msgspec.structs.asdict(config), "origins": dict(origins)}).encode()


def undump(data: bytes) -> tuple[Config, dict[str, str]]:
    """The opposite of `dump`. Raises ConfigError when it is something else."""
    try:
        record = json.loads(data)
        return msgspec.convert(record["config"], Config), msgspec.convert(record["origins"], dict[str, str])
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"the configuration handed over cannot be read: {error}") from None
