"""All keys of the configuration, made of the fields that declare them; and what they are set to, for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import get_args

import msgspec

from hfs.mountd.core.config.config import Config
from hfs.mountd.core.config.key import Key
from hfs.mountd.core.config.telling import Telling


def _keys() -> Iterator[Key]:
    told_last = sorted(msgspec.structs.fields(Config), key=lambda field: field.name in Telling.__struct_fields__)
    for field in told_last:
        (key,) = (found for found in get_args(field.type) if isinstance(found, Key))
        default = key.default or ("required" if field.required else key.kind.show(field.default))
        yield dataclasses.replace(key, field=field.name, default=default)


KEYS: tuple[Key, ...] = tuple(_keys())
"""In the order of the fields, those of `Telling` last. `default` is what is taken where nothing is given, in words."""


def describe(config: Config, origins: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Key name -> {"value", "origin"}, as `hfs status` and `hfs config` show it. Units are those of Config's fields."""
    return {
        key.name: {"value": getattr(config, key.field), "origin": origins.get(key.field, "default")} for key in KEYS
    }
