"""A worker that gets warm in advance, and takes the place of a process that horovodrun launches."""

import contextlib
import json
import logging
import os
import signal
import socket
import struct
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import EdlError
from edl_horovod.job import log as logs
from edl_horovod.job.warm_workers import MAX_MESSAGE_BYTES, TAKEN, private_folder, socket_folder
from edl_horovod.ring.activity import accounted
from edl_horovod.tasks.warm import make_warm, zoo_copy_checker_of
from edl_horovod.worker.environment import WorkerEnvironment
from edl_horovod.worker.rank import activity_of, be_rank, open_events, recorded_timeline

log = logging.getLogger("edl_horovod.worker")

GREETING_SECONDS = 2.0
CREDENTIALS = struct.Struct("3i")
"""Credentials of the peer of a Unix socket: pid, uid, gid."""


def work_when_launched(config: JobConfig, config_file: Path, environment: WorkerEnvironment) -> int:
    """Get warm, wait for a process that horovodrun launches, and work as the rank in its place."""
    identity, activity = environment.identity, activity_of(config)
    with (
        open_events(config, config_file, environment) as events,
        zoo_copy_checker_of(config, identity) as checker,
        recorded_timeline(config, activity, events, identity),
        accounted(activity, events),
        make_warm(config, events, identity, checker) as work,
    ):
        activity.begin("joins", "waiting to be launched", "warm")
        launched = wait_for_place(config_file, slot=identity.slot)
        # Set for the whole process, because Horovod's library reads them as well.
        os.environ.update(launched.variables)
        environment = WorkerEnvironment.of(os.environ)
        logs.setup(environment.identity.label, level=config.log_level)
        launched.follow()
        try:
            be_rank(config, events, environment, nullcontext(work), activity)
            code = 0
        except EdlError as error:
            log.error("%s", error)
            code = error.exit_code
        launched.report_exit(code)
    return code


class Handover:
    """The connection to the launched process whose place a worker took."""

    def __init__(self, connection: socket.socket, variables: dict[str, str]) -> None:
        self._connection = connection
        self.variables = variables

    def follow(self) -> None:
        """Start a thread that receives its signals, and ends this process when it ends."""
        threading.Thread(target=self._listen, name="handover", daemon=True).start()

    def report_exit(self, code: int) -> None:
        """Report the exit code, with which the launched process ends."""
        with contextlib.suppress(OSError):
            self._connection.sendall(f"exit {code}\n".encode())

    def _listen(self) -> None:
        unreadable = (OSError, ValueError, KeyError, TypeError)
        with contextlib.suppress(*unreadable), self._connection.makefile("rb") as lines:
            while line := lines.readline(MAX_MESSAGE_BYTES):
                number = int(json.loads(line)["signal"])
                if number in (signal.SIGTERM, signal.SIGINT):
                    os.kill(os.getpid(), number)
        os._exit(1)


def wait_for_place(config: Path, *, slot: int) -> Handover:
    """Wait until a process of this user is launched as a worker, and take its place.

    From then on the output of this process goes to that of the launched one.

    Args:
        config: The job's `config.yaml`.
        slot: The slot whose device this worker uses; a process of this slot asks it first.

    Raises:
        ConfigError: The folder belongs to another user, or others may write to it.
    """
    folder = private_folder(socket_folder(config))
    name = f"{slot}-{os.getpid()}.sock"
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{name}.new", dir_fd=place)  # Of a former process with this pid.
            # The path of a socket is limited to 108 bytes, and a job's directory may be longer.
            listener.bind(f"/proc/self/fd/{place}/{name}.new")
            listener.listen()
            os.rename(f"{name}.new", name, src_dir_fd=place, dst_dir_fd=place)
            try:
                while (handover := _accept(listener)) is None:
                    pass
            finally:
                os.unlink(name, dir_fd=place)
    finally:
        os.close(place)
    return handover


def _accept(listener: socket.socket) -> Handover | None:
    connection, _ = listener.accept()
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, uid, _ = CREDENTIALS.unpack(credentials)
    connection.settimeout(GREETING_SECONDS)
    try:
        if uid != os.geteuid():
            raise ValueError("another user's process")
        variables, outputs = _receive(connection)
        connection.sendall(TAKEN)
    except (OSError, ValueError, KeyError, TypeError):
        connection.close()
        return None
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    connection.settimeout(None)
    return Handover(connection, variables)


def _receive(connection: socket.socket) -> tuple[dict[str, str], list[int]]:
    data, outputs, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 2)
    while not data.endswith(b"\n"):
        part = connection.recv(MAX_MESSAGE_BYTES)
        if not part or len(data) > MAX_MESSAGE_BYTES:
            raise ValueError("no whole line")
        data += part
    message: Any = json.loads(data)
    variables = {str(name): str(value) for name, value in message["variables"].items()}
    if len(outputs) != 2:
        raise ValueError("no output")
    return variables, outputs
