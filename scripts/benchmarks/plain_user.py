"""Running a command as a plain user, nobody, from root: in a mount namespace where that user may open /dev/fuse.

A machine whose /dev/fuse is for root alone, or whose interpreter lies where only root may enter, stays as it is. The
commands of a plain user are run as they are. Imported by tests too.
"""

import os
import sys
from pathlib import Path

UID = 65534

_SCRIPT = """
set -e
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
if [ -n "$3" ]; then
    mkdir "$1/prefix"
    mount --bind "$2" "$1/prefix"
    mount -t tmpfs -o mode=755 none "$3"
    mkdir -p "$2"
    mount --bind "$1/prefix" "$2"
fi
shift 3
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


def as_plain_user(folder: Path | str) -> list[str]:
    """What stands before a command. `folder`: an empty one for this, which everybody may enter."""
    if os.geteuid() != 0:
        return []
    parents = Path(sys.executable).resolve().parents
    shut = [str(parent) for parent in parents if not parent.stat().st_mode & 0o001]
    interpreter = [sys.base_prefix, shut[-1] if shut else ""]
    return ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(folder), *interpreter]
