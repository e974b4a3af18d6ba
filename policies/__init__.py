"""Decisions without deeds: state in, decision out.

The rule of the package: no I/O, no clock, no threads, no event loop, no randomness. Time, room, sizes and random
numbers are arguments; what is decided is returned, and somebody in `mountd` does it. State is a frozen dataclass or a
small class that only its own file changes. So every rule here is tested by a table in microseconds, and simulated where
a constant needs its reason.

Policies run on the event loop, once for each READ or OPEN of the mount: the common case stays below 3 microseconds.
"""
