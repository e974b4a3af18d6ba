"""What every room is built with: configuration, counters, buffers, memory budget, threads, background tasks.

Each module stands for itself and is public. Nothing here knows what a file, a source or a cache is; it never reads what
it was not given, but for configuration (`config`), and /proc and /sys for the limits of this process (`memory`,
`open_files`, `caller`).
"""
