"""The configuration of one mount: its keys, each declared once, where they come from, and how they are checked.

The only code of the daemon that reads environment and arguments.
"""

from hfs.mountd.core.config.choices import VerifyWanted
from hfs.mountd.core.config.config import Config
from hfs.mountd.core.config.keys import KEYS, describe

__all__ = ["KEYS", "Config", "VerifyWanted", "describe"]
