"""The configuration of one mount: one frozen object, made once, checked whole.

The command line of hfs calls `load`, which takes every key from where it stands last in

    defaults < TOML files < environment HFS_* < command line

and remembers that place as the key's origin. A key has one name: `cache-size` on the command line and in TOML
(underscores are accepted), HFS_CACHE_SIZE in the environment. Unknown keys and impossible values are faults, and all
faults are reported together in one ConfigError: one line each with key, value, origin and what is allowed. Only a
variable that begins with HFS_ and names no key is no fault but a warning: the environment is not ours alone.

Here only what can be judged without the file system; whether SOURCE exists is for `hfs/mounting/mounting.py`. Never
changes the environment, never writes a file.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from mountd.base.errors import ConfigError
from mountd.core.config_faults import Fault, impossible, shown
from mountd.core.config_options import mount_options
from mountd.core.config_quantities import parse_count, parse_duration, parse_flag, parse_size
from mountd.core.socket_places import MAX_PATH_BYTES
from policies.cache.encoding import EncodingWanted
from policies.iomode import Wanted

__all__ = [
    "KEYS",
    "Config",
    "ConfigFile",
    "Key",
    "config_files",
    "describe",
    "dump",
    "load",
    "state_directory",
    "survives_lost_daemons",
    "undump",
]

log = logging.getLogger(__name__)

KIB, MIB = 1024, 1024**2
_CHUNK_BYTES = 8 * MIB
"""Large enough that bandwidth, not latency, is what a chunk costs (42 ms at 200 MB/s against 1 ms)."""
_BUFFER_BYTES = 128 * MIB
"""Sixteen chunks in flight fill a shared 500 MB/s source several times over and keep the daemon well below 300 MB."""

Eviction = Literal["fill-once", "lru"]
Direct = Literal["auto", "on", "off"]
PeersWanted = Literal["none", "mpi"]
PlacementWanted = Literal["auto", "partition", "replicate"]
VerifyWanted = Literal["first-use", "changed"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What one mount was told. Paths are absolute once `hfs mount` hands it to the daemon; they may hold surrogates."""

    source: str
    mountpoint: str
    cache: str
    cache_size_bytes: int | None = None
    """None: leave max(10 %, 10 GB) of the cache's disk free."""
    chunk_bytes: int = _CHUNK_BYTES
    ttl_s: float = 60.0
    """How long a lookup, a stat and a listing are believed. A minute: a training job's data set does not change under
    it, a person who looks for a new file waits no longer than for a coffee, and one stat a minute and file is cheap."""
    immutable: bool = False
    """ttl_s for ever; wins over it."""
    over: bool = False
    io_mode: Wanted = "auto"
    foreground: bool = False
    source_id: str | None = None
    """None: f_fsid where it is stable, else made once and kept in the cache."""
    eviction: Eviction = "fill-once"
    stage_encoding: EncodingWanted = "none"
    """auto: where the data does not fit the cache, what shrinks is kept encoded, and not handed to the kernel."""
    source_timeout_s: float = 600.0
    """0 waits for ever. Ten minutes outlast a Lustre failover."""
    strict: bool = False
    buffer_bytes: int = _BUFFER_BYTES
    source_threads: int = 256
    """Demand reads at a time: they wait, they do not compute. 128 readers hung in one server leave room for others."""
    prefetch_threads: int = 16
    staging_threads: int = 2
    verify: VerifyWanted = "first-use"
    """changed: staged bytes are compared with their checksums only where another program may have changed them, for a
    cache on a file system that has checksums of its own."""
    scrub_bytes_s: int = 32 * MIB
    """A hundredth of what an NVMe drive reads and of a core's time; a terabyte in nine hours. 0: off."""
    sibling_bytes: int = 256_000_000
    coalesce_bytes: int | None = None
    """None: a quarter of the memory that is available, 2.5 GB at most (LMDBIO's budget of a node)."""
    stagger: int = 8
    """Chunks of one file that are read at a time. Three streams fill a file system that limits each to two fifths of
    what it has; more than twice that reach one server in no order."""
    stagger_job: int = 64
    """As `stagger`, of all nodes of a job together: what eight nodes read, so that smaller jobs need not agree on whose
    turn it is. 64 chunks of 8 MiB keep ten gigabytes a second busy that take 50 ms each."""
    source_direct: Direct = "auto"
    push: bool = True
    allow_other: bool = False
    noexec: bool = False
    """As of mount(8). `nosuid` and `nodev` always hold: nothing that a training job reads needs the opposite."""
    control: str | None = None
    """None: in the runtime directory."""
    peers: PeersWanted = "none"
    """mpi: the daemons that one mpirun or srun has started share what they have read. They stay in the foreground."""
    placement: PlacementWanted = "auto"
    """partition: each node stages its share; replicate: each stages all, which one of them has read from the source;
    auto: replicate where the data fits every node."""
    peer_timeout_s: float = 10.0
    """The bytes of a chunk take milliseconds, and a node that waits itself says so every fifth of this. A node whose
    cores are all busy may be silent for seconds."""
    log_level: LogLevel = "info"
    log_file: str | None = None
    """None: stderr in the foreground, else a file in the state directory or below the cache."""


