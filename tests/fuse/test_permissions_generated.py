"""Generated owners, modes, ACLs and users: nobody gets more of SOURCE by any way of ours than by reading it himself.

The ways are reading, listing, looking at and asking for attributes of the mount; orders of samples, which have files
fetched; and what the daemon says. SOURCE itself is the model: each user tries the same there.
"""

import ast
import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from hfs.client.client import Client
from hfs.client.control_socket import Refused
from hfs.mountd.core.errors import HfsError
from hfs.mountd.wire.hints import LayoutFrame, encode_layout, layout_digest
from hfs.mountd.wire.protocol import Join
from hfs.training.hint_connection import HintConnection
from tests.fuse.harness import Hfs, HfsMount
from tests.fuse.modes import MODES, needs_overlays
from tests.fuse.users import NO_ID, NOBODY, User, acl, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("connections_end")]

DIRECTORIES, FILES_EACH, USERS = 25, 16, 25
"""400 files and 25 users: 10 000 cases of each verb."""
UIDS, GIDS = range(61000, 61006), range(62000, 62006)
ANSWERED_S = 20.0


class Tree(NamedTuple):
    root: Path
    directories: list[str]
    files: list[str]


def generated_tree(root: Path, chance: random.Random) -> Tree:
    root.mkdir(mode=0o755)
    directories: list[str] = []
    files: list[str] = []
    for number in range(DIRECTORIES):
        above = chance.choice(["", *directories[:8]])
        directory = f"{above}/kept-{number}".lstrip("/")
        (root / directory).mkdir()
        directories.append(directory)
        files += [f"{directory}/hidden-{number}-{each}" for each in range(FILES_EACH)]
    for number, name in enumerate(files):
        (root / name).write_bytes(b"%d" % number * 300)
        os.setxattr(root / name, "user.note", b"%d" % number)
        disguise(root / name, chance, usual=0o644)
    for name in reversed(directories):
        disguise(root / name, chance, usual=0o755)
    return Tree(root, directories, files)


def disguise(path: Path, chance: random.Random, *, usual: int) -> None:
    """Give it an owner, a mode and perhaps an ACL."""
    os.chown(path, chance.choice([0, *UIDS]), chance.choice([0, *GIDS]))
    path.chmod(usual if chance.random() < 0.4 else chance.randrange(0o1000))
    if chance.random() < 0.3:
        entries = [(1, chance.randrange(8), NO_ID)]
        entries += [(2, chance.randrange(8), uid) for uid in sorted(chance.sample(UIDS, chance.randrange(3)))]
        entries += [(4, chance.randrange(8), NO_ID)]
        entries += [(8, chance.randrange(8), gid) for gid in sorted(chance.sample(GIDS, chance.randrange(3)))]
        entries += [(16, chance.randrange(8), NO_ID), (32, chance.randrange(8), NO_ID)]
        os.setxattr(path, "system.posix_acl_access", acl(*entries))


def generated_users(chance: random.Random) -> list[User]:
    return [
        User(
            chance.choice([*UIDS, 65534]),
            chance.choice([*GIDS, 65534]),
            tuple(chance.sample(GIDS, chance.randrange(4))),
        )
        for _ in range(USERS)
    ]


def may(question: Callable[[str], object], names: Sequence[str]) -> list[object]:
    """What each name gives; "" where it is refused."""
    found: list[object] = []
    for name in names:
        try:
            found.append(question(name))
        except OSError:
            found.append("")
    return found


def all_that_can_be_had(tree: Tree) -> list[object]:
    """For a process that stands in the root of the tree or of its mount."""

    def read(name: str) -> bytes:
        with open(name, "rb") as file:
            return file.read()

    def note(name: str) -> bytes:
        return os.getxattr(name, "user.note")

    def size(name: str) -> int:
        return os.stat(name).st_size

    def listed(name: str) -> list[str]:
        return sorted(os.listdir(name))

    return [may(read, tree.files), may(note, tree.files), may(size, tree.files), may(listed, tree.directories)]


@contextlib.contextmanager
def reachable(folder: Path) -> Iterator[Path]:
    """A folder that users can pass who stand in it."""
    folder.mkdir(mode=0o711)
    folder.chmod(0o711)
    yield folder


def staged_files(client: Client) -> set[str]:
    found: set[str] = set()
    client.list([], lambda rows: found.update(os.fsdecode(row.path) for row in getattr(rows, "rows", [])))
    return found


