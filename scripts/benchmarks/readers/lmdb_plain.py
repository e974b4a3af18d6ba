"""Reads random records of an LMDB as a training job does: lmdb.open and txn.get by key, which is mmap and page faults.

    lmdb_plain.py DATABASE RANK WORLD [--readahead] [--mount MOUNT --layout LAYOUT]

Each request {"seed": S, "count": N or null} reads this reader's share of the first N records of a random order of all.
Opens the database within the time. With --mount the order is drawn through a sampler that hfs is told of, all at once
when the epoch begins, as samplers are: the only thing here that knows hfs. The reads stay what they are.
"""

import argparse
import sys
from typing import Any

import lmdb
from barrier import serve
from lmdb_batches import Batch, batched, measured, share
from lmdb_records import key


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database")
    parser.add_argument("rank", type=int)
    parser.add_argument("world", type=int)
    parser.add_argument("--readahead", action="store_true", help="the default of lmdb.open")
    parser.add_argument("--mount")
    parser.add_argument("--layout")
    args = parser.parse_args()
    if args.mount:
        from hfs.hint import hinted  # not timed, as other imports

    def epoch(seed: int, count: int | None) -> dict[str, Any]:
        def read(batch: Batch) -> None:
            with lmdb.open(args.database, readonly=True, lock=False, readahead=args.readahead) as database:
                order: Any = share(database.stat()["entries"], seed, args.rank, args.world, count)
                if args.mount:
                    order = hinted(order, layout=args.layout, mount=args.mount, rank=args.rank, world=args.world)
                for numbers in batched(order):
                    with database.begin(buffers=True) as records:
                        batch.fill(numbers, lambda number: records.get(key(number)))

        return measured(read)

    serve(epoch)


if __name__ == "__main__":
    sys.exit(main())
