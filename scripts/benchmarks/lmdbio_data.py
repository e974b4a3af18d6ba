"""The database of `scripts/bench lmdbio`: like CIFAR10-Large, pictures of 3 KB in one LMDB.

A record is more than half a page, so LMDB gives each a page of its own ("overflow page") and the tree a reference to
it: a random record is a random page of 4 KiB.
"""

from pathlib import Path

import lmdb

from hfs.layouts.layout import Layout
from hfs.layouts.lmdb import build_lmdb
from scripts.benchmarks import data
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.lmdb_records import key, record

RECORDS, RECORDS_QUICK = 400_000, 16_000
"""1.65 GB; quick: 66 MB."""

PAGE = 4096
NAME = "cifar10-large"
_A_COMMIT = 10_000


class Database:
    """The folder that a source shows, and in it the database NAME, which is a folder with one file."""

    def __init__(self, folder: Path, records: int) -> None:
        self.folder, self.records = folder, records
        self.file = f"{NAME}/data.mdb"
        self.bytes = (folder / self.file).stat().st_size

    def layout(self) -> Layout:
        """Where each record lies, made of the file itself and not through a source."""
        return build_lmdb(str(self.folder / NAME), str(self.folder))


def make_database(folder: Path, records: int) -> None:
    path = folder / NAME
    path.mkdir()
    # The map may be larger than the file, which grows as it is filled. Two pages a record are more than enough.
    with lmdb.open(str(path), map_size=(records + 1000) * 2 * PAGE, sync=False, metasync=False) as database:
        for first in range(0, records, _A_COMMIT):
            with database.begin(write=True) as change:
                for number in range(first, min(first + _A_COMMIT, records)):
                    change.put(key(number), record(number), append=True)
        database.sync(True)
    (path / "lock.mdb").unlink()  # readers take no lock, and a source that is read-only has none


def database(work: Work, options: Options) -> Database:
    records = options.size(RECORDS, RECORDS_QUICK)
    folder = data.stamped(
        work.data / f"lmdb-{records}", {"records": records, "form": 1}, lambda folder: make_database(folder, records)
    )
    return Database(folder, records)
