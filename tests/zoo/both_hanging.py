"""Places at which one worker can be made to hang, for a counting model of any framework.

A file `input-1` in the folder `hang_in` makes the input of slot 1 wait until the file is gone,
`forward-1` its forward pass, `build-1` its start, and `backward-1` its backward pass after the
clocks' gradients and before the counts'; a file `backward-1.reached` says that it waits. `lock-1`
makes foreign code hold the lock of the interpreter for a minute.
"""

import ctypes
import time
from pathlib import Path

POLL_SECONDS = 0.05
LOCK_SECONDS = 60


class Hangs:
    """Goes before a counting spec among the bases of a class that has `_between`."""

    def __init__(self, context=None, hang_in="", **kwargs):
        super().__init__(context, **kwargs)
        self._folder = Path(hang_in)
        self._slot = (context or {}).get("worker_id", "0")

    def create_model(self):
        self._wait("build")
        model = super().create_model()
        model.between = self._between
        return model

    def _wait(self, place):
        if (self._folder / f"lock-{self._slot}").exists():
            ctypes.PyDLL(None).sleep(LOCK_SECONDS)
        file = self._folder / f"{place}-{self._slot}"
        if file.exists():
            file.with_suffix(".reached").touch()
        while file.exists():
            time.sleep(POLL_SECONDS)
