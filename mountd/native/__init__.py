"""System calls and C: opening beneath a directory, statx, small files in batches, what stands before libfuse.

Works on descriptors that it is given and decides nothing. Each C part is optional and has a reference in Python that
does the same, slower. Its modules are public.
"""
