"""The newest look at a job for any number of readers, taken in a thread, one at a time."""

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
"""Least time between the starts of two looks, however many readers ask."""
PATIENCE_SECONDS = 2.0
"""How long a reader waits for a new look before it gets the previous one."""


class Latest:
    """Takes a look when a reader asks for one."""

    def __init__(self, look: Callable[[], Look]) -> None:
        """Take no look yet; `look` is called in a thread, one call at a time."""
        self._look = look
        self._running: Future[Look] | None = None
        self._begun = 0.0
        self._last = Look(time=time.time())

    async def get(self) -> Look:
        """The newest look, or the previous one with a notice if a new one takes too long."""
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
        trouble = f"The job has not answered for {seconds:.0f} s; this page waits for it."
        return replace(self._last, trouble=trouble, http_status=UNAVAILABLE)


def _in_thread(look: Callable[[], Look]) -> "Future[Look]":
    """Take a look in a daemon thread, which, unlike a pool's, does not keep the process alive."""
    future: Future[Look] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(look())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="look at a job", daemon=True).start()
    return future
