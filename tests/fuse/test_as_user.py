"""A source that root may not read is read as the user who may, whoever looks at the mount."""

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hfs.hint import hinted
from tests.fuse.harness import HfsMount, environment, hfs_command, mounts_below, must, must_here, own_cache, run
from tests.fuse.hinted import all_staged, begun, wait_until
from tests.fuse.injection import SETTLED
from tests.fuse.modes import MODES, Mode
from tests.fuse.slowfs import SlowFs
from tests.fuse.squashed import (
    AS_OWNER,
    FILES,
    FOLDERS,
    OTHER,
    OWNER,
    PrivateSlowFs,
    all_of,
    open_folder,
    owned_tree,
    told,
)
from tests.fuse.users import needs_root
from tests.support.pattern import pattern, write_pattern

pytestmark = needs_root

_PTRACE_SEIZE = 0x4206  # <linux/ptrace.h>


@pytest.fixture
def folder(_nothing_left: None) -> Iterator[Path]:
    with open_folder() as path:
        yield path


@pytest.fixture
def tree(folder: Path) -> Path:
    (folder / "tree").mkdir()
    return owned_tree(folder / "tree")


@pytest.fixture
def private(folder: Path, tree: Path) -> Iterator[PrivateSlowFs]:
    """A FUSE mount of OWNER that the kernel keeps root out of."""
    yield from _mounted(PrivateSlowFs(tree, folder / "private"))


@pytest.fixture(params=["private", "private, asked", "squashes", "squashes, asked"])
def refusing(request: pytest.FixtureRequest, folder: Path, tree: Path) -> Iterator[SlowFs]:
    """Each kind of source that refuses root. Asked: its mode bits do not say who may read."""
    own = ("--own-permissions",) if "asked" in request.param else ()
    made = PrivateSlowFs if request.param.startswith("private") else SlowFs
    yield from _mounted(made(tree, folder / "source", "none", own), squashes=made is SlowFs)


def _mounted(slow: SlowFs, *, squashes: bool = False) -> Iterator:
    slow.mount()
    try:
        if squashes:
            slow.order("squash")
        yield slow
    finally:
        slow.close()


@pytest.fixture
def connections_end(_nothing_left: None) -> Iterator[None]:
    yield
    import gc

    gc.collect()


def test_all_of_it_is_right_for_the_user_and_for_root_also_after_a_crash_and_warm(
    refusing: SlowFs, tree: Path, hfs_mount: HfsMount
) -> None:
    with pytest.raises(PermissionError):
        all_of(refusing.path)
    refusing.order("reset")
    wanted = all_of(tree)
    hfs = hfs_mount(refusing.path, *AS_OWNER)
    assert all_of(hfs.path) == wanted
    assert told(OWNER, lambda: all_of("."), hfs.path) == wanted
    assert hfs.status()["other_users"]["asked"] == 0, "the source tells the daemon what it tells this user"
    assert told(OTHER, lambda: all_of("."), hfs.path) == os.strerror(errno.EACCES)
    hfs.crash()
    assert all_of(hfs.path) == wanted
    must_here("cache", "warm", hfs.path)
    hfs.umount()
    hfs.mount()
    assert told(OWNER, lambda: all_of("."), hfs.path) == wanted
    assert hfs.source_bytes() == 0, "all of it is staged"
    assert {path.stat().st_uid for path in [hfs.cache, *hfs.cache.rglob("*")]} == {0}
    assert refusing.counters()["refused"] == 0, "something was asked as root"


@pytest.mark.parametrize("mode", [pytest.param(mode, id=name, marks=mode.marks) for name, mode in MODES.items()])
def test_in_every_mode(private: PrivateSlowFs, tree: Path, hfs_mount: HfsMount, mode: Mode) -> None:
    hfs = mode.mount(hfs_mount, private.path, *AS_OWNER)
    wanted = all_of(tree)
    for _ in range(2):
        assert all_of(hfs.path) == wanted
        assert told(OWNER, lambda: all_of("."), hfs.path) == wanted
    mode.prove(hfs)


