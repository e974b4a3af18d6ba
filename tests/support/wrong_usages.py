"""What people type wrongly in their first hour, and what they have to be told: lines that say what is wrong, where, and
what to do. Not a test module.

A row is one command line, the exit code, and what has to be said, in this order.
"""

from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """`{d}`: a folder with data; `{t}`: one with a file, an empty directory `m` and a full one; `{c}`: a cache root;
    `{o}`: a directory of somebody else."""

    typed: str
    code: int
    said: tuple[str, ...]
    mounts: bool = False
    by_plain_user: bool = False


PLACES = "hfs mount {d} {t}/m --cache"
RUN = "hfs run --source {d} --cache {c} --"
GIVE_CACHE = "cache: missing; give --cache DIR, a directory on a disk of this machine"
LISTS = "not in a mount of hfs; hfs status lists the mounts"
SEVERAL = "and there are several mounts: /mnt/one, /mnt/two; name one"
KINDS = "a size like 500G or 1.5TB"
COMMANDS = "give one of these commands; see"

ROWS = (
    Row("hfs", 2, ("Usage: hfs", "mount", f"hfs: {COMMANDS} hfs --help")),
    Row("hfs mont {d} {t}/m --cache {c}", 2, ("no such command 'mont' (did you mean hfs mount?); see hfs --help",)),
    Row("hfs mount", 2, ("source: missing; give the directory", "mountpoint: missing; give the directory", GIVE_CACHE)),
    Row("hfs mount {d} {t}/m", 2, (GIVE_CACHE,)),
    Row("hfs mount {d}/nope {t}/m --cache {c}", 2, ("SOURCE {d}/nope: no such directory; give the directory",)),
    Row("hfs mount {d} {t}/nope --cache {c}", 2, ("MOUNTPOINT {t}/nope: no such directory; make it: mkdir -p {t}",)),
    Row("hfs mount {d}/train.h5 {t}/m --cache {c}", 2, ("SOURCE {d}/train.h5: not a directory; give the directory",)),
    Row("hfs mount {d} {t}/file --cache {c}", 2, ("MOUNTPOINT {t}/file: not a directory; give",)),
    Row("hfs mount {d} {t}/full --cache {c}", 2, ("MOUNTPOINT {t}/full: not empty; choose an empty", "--over")),
    Row("hfs mount {d} {d} --cache {c}", 2, ("MOUNTPOINT {d}: not empty; choose an empty", "--over")),
    Row("hfs mount {d} {d}/images --cache {c}", 2, ("MOUNTPOINT {d}/images: not empty; choose an empty", "--over")),
    Row(f"{PLACES} {{d}}/cache", 2, ("cache {d}/cache: inside SOURCE {d}; choose a directory",)),
    Row(f"{PLACES} {{t}}/m/c", 2, ("cache {t}/m/c: inside MOUNTPOINT {t}/m; choose a directory",)),
    Row(f"{PLACES} {{d}}/../t/file/x", 2, ("cache {t}/file/x: not a directory; give a directory on a disk",)),
    Row(f"{PLACES} {{c}} --cache-size 10X", 2, ('cache-size: "10X" is not possible (command line); allowed:', KINDS)),
    Row(f"{PLACES} {{c}} --cache-size 5", 2, ("cache-size: 5 is not possible", "allowed: at least one chunk: 8388608")),
    Row(f"{PLACES} {{c}} --chunk 5M", 2, ('chunk: "5M" is not possible', "allowed: a power of two from 64K to 64M")),
    Row(f"{PLACES} {{c}} --ttl -3", 2, ('ttl: "-3" is not possible', "allowed: seconds, or like 500ms, 10m, 2h")),
    Row(f"{PLACES} {{c}} --io-mode fast", 2, ('io-mode: "fast" is not possible', "allowed: auto or passthrough or")),
    Row(
        f"{PLACES} {{c}} -o evction=lru,ttll=5",
        2,
        (
            "evction: no such key",
            "did you mean eviction? hfs config lists all",
            "ttll: no such key",
            "did you mean ttl?",
        ),
    ),
    Row(
        f"{PLACES} {{c}} --io-mode stateless", 2, ('"stateless" is not possible', "allowed: stateless only with --imm")
    ),
    Row(f"{PLACES} {{t}}/shm/c", 2, ("a cache on tmpfs needs --cache-size SIZE: {t}/shm/c lies in memory",)),
    Row(f"{PLACES} /proc/hfs", 1, ("cache /proc/hfs: cannot be made (No such file", "give a directory that you can")),
    Row(
        f"{PLACES} {{o}}/hfs",
        1,
        ("cache {o}/hfs: cannot be made (Permission denied); give a directory that you can write to",),
        by_plain_user=True,
    ),
    Row("hfs umount {t}/m", 1, ("{t}/m: nothing is mounted there; hfs status lists the mounts",)),
    Row("hfs umount", 2, ("give MOUNTPOINT; hfs status lists the mounts",)),
    Row("hfs umount /nonexistent", 1, ("/nonexistent: nothing is mounted there; hfs status lists the mounts",)),
    Row("hfs status {t}/m", 2, (f"{{t}}/m: {LISTS}",)),
    Row("hfs status /nonexistent", 2, (f"/nonexistent: {LISTS}",)),
    Row("hfs why", 2, (f"no MOUNT, {SEVERAL}",)),
    Row("hfs cache", 2, ("Usage: hfs cache", "warm", f"hfs: {COMMANDS} hfs cache --help")),
    Row("hfs cache warm", 2, ("no PATH; give files or directories of a mount, or --files-from LIST",)),
    Row("hfs cache warm {d}/images", 2, (f"{{d}}/images: {LISTS}",)),
    Row("hfs cache warm /nonexistent", 2, (f"/nonexistent: {LISTS}",)),
    Row("hfs cache evict", 2, ("no PATH; give paths of a mount, or --all",)),
    Row("hfs cache check --cache {t}", 2, ("--cache {t}: holds no cache of hfs; give the DIR of hfs mount --cache",)),
    Row("hfs cache evict --cache {c} --older-than soon --all", 2, ("--older-than soon: give an age like 7d, 12h",)),
    Row("hfs run -- true", 125, ("source: missing; give the directory to show", GIVE_CACHE)),
    Row("hfs run --source {d} --cache {c}", 125, ("missing argument 'COMMAND...'; see hfs run --help",)),
    Row(f"{RUN} nosuch", 127, ("nosuch: not found (No such file", "; give the path of a program"), mounts=True),
    Row("hfs run --source {d}/nope --cache {c} -- true", 125, ("SOURCE {d}/nope: no such directory; give the dir",)),
    Row(f"{RUN} {{d}}/train.h5", 126, ("cannot be executed (Permission", "; chmod +x, or give what runs"), mounts=True),
    Row("hfs layout build {d}/images/0.npy", 2, ("{d}/images/0.npy is in no mount of hfs: say with --root what will",)),
    Row("hfs layout build /nonexistent", 2, ("/nonexistent: no such file; give the files of a data set",)),
    Row(
        "hfs layout show {d}/train.h5",
        1,
        ("{d}/train.h5: not a layout, or cut short: it does not end", "hfs layout build makes one"),
    ),
    Row("hfs plan", 2, ("give --dataset: the size of the data set, like 150GB, or where it lies",)),
    Row("hfs plan --dataset 150 --train-rate 5", 2, ("give --samples N: how many a data set has of which only the",)),
    Row("hfs plan --dataset 150GB --train-rate 200MB", 2, ("give --samples N: how many a data set has of which only",)),
    Row(
        "hfs trace simulate {d}/train.h5",
        2,
        ("train.h5: not a layout, or cut short: it does not end", "; a trace is what `hfs-hint record -o TRACE`"),
    ),
    Row(
        "hfs encode {d} {d}/train.h5/x/y",
        2,
        ("DST {d}/train.h5/x/y: {d}/train.h5 is no directory that you can", "give"),
    ),
    Row("hfs decode {d}/images /tmp", 2, ("{d}/images: no .hfsc file lies below it; hfs encode makes them",)),
    Row("hfs config --cache-size huge", 2, ('cache-size: "huge" is not possible (command line); allowed:', KINDS)),
    Row("hfs slurm prolog --config rel.toml", 2, ("--config rel.toml: a prolog starts in /; give the absolute path",)),
    Row("hfs completion tcsh", 2, ("invalid value", "'tcsh' is not one of 'bash', 'zsh', 'fish'; see hfs completion")),
    Row("hfs man nosuch", 2, ("hfs nosuch: no such command; hfs --help lists them",)),
    Row("hfs refresh /etc", 2, (f"/etc: {LISTS}",)),
    Row("hfs-hint", 2, ("Usage: hfs-hint", "record", f"hfs: {COMMANDS} hfs-hint --help")),
    Row("hfs-hint send", 2, ("missing option '--order'; see hfs-hint send --help",)),
    Row("hfs-hint record -o {t}/x.trace -- true", 2, (f"no --mount, {SEVERAL}",)),
    Row("hfs-hint replay {d}/train.h5", 2, (f"no --mount, {SEVERAL}",)),
    Row("HFS_CACHE_SIZE=lots hfs config", 2, ('"lots" is not possible (environment HFS_CACHE_SIZE); allowed:', KINDS)),
    Row(
        "HFS_CONFIG=/no.toml hfs config", 2, ('"/no.toml" is not possible (no such file); allowed: the path of a TOML',)
    ),
    Row("HFS_FOO=1 hfs config --json", 0, ("environment HFS_FOO: no such key, passed over; hfs config lists all",)),
)

UNCLEAR = ("Traceback", "[Errno", "Aborted", "None", "b'", "('", "...\n")
"""What says nothing to people, or to nobody."""


def look(row: Row, code: int, stderr: str, places: dict[str, Path]) -> None:
    """Whether it ends, and says, what it has to."""
    assert code == row.code, stderr
    told = stderr
    for part in (part.format(**places) for part in row.said):
        assert part in told, stderr
        told = told.partition(part)[2]
    for part in UNCLEAR:
        assert part not in stderr.partition("hfs: ")[2]
