"""The configuration of one mount: its keys, each declared once, where they come from, and how they are checked.

The only code of the daemon that reads environment and arguments.
"""

from hfs.mountd.core.config.config import KEYS, Config, VerifyWanted
from hfs.mountd.core.config.loading import describe

__all__ = ["KEYS", "Config", "VerifyWanted", "describe"]
