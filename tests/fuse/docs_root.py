"""A machine of its own for commands of the documentation: a root directory, processes and a network that go with them.

The root is the real one below an overlay, so that commands may write wherever they are told to; the paths that the
pages name (/lustre/imagenet, /data, /nvme/hfs, ...) are there, and so is train.py, which reads every file of --data,
else of /data. Only root can make it. Nothing of it is seen outside, and all of it ends with the script.
"""

import subprocess
from pathlib import Path

from tests.fuse.harness import environment

LIMIT_S = 50.0

_OUTSIDE = """
set -e
mount --make-rprivate /
# Mounts of other tests, and overlays over them: their copies here would keep them alive.
while read -r _ _ _ _ place _; do
    umount -l "$(printf '%b' "$place")" || true
done < <(grep -E ' - (fuse|overlay hfs)' /proc/self/mountinfo)
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
for place in run lustre nfs scratch; do
    mkdir -p $place
    mount -t tmpfs tmpfs $place
done
mkdir -p data nvme mnt/data "$1/nvme" "$1/tmp"
mount --bind "$1/nvme" nvme  # no overlay: what lies on one is not passed through
mount --bind "$1/tmp" tmp
chmod 1777 tmp
mkdir tmp/here
# Where the checkout lies in a place that is hidden by now.
if ! test -e ".$2"; then
    mkdir -p ".$2"
    mount --bind "$2" ".$2"
fi
ip link set lo up
exec chroot . /bin/bash -c "$3"
"""

_INSIDE = """
set -e
export HOME=/tmp/here USER=root
cd /tmp/here
mkdir -p /lustre/imagenet/train /nfs/data
for number in 1 2 3 4 5; do
    head -c ${number}0000 /dev/urandom >/lustre/imagenet/train/$number.jpg
done
cp -r /lustre/imagenet/train /nfs/data
cat >train.py <<'END'
import os, sys
data = sys.argv[2] if sys.argv[1] == "--data" else "/data"
files = [os.path.join(folder, name) for folder, _, names in os.walk(data) for name in names]
assert files, "no file"
print("trained on", sum(len(open(file, "rb").read()) for file in files), "bytes")
END
"""


def run_in_root(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """Run the lines of `script`, with `set -e`, in such a root, which is kept in `folder` meanwhile."""
    checkout = Path(__file__).parents[2]
    own = ("unshare", "--mount", "--pid", "--fork", "--net", "--kill-child")
    return subprocess.run(
        [*own, "/bin/bash", "-c", _OUTSIDE, "bash", str(folder), str(checkout), _INSIDE + script],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
