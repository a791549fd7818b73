"""What does groups side by side: processes on this machine, or ranks on many."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from edl_horovod.preparation.groups import Group, GroupDone, GroupSettings

__all__ = ["OnWork", "OpenPool", "Pool"]

OnWork = Callable[[int, int], None]
"""Called, now and then, with the files and the records of the groups that are not done yet."""


class Pool(Protocol):
    """Does one group on each of its processes at a time."""

    def source(self) -> str:
        """The digest of the model code, once one process has loaded it."""

    def work(self, groups: Iterator[Group], on_work: OnWork) -> Iterator[GroupDone]:
        """Do groups; yield each when it is done, in any order."""


OpenPool = Callable[[GroupSettings, int], AbstractContextManager[Pool]]
"""Makes a pool for the settings of a run and its number of groups."""
