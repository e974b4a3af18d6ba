"""SOURCE: does it answer, may it be listed, may its files be read, also by root?

A process of its own looks at the first few thousand names, and is left behind where it gets no answer. Root is told
nothing by mode bits, so a file or directory that others may not read is opened: where the server takes root for nobody
(root_squash, a FUSE mount of somebody else) that is refused. Where a FUSE file system serves it, some of its files are
looked at twice: are their inode numbers the same?
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable, Iterator
from typing import Any

from hfs.doctor.surroundings import CheckResult, Surroundings, fault, good, limit
from hfs.mounting import mountinfo, probe
from hfs.policies.diagnosis.causes import LASTING_NUMBERS

_NAME = "source"
_RIGHTS = "source-rights"
_NUMBERS = "inode-numbers"
_LOOK_S = 2.0
"""For the names, besides what an answer may take."""

_AGAIN_S = 1.2
"""Between two looks at a name: the kernel asks a FUSE file system again after a second, if that says nothing else."""

_MODULES = ("errno", "json", "stat", "time")
_CODE = """
path, until = sys.argv[1], time.monotonic() + float(sys.argv[2])
again_s = float(sys.argv[3]) if sys.argv[3] else None
looked, looked_s = {}, 0.0
said = {"at": path}
def say(**more):
    said.update(more)
    print(json.dumps(said), flush=True)
say()
refused = {errno.EACCES, errno.EPERM}
names, private, denied, others, first = 0, 0, [], 0, None
folders = [path]
while folders and names < 3000 and time.monotonic() < until:
    folder = folders.pop()
    say(at=folder)
    try:
        entries = os.scandir(folder)
    except OSError as error:
        if folder == path:
            try:
                owner = os.stat(path).st_uid
            except OSError:
                owner = None
            say(errno=error.errno, owner=owner)
            sys.exit()
        if error.errno in refused:
            denied.append([folder, None])
        continue
    with entries:
        for entry in entries:
            names += 1
            if names >= 3000 or time.monotonic() > until:
                break
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                if not entry.is_file(follow_symlinks=False):
                    continue
                found = entry.stat(follow_symlinks=False)
                if again_s is not None and len(looked) < 8:
                    looked[entry.path], looked_s = found, time.monotonic()
                shut = not found.st_mode & 0o004 and found.st_uid != 0
                if private >= 20 if shut else first is not None:
                    continue
                say(at=entry.path)
                fd = os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    os.read(fd, 1)
                finally:
                    os.close(fd)
                private += shut
                first = first or (None if shut else entry.path)
            except OSError as error:
                if error.errno in refused:
                    denied.append([entry.path, found.st_uid])
                    if len(denied) > 20:
                        break
if looked:
    time.sleep(max(0.0, looked_s + again_s - time.monotonic()))
renumbered = []
for file, found in looked.items():
    say(at=file)
    try:
        now = os.stat(file, follow_symlinks=False)
    except OSError:
        continue
    kept = all(getattr(now, name) == getattr(found, name) for name in ("st_size", "st_mtime_ns", "st_ctime_ns"))
    if kept and now.st_ino != found.st_ino:
        renumbered.append(file)
say(renumbered=len(renumbered), looked=len(looked))
say(names=names, denied=denied[:3], refused=len(denied), opened=private + (first is not None), done=True)
"""


def look(path: str, answer_s: float, as_user: str | None = None, again_s: float | None = None) -> dict[str, Any]:
    """What was found; without "done" or "errno" it did not answer, and "at" says where. "kept": the errno for which
    nobody can become `as_user` here. `again_s`: after how long some files are looked at again; None: they are not."""
    arguments = [path, str(_LOOK_S), "" if again_s is None else str(again_s)]
    output, _ = probe.answer(_CODE, arguments, answer_s + _LOOK_S + (again_s or 0.0), as_user, _MODULES)
    if output.startswith(b"kept"):
        return {"kept": int(output.split()[1])}
    said: dict[str, Any] = {"at": path}
    for line in output.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            break  # the last one, cut short
    return said


def check(around: Surroundings, look: Callable[..., dict[str, Any]] = look) -> Iterator[CheckResult]:
    """One finding, and one of its inode numbers where they change. Nothing where no SOURCE is known."""
    path = around.source
    if path is None:
        return
    mount = mountinfo.enclosing(path, around.table)
    is_fuse = mount is not None and mount.fstype.partition(".")[0] in {"fuse", "fuseblk"}
    said = look(path, around.answer_s, around.as_user, _AGAIN_S if is_fuse else None)
    if "kept" in said:
        why = os.strerror(said["kept"])
        text = f"as-user: hfs cannot become user {around.reader_uid} here ({why})"
        yield fault(_RIGHTS, text, "give it CAP_SETUID and CAP_SETGID, or mount as that user")
    elif "errno" in said:
        yield _unreadable(around, path, int(said["errno"]), said.get("owner"))
    elif not said.get("done"):
        where = f"SOURCE {path}" if said["at"] == path else f"SOURCE {path}: {said['at']}"
        yield fault(_NAME, f"{where}: does not answer within {around.answer_s:g} s", "is its file system up?")
    elif said["refused"]:
        yield _refused(around, path, said)
    elif not said["names"]:
        yield limit(_NAME, f"SOURCE {path}: empty", "is its file system mounted on this node?")
    else:
        yield good(_NAME, f"SOURCE {path} can be listed and read by user {around.reader_uid}")
    if said.get("renumbered"):
        many = f"{said['renumbered']} of {said['looked']} files had another inode number when looked at again"
        yield limit(
            _NUMBERS, f"SOURCE {path}: {many}, and each is another file: none is found in the cache", LASTING_NUMBERS
        )


def _unreadable(around: Surroundings, path: str, number: int, owner: int | None) -> CheckResult:
    why = os.strerror(number)
    if isinstance(error := OSError(number, why), FileNotFoundError | NotADirectoryError):
        what = "no such directory" if isinstance(error, FileNotFoundError) else "not a directory"
        return fault(
            _NAME, f"SOURCE {path}: {what}", "give the directory to show; is its file system mounted on this node?"
        )
    if not isinstance(error, PermissionError):
        return fault(_NAME, f"SOURCE {path}: cannot be read ({why})", "is its file system up?")
    if around.reader_uid != 0:
        return fault(_RIGHTS, f"SOURCE {path}: may not be read by user {around.reader_uid}", _other_user(around))
    if owner is None:
        mount = mountinfo.enclosing(path, around.table)
        owner = None if mount is None else mount.owner_uid
    text = f"SOURCE {path}: root may not list it, as where servers take root for nobody"
    return fault(_RIGHTS, text, _as_user(owner))


def _refused(around: Surroundings, path: str, said: dict[str, Any]) -> CheckResult:
    name, owner = said["denied"][0]
    if around.reader_uid != 0:
        many = f"{said['refused']} of the first {said['names']:,} names"
        text = f"SOURCE {path}: {many} are refused to user {around.reader_uid}"
        return limit(
            _RIGHTS, f"{text}, such as {name}", "readers of the mount will be refused these, as they are without"
        )
    text = f"SOURCE {path}: root may not read {name}, as where servers take root for nobody"
    return (limit if said["opened"] else fault)(_RIGHTS, text, _as_user(owner))


def _other_user(around: Surroundings) -> str:
    return "mount as a user who can list it" if around.as_user is None else "give --as-user USER, who can list it"


def _as_user(uid: int | None) -> str:
    """Somebody who may is the owner of what was refused."""
    try:
        user = "USER" if not uid else pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return f"mount as a user who may: hfs mount --as-user {user}"
