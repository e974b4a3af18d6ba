"""What is wrong with a set-up: /dev/fuse, libfuse, the kernel, the cache disk, SOURCE, limits, namespaces, mounts.

Each file is one family of checks: a function that is given the `Surroundings` and yields `CheckResult`s. None of them
mounts anything, changes anything of the machine, or waits for what hangs. Imported by the command line only.
"""

from hfs.doctor.check_result import CheckResult, Level, worst
from hfs.doctor.examine import examine
from hfs.doctor.surroundings import Surroundings, here

__all__ = ["CheckResult", "Level", "Surroundings", "examine", "here", "worst"]
