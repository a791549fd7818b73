"""The interface of a pool that processes groups in parallel, on one machine or on many."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from edl_horovod.preparation.groups import Group, GroupDone, GroupSettings

__all__ = ["OnWork", "OpenPool", "Pool"]

OnWork = Callable[[int, int], None]
"""Called periodically with the numbers of files and records done in unfinished groups."""


class Pool(Protocol):
    """Runs one group at a time on each of its processes."""

    def source(self) -> str:
        """Wait until one process has loaded the model code; return the digest of the code."""

    def work(self, groups: Iterator[Group], on_work: OnWork) -> Iterator[GroupDone]:
        """Process the groups; yield the result of each when it is done, in any order."""


OpenPool = Callable[[GroupSettings, int], AbstractContextManager[Pool]]
"""Opens a pool for the settings of a run and its number of groups."""
