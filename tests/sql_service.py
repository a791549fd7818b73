"""The SQL service as a process of its own, and a client of its protocol."""

import contextlib
import os
import queue
import select
import subprocess
import sys
import threading
from pathlib import Path

import grpc
from google.protobuf import timestamp_pb2, wrappers_pb2

from edl_horovod.proto.sqlflow_pb2 import Request, Response, Row, Session
from tests.waiting import end

REPOSITORY = Path(__file__).parents[1]
TOKEN = "0123456789abcdef0123456789abcdef"
SECONDS = 60
_VALUES = {
    kind.DESCRIPTOR.full_name: kind
    for kind in (
        *(getattr(wrappers_pb2, name) for name in wrappers_pb2.DESCRIPTOR.message_types_by_name),
        timestamp_pb2.Timestamp,
        Row.Null,
    )
}


class Service:
    """A service that runs, and calls of it."""

    def __init__(self, process, address):
        self.process, self.address = process, address

    @contextlib.contextmanager
    def channel(self, credentials=None):
        if credentials is None:
            channel = grpc.insecure_channel(self.address)
        else:
            channel = grpc.secure_channel(self.address, credentials)
        with channel:
            yield channel

    def start(self, channel, sql, *, token=TOKEN, seconds=SECONDS, **session):
        """The responses of a call, as they come."""
        run = channel.unary_stream(
            "/proto.SQLFlow/Run",
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        request = Request(sql=sql, session=Session(token=token, **session))
        return run(request, timeout=seconds)

    def run(self, sql, **more):
        """All responses of a call."""
        with self.channel() as channel:
            return list(self.start(channel, sql, **more))

    def fail(self, sql, **more):
        """The name of the code, and the text, of a call that fails."""
        try:
            responses = self.run(sql, **more)
        except grpc.RpcError as e:
            return e.code().name, e.details()
        raise AssertionError(f"the call did not fail: {responses}")


@contextlib.contextmanager
def service(folder, *words, most_files=None, **environment):
    """A service on the database `hr.db` of a folder, which ends with the block.

    Args:
        folder: Of its token, models and log.
        words: Of its command.
        most_files: How many files and connections it may have open; None for many.
        environment: Variables of its process.
    """
    (folder / "token").write_text(TOKEN + "\n")
    command = [
        *(sys.executable, "-m", "edl_horovod", "serve-sql", "--port", "0"),
        *("--token-file", str(folder / "token"), f"models={folder}/models", *words),
    ]
    if "EDL_DB" not in environment:
        command.append(f"db=sqlite:///{folder}/hr.db")
    if most_files is not None:
        command = ["prlimit", f"--nofile={most_files}", *command]
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        )
    try:
        readable, _, _ = select.select([process.stdout], [], [], SECONDS)
        line = process.stdout.readline().decode() if readable else ""
        assert "Statements are run at" in line, (folder / "service.log").read_text()
        yield Service(process, line.rstrip().removesuffix(".").rpartition(" ")[2])
    finally:
        if process.poll() is None:
            end(process, seconds=SECONDS)
        process.stdout.close()


def values(row):
    """The cells of a row: messages, and `...` for NULL."""
    cells = []
    for packed in row.data:
        message = _VALUES[packed.TypeName()]()
        assert packed.Unpack(message)
        if isinstance(message, Row.Null):
            cells.append(None)
        elif isinstance(message, timestamp_pb2.Timestamp):
            cells.append(message.ToDatetime())
        else:
            cells.append(message.value)
    return cells


def in_background(call):
    """Read a call in a thread; the queue gets each response, then the error or None."""
    responses: queue.Queue = queue.Queue()

    def read():
        try:
            for response in call:
                responses.put(response)
            responses.put(None)
        except grpc.RpcError as e:
            responses.put(e)

    threading.Thread(target=read, daemon=True).start()
    return responses


def children_of(pid):
    """The processes that a process started, and theirs."""
    descendants = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                descendants += [child, *children_of(child)]
    return descendants
