"""The configuration as the user gives it: every key taken from where it stands last, and checked whole.

    defaults < TOML files < environment HFS_* < command line

The place is remembered as the key's origin. A key has one name: `cache-size` on the command line and in TOML
(underscores are accepted), HFS_CACHE_SIZE in the environment. Unknown keys and impossible values are faults, and all
faults are reported together in one ConfigError: one line each with key, value, origin and what is allowed. Only a
variable that begins with HFS_ and names no key is no fault but a warning: the environment is not ours alone.

The texts of -o may also be words of mount(8), which any line of fstab may hold: one that changes nothing on a read-only
mount is taken silently, one that hfs can honour becomes a key (`noexec`), and one that would promise what hfs does not
do is a fault that says so: a label, a remount, a write.

Here only what can be judged without the file system; whether SOURCE exists is for `hfs/mounting/mounting.py`. Never
changes the environment, never writes a file.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from hfs.mountd.core.config.config import KEYS, Config
from hfs.mountd.core.config.key import SourceUser, shown_user
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.core.hostlist import peers_of

log = logging.getLogger(__name__)


class Fault(NamedTuple):
    """One thing that is wrong. `text` says what is wrong and what is allowed."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


def impossible(key: str, value: object, origin: str, allowed: str) -> Fault:
    """The fault of a value that cannot be."""
    return Fault(key, f"{shown(value)} is not possible ({origin}); allowed: {allowed}")


def shown(value: object) -> str:
    """A value for a message: quoted, in one line, undecodable bytes escaped."""
    if isinstance(value, str):
        return '"' + value.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n") + '"'
    return json.dumps(value, default=str)


_TAKEN = {
    *("ro", "defaults", "async", "sync", "dirsync", "iversion", "noiversion", "mand", "nomand", "silent", "loud"),
    *("atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime"),
    *("lazytime", "nolazytime", "symfollow", "default_permissions", "sloppy"),
    *("auto", "noauto", "nofail", "_netdev", "comment", "uhelper", "helper"),
    *("user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"),
    *("nosuid", "nodev", "suid", "dev"),
}
"""Nothing is written, so nothing is synchronous, and access times are the source's. Who may mount and when is for
mount(8) and systemd. The mount is always `nosuid,nodev`: `suid` and `dev`, which `defaults` of fstab stands for too,
ask for less protection than there is."""

_REFUSED = {
    "rw": "ro, since the mount is read-only",
    "remount": "a new mount, after hfs umount",
    **dict.fromkeys(("bind", "rbind", "move"), "a mount of hfs; then mount --bind shows it elsewhere"),
    **dict.fromkeys(("loop", "offset", "sizelimit"), "a directory as SOURCE: mount the image first"),
    **dict.fromkeys(
        ("context", "fscontext", "defcontext", "rootcontext"), "the labels that the policy gives to FUSE mounts"
    ),
    "nosymfollow": "symfollow: symbolic links are shown as they are at SOURCE",
    "nonempty": "over, to mount over a directory that is not empty",
    "allow_root": "allow-other",
}
"""What cannot be had, and what can."""


def mount_options(options: Iterable[str]) -> tuple[dict[str, str], list[Fault]]:
    """The keys of `-o key=value,...` as in mount(8): a bare key is true; a comma in a value is written \\, .

    Dashes and underscores are the same. Of words that exclude each other (`exec,noexec`) the last one holds. Unknown
    keys are left for `config.load` to report.
    """
    found: dict[str, str] = {}
    faults = []
    for text in options:
        for part in re.split(r"(?<!\\),", text):
            word = part.replace("\\,", ",").strip()
            name, equals, value = word.partition("=")
            if not word or word.startswith(("x-", "X-")) or name in _TAKEN:
                continue
            if name in _REFUSED:
                faults.append(impossible("-o", word, "command line", _REFUSED[name]))
            elif word == "exec":
                found["noexec"] = "false"
            else:
                found[name] = value if equals else "true"
    return found, faults


_BY_NAME = {key.name: key for key in KEYS}
_BY_FIELD = {key.field: key for key in KEYS}
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Config)}
_ENVIRONMENT_ONLY = {"HFS_CONFIG"}
"""Names the file, so it cannot stand in one."""
_LINKED = re.compile(
    r"HFS_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?|NAME)"
)
"""What Kubernetes puts into each pod beside a service named hfs or hfs-anything, and Docker into a linked container."""


class ConfigFile(NamedTuple):
    """A TOML file to read. A file that the user named must exist; one of the usual places may be missing."""

    path: str
    named: bool


def _unknown(key: str, value: object, origin: str) -> Fault:
    return Fault(key, f"no such key, with the value {shown(value)} ({origin}); {_nearest(key)}hfs config lists all")


def _nearest(key: str) -> str:
    import difflib

    near = difflib.get_close_matches(key.lower().removeprefix("hfs_").replace("_", "-"), _BY_NAME)
    return f"did you mean {' or '.join(near)}? " if near else ""


