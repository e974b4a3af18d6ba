"""Through real mounts: the real commands, the real kernel."""
