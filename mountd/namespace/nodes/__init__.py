"""Nodes and names: what is remembered of each inode and each name, under which id, and what holds it.

It never asks the source.
"""
