"""`Swept`: one thing that was left behind, and whether it is gone now."""

from __future__ import annotations

from typing import NamedTuple


class Swept(NamedTuple):
    """`kind` stays the same from release to release."""

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
