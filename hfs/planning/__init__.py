"""What `hfs plan` works with: rates that are given or measured, and the epochs they make."""
