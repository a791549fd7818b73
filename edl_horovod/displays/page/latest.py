"""The newest look at a job, for any number of readers: one look at a time, which blocks nobody."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from edl_horovod.displays.page.look import Look
from edl_horovod.displays.page.sources import UNAVAILABLE

__all__ = ["Latest"]

LEAST_SECONDS = 1.0
"""Between the beginnings of two looks, however many ask."""
PATIENCE_SECONDS = 2.0
"""A reader waits so long, and gets the look before then: an API server may take its time."""


class Latest:
    """Looks when somebody asks."""

    def __init__(self, look: Callable[[], Look]) -> None:
        """Look at nothing yet.

        Args:
            look: Takes a look; called in a thread, never twice at a time.
        """
        self._look = look
        self._running: Future[Look] | None = None
        self._begun = 0.0
        self._last = Look(time=time.time())

    async def get(self) -> Look:
        """The newest look; one that is older says so where the next one takes long."""
        running = self._running
        is_due = time.monotonic() - self._begun >= LEAST_SECONDS
        if running is None or (running.done() and is_due):
            running = self._running = _in_thread(self._look)
            self._begun = time.monotonic()
        waited = asyncio.wrap_future(running)
        await asyncio.wait([waited], timeout=PATIENCE_SECONDS)
        if waited.done():
            self._last = waited.result()
            return self._last
        seconds = time.monotonic() - self._begun
        trouble = f"The job has not answered for {seconds:.0f} s; it is waited for."
        return replace(self._last, trouble=trouble, http_status=UNAVAILABLE)


def _in_thread(look: Callable[[], Look]) -> "Future[Look]":
    """Call it in a thread that does not keep the process from ending, as those of a pool do."""
    future: Future[Look] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(look())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="look at a job", daemon=True).start()
    return future
