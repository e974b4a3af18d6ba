"""Layouts: which bytes of which files each sample of a data set is.

`layout.py` is the thing itself and its file; each other file of this package makes it for one format. A training job
imports the former and `files.py` only, and no library of a format.
"""
