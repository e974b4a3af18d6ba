"""Whether a file system's permissions are those that the kernel checks on a FUSE mount by itself.

A mount with `default_permissions` lets a user do what mode bits and POSIX ACLs allow. On a file system that knows more
(NFSv4 ACLs, a server that decides by the user's name) mode bits are a summary, and may allow what is denied. Only for
file systems known to be decided by mode bits and POSIX ACLs alone that is enough; of all others, also of those that
nobody here has heard of, it has to be asked as the user. Looks at nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable

_BY_MODE = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "jfs", "nilfs2", "reiserfs", "zfs", "ocfs2", "gfs2"),
    *("squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs", "minix"),
    *("vfat", "msdos", "exfat", "ntfs3", "hfsplus"),
    *("tmpfs", "ramfs", "overlay", "devtmpfs", "proc", "sysfs", "cgroup2", "autofs", "virtiofs"),
    *("lustre", "ceph", "beegfs"),
}
"""Their own permission check is the kernel's generic one. Not here, on purpose: nfs, nfs4, cifs, smb3, 9p, afs, gpfs,
panfs, wekafs and whatever comes next."""

_POSIX = {"system.posix_acl_access", "system.posix_acl_default"}


def why_not_by_mode(kind: str, options: Iterable[str], xattrs: Iterable[str]) -> str | None:
    """Why mode bits and POSIX ACLs do not say all about permissions there; None if they do.

    `kind`: as mountinfo names the file system. `options`: those of its superblock. `xattrs`: names of the extended
    attributes of one of its files, as many as there are.
    """
    for name in xattrs:
        if name.startswith("system.") and "acl" in name and name not in _POSIX:
            return f"{kind} has ACLs of another kind ({name})"
    if kind == "fuse" or kind == "fuseblk" or kind.startswith("fuse."):
        if "default_permissions" in options:
            return None
        return f"{kind} decides itself about permissions (it is mounted without default_permissions)"
    return None if kind in _BY_MODE else f"{kind} decides itself about permissions"
