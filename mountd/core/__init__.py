"""What every room is built with: errors and the one errno table, versions of files and their attributes, configuration,
counters, buffers, memory budget, threads, background tasks.

Each module stands for itself and is public; the plain values (`errors`, `version`, `attributes`, `seen`) bring neither
trio nor C, so that what runs inside training jobs may import them. Nothing here knows what a source or a cache is; it
never reads what it was not given, but for configuration (`config`), and /proc and /sys for the limits of this process
(`memory`, `open_files`, `caller`).
"""
