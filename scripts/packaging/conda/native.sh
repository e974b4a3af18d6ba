#!/bin/bash
# Called by conda-build in the source folder, for the output hfs-cache-native: the C parts alone, with the channel's
# libfuse and pyfuse3.
set -euo pipefail
"$PYTHON" scripts/packaging/stage.py unbundled build/conda/native
CFLAGS="$CFLAGS -O2 $(pkg-config --cflags fuse3)"
LDFLAGS="$LDFLAGS $(pkg-config --libs-only-L fuse3)"
export CFLAGS LDFLAGS
"$PYTHON" -m pip install --no-deps --no-build-isolation --no-index build/conda/native
