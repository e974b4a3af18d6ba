"""What to fetch before it is asked for: readahead, density of reads, siblings, stat-ahead, how many at a time.

Pure: what was read comes in, extents come out.
"""
