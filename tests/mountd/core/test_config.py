"""Configuration: precedence and origins, every key from every place, all faults in one error, the parsers."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.core.config import KEYS, Config, describe
from hfs.mountd.core.config.key import Key, parse_count, parse_duration, parse_flag, parse_size
from hfs.mountd.core.config.loading import ConfigFile, config_files, dump, load, mount_options, state_directory, undump
from hfs.mountd.core.errors import ConfigError
from tests.conftest import Logs

PLACES = {"source": "/s", "mountpoint": "/m", "cache": "/c"}
GOOD = {  # key -> (text, value)
    "source": ("/other", "/other"),
    "mountpoint": ("/other", "/other"),
    "cache": ("/other", "/other"),
    "cache-size": ("1.5TB", 1_500_000_000_000),
    "chunk": ("1M", 1 << 20),
    "ttl": ("10m", 600.0),
    "immutable": ("yes", True),
    "over": ("on", True),
    "linger": ("10m", 600.0),
    "io-mode": ("daemon", "daemon"),
    "foreground": ("1", True),
    "source-id": ("0123456789ABCDEF", "0123456789abcdef"),
    "eviction": ("lru", "lru"),
    "expire": ("30d", 2_592_000.0),
    "stage-encoding": ("auto", "auto"),
    "source-timeout": ("0", 0.0),
    "strict": ("true", True),
    "buffer": ("64M", 64 << 20),
    "answer-threads": ("2", 2),
    "nice": ("7", 7),
    "source-threads": ("1", 1),
    "prefetch-threads": ("1024", 1024),
    "staging-threads": ("3", 3),
    "verify": ("changed", "changed"),
    "scrub": ("off", 0),
    "siblings": ("0", 0),
    "coalesce": ("1GB", 1_000_000_000),
    "stagger": ("2", 2),
    "stagger-job": ("3", 3),
    "source-direct": ("off", "off"),
    "push": ("no", False),
    "allow-other": ("false", False),
    "as-user": ("61001:61000:7", "61001:61000:7") if os.geteuid() == 0 else (str(os.geteuid()), None),
    "noexec": ("yes", True),
    "control": ("/run/x", "/run/x"),
    "peers": ("mpi", "mpi"),
    "peer-secret": ("/home/u/secret", "/home/u/secret"),
    "peer-listen": ("[::]:7000", "[::]:7000"),
    "placement": ("partition", "partition"),
    "peer-timeout": ("500ms", 0.5),
    "log-level": ("debug", "debug"),
    "log-file": ("/var/log/x", "/var/log/x"),
    "log-format": ("json", "json"),
    "metrics": ("9567", "127.0.0.1:9567"),
    "metrics-file": ("/var/lib/node_exporter", "/var/lib/node_exporter"),
}
BAD = {
    "source": ["", "a\0b"],
    "cache-size": ["10Q", "", "-1", "ten", "10 K B", "1e9", "0x10", "9999P", "K", "1"],
    "chunk": ["0", "3M", "128M", "32K", "1"],
    "ttl": ["-1", "nan", "inf", "1y", ""],
    "linger": ["-1", "never"],
    "immutable": ["maybe", "2", ""],
    "io-mode": ["pass", "", "AUTO"],
    "source-id": ["0123", "g123456789abcdef"],
    "eviction": ["fifo"],
    "expire": ["-1", "soon"],
    "stage-encoding": ["blosc", "true"],
    "source-timeout": ["-5", "ever"],
    "buffer": ["1M", "x"],
    "answer-threads": ["65", "-1", "x"],
    "nice": ["20", "-1", "x"],
    "source-threads": ["0", "1025", "1.5", "-1"],
    "source-direct": ["maybe", "on"],
    "as-user": [
        "nobody-of-this-name",
        "4294967295:1",
        "1:4294967295",
        "1:2:3,4294967295",
        "2147483001",
        "1:",
        "-1",
        ":1",
    ],
    "control": ["/" + "x" * 107, ""],
    "peers": ["", "a,,b", "a b", "dns:", "-x", "a:123456"],
    "peer-secret": [""],
    "peer-listen": ["", "host:1", ":7000", "70000"],
    "placement": ["split"],
    "peer-timeout": ["0", "99ms", "2d"],
    "log-level": ["loud"],
    "log-file": [""],
    "log-format": ["yaml", "JSON"],
    # A colon alone means all addresses to other programs, so it has to be said which are meant.
    "metrics": [
        "",
        ":9567",
        "host:9567",
        "1.2.3:9",
        "[::1]",
        "::1:9",
        "127.0.0.1",
        "70000",
        "-1",
        "1.2.3.4:70000",
        "on",
    ],
    "metrics-file": [""],
}


def write(path: Path, text: str, *, named: bool = True) -> ConfigFile:
    path.write_text(text)
    return ConfigFile(str(path), named)


def test_every_key_is_in_the_tables() -> None:
    assert [key.name for key in KEYS] == list(GOOD)
    assert {key.field for key in KEYS} == set(Config.__struct_fields__)


def test_defaults() -> None:
    config, origins = load(PLACES, {}, [])
    assert config == Config(source="/s", mountpoint="/m", cache="/c", allow_other=os.geteuid() == 0)
    assert origins["ttl_s"] == "default"
    assert origins["cache"] == "command line"
    assert describe(config, origins)["chunk"] == {"value": 8 << 20, "origin": "default"}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_key_from_every_place(key: Key, tmp_path: Path) -> None:
    text, value = GOOD[key.name]
    variable = "HFS_" + key.name.upper().replace("-", "_")
    file = write(tmp_path / "c.toml", f'{key.name} = "{text}"')
    under = write(tmp_path / "u.toml", f'{key.name.replace("-", "_")} = "{text}"')
    rest = {name: place for name, place in PLACES.items() if name != key.name}
    for arguments, options, origin in [
        (({**rest, key.name.replace("-", "_"): text}, {}, []), [], "command line"),
        (({**rest, key.field: text}, {}, []), [], "command line"),
        ((rest, {variable: text}, []), [], f"environment {variable}"),
        ((rest, {}, [file]), [], f"file {file.path}"),
        ((rest, {}, [under]), [], f"file {under.path}"),
        ((rest, {}, []), [f"{key.name}={text}"], "command line -o"),
    ]:
        config, origins = load(*arguments, options=options)
        assert (getattr(config, key.field), origins[key.field]) == (value, origin)


def test_precedence(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1", "ttl = 1\nchunk = '1M'"), write(tmp_path / "2", "ttl = 2\nstrict = true")
    environ = {"HFS_TTL": "3", "PATH": "/bin", "_HFS_COMPLETE": "x", "HFS_CONFIG": "/ignored/here"}
    files = [first, second]
    assert load(PLACES, {}, files)[0].ttl_s == 2
    config, origins = load(PLACES, environ, files)
    assert (config.ttl_s, config.chunk_bytes, config.strict) == (3, 1 << 20, True)
    assert origins["ttl_s"] == "environment HFS_TTL"
    assert load(PLACES, environ, files, options=["ttl=4"])[0].ttl_s == 4
    assert load({**PLACES, "ttl": "5"}, environ, files, options=["ttl=4"])[0].ttl_s == 5
    assert load({**PLACES, "ttl": None}, environ, files)[0].ttl_s == 3


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
def test_an_impossible_value_names_key_value_place_and_what_is_allowed(name: str, text: str) -> None:
    variable = "HFS_" + name.upper().replace("-", "_")
    rest = {key: place for key, place in PLACES.items() if key != name}
    with pytest.raises(ConfigError) as from_environment:
        load(rest, {variable: text}, [])
    message = str(from_environment.value)
    assert len(message.splitlines()) == 1
    assert "allowed: " in message
    assert variable in message
    with pytest.raises(ConfigError, match="command line") as from_command:
        load({**rest, name: text}, {}, [])
    assert str(from_command.value).startswith(f"{name}: ")


def test_all_faults_together(tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", "cache-sise = '1G'\nttl = 'x'\n[section]\nchunk = 1")
    with pytest.raises(ConfigError) as caught:
        load(
            {"source": "/s", "chunk": "3M"},
            {"HFS_TTL": "x", "HFS_EVICTION": "fifo", "OTHER": "x"},
            [file],
            options=["rw,colour=blue,log-level=loud"],
        )
    lines = str(caught.value).splitlines()
    keys = [line.split(":")[0] for line in lines]
    assert keys == [
        *("cache-sise", "ttl", "section", "HFS_EVICTION", "HFS_TTL", "-o", "colour", "log-level", "chunk"),
        *("mountpoint", "cache"),
    ]
    assert "did you mean cache-size" in lines[0]
    assert str(file.path) in lines[0]


def test_variables_that_are_not_ours_are_passed_over_with_a_word() -> None:
    """Kubernetes puts HFS_PORT and its like into every pod beside a service named hfs."""
    service = {
        "HFS_PORT": "tcp://10.0.0.7:80",
        "HFS_PORT_80_TCP": "tcp://10.0.0.7:80",
        "HFS_PORT_80_TCP_ADDR": "10.0.0.7",
        "HFS_PORT_80_TCP_PORT": "80",
        "HFS_PORT_80_TCP_PROTO": "tcp",
        "HFS_SERVICE_HOST": "10.0.0.7",
        "HFS_SERVICE_PORT": "80",
        "HFS_SERVICE_PORT_HTTP": "80",
        "HFS_CACHE_PORT": "tcp://10.0.0.8:80",  # of a service named hfs-cache
        "HFS_CACHE_SERVICE_HOST": "10.0.0.8",
    }
    told: list[str] = []
    config, _ = load(PLACES, {**service, "HFS_TTL": "3"}, [], warn=told.append)
    assert config.ttl_s == 3
    (line,) = told
    assert all(f"{name}," in f"{line};".replace(":", ",") for name in service)
    assert "tcp://" not in line  # a value may be a secret

    told.clear()
    load(PLACES, {"HFS_TLT": "5", "HFS_API_TOKEN": "secret"}, [], warn=told.append)
    assert told == [
        "environment HFS_API_TOKEN: no such key, passed over; hfs config lists all",
        "environment HFS_TLT: no such key, passed over; did you mean ttl? hfs config lists all",
    ]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_no_key_has_a_name_that_others_give_to_variables(key: Key) -> None:
    told: list[str] = []
    variable = "HFS_" + key.name.upper().replace("-", "_")
    rest = {name: place for name, place in PLACES.items() if name != key.name}
    load(rest, {variable: GOOD[key.name][0]}, [], warn=told.append)
    assert not told
    assert not re.search("_(PORT|HOST|ADDR|PROTO|NAME|TCP)$", variable)


def test_variables_that_are_not_ours_are_logged_where_nobody_else_is_told(logs: Logs) -> None:
    logs.expect("HFS_PORT")
    load(PLACES, {"HFS_PORT": "tcp://10.0.0.7:80"}, [])


def test_missing_places_are_allowed_where_only_keys_are_shown() -> None:
    config, origins = load({}, {}, [], required=False)
    assert (config.source, origins["source"]) == ("", "default")


def test_values_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match=r"buffer: 1048576 .* at least two chunks: 16777216 bytes"):
        load({**PLACES, "buffer": "1M"}, {}, [])
    with pytest.raises(
        ConfigError, match=r"cache-size: 1024 .*environment HFS_CACHE_SIZE.* at least one chunk: 8388608"
    ):
        load(PLACES, {"HFS_CACHE_SIZE": "1K"}, [])
    assert load({**PLACES, "buffer": "1M", "chunk": "512K", "cache_size": "512K"}, {}, [])[0].buffer_bytes == 1 << 20


def test_configuration_files(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    assert load(PLACES, {}, [ConfigFile(absent, named=False)])[0].ttl_s == 60
    with pytest.raises(ConfigError, match="no such file"):
        load(PLACES, {}, [ConfigFile(absent, named=True)])
    for text in ("ttl = ", "\x00", "ttl = 1\nttl = 2"):
        with pytest.raises(ConfigError, match="config: "):
            load(PLACES, {}, [write(tmp_path / "bad", text)])
    (tmp_path / "latin").write_bytes(b"cache = '\xe9'")
    with pytest.raises(ConfigError, match="config: "):
        load(PLACES, {}, [ConfigFile(str(tmp_path / "latin"), named=False)])
    with pytest.raises(ConfigError, match=r"config: .*Is a directory"):
        load(PLACES, {}, [ConfigFile(str(tmp_path), named=False)])


def test_where_configuration_files_are() -> None:
    usual = config_files({"HOME": "/h"}, None)
    assert usual == [ConfigFile("/etc/hfs/config.toml", False), ConfigFile("/h/.config/hfs/config.toml", False)]
    assert config_files({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, None)[1].path == "/x/hfs/config.toml"
    assert len(config_files({}, None)) == 1
    assert config_files({"HFS_CONFIG": "/e"}, None) == [ConfigFile("/e", True)]
    assert config_files({"HFS_CONFIG": "/e"}, "/f") == [ConfigFile("/f", True)]


def test_typed_values_of_toml(tmp_path: Path) -> None:
    file = write(tmp_path / "c", "cache-size = 100000000\nttl = 0.5\nstrict = true\nsource-threads = 8\npush = false")
    config, _ = load(PLACES, {}, [file])
    assert (config.cache_size_bytes, config.ttl_s, config.strict, config.push) == (100_000_000, 0.5, True, False)
    for text in (
        "ttl = true",
        "cache-size = 1.5",
        "source-threads = 2.0",
        "cache = 1",
        "io-mode = ['auto']",
        "ttl = nan",
    ):
        with pytest.raises(ConfigError, match="is not possible"):
            load({"source": "/s", "mountpoint": "/m"}, {"HFS_CACHE": "/c"}, [write(tmp_path / "d", text)])


def test_mount_options() -> None:
    options = ["ro,_netdev,nofail,x-systemd.automount,x-gvfs-hide,defaults,noauto,nosuid,nodev", "", "immutable,ttl=5,"]
    assert mount_options(options) == ({"immutable": "true", "ttl": "5"}, [])
    assert mount_options([r"log_file=/a\,b,source_threads=3"])[0] == {"log_file": "/a,b", "source_threads": "3"}
    assert mount_options(["cache=/a=b"])[0] == {"cache": "/a=b"}
    assert [str(fault) for fault in mount_options(["rw"])[1]] == [
        '-o: "rw" is not possible (command line); allowed: ro, since the mount is read-only'
    ]
    with pytest.raises(ConfigError, match="ttl: "):
        load(PLACES, {}, [], options=["ttl"])


def test_the_generic_words_of_mount_are_taken() -> None:
    """FILESYSTEM-INDEPENDENT MOUNT OPTIONS of mount(8), all that a read-only mount can live with."""
    words = (
        "async,atime,noatime,auto,noauto,defaults,dev,nodev,diratime,nodiratime,dirsync,suid,nosuid,group,iversion,"
        "noiversion,mand,nomand,_netdev,nofail,relatime,norelatime,strictatime,nostrictatime,lazytime,nolazytime,silent,"
        "loud,owner,ro,sync,user,user=joe,nouser,users,comment=a word,X-mount.mkdir=0755,x-systemd.requires=a.mount"
    )
    assert mount_options([words]) == ({}, [])
    assert mount_options(["noexec"])[0] == {"noexec": "true"}
    assert mount_options(["noexec,exec"])[0] == {"noexec": "false"}
    assert load(PLACES, {}, [], options=["exec,suid,dev,sync,noexec"])[0].noexec
    assert mount_options(["allow_other"])[0] == {"allow_other": "true"}


@pytest.mark.parametrize("word", ["rw", "remount", "bind", "move", "loop", "context=system_u:object_r:x_t", "nonempty"])
def test_words_that_promise_what_cannot_be_are_faults(word: str) -> None:
    with pytest.raises(ConfigError, match=f'-o: "{word}" is not possible .command line.; allowed: '):
        load(PLACES, {}, [], options=[word])


def test_handing_over() -> None:
    config, origins = load({**PLACES, "source": "/caf\udce9", "ttl": "0.1"}, {}, [])
    assert undump(dump(config, origins)) == (config, origins)
    for data in (b"", b"{}", b"[]", b'{"config": {"source": 1}, "origins": {}}', b"\xff"):
        with pytest.raises(ConfigError):
            undump(data)


def test_unprintable_values_are_shown() -> None:
    with pytest.raises(ConfigError, match=r"\\udce9\\n") as caught:
        load({**PLACES, "io_mode": "\udce9\n"}, {}, [])
    str(caught.value).encode()


def test_directories() -> None:
    assert state_directory({"HOME": "/h"}) is None
    assert state_directory({"XDG_STATE_HOME": "/st"}) == "/st/hfs"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("0", 0), ("10", 10), (10, 10), ("10B", 10), (" 10 K ", 10240), ("10k", 10240), ("10KiB", 10240)),
        *(("10KB", 10_000), ("1.5G", 3 << 29), ("1.5GB", 1_500_000_000), ("2T", 2 << 40), ("1P", 1 << 50)),
        *(("0.1K", 102), ("3.7", 3), ("8191P", 8191 << 50)),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["8192P", "\u0661", "10Ki", "1,5G", ".5G", "5.", "--1", True, None, 1.5, b"10", []])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_size(text)


@given(st.integers(0, 2**63 - 1))
def test_any_whole_size_is_read_back(size: int) -> None:
    assert parse_size(size) == parse_size(str(size)) == parse_size(f"{size} b") == size


@given(st.integers(0, 8191), st.sampled_from("KMGTP"), st.booleans())
def test_units_are_powers(number: int, unit: str, decimal: bool) -> None:
    power = "KMGTP".index(unit) + 1
    text = f"{number}{unit}{'B' if decimal else ''}"
    assert parse_size(text) == number * (1000 if decimal else 1024) ** power
    assert parse_size(text.lower()) == parse_size(text)


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_an_error(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_count, parse_flag):
        try:
            assert parse(text) >= 0
        except ValueError:
            pass


@pytest.mark.parametrize(
    ("text", "seconds"), [("60", 60), ("500ms", 0.5), ("2h", 7200), ("1 d", 86400), (0.25, 0.25), (5, 5), ("1.5m", 90)]
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (9567, "127.0.0.1:9567"),
        ("0", "127.0.0.1:0"),
        ("localhost:9567", "127.0.0.1:9567"),
        (" 0.0.0.0:65535 ", "0.0.0.0:65535"),
        ("[0:0::1]:9567", "[::1]:9567"),
        ("off", None),
        (False, None),
    ],
)
def test_addresses_of_metrics(given: object, address: str | None) -> None:
    assert load({**PLACES, "metrics": given}, {}, [])[0].metrics == address


def test_what_is_told_can_be_turned_off_again(tmp_path: Path) -> None:
    """By a user, where the administrator's file turns it on."""
    file = write(tmp_path / "f", 'metrics = "9567"\nmetrics-file = "/d"')
    config, _ = load(PLACES, {"HFS_METRICS": "off", "HFS_METRICS_FILE": "off"}, [file])
    assert (config.metrics, config.metrics_file) == (None, None)