_JOB_ARRAYS = ("SLURM_ARRAY_JOB_ID", "PBS_ARRAY_ID", "PBS_ARRAYID", "LSB_JOBINDEX")
"""Set in the tasks of a job array; LSF sets 0 elsewhere."""
_ARRAY_LINGER_S = 600.0
"""The next task of an array comes to the node within minutes, and should find the daemon warm."""


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
            values[key.field] = key.kind.parse(value)
            origins[key.field] = origin
        except (ValueError, TypeError):
            faults.append(impossible(shown, value, origin, key.kind.allowed))

    if array := next((name for name in _JOB_ARRAYS if environ.get(name, "0") != "0"), None):
        values["linger_s"], origins["linger_s"] = _ARRAY_LINGER_S, f"environment {array}"
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
    for key in KEYS:
        if key.missing and key.field not in values:
            values[key.field] = ""
            if required and key.name not in seen:
                faults.append(Fault(key.name, f"missing; give {key.missing}"))
    _settle_user(values, origins, faults)
    _check_together(values, origins, faults)
    _settle_peers(values, environ, origins, faults)
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
            warn(f"environment {name}: no such key, passed over; {_nearest(name)}hfs config lists all")
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
    chunk_bytes = values.get("chunk_bytes", _DEFAULTS["chunk_bytes"])
    buffer_bytes = values.get("buffer_bytes", _DEFAULTS["buffer_bytes"])
    if buffer_bytes < 2 * chunk_bytes:
        allowed = f"at least two chunks: {2 * chunk_bytes} bytes"
        faults.append(impossible("buffer", buffer_bytes, origins["buffer_bytes"], allowed))
    mode = values.get("io_mode")
    if mode in ("stateless", "overlay") and not values.get("immutable"):
        allowed = f"{mode} only with --immutable, since files are not looked at again when they are opened"
        faults.append(impossible("io-mode", mode, origins["io_mode"], allowed))
    size_bytes = values.get("cache_size_bytes")
    if size_bytes is not None and size_bytes < chunk_bytes:
        allowed = f"at least one chunk: {chunk_bytes} bytes"
        faults.append(impossible("cache-size", size_bytes, origins["cache_size_bytes"], allowed))


def _settle_user(values: dict[str, Any], origins: Mapping[str, str], faults: list[Fault]) -> None:
    """Who reads as himself needs not become anybody. Only root can become another user."""
    if values.get("as_user") is None:
        return
    uid, own_uid = SourceUser.of(values["as_user"]).uid, os.geteuid()
    if uid == own_uid:
        values["as_user"] = None
    elif own_uid != 0:
        allowed = f"nothing (-o as-user=), since you are user {own_uid}, and only root can read as another one"
        faults.append(impossible("as-user", shown_user(values["as_user"]), origins["as_user"], allowed))


def _settle_peers(
    values: dict[str, Any], environ: Mapping[str, str], origins: dict[str, str], faults: list[Fault]
) -> None:
    """Who they are, as the launcher says."""
    if values.get("peers", "none") in ("none", "mpi"):
        if values.get("peers") == "mpi" and not values.get("foreground"):
            values["foreground"], origins["foreground"] = True, "peers"  # the launched process is the daemon
        return
    try:
        values["peers"] = peers_of(values["peers"], environ)
    except ValueError as error:
        faults.append(impossible("peers", values["peers"], origins["peers"], f"what the launcher says, and {error}"))
    if values.get("peer_secret") is None:
        faults.append(Fault("peer-secret", "missing; give -o peer-secret=FILE, made by openssl rand -hex 32 > FILE"))


def survives_lost_daemons() -> bool:
    """Whether we were started by `mpirun --with-ft ulfm` of OpenMPI: a daemon that ends does not end the others."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") in {"1", "true"}  # noqa: SIM112 - OpenMPI's name


def state_directory(environ: Mapping[str, str]) -> str | None:
    """$XDG_STATE_HOME/hfs where that is set, else None.

    Never ~/.local/state by itself: on a cluster the home directory is the shared file system that hfs keeps quiet.
    """
    state = environ.get("XDG_STATE_HOME")
    return f"{state}/hfs" if state and os.path.isabs(state) else None


def describe(config: Config, origins: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Key name -> {"value", "origin"}, as `hfs status` and `hfs config` show it. Units are those of Config's fields."""
    return {
        key.name: {"value": getattr(config, key.field), "origin": origins.get(key.field, "default")} for key in KEYS
    }


_LEAST_SECRET_BYTES, _MOST_SECRET_BYTES = 32, 4096


def peer_secret(named: str) -> bytes:
    """The secret of the job, from the file or the env:VARIABLE that `peer-secret` names. Raises ConfigError."""
    try:
        if named.startswith("env:"):
            text = os.environ[named.removeprefix("env:")].encode("utf-8", "surrogateescape")
        else:
            with open(named, "rb") as file:
                state = os.fstat(file.fileno())
                # Kubernetes shows a secret to a group of the pod alone, and to nobody else.
                if state.st_mode & (0o007 if state.st_uid == 0 else 0o077) or state.st_uid not in (0, os.geteuid()):
                    raise ConfigError(f"peer-secret: {named} is not ours alone; chmod 600, and ours")
                text = file.read(_MOST_SECRET_BYTES)
    except (OSError, KeyError) as error:
        raise ConfigError(f"peer-secret: {named} cannot be read ({error})") from None
    if len(text.strip()) < _LEAST_SECRET_BYTES:
        raise ConfigError(f"peer-secret: {named}: at least 32 characters, as of openssl rand -hex 32")
    return text.strip()


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
