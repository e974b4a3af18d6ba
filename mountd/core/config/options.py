"""The texts of -o: our keys, and the words of mount(8) that any line of fstab may hold.

A word of mount(8) that changes nothing on a read-only mount is taken silently, one that hfs can honour becomes a key
(`noexec`), and one that would promise what hfs does not do is a fault that says so: a label, a remount, a write. What
is no word of mount(8) is a key, known or not: `config` judges those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hfs.mountd.core.config.faults import Fault, impossible

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
