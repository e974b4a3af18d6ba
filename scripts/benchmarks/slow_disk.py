"""A slow disk: an ext4 on a loop device over one file of a FUSE file system that answers no sooner than a drive would.

The drive (slow_drive.py) is an SSD with one queue. So a read that comes behind a large write waits for it, whatever the
disk below can do. The kernel's scheduler, its write-back and its journal are real. Needs root.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["SlowDisk"]

_PROGRAM = Path(__file__).with_name("slow_drive.py")
_IMAGE = "disk.img"
_LIMIT_S = 10.0
_LOOK_S = 0.01


class SlowDisk:
    """Mounted at `path` until closed. `folder` is empty. Raises RuntimeError where there is none to be had."""

    def __init__(self, folder: Path, size_bytes: int, rate_bps: float, scheduler: str) -> None:
        self.path, self._shown = folder / "disk", folder / "drive"
        self.path.mkdir()
        self._shown.mkdir()
        self._device = ""
        command = [sys.executable, _PROGRAM, self._shown, str(size_bytes), str(rate_bps)]
        self._drive = subprocess.Popen(command)
        try:
            image, until_s = self._shown / _IMAGE, time.monotonic() + _LIMIT_S
            while not image.exists():
                if self._drive.poll() is not None or time.monotonic() > until_s:
                    raise RuntimeError("the slow drive does not start")
                time.sleep(_LOOK_S)
            self._device = _must("losetup", "--find", "--show", "--direct-io=on", image).strip()
            Path(f"/sys/block/{Path(self._device).name}/queue/scheduler").write_text(scheduler)
            _must("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0", self._device)
            _must("mount", self._device, self.path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Take it all away."""
        if os.path.ismount(self.path):
            _must("umount", self.path)
        if self._device:
            _must("losetup", "--detach", self._device)
        until_s = time.monotonic() + _LIMIT_S
        while os.path.ismount(self._shown):
            # The kernel lets go of the loop device in the background: once no mount namespace has the disk any more
            # that another program has made meanwhile. Such a one is left with a disk that fails.
            how = ("--lazy",) if time.monotonic() > until_s else ()
            with contextlib.suppress(RuntimeError):
                _must("umount", *how, self._shown)
            time.sleep(_LOOK_S)
        self._drive.terminate()
        self._drive.wait()


def _must(*command: str | os.PathLike[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout
