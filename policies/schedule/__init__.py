"""The order of an epoch as fetched and freed: orders of learners, when each sample is due, who used what last.

Pure. Times come in as numbers.
"""
