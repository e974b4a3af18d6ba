"""Asking the daemon of a mount, from outside and from inside training jobs: no trio, no pyfuse3."""
