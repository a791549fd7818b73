"""Pauses before the data of each step, so that a job lasts until a test has done all to it."""

import itertools
import time
from pathlib import Path

from edl_horovod import ElasticDLSpec

SLOW_SECONDS = 0.3
SLOWER_SECONDS = 1.5
"""Who still waits after many steps waits for long; a job of few steps is to outlast that."""
LOOK_SECONDS = 0.05


class Pauses:
    """A pause for each step, a longer one after many, and none as soon as a file is there.

    Where several steps are made ready side by side each of them waits for longer.
    """

    def __init__(self, until, *, slower_after=60, side_by_side=1):
        self.until, self._slower_after, self._side_by_side = until, slower_after, side_by_side
        self._count = itertools.count()

    def wait(self):
        if not self.until:
            return
        is_early = next(self._count) < self._slower_after
        seconds = (SLOW_SECONDS if is_early else SLOWER_SECONDS) * self._side_by_side
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not Path(self.until).exists():
            time.sleep(LOOK_SECONDS)


def sleep_unless_there(path, seconds):
    """Wait for a fixed time, and not at all where no file is named or it is there."""
    if path and not Path(path).exists():
        time.sleep(seconds)


class PausingSpec(ElasticDLSpec):
    """The parameters of `counting`, whose data comes slowly."""

    def __init__(
        self,
        context=None,
        num_records=0,
        rate=1.0,
        slow_until="",
        slower_after=60,
        keep_every=1,
        num_clocks=0,
    ):
        super().__init__(context)
        self._num_records, self._rate, self._keep_every = num_records, rate, keep_every
        self._num_clocks = num_clocks
        self._pauses = Pauses(slow_until, slower_after=slower_after)
