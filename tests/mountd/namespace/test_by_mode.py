"""Which file systems may be left to mode bits and POSIX ACLs; the unknown ones never."""

import pytest

from hfs.mountd.namespace.permissions import why_not_by_mode

POSIX = ["security.selinux", "system.posix_acl_access", "system.posix_acl_default", "user.acl"]


@pytest.mark.parametrize("kind", ["ext4", "xfs", "squashfs", "ramfs", "lustre", "overlay"])
def test_the_kernels_own_check_is_all(kind: str) -> None:
    assert why_not_by_mode(kind, ["rw"], []) is None
    assert why_not_by_mode(kind, ["rw"], POSIX) is None


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "gpfs", "cifs", "smb3", "9p", "afs", "panfs", "new-and-unheard-of"])
def test_a_server_decides(kind: str) -> None:
    assert why_not_by_mode(kind, ["rw"], []) == f"{kind} decides itself about permissions"


@pytest.mark.parametrize("name", ["system.nfs4_acl", "system.richacl", "system.gpfs_acl", "system.cifs_acl"])
def test_acls_of_another_kind_on_any_file_system(name: str) -> None:
    assert name in (why_not_by_mode("ext4", ["rw"], [*POSIX, name]) or "")
    assert name in (why_not_by_mode("fuse.x", ["default_permissions"], [name]) or "")


@pytest.mark.parametrize("kind", ["fuse", "fuseblk", "fuse.sshfs"])
def test_fuse_with_and_without_the_kernels_check(kind: str) -> None:
    assert why_not_by_mode(kind, ["rw", "user_id=0", "default_permissions", "allow_other"], POSIX) is None
    assert "without default_permissions" in (why_not_by_mode(kind, ["rw", "allow_other"], []) or "")
