"""The order of calls: those of a session one after the other, a limited number of sessions.

A session whose process holds something for its next call, as an open transaction, waits for that
for some time, unless another session needs its room.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from edl_horovod.sql.service.call import Call, CallFailed

__all__ = ["IDLE_SECONDS", "Session", "Sessions", "TooMany"]

MOST_CALLS = 16
"""Calls of a session, with the one that runs."""
IDLE_SECONDS = 300.0
"""How long a session waits for its next call."""
MOST_LOST = 1_000
"""Ended sessions whose clients are told so at their next call."""
_INTERRUPTED = "a call of it was interrupted"


class TooMany(Exception):
    """There is no room for a call now."""


@dataclass
class Session:
    """A session that has calls now, or a process that waits for the next one."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_calls: int = 0
    process: Call | None = None
    """What waits for the next call."""
    state: str = ""
    """What the process held before the call that runs, as a phrase."""
    timer: asyncio.TimerHandle | None = None


class Sessions:
    """The sessions that have calls now, or wait for the next one."""

    def __init__(
        self, most: int, *, end: Callable[[Call], None], idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """Begin without any.

        Args:
            most: Sessions at a time.
            end: Ends the process of a session that waits no longer.
            idle_seconds: How long a session waits for its next call.
        """
        self._most = most
        self._end = end
        self._idle_seconds = idle_seconds
        self._sessions: dict[Hashable, Session] = {}
        self._lost: dict[Hashable, str] = {}

    @asynccontextmanager
    async def turn(self, name: Hashable) -> AsyncIterator[Session]:
        """Wait until the earlier calls of a session have ended.

        Raises:
            TooMany: There are too many sessions, or too many calls of this one.
            CallFailed: The session has ended, and something was lost with it.
        """
        if lost := self._lost.pop(name, ""):
            raise CallFailed("ABORTED", lost)
        session = self._sessions.get(name)
        if session is None:
            self._make_room()
            session = self._sessions[name] = Session()
        if session.num_calls >= MOST_CALLS:
            raise TooMany(f"{MOST_CALLS} calls of this session wait: try again later.")
        session.num_calls += 1
        if session.timer is not None:
            session.timer.cancel()
        try:
            # Those who wait get it in the order in which they came.
            async with session.lock:
                if session.process is None and session.state:
                    state, session.state = session.state, ""
                    raise CallFailed("ABORTED", _told(state, _INTERRUPTED))
                try:
                    yield session
                finally:
                    if session.process is not None:
                        session.state = session.process.state
        finally:
            session.num_calls -= 1
            if not session.num_calls:
                self._rest(name, session)

    def end_idle(self) -> None:
        """End all sessions that wait for their next call."""
        for name, session in tuple(self._sessions.items()):
            if not session.num_calls:
                self._end_session(name, "the service ended")

    def _rest(self, name: Hashable, session: Session) -> None:
        """Wait for the next call, or forget the session where nothing would be lost."""
        if session.process is None:
            del self._sessions[name]
            self._note_lost(name, session.state, _INTERRUPTED)
            return
        # The one that has waited longest is the first.
        self._sessions[name] = self._sessions.pop(name)
        why = f"it had no call for {self._idle_seconds:.0f} s"
        session.timer = asyncio.get_running_loop().call_later(
            self._idle_seconds, self._end_session, name, why
        )

    def _make_room(self) -> None:
        if len(self._sessions) < self._most:
            return
        for name, session in self._sessions.items():
            if not session.num_calls:
                self._end_session(name, "other sessions needed its room")
                return
        raise TooMany(f"{self._most} sessions are busy, as many as may be: try again later.")

    def _end_session(self, name: Hashable, why: str) -> None:
        session = self._sessions.pop(name)
        assert session.process is not None
        assert session.timer is not None
        session.timer.cancel()
        self._note_lost(name, session.state, why)
        self._end(session.process)

    def _note_lost(self, name: Hashable, state: str, why: str) -> None:
        if not state:
            return
        self._lost[name] = _told(state, why)
        if len(self._lost) > MOST_LOST:
            del self._lost[next(iter(self._lost))]


def _told(state: str, why: str) -> str:
    return (
        f"The session has ended, because {why}, and with it {state}: what no COMMIT had ended is"
        " rolled back. The next call begins a new session."
    )
