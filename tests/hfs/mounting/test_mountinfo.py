"""The mount table: lines as kernels write them, and paths compared with them without a look below a mount of hfs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.mounting import mountinfo
from hfs.mounting.mountinfo import Mount, at, canonical, enclosing, hfs_mounts, parse

TABLE = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /proc rw,nosuid - proc proc rw
41 22 0:45 / /mnt/with\040space\134and\011tab\012line ro,nosuid - fuse.hfs hfs#/lustre/a\040b ro,user_id=7,group_id=0
42 22 0:46 / /mnt/two rw shared:5 master:3 propagate_from:2 - fuse.sshfs host:/x rw,user_id=0
43 42 0:47 / /mnt/two ro - fuse.hfs hfs#/s ro,user_id=1000
44 43 0:48 / /mnt/two/below rw - tmpfs none rw
45 22 0:49 / /mnt/covered ro - fuse.hfs hfs#/s ro
46 45 0:50 / /mnt/covered rw - tmpfs none rw,size=4k
47 22 0:51 / /mnt/cafE ro - fuse.hfs hfs#/s ro
""".replace("cafE", "caf\udce9")
MOUNTS = parse(TABLE)


def test_a_line_in_all_its_parts() -> None:
    assert MOUNTS[2] == Mount(
        mount_id=41,
        device="0:45",
        mountpoint="/mnt/with space\\and\ttab\nline",
        options="ro,nosuid",
        fstype="fuse.hfs",
        source="hfs#/lustre/a b",
        super_options="ro,user_id=7,group_id=0",
        parent_id=22,
    )
    assert [mount.owner_uid for mount in MOUNTS[:5]] == [None, None, 7, 0, 1000]
    assert len(MOUNTS) == 9


def test_the_mount_on_top_counts() -> None:
    assert [mount.mountpoint for mount in hfs_mounts(MOUNTS)] == [
        *("/mnt/with space\\and\ttab\nline", "/mnt/two", "/mnt/caf\udce9"),
    ]
    top = at("/mnt/two", MOUNTS)
    assert top is not None
    assert top.fstype == "fuse.hfs"
    assert at("/mnt", MOUNTS) is None
    covered = at("/mnt/covered", MOUNTS)
    assert covered is not None
    assert covered.fstype == "tmpfs"


@pytest.mark.parametrize(
    ("path", "mountpoint"),
    [
        *(("/", "/"), ("/proc", "/proc"), ("/process", "/"), ("/mnt/two", "/mnt/two"), ("/mnt/two/x/y", "/mnt/two")),
        *(("/mnt/two/below/z", "/mnt/two/below"), ("/mnt/twoo", "/"), ("/mnt/caf\udce9/f", "/mnt/caf\udce9")),
    ],
)
def test_the_mount_that_a_path_lies_in(path: str, mountpoint: str) -> None:
    mount = enclosing(path, MOUNTS)
    assert mount is not None
    assert mount.mountpoint == mountpoint
    assert mount.fstype == {"/mnt/two": "fuse.hfs"}.get(mountpoint, mount.fstype)  # the one on top


def test_canonical_follows_links(tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "a/b").mkdir(parents=True)
    (real / "link").symlink_to("a")
    (real / "absolute").symlink_to(real / "link/b")
    (real / "up").symlink_to("a/b/../../a")
    for text, found in [
        *(
            ("link/b", "a/b"),
            ("absolute", "a/b"),
            ("up/b/", "a/b"),
            ("link/../link", "a"),
            ("a/absent/x", "a/absent/x"),
        ),
        *(("link/absent/../b", "a/b"), (".", "")),
    ]:
        assert canonical(f"{real}/{text}") == str(real / found).rstrip("/")
    assert canonical("/") == canonical("//") == "/"


def test_canonical_never_looks_below_a_mount_of_hfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path.resolve()
    (real / "m/inside").mkdir(parents=True)
    (real / "m/inside/link").symlink_to("/elsewhere")
    (real / "way").symlink_to("m")
    table = parse(f"1 0 0:1 / {real}/m ro - fuse.hfs hfs#/s ro")
    looked: list[str] = []
    readlink = mountinfo.os.readlink
    monkeypatch.setattr(mountinfo.os, "readlink", lambda path: (looked.append(path), readlink(path))[1])
    assert canonical(f"{real}/way/inside/link/x", table) == f"{real}/m/inside/link/x"
    assert canonical(f"{real}/m", table) == f"{real}/m"
    assert not [path for path in looked if path.startswith(f"{real}/m")]


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0\n"), min_size=1, max_size=8).filter(
    lambda name: name not in {".", ".."}
)


@given(st.lists(names, max_size=4))
def test_escaping_is_undone(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in path)
    assert parse(f"1 2 0:1 / {escaped} rw - ext4 dev rw")[0].mountpoint == path
