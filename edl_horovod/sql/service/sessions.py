"""Sessions of the service: the order of their calls, and the processes that run the statements.

The calls of a session run one after the other, and the number of sessions is limited. A session
whose process has state for its next call, such as an open transaction, waits for that call for a
limited time, unless another session needs its place.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field

from edl_horovod.sql.service.access import TOKEN_VARIABLE
from edl_horovod.sql.service.frames import HEADER, CallRequest, FrameKind
from edl_horovod.sql.settings import DATABASE_VARIABLE

__all__ = ["IDLE_SECONDS", "CallFailed", "Session", "SessionProcess", "Sessions", "TooManyCalls"]

MAX_CALLS = 16
"""Maximum number of calls of a session, including the running one."""
IDLE_SECONDS = 300.0
"""How long a session waits for its next call."""
MAX_LOST_SESSIONS = 1_000
"""Maximum number of ended sessions whose clients are informed by their next call."""
_CALL_INTERRUPTED = "one of its calls was interrupted"
END_SECONDS = 40.0
"""How long a process may take to end before it is killed; it is longer than the limits that the
process itself observes."""


class CallFailed(Exception):
    """A call failed.

    Args:
        code: The name of a gRPC status code.
        text: The message for the client.
    """

    def __init__(self, code: str, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(text)


class TooManyCalls(Exception):
    """The limit of sessions, or of calls of a session, is reached."""


class SessionProcess:
    """A process that runs the statements of a session and leads a process group.

    After a call that leaves state in its database connection, such as an open transaction, the
    process waits for the next call of the session.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Wrap a started process; use `start` instead."""
        self._process = process
        self._is_interrupted = False
        self.state = ""
        """What the end of the process would lose, as a phrase; empty during a call."""
        self.is_done = False
        """Whether the last call ended by itself: its statements succeeded, or one failed."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, request: CallRequest) -> "SessionProcess":
        """Start a process that runs the statements of a call."""
        secrets = (TOKEN_VARIABLE, DATABASE_VARIABLE)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edl_horovod.sql.service.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in secrets},
            # Ctrl-C in a terminal reaches the service alone, which ends its calls in order.
            start_new_session=True,
        )
        session_process = cls(process)
        session_process.send(request)
        return session_process

    def send(self, request: CallRequest) -> None:
        """Send the statements of a call to the process; `responses` yields their responses."""
        self.state, self.is_done = "", False
        # Its stdin stays open, because closing it ends the statements.
        self._stdin.write(json.dumps(asdict(request)).encode() + b"\n")

    async def responses(self) -> AsyncIterator[bytes]:
        """The serialized responses of the call.

        Raises:
            CallFailed: A statement failed, or the process died.
        """
        state = ""
        try:
            while True:
                kind, num_bytes = HEADER.unpack(await self._stdout.readexactly(HEADER.size))
                content = await self._stdout.readexactly(num_bytes)
                if kind == FrameKind.STATE:
                    state = content.decode()
                    continue
                if kind in (FrameKind.DONE, FrameKind.FAILURE):
                    self.state, self.is_done = state, not self._is_interrupted
                if kind == FrameKind.DONE:
                    return
                if kind == FrameKind.FAILURE:
                    code, _, text = content.decode().partition("\n")
                    raise CallFailed(code, text)
                yield content
        except asyncio.IncompleteReadError:
            exit_code = await self._process.wait()
            if self._is_interrupted:
                raise CallFailed("CANCELLED", "The statement was interrupted.") from None
            raise CallFailed(
                "INTERNAL",
                f"The process of the statements ended with exit code {exit_code}. See the log of"
                " the service.",
            ) from None

    def interrupt(self) -> None:
        """Ask the process to end its statements."""
        self._is_interrupted = True
        self._stdin.close()

    async def end(self) -> None:
        """End the process; if it exceeds `END_SECONDS`, kill it with its process group."""
        self._stdin.close()
        # The process must not block on a full pipe.
        draining = asyncio.ensure_future(self._drain())
        try:
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        finally:
            draining.cancel()

    async def _drain(self) -> None:
        while await self._stdout.read(1 << 16):
            pass


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
        """Return the session to the waiting ones, or remove it if it has no process."""
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
