#!/bin/bash
# Called by conda-build in the source folder, for the output hfs-cache.
set -euo pipefail
"$PYTHON" scripts/packaging/stage.py client build/conda/client
"$PYTHON" -m pip install --no-deps --no-build-isolation --no-index build/conda/client
