"""Sessions: their calls run one after the other, and their number is limited.

A session whose process has state for its next call, such as an open transaction, waits for that
call for a limited time, unless another session needs its place.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from edl_horovod.sql.service.call import CallFailed, SessionProcess

__all__ = ["IDLE_SECONDS", "Session", "Sessions", "TooManyCalls"]

MAX_CALLS = 16
"""Maximum number of calls of a session, including the running one."""
IDLE_SECONDS = 300.0
"""How long a session waits for its next call."""
MAX_LOST_SESSIONS = 1_000
"""Maximum number of ended sessions whose clients are informed by their next call."""
_CALL_INTERRUPTED = "one of its calls was interrupted"


class TooManyCalls(Exception):
    """The limit of sessions, or of calls of a session, is reached."""


@dataclass
class Session:
    """A session with calls, or with a process that waits for the next call."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_calls: int = 0
    process: SessionProcess | None = None
    """The process that waits for the next call."""
    state: str = ""
    """What the process would have lost before the running call, as a phrase."""
    timer: asyncio.TimerHandle | None = None


class Sessions:
    """The sessions with calls, and those that wait for their next call."""

    def __init__(
        self,
        max_sessions: int,
        *,
        end: Callable[[SessionProcess], None],
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Start without sessions.

        Args:
            max_sessions: Maximum number of sessions at the same time.
            end: Ends the process of a session that stops waiting.
            idle_seconds: How long a session waits for its next call.
        """
        self._max_sessions = max_sessions
        self._end = end
        self._idle_seconds = idle_seconds
        self._sessions: dict[Hashable, Session] = {}
        self._lost: dict[Hashable, str] = {}

    @asynccontextmanager
    async def turn(self, name: Hashable) -> AsyncIterator[Session]:
        """Wait until the earlier calls of a session have ended, and run a call within the `with`.

        Raises:
            TooManyCalls: There are too many sessions, or too many calls of this one.
            CallFailed: The session has ended and lost its state.
        """
        if lost := self._lost.pop(name, ""):
            raise CallFailed("ABORTED", lost)
        session = self._sessions.get(name)
        if session is None:
            self._make_room()
            session = self._sessions[name] = Session()
        if session.num_calls >= MAX_CALLS:
            raise TooManyCalls(f"This session has {MAX_CALLS} waiting calls. Try again later.")
        session.num_calls += 1
        if session.timer is not None:
            session.timer.cancel()
        try:
            # The lock is fair: calls run in the order in which they arrived.
            async with session.lock:
                if session.process is None and session.state:
                    state, session.state = session.state, ""
                    raise CallFailed("ABORTED", _lost_message(state, _CALL_INTERRUPTED))
                try:
                    yield session
                finally:
                    if session.process is not None:
                        session.state = session.process.state
        finally:
            session.num_calls -= 1
            if not session.num_calls:
                self._release(name, session)

    def end_idle(self) -> None:
        """End the sessions that wait for their next call."""
        for name, session in tuple(self._sessions.items()):
            if not session.num_calls:
                self._end_session(name, "the service ended")

    def _release(self, name: Hashable, session: Session) -> None:
        """Let the session wait for its next call, or remove it if it has no process."""
        if session.process is None:
            del self._sessions[name]
            self._note_lost(name, session.state, _CALL_INTERRUPTED)
            return
        # The order of the dictionary is the order of waiting, the longest first.
        self._sessions[name] = self._sessions.pop(name)
        reason = f"it had no call for {self._idle_seconds:.0f} s"
        session.timer = asyncio.get_running_loop().call_later(
            self._idle_seconds, self._end_session, name, reason
        )

    def _make_room(self) -> None:
        if len(self._sessions) < self._max_sessions:
            return
        for name, session in self._sessions.items():
            if not session.num_calls:
                self._end_session(name, "other sessions needed its place")
                return
        raise TooManyCalls(f"All {self._max_sessions} sessions are busy. Try again later.")

    def _end_session(self, name: Hashable, reason: str) -> None:
        session = self._sessions.pop(name)
        assert session.process is not None
        assert session.timer is not None
        session.timer.cancel()
        self._note_lost(name, session.state, reason)
        self._end(session.process)

    def _note_lost(self, name: Hashable, state: str, reason: str) -> None:
        if not state:
            return
        self._lost[name] = _lost_message(state, reason)
        if len(self._lost) > MAX_LOST_SESSIONS:
            del self._lost[next(iter(self._lost))]


def _lost_message(state: str, reason: str) -> str:
    return (
        f"The session has ended, because {reason}, and lost {state}. Uncommitted changes are rolled"
        " back. The next call begins a new session."
    )