class Key(NamedTuple):
    """One key: the field of Config it fills, its one name, how its value is read and what is allowed, in words."""

    field: str
    name: str
    parse: Callable[[object], Any]
    allowed: str


class ConfigFile(NamedTuple):
    """A TOML file to read. A file that the user named must exist; one of the usual places may be missing."""

    path: str
    named: bool


def _unknown(key: str, value: object, origin: str) -> Fault:
    return Fault(
        key, f"no such key, with the value {shown(value)} ({origin}); {_nearest(key)}allowed: {', '.join(_BY_NAME)}"
    )


def _nearest(key: str) -> str:
    import difflib

    near = difflib.get_close_matches(key.lower().removeprefix("hfs_").replace("_", "-"), _BY_NAME, n=1)
    return f"did you mean {near[0]}? " if near else ""


_Number = TypeVar("_Number", int, float)


def _between(parse: Callable[[object], _Number], low: _Number, high: _Number) -> Callable[[object], _Number]:
    def check(value: object) -> _Number:
        number = parse(value)
        if not low <= number <= high:
            raise ValueError(value)
        return number

    return check


def _chunk(value: object) -> int:
    size = parse_size(value)
    if not 64 * KIB <= size <= 64 * MIB or size & (size - 1):
        raise ValueError(value)
    return size


def _rate(value: object) -> int:
    return 0 if value is False or (isinstance(value, str) and value.lower() in {"off", "no"}) else parse_size(value)


def _path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(value)
    return value


def _socket_path(value: object) -> str:
    path = _path(value)
    if len(os.fsencode(os.path.abspath(path))) > MAX_PATH_BYTES:
        raise ValueError(value)
    return path


def _source_id(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-fA-F]{16}", value):
        raise ValueError(value)
    return value.lower()


def _choice(name: str, field: str, literal: object) -> Key:
    choices = get_args(literal)

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(value)
        return str(value)

    return Key(field, name, parse, " or ".join(choices))


_PATH = "the path of a directory"
_FLAG = "true or false"
_THREADS = "a whole number from 1 to 1024"
_threads = _between(parse_count, 1, 1024)

