"""Lists a folder as a job does that looks for its files: names and types, or each name's attributes too (`ls -l`).

    listing.py

Requests: {"folder": FOLDER, "stat": bool}; the result has "names", how many regular files there are, and
"error" where the listing was broken off. Knows nothing of hfs.
"""

import os
import sys
from typing import Any

from barrier import serve


def work(folder: str, stat: bool) -> dict[str, Any]:
    names = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names += entry.is_file(follow_symlinks=False)
                if stat:
                    os.lstat(entry.path)
    except OSError as error:
        return {"names": names, "error": f"{type(error).__name__}: {error.strerror}"}
    return {"names": names}


if __name__ == "__main__":
    sys.exit(serve(work))
