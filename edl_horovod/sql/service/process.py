"""The process of a session, which runs the statements of its calls and ends when stdin is closed.

It also ends after a call that leaves no state in the database connection.
"""

import contextlib
import datetime
import io
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from google.protobuf import wrappers_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.timestamp_pb2 import Timestamp

from edl_horovod import api
from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.terminal import PlainDisplay
from edl_horovod.errors import EdlError, Interrupted
from edl_horovod.job import log as job_log
from edl_horovod.proto.sqlflow_pb2 import EndOfExecution, Head, Message, Response, Row
from edl_horovod.sql import statements
from edl_horovod.sql.service.frames import (
    HEADER,
    CallRequest,
    FrameKind,
    ServiceSettings,
    status_code,
)
from edl_horovod.sql.session import Session, open_session
from edl_horovod.sql.settings import read_settings
from edl_horovod.sql.statements import Result, Statement
from edl_horovod.supervisor.forks import WarmServer
from edl_horovod.supervisor.run import JobResult

log = logging.getLogger(__name__)
_RUN_JOBS = (statements.Train, statements.Predict, statements.Evaluate, statements.Explain)
"""Statements that run jobs."""
END_SECONDS = 30.0
"""How long an interrupted statement may take to end before this process is killed."""
DATABASE_SECONDS = 2.0
"""The same for a statement of the database itself: nothing interrupts it while it waits in the
driver, and the end of the connection undoes it."""


def main() -> None:
    """Run the calls that are read from stdin."""
    # SIGTERM ends the statements as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job_log.setup("statement", level="warning")
    # Other output must not be mixed with the frames.
    frames = _FrameWriter(os.fdopen(os.dup(1), "wb", buffering=0))
    os.dup2(2, 1)
    with contextlib.suppress(KeyboardInterrupt):  # Interrupted while it waits for a call.
        _run_calls(frames, _RequestQueue())


def _run_calls(frames: "_FrameWriter", requests: "_RequestQueue") -> None:
    threading.Thread(target=requests.read, name="requests", daemon=True).start()
    with contextlib.ExitStack() as stack:
        runner = _SessionRunner(frames, requests, stack)
        while True:
            failure = _run_call(runner, requests.queue.get())
            state = runner.state
            if not state:
                # The service closes stdin as soon as it has read the last frame.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            frames.write(FrameKind.STATE, state.encode())
            frames.write(FrameKind.FAILURE if failure else FrameKind.DONE, failure.encode())
            if not state:
                return


def _run_call(runner: "_SessionRunner", request: CallRequest) -> str:
    """Run the statements of a call; returns the content of a failure frame, or an empty text."""
    try:
        runner.run(request)
    except EdlError as e:
        return f"{status_code(e)}\n{e}"
    except KeyboardInterrupt as e:
        runner.is_interrupted = True
        return f"{status_code(Interrupted(str(e)))}\nThe statement was interrupted."
    except Exception:
        log.exception("a statement failed")
        return "INTERNAL\nThis is a bug of the service. See its log."
    return ""


