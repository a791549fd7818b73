"""The process of a session's calls, as the service sees it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict

from edl_horovod.sql.service.access import TOKEN_VARIABLE
from edl_horovod.sql.service.frames import HEADER, CallOrder, Kind
from edl_horovod.sql.settings import DATABASE_VARIABLE

__all__ = ["Call", "CallFailed"]

END_SECONDS = 40.0
"""A process that has not ended so long after it was asked to is killed; by itself it ends before.
"""


class CallFailed(Exception):
    """The statements failed.

    Args:
        code: Name of a status code of gRPC.
        text: What the client reads.
    """

    def __init__(self, code: str, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(text)


class Call:
    """Runs statements in a process of its own, which leads a session and so a process group.

    After a call that leaves something in its connection to the database, as an open transaction,
    the process waits for the next call of the same session.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take a process that `start` started."""
        self._process = process
        self._is_interrupted = False
        self.state = ""
        """What the end of the process would lose, as a phrase; empty during a call."""
        self.is_done = False
        """Whether all statements of the call have been run, or one has failed."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, order: CallOrder) -> "Call":
        """Start the process."""
        secrets = (TOKEN_VARIABLE, DATABASE_VARIABLE)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edl_horovod.sql.service.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in secrets},
            # Ctrl-C in a terminal goes to the service alone, which ends its calls in good order.
            start_new_session=True,
        )
        call = cls(process)
        call.send(order)
        return call

    def send(self, order: CallOrder) -> None:
        """Have the process run statements; `responses` gives what they say."""
        self.state, self.is_done = "", False
        # It stays open: its end ends the statements.
        self._stdin.write(json.dumps(asdict(order)).encode() + b"\n")

    async def responses(self) -> AsyncIterator[bytes]:
        """The serialized responses.

        Raises:
            CallFailed: A statement failed, or the process died.
        """
        state = ""
        try:
            while True:
                kind, num_bytes = HEADER.unpack(await self._stdout.readexactly(HEADER.size))
                content = await self._stdout.readexactly(num_bytes)
                if kind == Kind.STATE:
                    state = content.decode()
                    continue
                if kind in (Kind.DONE, Kind.FAILURE):
                    self.state, self.is_done = state, not self._is_interrupted
                if kind == Kind.DONE:
                    return
                if kind == Kind.FAILURE:
                    code, _, text = content.decode().partition("\n")
                    raise CallFailed(code, text)
                yield content
        except asyncio.IncompleteReadError:
            exit_code = await self._process.wait()
            if self._is_interrupted:
                raise CallFailed("CANCELLED", "The statement was interrupted.") from None
            raise CallFailed(
                "INTERNAL",
                f"The process of the statements ended ({exit_code}): see the log of the service.",
            ) from None

    def interrupt(self) -> None:
        """Have the statements end."""
        self._is_interrupted = True
        self._stdin.close()

    async def end(self) -> None:
        """End the process, in good order if it does so in time, with what it started."""
        self._stdin.close()
        # It must not wait for a reader.
        emptied = asyncio.ensure_future(self._empty())
        try:
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        finally:
            emptied.cancel()

    async def _empty(self) -> None:
        while await self._stdout.read(1 << 16):
            pass
