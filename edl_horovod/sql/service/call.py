"""The processes that run the statements of sessions, as the service sees them."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict

from edl_horovod.sql.service.access import TOKEN_VARIABLE
from edl_horovod.sql.service.frames import HEADER, CallRequest, FrameKind
from edl_horovod.sql.settings import DATABASE_VARIABLE

__all__ = ["CallFailed", "SessionProcess"]

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
