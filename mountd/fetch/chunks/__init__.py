"""One chunk, once: fetched from its owner node or the source, held until it is on the disk, pushed where that pays.

It never decides what is to be fetched, nor from which place bytes come first: that is the resolver's.
"""
