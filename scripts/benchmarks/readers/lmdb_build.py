"""Builds the layout of an LMDB, as `hfs layout build` does, without what starting the command takes.

    lmdb_build.py DATABASE ROOT LAYOUT

Each request {} builds it from the database below ROOT and writes it to LAYOUT.
"""

import sys
from typing import Any

from barrier import serve

from hfs.layouts.lmdb import build_lmdb


def main() -> None:
    database, root, path = sys.argv[1:]

    def build() -> dict[str, Any]:
        layout = build_lmdb(database, root)
        layout.save(path)
        return {"records": layout.samples}

    serve(build)


if __name__ == "__main__":
    sys.exit(main())