class _FrameWriter:
    """Writes frames; this blocks while the pipe is full because the client does not read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._is_last_frame_complete = True
        """False after an interrupt within a frame: nothing may be written then."""

    def write(self, kind: FrameKind, content: bytes) -> None:
        if not self._is_last_frame_complete:
            return
        remaining = memoryview(HEADER.pack(kind, len(content)) + content)
        self._is_last_frame_complete = False
        with contextlib.suppress(BrokenPipeError):  # The service is gone.
            while remaining:
                remaining = remaining[self._stream.write(remaining) :]
            self._is_last_frame_complete = True

    def respond(self, response: Response) -> None:
        self.write(FrameKind.RESPONSE, response.SerializeToString())


class _MessageStream(io.StringIO):
    """A text stream that sends each line as a message."""

    def __init__(self, frames: _FrameWriter) -> None:
        super().__init__()
        self._frames = frames

    def write(self, text: str) -> int:
        for line in filter(str.strip, text.splitlines()):
            self._frames.respond(_message(line))
        return len(text)


class _RequestQueue:
    """Reads call requests from stdin in a thread; the end of stdin ends this process."""

    def __init__(self) -> None:
        self.is_in_database = False
        """Whether a statement of the database itself is running."""
        self.queue: queue.SimpleQueue[CallRequest] = queue.SimpleQueue()

    def read(self) -> None:
        for line in sys.stdin.buffer:
            self.queue.put(_request_from_json(line))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(DATABASE_SECONDS)
        if not self.is_in_database:
            time.sleep(END_SECONDS - DATABASE_SECONDS)
        os.killpg(0, signal.SIGKILL)


@dataclass
class _SessionRunner:
    """Runs the calls of one session, which have the same database and settings."""

    frames: _FrameWriter
    requests: _RequestQueue
    stack: contextlib.ExitStack
    session: Session | None = None
    is_interrupted: bool = False

    @property
    def state(self) -> str:
        """What the end of this process would lose; empty if it should end."""
        if self.session is None or self.is_interrupted:
            return ""
        return self.session.context.engine.session_state

    def run(self, request: CallRequest) -> None:
        """Run the statements of a call.

        Raises:
            EdlError: A statement failed.
        """
        if self.session is None:
            self.session = self._open(request)
        program = self.session.parse(request.sql)
        if request.exit_on_submit and any(
            isinstance(statement, _RUN_JOBS) for statement in program
        ):
            self._tell("exit_on_submit is not supported: the call lasts as long as its jobs.")
        for statement in program:
            began = time.monotonic()
            self.requests.is_in_database = isinstance(statement, statements.Standard)
            try:
                result = self.session.run(statement)
            finally:
                self.requests.is_in_database = False
            for response in responses_of(result):
                self.frames.respond(response)
            seconds = int(time.monotonic() - began)
            end = EndOfExecution(sql=_statement_text(statement), spent_time_seconds=seconds)
            self.frames.respond(Response(eoe=end))

    def _open(self, request: CallRequest) -> Session:
        values = {"db": request.db}
        if request.settings.models:
            values["models"] = request.settings.models
        files = ConfigFiles(request.settings.config_dir, request.settings.config_name)
        settings = read_settings(request.settings.overrides, values, files)
        settings = replace(settings, is_confined=True)
        messages = _MessageStream(self.frames)

        def run_job(config: JobConfig) -> JobResult:
            with PlainDisplay(messages) as display:
                return api.run(config, on_events=display, warm=warm)

        warm = self.stack.enter_context(WarmServer())
        return self.stack.enter_context(open_session(settings, run_job, tell=self._tell))

    def _tell(self, sentence: str) -> None:
        self.frames.respond(_message(sentence))


def _statement_text(statement: Statement) -> str:
    """The text of a statement; statements on models and jobs store only their position."""
    text = getattr(statement, "text", "")
    following = statement.position.text[statement.position.offset :]
    return text or following.partition(";")[0].strip()


def _request_from_json(line: bytes) -> CallRequest:
    values = json.loads(line)
    overrides = tuple(values["settings"].pop("overrides"))
    settings = ServiceSettings(**values.pop("settings"), overrides=overrides)
    return CallRequest(**values, settings=settings)


def responses_of(result: Result) -> Iterator[Response]:
    """The head and rows of a result, or its message; clients expect rows after a head."""
    if result.columns:
        yield Response(head=Head(column_names=result.columns))
        for row in result.rows:
            yield Response(row=Row(data=map(_packed, row)))
        if result.has_more_rows:
            yield _message(f"Only the first {len(result.rows):,} rows are returned; use LIMIT.")
    if result.message:
        yield _message(result.message)
    if result.metrics and not result.columns:
        yield _message(", ".join(f"{name} {value:.6g}" for name, value in result.metrics.items()))


def _message(text: str) -> Response:
    """A message to the user."""
    return Response(message=Message(message=text))


def _packed(value: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(_wrapped(value))
    return packed


def _wrapped(value: Any) -> Any:
    match value:
        case None:
            return Row.Null()
        case bool():
            return wrappers_pb2.BoolValue(value=value)
        case int() if -(2**63) <= value < 2**63:
            return wrappers_pb2.Int64Value(value=value)
        case int() if 0 <= value < 2**64:
            return wrappers_pb2.UInt64Value(value=value)
        case float():
            return wrappers_pb2.DoubleValue(value=value)
        case bytes() | bytearray() | memoryview():
            return wrappers_pb2.BytesValue(value=bytes(value))
        case datetime.datetime():
            return _timestamp(value)
        case datetime.date():
            return _timestamp(datetime.datetime(value.year, value.month, value.day))
    # As text decimals keep their digits; times of day and intervals have no wrapper type.
    return wrappers_pb2.StringValue(value=str(value))


def _timestamp(value: datetime.datetime) -> Timestamp:
    """A timestamp; without a time zone it is taken as UTC, as in trainings."""
    moment = value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value
    since_epoch = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return Timestamp(
        seconds=since_epoch.days * 86_400 + since_epoch.seconds,
        nanos=since_epoch.microseconds * 1_000,
    )


if __name__ == "__main__":
    main()
