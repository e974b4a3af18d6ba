"""The messages between processes, as structs: control socket, hints, layouts, and what one daemon leaves the next.

Imported on both sides, so it imports neither trio nor anything that does I/O. Its modules are public: `protocol`,
`hints`, `layout`, `handover`.
"""
