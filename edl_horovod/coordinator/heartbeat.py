"""Wakes the coordinator's loop."""

import asyncio

__all__ = ["Heartbeat"]


class Heartbeat:
    """Lets one loop sleep until something changes, or until the job is over."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.is_over = False

    def wake(self) -> None:
        """Report a change."""
        self._changed.set()

    def clear(self) -> None:
        """Forget the changes until now: they are known."""
        self._changed.clear()

    async def sleep(self, seconds: float | None) -> None:
        """Wait for a change after `clear`, or until the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
