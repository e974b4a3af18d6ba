"""How long the path of a Unix socket may be. Apart, since commands that must answer at once look for sockets."""

MAX_SOCKET_PATH_BYTES = 107
"""sun_path of unix(7) holds 108 bytes with the ending zero."""
