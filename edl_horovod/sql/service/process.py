"""The process of one call: runs its statements, and ends when stdin does."""

import contextlib
import io
import json
import logging
import os
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
from edl_horovod.sql.session import open_session
from edl_horovod.sql.settings import read_settings
from edl_horovod.sql.statements import Evaluate, Explain, Predict, Standard, Statement, Train
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
    failure = _failure(frames)
    # The service lets go of this process as soon as it has read the last frame.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames.write(Kind.FAILURE if failure else Kind.DONE, failure.encode())


def _failure(frames: "_Frames") -> str:
    """Run the statements; what failed, for a frame, or an empty text."""
    lifeline = _Lifeline()
    try:
        order = _read_order()
        lifeline.start()
        _run(order, frames, lifeline)
    except EdlError as e:
        return f"{code_of(e)}\n{e}"
    except KeyboardInterrupt as e:
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


class _Lifeline:
    """Ends the statements when stdin ends: the service is gone, or it wants that."""

    def __init__(self) -> None:
        self.is_in_database = False
        """Whether a statement of the database itself is running."""
        self._thread = threading.Thread(target=self._wait, name="lifeline", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _wait(self) -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(DATABASE_SECONDS)
        if not self.is_in_database:
            time.sleep(END_SECONDS - DATABASE_SECONDS)
        os.killpg(0, signal.SIGKILL)


def _run(order: CallOrder, frames: _Frames, lifeline: _Lifeline) -> None:
    own = {"db": order.db}
    if order.settings.models:
        own["models"] = order.settings.models
    files = ConfigFiles(order.settings.config_dir, order.settings.config_name)
    settings = replace(read_settings(order.settings.overrides, own, files), is_confined=True)
    lines = _Messages(frames)

    def run_job(config: JobConfig) -> JobResult:
        with PlainDisplay(lines) as display:
            return api.run(config, on_events=display)

    def tell(sentence: str) -> None:
        frames.respond(message(sentence))

    with open_session(settings, run_job, tell=tell) as session:
        statements = session.parse(order.sql)
        if order.is_exit_wanted and any(isinstance(each, _WITH_JOBS) for each in statements):
            tell("exit_on_submit is not followed: the call lasts as long as its jobs.")
        for statement in statements:
            began = time.monotonic()
            lifeline.is_in_database = isinstance(statement, Standard)
            result = session.run(statement)
            lifeline.is_in_database = False
            for response in responses_of(result):
                frames.respond(response)
            frames.respond(end_of(_text_of(statement), time.monotonic() - began))


def _text_of(statement: Statement) -> str:
    """A statement as it was written; those about models and jobs know only where they begin."""
    text = getattr(statement, "text", "")
    rest = statement.place.text[statement.place.offset :]
    return text or rest.partition(";")[0].strip()


def _read_order() -> CallOrder:
    """What stdin says in its first line; nothing follows but its end."""
    said = json.loads(sys.stdin.buffer.readline())
    settings = Settings(**{**said["settings"], "overrides": tuple(said["settings"]["overrides"])})
    return CallOrder(**{**said, "settings": settings})


if __name__ == "__main__":
    main()
