"""The process of a session's calls: runs their statements, and ends when stdin does.

It ends after a call, too, unless that leaves something in the connection to the database.
"""

import contextlib
import io
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import BinaryIO

from edl_horovod import api
from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.terminal import PlainDisplay
from edl_horovod.errors import EdlError, Interrupted
from edl_horovod.job import log as job_log
from edl_horovod.proto.sqlflow_pb2 import Response
from edl_horovod.sql.service.frames import HEADER, CallOrder, Kind, Settings, code_of
from edl_horovod.sql.service.responses import end_of, message, responses_of
from edl_horovod.sql.session import Session, open_session
from edl_horovod.sql.settings import read_settings
from edl_horovod.sql.statements import Evaluate, Explain, Predict, Standard, Statement, Train
from edl_horovod.supervisor.forks import WarmServer
from edl_horovod.supervisor.run import JobResult

__all__ = ["main"]

log = logging.getLogger(__name__)

_WITH_JOBS = (Train, Predict, Evaluate, Explain)

END_SECONDS = 30.0
"""How long a statement that was interrupted may take to end; then this process is killed."""
DATABASE_SECONDS = 2.0
"""The same for one of the database itself, which nothing can interrupt while it waits in the
driver, and which is undone by the end of its connection."""


def main() -> None:
    """Run the statements that stdin names."""
    # SIGTERM ends the statements as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job_log.setup("statement", level="warning")
    # What others print must not come between the frames.
    frames = _Frames(os.fdopen(os.dup(1), "wb", buffering=0))
    os.dup2(2, 1)
    with contextlib.suppress(KeyboardInterrupt):  # While it waits for a call.
        _run_calls(frames, _Orders())


def _run_calls(frames: "_Frames", orders: "_Orders") -> None:
    orders.start()
    with contextlib.ExitStack() as stack:
        calls = _Calls(frames, orders, stack)
        while True:
            order = orders.next()
            failure = _failure(calls, order)
            state = calls.state
            if not state:
                # The service lets go of this process as soon as it has read the last frame.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            frames.write(Kind.STATE, state.encode())
            frames.write(Kind.FAILURE if failure else Kind.DONE, failure.encode())
            if not state:
                return


def _failure(calls: "_Calls", order: CallOrder) -> str:
    """Run the statements of a call; what failed, for a frame, or an empty text."""
    try:
        calls.run(order)
    except EdlError as e:
        return f"{code_of(e)}\n{e}"
    except KeyboardInterrupt as e:
        calls.is_interrupted = True
        return f"{code_of(Interrupted(str(e)))}\nThe statement was interrupted."
    except Exception:
        log.exception("a statement failed")
        return "INTERNAL\nThis is a mistake of the service; its log says more."
    return ""


class _Frames:
    """Writes frames; the pipe holds the statements up while the client does not read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._is_between = True
        """Whether the last frame is whole; an interrupt may have cut it."""

    def write(self, kind: Kind, content: bytes) -> None:
        if not self._is_between:
            return
        left = memoryview(HEADER.pack(kind, len(content)) + content)
        self._is_between = False
        with contextlib.suppress(BrokenPipeError):  # The service is gone.
            while left:
                left = left[self._stream.write(left) :]
            self._is_between = True

    def respond(self, response: Response) -> None:
        self.write(Kind.RESPONSE, response.SerializeToString())


class _Messages(io.StringIO):
    """Sends each line as a message, and keeps none."""

    def __init__(self, frames: _Frames) -> None:
        super().__init__()
        self._frames = frames

    def write(self, text: str) -> int:
        for line in filter(str.strip, text.splitlines()):
            self._frames.respond(message(line))
        return len(text)


class _Orders:
    """The orders of calls on stdin; its end, by the service or with it, ends this process."""

    def __init__(self) -> None:
        self.is_in_database = False
        """Whether a statement of the database itself is running."""
        self._orders: queue.SimpleQueue[CallOrder] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="orders", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def next(self) -> CallOrder:
        """The next order, once there is one."""
        return self._orders.get()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._orders.put(_order_of(line))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(DATABASE_SECONDS)
        if not self.is_in_database:
            time.sleep(END_SECONDS - DATABASE_SECONDS)
        os.killpg(0, signal.SIGKILL)


class _Calls:
    """Runs the calls of one session, which all have the same database and settings."""

    def __init__(self, frames: _Frames, orders: _Orders, stack: contextlib.ExitStack) -> None:
        self._frames = frames
        self._orders = orders
        self._stack = stack
        self._session: Session | None = None
        self.is_interrupted = False

    @property
    def state(self) -> str:
        """What would be lost if this process ended now; empty if it is to end."""
        if self._session is None or self.is_interrupted:
            return ""
        return self._session.work.engine.session_state

    def run(self, order: CallOrder) -> None:
        """Run the statements of a call.

        Raises:
            EdlError: One failed.
        """
        if self._session is None:
            self._session = self._open(order)
        statements = self._session.parse(order.sql)
        if order.is_exit_wanted and any(isinstance(each, _WITH_JOBS) for each in statements):
            self._tell("exit_on_submit is not followed: the call lasts as long as its jobs.")
        for statement in statements:
            began = time.monotonic()
            self._orders.is_in_database = isinstance(statement, Standard)
            try:
                result = self._session.run(statement)
            finally:
                self._orders.is_in_database = False
            for response in responses_of(result):
                self._frames.respond(response)
            self._frames.respond(end_of(_text_of(statement), time.monotonic() - began))

    def _open(self, order: CallOrder) -> Session:
        own = {"db": order.db}
        if order.settings.models:
            own["models"] = order.settings.models
        files = ConfigFiles(order.settings.config_dir, order.settings.config_name)
        settings = replace(read_settings(order.settings.overrides, own, files), is_confined=True)
        lines = _Messages(self._frames)

        def run_job(config: JobConfig) -> JobResult:
            with PlainDisplay(lines) as display:
                return api.run(config, on_events=display, warm=warm)

        warm = self._stack.enter_context(WarmServer())
        return self._stack.enter_context(open_session(settings, run_job, tell=self._tell))

    def _tell(self, sentence: str) -> None:
        self._frames.respond(message(sentence))


def _text_of(statement: Statement) -> str:
    """A statement as it was written; those about models and jobs know only where they begin."""
    text = getattr(statement, "text", "")
    rest = statement.position.text[statement.position.offset :]
    return text or rest.partition(";")[0].strip()


def _order_of(line: bytes) -> CallOrder:
    said = json.loads(line)
    settings = Settings(**{**said["settings"], "overrides": tuple(said["settings"]["overrides"])})
    return CallOrder(**{**said, "settings": settings})


if __name__ == "__main__":
    main()