KEYS: tuple[Key, ...] = (
    Key("source", "source", _path, _PATH),
    Key("mountpoint", "mountpoint", _path, _PATH),
    Key("cache", "cache", _path, _PATH),
    Key("cache_size_bytes", "cache-size", parse_size, "a size like 500G or 1.5TB (K=KiB=1024, KB=1000)"),
    Key("chunk_bytes", "chunk", _chunk, "a power of two from 64K to 64M"),
    Key("ttl_s", "ttl", parse_duration, "seconds, or like 500ms, 10m, 2h; 0 asks the source every time"),
    Key("immutable", "immutable", parse_flag, _FLAG),
    Key("over", "over", parse_flag, _FLAG),
    _choice("io-mode", "io_mode", Wanted),
    Key("foreground", "foreground", parse_flag, _FLAG),
    Key("source_id", "source-id", _source_id, "16 hexadecimal digits, as hfs status shows them"),
    _choice("eviction", "eviction", Eviction),
    _choice("stage-encoding", "stage_encoding", EncodingWanted),
    Key("source_timeout_s", "source-timeout", parse_duration, "seconds, or like 10m, 2h; 0 waits for ever"),
    Key("strict", "strict", parse_flag, _FLAG),
    Key("buffer_bytes", "buffer", parse_size, "a size like 128M, at least two chunks"),
    Key("source_threads", "source-threads", _threads, _THREADS),
    Key("prefetch_threads", "prefetch-threads", _threads, _THREADS),
    Key("staging_threads", "staging-threads", _threads, _THREADS),
    _choice("verify", "verify", VerifyWanted),
    Key("scrub_bytes_s", "scrub", _rate, "a size like 32M, to be read each second, or off"),
    Key("sibling_bytes", "siblings", parse_size, "a size like 256MB; 0 fetches no siblings"),
    Key(
        "coalesce_bytes",
        "coalesce",
        parse_size,
        "a size like 2.5GB: chunks that hints name are fetched in the order of the file by so much; 0 never",
    ),
    Key("stagger", "stagger", _threads, "how many chunks of one file are read at a time, from 1 to 1024"),
    Key(
        "stagger_job",
        "stagger-job",
        _threads,
        "how many chunks of one file all nodes of a job read at a time, from 1 to 1024",
    ),
    _choice("source-direct", "source_direct", Direct),
    Key("push", "push", parse_flag, _FLAG),
    Key("allow_other", "allow-other", parse_flag, _FLAG),
    Key("noexec", "noexec", parse_flag, _FLAG),
    Key("control", "control", _socket_path, f"a path for the control socket, at most {MAX_PATH_BYTES} bytes"),
    _choice("peers", "peers", PeersWanted),
    _choice("placement", "placement", PlacementWanted),
    Key(
        "peer_timeout_s",
        "peer-timeout",
        _between(parse_duration, 0.1, 86_400),  # nodes say that they are there in a fifth of it
        "seconds, or like 500ms, 2m, at least 100ms: a node of the job that is silent for so long is left alone",
    ),
    _choice("log-level", "log_level", LogLevel),
    Key("log_file", "log-file", _path, "the path of a file"),
)
_BY_NAME = {key.name: key for key in KEYS}
_BY_FIELD = {key.field: key for key in KEYS}
_ENVIRONMENT_ONLY = {"HFS_CONFIG"}
"""Names the file, so it cannot stand in one."""
_LINKED = re.compile(
    r"HFS_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?|NAME)"
)
"""What Kubernetes puts into each pod beside a service named hfs or hfs-anything, and Docker into a linked container."""
_REQUIRED = {
    "source": "the directory to show",
    "mountpoint": "the directory to show it at",
    "cache": "--cache DIR, a directory on a disk of this machine",
}


def config_files(environ: Mapping[str, str], named: str | None) -> list[ConfigFile]:
    """The TOML files, weakest first: the one that --config or HFS_CONFIG names alone, or else the usual two."""
    if named or environ.get("HFS_CONFIG"):
        return [ConfigFile(named or environ["HFS_CONFIG"], named=True)]
    home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else "")
    places = ["/etc/hfs/config.toml", *([f"{home}/hfs/config.toml"] if home else [])]
    return [ConfigFile(place, named=False) for place in places]


def load(
    command_line: Mapping[str, object],
    environ: Mapping[str, str],
    files: Iterable[ConfigFile],
    *,
    options: Iterable[str] = (),
    required: bool = True,
    warn: Callable[[str], object] = log.warning,
) -> tuple[Config, dict[str, str]]:
    """The configuration, and for each field of Config where its value came from.

    `command_line`: field or key name -> value; None means not given. `options`: the texts of -o, weaker than the flags.
    Without `required`, a missing source, mountpoint or cache is "" (for `hfs config`). `warn` is told of variables that
    begin with HFS_ and name no key: others may have put them there. Origins are "default", "file PATH", "environment
    HFS_X", "command line" and "command line -o". Raises ConfigError with all faults.
    """
    faults: list[Fault] = []
    values: dict[str, Any] = {"allow_other": os.geteuid() == 0}
    origins = dict.fromkeys(_BY_FIELD, "default")

    def take(name: str, value: object, origin: str, shown: str) -> None:
        plain = name.lower().replace("_", "-")
        key = _BY_NAME.get(plain) or _BY_FIELD.get(name)
        if key is None:
            faults.append(_unknown(shown, value, origin))
            return
        try:
            values[key.field] = key.parse(value)
            origins[key.field] = origin
        except (ValueError, TypeError):
            faults.append(impossible(shown, value, origin, key.allowed))

    for file in files:
        for name, value in _read(file, faults).items():
            take(name, value, f"file {file.path}", name)
    for name in _ours(environ, warn):
        take(name.removeprefix("HFS_"), environ[name], f"environment {name}", name)
    from_options, option_faults = mount_options(options)
    faults.extend(option_faults)
    for name, value in from_options.items():
        take(name, value, "command line -o", name)
    for name, value in command_line.items():
        if value is not None:
            take(name, value, "command line", name.replace("_", "-"))

    seen = {fault.key.lower().removeprefix("hfs_") for fault in faults}
    for field, what in _REQUIRED.items():
        if field not in values:
            values[field] = ""
            if required and field not in seen:
                faults.append(Fault(field, f"missing; give {what}"))
    _check_together(values, origins, faults)
    if values.get("peers") == "mpi" and not values.get("foreground"):
        values["foreground"], origins["foreground"] = True, "peers"  # the launched process is the daemon
    if faults:
        raise ConfigError("\n".join(str(fault) for fault in faults))
    return Config(**values), origins


