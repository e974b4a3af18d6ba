"""The sources of staged files: rows name them by number, versions by identity."""

from __future__ import annotations

from collections.abc import Iterable

from hfs.mountd.cache.index.database import IndexDatabase


class Sources:
    """Read by any thread, changed by the one that writes."""

    def __init__(self, database: IndexDatabase) -> None:
        self._database = database
        self._ids = database.opened_sources
        self.names = {number: name for name, number in self._ids.items()}
        """By number."""

    def number(self, name: str) -> int:
        """The number of a source; -1 if nothing of it was ever staged."""
        return self._ids.get(name, -1)

    def enter(self, name: str) -> int:
        """The number of a source, which it gets now if it has none. Raises IndexFailed.

        A new one is committed on its own, before any row uses it: were it rolled back with them, another source could
        be given the same number.
        """
        number = self._ids.get(name)
        if number is None:
            writer = self._database.writer
            with self._database.guarded():
                writer.execute("INSERT OR IGNORE INTO sources (name) VALUES (?)", (name,))
                (found,) = writer.execute("SELECT id FROM sources WHERE name = ?", (name,)).fetchone()
            number = int(found)
            self.names[number] = name
            self._ids[name] = number  # last: whoever finds the number here finds the name too
        return number

    def forget(self, names: Iterable[str]) -> None:
        """Forget these, as far as there is no row of theirs. Raises IndexFailed."""
        sql = "DELETE FROM sources WHERE name = ? AND NOT EXISTS (SELECT 1 FROM files WHERE source = sources.id)"
        with self._database.transaction(durable=False) as database:
            database.executemany(sql, [(name,) for name in names])
