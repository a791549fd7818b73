"""The order of calls: those of a session one after the other, a limited number of sessions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["Sessions", "TooMany"]

MOST_CALLS = 16
"""Calls of a session, with the one that runs."""


class TooMany(Exception):
    """There is no room for a call now."""


@dataclass
class _Session:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_calls: int = 0


class Sessions:
    """The sessions that have calls now."""

    def __init__(self, most: int) -> None:
        """Begin without any.

        Args:
            most: Sessions at a time.
        """
        self._most = most
        self._sessions: dict[str, _Session] = {}

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Wait until the earlier calls of a session have ended.

        Raises:
            TooMany: There are too many sessions, or too many calls of this one.
        """
        session = self._sessions.get(name)
        if session is None:
            if len(self._sessions) >= self._most:
                raise TooMany(
                    f"{self._most} sessions are busy, as many as may be: try again later."
                )
            session = self._sessions[name] = _Session()
        if session.num_calls >= MOST_CALLS:
            raise TooMany(f"{MOST_CALLS} calls of this session wait: try again later.")
        session.num_calls += 1
        try:
            # Those who wait get it in the order in which they came.
            async with session.lock:
                yield
        finally:
            session.num_calls -= 1
            if not session.num_calls:
                del self._sessions[name]