def _ours(environ: Mapping[str, str], warn: Callable[[str], object]) -> list[str]:
    """The variables that name keys. Values of others are not shown: they are not ours to show."""
    ours = []
    linked = []
    for name in sorted(environ):
        if not name.startswith("HFS_") or name in _ENVIRONMENT_ONLY:
            continue
        if name.removeprefix("HFS_").lower().replace("_", "-") in _BY_NAME:
            ours.append(name)
        elif _LINKED.fullmatch(name):
            linked.append(name)
        else:
            warn(f"environment {name}: no such key, passed over; {_nearest(name)}".rstrip("; "))
    if linked:
        warn(f"environment {', '.join(linked)}: made for a service of that name, not for hfs; passed over")
    return ours


def _read(file: ConfigFile, faults: list[Fault]) -> dict[str, object]:
    import tomllib

    try:
        with open(file.path, "rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        if file.named:
            faults.append(impossible("config", file.path, "no such file", "the path of a TOML file"))
    except OSError as error:
        faults.append(impossible("config", file.path, str(error.strerror), "a TOML file that can be read"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(impossible("config", file.path, str(error), "a TOML file of lines like cache-size = '500G'"))
    return {}


def _check_together(values: Mapping[str, Any], origins: Mapping[str, str], faults: list[Fault]) -> None:
    """Values that are possible alone but not beside each other."""
    chunk_bytes = values.get("chunk_bytes", _CHUNK_BYTES)
    buffer_bytes = values.get("buffer_bytes", _BUFFER_BYTES)
    if buffer_bytes < 2 * chunk_bytes:
        allowed = f"at least two chunks: {2 * chunk_bytes} bytes"
        faults.append(impossible("buffer", buffer_bytes, origins["buffer_bytes"], allowed))
    if values.get("io_mode") == "stateless" and not values.get("immutable"):
        allowed = "stateless only with --immutable, since files are not looked at again when they are opened"
        faults.append(impossible("io-mode", "stateless", origins["io_mode"], allowed))
    size_bytes = values.get("cache_size_bytes")
    if size_bytes is not None and size_bytes < chunk_bytes:
        allowed = f"at least one chunk: {chunk_bytes} bytes"
        faults.append(impossible("cache-size", size_bytes, origins["cache_size_bytes"], allowed))


def describe(config: Config, origins: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Key name -> {"value", "origin"}, as `hfs status` and `hfs config` show it. Units are those of Config's fields."""
    return {
        key.name: {"value": getattr(config, key.field), "origin": origins.get(key.field, "default")} for key in KEYS
    }


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


def survives_lost_daemons() -> bool:
    """Whether we were started by `mpirun --with-ft ulfm` of OpenMPI: a daemon that ends does not end the others."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") in {"1", "true"}  # noqa: SIM112 - OpenMPI's name


def state_directory(environ: Mapping[str, str]) -> str | None:
    """$XDG_STATE_HOME/hfs where that is set, else None.

    Never ~/.local/state by itself: on a cluster the home directory is the shared file system that hfs keeps quiet.
    """
    state = environ.get("XDG_STATE_HOME")
    return f"{state}/hfs" if state and os.path.isabs(state) else None