def test_small_files_are_fetched_without_python_all_the_same(refusing: SlowFs, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(refusing.path, *AS_OWNER, "-o", "siblings=0", env=SETTLED)
    wanted = all_of(hfs.path)
    found = {path.name: path for path in Path(f"/proc/{hfs.pid}/task").iterdir()}
    fetching = [path for path in found.values() if (path / "comm").read_text().startswith("hfs-fetch")]
    assert fetching
    asked = bool(hfs.status()["other_users"]["asked_as_user"])
    # Where every open of others has to be asked for, it comes to Python.
    assert (hfs.status()["data_plane"]["opens_cached"] > FOLDERS * FILES // 2) != asked
    assert refusing.counters()["refused"] == 0
    hfs.umount()
    hfs.mount()
    assert all_of(hfs.path) == wanted
    assert hfs.source_bytes() == 0, "what they have fetched is staged"


def test_where_root_must_not_look(private: PrivateSlowFs, tree: Path, hfs_mount: HfsMount, folder: Path) -> None:
    """Joined, shown elsewhere, seen in place, and mounted over the source itself: by the same command and options."""
    hfs = hfs_mount(private.path, *AS_OWNER)
    hfs.mount()
    second = folder / "second"
    second.mkdir()
    joined = (hfs_command(), "mount", private.path, second, "--cache", hfs.cache, *hfs.options)
    must(*joined)
    assert all_of(second) == all_of(tree)
    must(hfs_command(), "umount", second)
    script = 'cd "$0" && ls && cat large'
    here = ("--cache", hfs.cache, *hfs.options, "--quiet", "--", "sh", "-c", script, private.path)
    done = subprocess.run(
        [hfs_command(), "run", "--source", private.path, *here], env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    names, _, data = done.stdout.partition(b"nowhere\n")
    assert names.split() == [b"d0", b"d1", b"d2", b"large", b"link"]
    assert data == (tree / "large").read_bytes()
    hfs.umount()
    over = (hfs_command(), "mount", private.path, private.path, "--over", "--cache", hfs.cache, *hfs.options)
    must(*over, env={"HFS_LOG_FILE": str(hfs.log)})
    assert all_of(private.path) == all_of(tree)
    must(hfs_command(), "umount", private.path)


def test_in_place_below_a_directory_that_root_may_not_enter(
    private: PrivateSlowFs, tree: Path, hfs_mount: HfsMount
) -> None:
    """The command becomes the user, who can get there; root only makes the mount."""
    become = ("setpriv", "--reuid", str(OWNER.uid), "--regid", str(OWNER.gid), "--clear-groups")
    cache = ("--cache", str(private.path.parent / "cache"), "--cache-size", "1G")
    command = (*become, "sh", "-c", 'stat -f -c %T "$0" && cat "$0/f4"', private.path / "d1")
    done = subprocess.run(
        [hfs_command(), "run", "--source", private.path / "d1", *cache, *AS_OWNER, "--quiet", "--", *command],
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition(b"\n")[2] == pattern(5, 0, 97 * 4)


@pytest.mark.usefixtures("connections_end")
def test_hints(private: PrivateSlowFs, tree: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(private.path, *AS_OWNER)
    count = FOLDERS * FILES
    files = [hfs.path / f"d{number % FOLDERS}" / f"f{number}" for number in range(count)]
    sampler = hinted(np.random.default_rng(3).permutation(count), files=files)
    with begun(sampler) as (first, rest):
        wait_until(hfs, all_staged)
        for index in [first, *rest]:
            assert files[index].read_bytes() == pattern(index + 1, 0, 97 * index)


def test_another_release_takes_over_as_the_same_user_only(
    private: PrivateSlowFs, tree: Path, hfs_mount: HfsMount
) -> None:
    hfs = hfs_mount(private.path, *AS_OWNER)
    take = (hfs_command(), "mount", "--take-over", hfs.source, hfs.path, "--cache", hfs.cache)
    env = {"HFS_LOG_FILE": str(hfs.log)}
    others = hfs.options[: -len(AS_OWNER)]
    for options in (("--as-user", "61002:61002"), ("--as-user", "61001:61000"), ()):
        refused = run(*take, *others, *options, env=env)
        assert refused.returncode == 2
        assert "as-user: the mount was made with 61001:61000:7, and" in refused.stderr
        refused = run(hfs_command(), "mount", hfs.source, hfs.path, "--cache", hfs.cache, *others, *options, env=env)
        assert refused.returncode == 2
        assert "as-user: it has 61001:61000:7, and" in refused.stderr
    must(*take, *hfs.options, env=env)
    hfs.look()
    assert all_of(hfs.path) == all_of(tree)


# -- what the user may not --------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(folder: Path) -> Path:
    """A plain folder: what OWNER may read himself, by a group, and not at all."""
    path = folder / "mixed"
    path.mkdir()
    for seed, (name, uid, gid, mode) in enumerate(
        [
            ("his", OWNER.uid, 0, 0o600),
            ("group", 0, 7, 0o640),
            ("no-group", 0, 9, 0o640),
            ("other", OTHER.uid, 0, 0o600),
        ],
        1,
    ):
        write_pattern(path / name, seed, 3000)
        os.chown(path / name, uid, gid)
        (path / name).chmod(mode)
    (path / "shut").mkdir(mode=0o700)
    write_pattern(path / "shut" / "f", 9, 3000)
    return path


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, id=name, marks=mode.marks) for name, mode in MODES.items() if not mode.warm]
)
def test_root_reads_no_more_than_the_user(mixed: Path, hfs_mount: HfsMount, mode: Mode) -> None:
    hfs = mode.mount(hfs_mount, mixed, *AS_OWNER)
    assert (hfs.path / "his").read_bytes() == pattern(1, 0, 3000)
    assert (hfs.path / "group").read_bytes() == pattern(2, 0, 3000)
    for name in ("no-group", "other", "shut/f"):
        with pytest.raises(PermissionError):
            (hfs.path / name).read_bytes()
    with pytest.raises(PermissionError):
        os.listdir(hfs.path / "shut")
    with pytest.raises(PermissionError):
        os.lstat(hfs.path / "shut" / "f")
    assert OWNER.reads(hfs.path, "his") == pattern(1, 0, 3000)
    assert OWNER.reads(hfs.path, "group") == pattern(2, 0, 3000)
    assert OTHER.reads(hfs.path, "his") is None
    assert OTHER.reads(hfs.path, "other") is None


def test_what_is_staged_for_one_is_not_for_another(mixed: Path, hfs_mount: HfsMount, folder: Path) -> None:
    """Mode bits do not say all everywhere; so each has a cache of his own in the root, and root another."""
    hfs = hfs_mount(mixed, *AS_OWNER)
    assert (hfs.path / "his").read_bytes() == pattern(1, 0, 3000)
    hfs.umount()
    first = own_cache(hfs.cache)
    others = hfs_mount(mixed, "--as-user", "61002:61002")
    assert (others.path / "other").read_bytes() == pattern(4, 0, 3000)
    with pytest.raises(PermissionError):
        (others.path / "his").read_bytes()
    others.umount()
    own = hfs_mount(mixed)
    assert (own.path / "his").read_bytes() == pattern(1, 0, 3000)
    own.umount()
    assert len(list(hfs.cache.glob("0-*"))) == 3
    assert first.exists()


def test_a_source_that_the_user_may_not_list_is_refused(folder: Path, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    done = run(
        hfs_command(), "mount", tree, tmp_path / "mnt", "--cache", tmp_path / "cache", "--as-user", "61002:61002"
    )
    assert done.returncode == 1
    assert f"SOURCE {tree}: may not be read by user 61002:61002:; give --as-user USER, who can list it" in done.stderr
    assert mounts_below(tmp_path) == []


def test_who_may_not_become_others_is_told(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    unable = ("setpriv", "--bounding-set=-setuid,-setgid", hfs_command())
    done = run(*unable, "mount", tree, tmp_path / "mnt", "--cache", tmp_path / "cache", *AS_OWNER)
    assert done.returncode == 1
    assert "as-user: hfs cannot become user 61001:61000:7" in done.stderr
    assert "it needs CAP_SETUID and CAP_SETGID" in done.stderr
    assert mounts_below(tmp_path) == []


def test_without_it_root_is_told_of_it(private: PrivateSlowFs, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    done = run(hfs_command(), "mount", private.path, tmp_path / "mnt", "--cache", tmp_path / "cache")
    assert done.returncode == 1
    assert "may not be read by user 0; mount as a user who can list it (as root: --as-user USER)" in done.stderr


# -- what the user may not do to the daemon ---------------------------------------------------------------------------


def test_the_user_cannot_trace_the_daemon_whose_threads_he_is(private: PrivateSlowFs, hfs_mount: HfsMount) -> None:
    """Through one thread he would have all of the daemon, and root's rights with it."""
    hfs = hfs_mount(private.path, *AS_OWNER)
    all_of(hfs.path)
    threads = [int(name) for name in os.listdir(f"/proc/{hfs.pid}/task")]

    def uids(thread: int) -> list[str]:
        lines = Path(f"/proc/{hfs.pid}/task/{thread}/status").read_text().splitlines()
        return next(line.split()[1:] for line in lines if line.startswith("Uid:"))

    his = [thread for thread in threads if uids(thread) == [str(OWNER.uid)] * 4]
    assert his
    libc = ctypes.CDLL(None, use_errno=True)

    def tries() -> set[tuple[int, int]]:
        found = set()
        for thread in his:
            found.add((libc.ptrace(_PTRACE_SEIZE, thread, None, None), ctypes.get_errno()))
            for name in ("mem", "maps", "environ"):
                try:
                    os.close(os.open(f"/proc/{thread}/{name}", os.O_RDONLY))
                    found.add((0, 0))
                except OSError as error:
                    found.add((-1, errno.EPERM if error.errno in (errno.EACCES, errno.EPERM) else error.errno or 0))
        return found

    assert told(OWNER, tries) == {(-1, errno.EPERM)}
