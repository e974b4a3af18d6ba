"""`python -m hfs` is `hfs`."""

from hfs.cli import main

main()
