"""`hfs sweep`: what killed processes and ended jobs have left on a node is found, and taken away.

    mounts.py     dead mounts
    daemons.py    mounts that are held for jobs that have ended, and daemons that such jobs have started
    sockets.py    sockets that nobody listens at, directories of sockets that are empty
    caches.py     caches that nobody has used for longer than `expire`

Each finds one kind and says what becomes of it (`Swept`). None touches a mount that answers and is in use, and what
cannot be told for certain stays. A user sweeps what is the user's own, root all.
"""

from __future__ import annotations

from typing import NamedTuple


class Swept(NamedTuple):
    """One thing that was left behind, and whether it is gone now. `kind` stays the same from release to release."""

    kind: str
    """dead-mount, job, daemon, socket, directory or cache; user: what there was no time for."""
    where: str
    """A path; `user N`."""
    text: str
    """What it is, in a few words."""
    kept: str = ""
    """Why it is still there; empty: it is gone, or would be without --dry-run."""
    is_theirs: bool = False
    """Another user's, who can keep it as long as that one likes: no failure of the command."""

    def line(self, *, dry_run: bool) -> str:
        """For people."""
        if self.kept:
            return f"kept {self.where}: {self.text}; {self.kept}"
        return f"{'would remove' if dry_run else 'removed'} {self.where}: {self.text}"
