"""`slow` in PyTorch: data that comes slowly, until a test has done all it wants to the job."""

import itertools
import time
from pathlib import Path

SLOW_SECONDS, SLOWER_SECONDS, LOOK_SECONDS = 0.3, 1.5, 0.05


class Pauses:
    """A pause for each step, a longer one after many, and none as soon as a file is there."""

    def __init__(self, until, *, slower_after=60):
        self._until, self._slower_after = until, slower_after
        self._count = itertools.count()

    def wait(self):
        if not self._until:
            return
        is_early = next(self._count) < self._slower_after
        deadline = time.monotonic() + (SLOW_SECONDS if is_early else SLOWER_SECONDS)
        while time.monotonic() < deadline and not Path(self._until).exists():
            time.sleep(LOOK_SECONDS)
