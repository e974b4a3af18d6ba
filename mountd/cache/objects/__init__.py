"""The files that hold staged bytes: written, read, stamped, shrunk, given up, each under a number used once.

Paths below the cache directory are followed here only. It never knows which bytes are right but by a checksum that
it is given.
"""
