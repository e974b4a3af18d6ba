"""For tests of a daemon that takes over from a killed one: modes of the mount, files, when handles are closed."""

from tests.fuse.harness import Hfs

DAEMON = ("--io-mode", "daemon", "-o", "push=no")
STATELESS = ("--io-mode", "stateless", "--immutable")
MODES = {
    "through the daemon": DAEMON,
    "passed through": ("--io-mode", "passthrough"),
    "stateless": STATELESS,
}


def wait_closed(hfs: Hfs) -> bool:
    """A close is told after close(2) has returned; and status opens files for a moment, to look at them."""
    for number in range(50):
        found = hfs.status()
        noted = found["keeper"]["journal"]["handles"] - found["data_plane"]["opens_of"]  # those are for opens to come
        if not (found["open"]["files"] or found["open"]["directories"] or noted):
            return True
        assert not (hfs.path / f"none-{number}").exists()
    return False


FILES = 60


def size(number: int) -> int:
    """Bytes of file `number` of FILES: few are large."""
    return 1_000_000 if number % 10 == 0 else 3000 + number