def order_all(tree: Tree, user: User, hfs: Hfs, client: Client) -> set[str]:
    """The files that are fetched because `user` says that all will be read."""
    blob = encode_layout(LayoutFrame(b"\0".join(map(os.fsencode, tree.files))))
    told, tell = os.pipe()

    def follow() -> str:
        learner = HintConnection.join(hfs.socket.name, Join(layout_digest(blob)), blob)
        learner.send_order(0, np.arange(len(tree.files)))
        learner.wait_answered(ANSWERED_S)
        os.read(told, 1)
        learner.close()
        return "followed"

    pid = os.fork()
    if pid == 0:
        try:
            os.close(tell)
            os._exit(0 if user.told(hfs.socket.parent, follow) == repr("followed") else 1)
        finally:
            os._exit(2)
    os.close(told)
    try:
        while True:
            hints = hfs.status()["hints"]
            if hints["learners"] and "position" in hints["learners"][0]:
                staged = staged_files(client)
                (layout,) = (one for one in hints["layouts"] if one["samples"] == len(tree.files))
                if layout["missing"] + len(staged) >= len(tree.files):
                    return staged
    finally:
        os.close(tell)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.timeout(150)  # ten seconds of processor time
def test_nobody_gets_more_than_source_allows(tmp_path: Path, hfs_mount: HfsMount) -> None:
    chance = random.Random(17)
    tree = generated_tree(tmp_path / "tree", chance)
    with reachable(tmp_path / "control") as folder:
        # Siblings of what a user has read may come after the eviction; he gets none of them by that.
        hfs = hfs_mount(tree.root, "--control", folder / "socket", "-o", "siblings=0")
        hfs.expect_warning("a hint names what cannot be had")
        client = Client(str(hfs.socket))
        ever: set[str] = set()
        for user in generated_users(chance):
            allowed = ast.literal_eval(user.told(tree.root, lambda: all_that_can_be_had(tree)))
            assert ast.literal_eval(user.told(hfs.path, lambda: all_that_can_be_had(tree))) == allowed
            may_read = {name for name, text in zip(tree.files, allowed[0], strict=True) if text}
            client.evict([], everything=True)
            assert order_all(tree, user, hfs, client) == may_read
            ever |= may_read
        assert len(tree.files) * 0.2 < len(ever) < len(tree.files)


@needs_overlays
def test_nor_by_an_overlay_that_knows_of_all(tmp_path: Path, hfs_mount: HfsMount) -> None:
    chance = random.Random(18)
    tree = generated_tree(tmp_path / "tree", chance)
    hfs = MODES["overlay"].mount(hfs_mount, tree.root)
    for user in generated_users(chance):
        allowed = ast.literal_eval(user.told(tree.root, lambda: all_that_can_be_had(tree)))
        assert ast.literal_eval(user.told(hfs.path, lambda: all_that_can_be_had(tree))) == allowed
    MODES["overlay"].prove(hfs)


COMMANDS: list[Callable[[Client], object]] = [
    lambda client: client.warm([b""]),
    lambda client: client.evict([], everything=True),
    lambda client: client.check([]),
    lambda client: client.list([], lambda _rows: None),
    lambda client: client.estimate([b""]),
]


def test_others_may_not_command(tmp_path: Path, hfs_mount: HfsMount) -> None:
    (tmp_path / "tree").mkdir()
    with reachable(tmp_path / "control") as folder:
        hfs = hfs_mount(tmp_path / "tree", "--control", folder / "socket")

        def refused(command: Callable[[Client], object]) -> str:
            try:
                command(Client(hfs.socket.name))
            except Refused as error:
                return str(error)
            return "done"

        for number, command in enumerate(COMMANDS):
            said = NOBODY.told(folder, partial(refused, command))
            assert "only root and the owner of the mount may ask for" in said, number


def test_others_are_told_figures_and_no_names(tmp_path: Path, hfs_mount: HfsMount) -> None:
    tree = generated_tree(tmp_path / "tree", random.Random(3))
    with reachable(tmp_path / "control") as folder:
        hfs = hfs_mount(tree.root, "--control", folder / "socket")
        blob = encode_layout(LayoutFrame(b"\0".join(map(os.fsencode, tree.files))))
        learner = HintConnection.join(str(hfs.socket), Join(layout_digest(blob), name="own"), blob)
        try:
            with open(hfs.path / tree.files[0], "rb") as file:
                assert file.read()
                status = ast.literal_eval(NOBODY.told(folder, lambda: Client(hfs.socket.name).status()))
        finally:
            learner.close()
    assert status["staged"]["files"] is not None
    assert status["hints"] == {"learners": [], "past": [], "layouts": []}
    assert "readers" not in status
    assert "config" not in status
    assert "hidden-" not in str(status)
    assert "kept-" not in str(status)


def test_a_mount_for_its_owner_answers_nobody_else(tmp_path: Path, hfs_mount: HfsMount) -> None:
    (tmp_path / "tree").mkdir()
    with reachable(tmp_path / "control") as folder:
        hfs = hfs_mount(tmp_path / "tree", "--control", folder / "socket", "-o", "allow-other=false")
        assert hfs.socket.stat().st_mode & 0o777 == 0o600
        assert "Permission denied" in NOBODY.told(folder, lambda: silence_of(Client(hfs.socket.name)))


def silence_of(client: Client) -> str:
    try:
        return str(client.status())
    except HfsError as error:
        return str(error)
