"""The process that plain horovodrun launches where warm workers wait.

Usage: `python -m edl_horovod.worker.shim --config config.yaml`.

It passes its Horovod variables and its output to a warm worker of this host, forwards signals to
it, and ends with its exit code. If no worker waits, it becomes a cold worker itself. It imports
only the standard library, so that it starts in about ten milliseconds.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from edl_horovod.job.warm_workers import MAX_MESSAGE_BYTES, TAKEN, socket_folder

PREFIXES = ("HOROVOD_", "_HOROVOD_", "NCCL_")
"""Prefixes of the variables that are passed to the warm worker."""
REPLY_SECONDS = 2.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Hand over to a warm worker, or become a cold one; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="the job's resolved config.yaml")
    config = parser.parse_args().config.absolute()
    variables = {n: v for n, v in os.environ.items() if n.startswith(PREFIXES)}
    message = json.dumps({"variables": variables}).encode() + b"\n"
    for path in _waiting(config):
        with contextlib.ExitStack() as stack:
            worker = _hand_over(path, message, stack)
            if worker is not None:
                return _follow(worker)
    sys.stderr.write("edl_horovod.worker.shim: no warm worker waits here; this one starts cold\n")
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "edl_horovod.worker", "--config", str(config)])


def _waiting(config: Path) -> Iterator[Path]:
    """Sockets of this host's warm workers: those of the launched slot first, then by age."""
    slot = os.environ.get("HOROVOD_LOCAL_RANK", "0")
    sockets = []
    for path in socket_folder(config).glob("*.sock"):
        with contextlib.suppress(FileNotFoundError):  # Another process has taken it.
            sockets.append((not path.name.startswith(f"{slot}-"), path.stat().st_mtime_ns, path))
    return (path for *_, path in sorted(sockets))


def _hand_over(path: Path, message: bytes, stack: contextlib.ExitStack) -> socket.socket | None:
    """Offer the place to a worker; returns the connection to it, or None if it did not accept."""
    connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    connection.settimeout(REPLY_SECONDS)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, folder)
    try:
        # The path of a socket is limited to 108 bytes, and a job's directory may be longer.
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        socket.send_fds(connection, [message], [sys.stdout.fileno(), sys.stderr.fileno()])
        if connection.recv(len(TAKEN)) != TAKEN:  # Read no more: the exit code may follow at once.
            return None
    except OSError:
        # Another process has just taken it, or it was killed and left its socket behind.
        return None
    connection.settimeout(None)
    return connection


def _follow(worker: socket.socket) -> int:
    """Forward signals until the worker ends; returns its exit code."""
    forwarded: list[int] = []

    def forward(number: int, _frame: object) -> None:
        forwarded.append(number)
        with contextlib.suppress(OSError):
            worker.sendall(json.dumps({"signal": number}).encode() + b"\n")

    for number in SIGNALS:
        signal.signal(number, forward)
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := worker.recv(MAX_MESSAGE_BYTES):
            answer += part
    if answer.startswith(b"exit "):
        return int(answer.split()[1])
    # It ended without an answer: by the forwarded signal, or it was killed.
    return 128 + (forwarded[0] if forwarded else signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
