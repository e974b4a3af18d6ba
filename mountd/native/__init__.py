"""System calls and C: opening beneath a directory, statx, small files in batches, what stands before libfuse.

Works on descriptors that it is given and decides nothing. Its modules are public.
"""
