"""A process that has imported what a worker needs, and forks a worker at each request.

Importing TensorFlow takes about three seconds of processor time, and memory that forked workers
share.
Only what is imported is shared: nothing is initialised and no thread runs when a worker is forked
(docs/adr/0008).
"""

import json
import os
import socket
import sys
import tempfile
import time

from edl_horovod.job.warm_workers import MAX_MESSAGE_BYTES, READY

__all__ = ["serve"]

_MAX_PID_BYTES = 32


def serve(channel: socket.socket) -> list[str]:
    """Fork a worker for each request, until the other end is closed; returns in the workers alone.

    A request is JSON with two descriptors, the worker's standard input and its output: `variables`
    beyond the server's own, and its `argv`. The answer is its pid, or a negative errno. The worker
    is a child of the requesting process as long as that one is a subreaper. A message without
    descriptors says after how many `idle_seconds` without another one the server ends.

    Returns:
        The command of the worker.
    """
    channel.send(READY)
    while True:
        try:
            message, files, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 2)
        except TimeoutError:
            os._exit(0)
        if not message:
            os._exit(0)
        request = json.loads(message)
        channel.settimeout(request.get("idle_seconds"))
        if not files:
            continue
        pid_read, pid_write = os.pipe()
        status = _fork_twice()
        if status is None:
            os.setsid()
            _take_files(files)
            os.environ.update(request["variables"])
            # It was looked up for the job that started the server.
            tempfile.tempdir = None
            os.write(pid_write, str(os.getpid()).encode())
            for descriptor in (pid_read, pid_write):
                os.close(descriptor)
            channel.close()
            command: list[str] = request["argv"]
            return command
        for descriptor in (pid_write, *files):
            os.close(descriptor)
        channel.send(f"-{status}".encode() if status else os.read(pid_read, _MAX_PID_BYTES))
        os.close(pid_read)


def _fork_twice() -> int | None:
    """None in the grandchild, which has lost its parent by then; else 0, or the errno of a fork."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        child = os.fork()
    except OSError as error:
        return error.errno
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    between = os.getpid()
    try:
        grandchild = os.fork()
    except OSError as error:
        os._exit(error.errno or 1)
    if grandchild:
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    return None


def _take_files(files: list[int]) -> None:
    """Make the first the standard input, and the second the output."""
    standard_input, output = files
    for descriptor, number in ((standard_input, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    for descriptor in files:
        os.close(descriptor)
