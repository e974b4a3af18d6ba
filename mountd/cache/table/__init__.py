"""The table of staged files: which file belongs to a version, its row in the index, and rows that are going.

What is looked up comes from memory, else from the index. It never reads an object and never decides what goes.
"""
