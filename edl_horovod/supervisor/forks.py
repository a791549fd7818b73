"""Workers that are forked from a process which has imported all they need (docs/adr/0008)."""

import contextlib
import ctypes
import errno
import functools
import json
import logging
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from edl_horovod.job.warm_workers import MAX_MESSAGE_BYTES, READY
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import Child, Process, signals_held, start_process

__all__ = ["ForkServer", "WarmServer"]

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""A fork takes some milliseconds."""
IDLE_SECONDS = 300.0
"""How long a server waits for the next job."""
STANDARD_OUTPUT = 1
_OF_ONE_JOB = ("EDL_COORDINATOR", "EDL_SECRET_FILE", "TMPDIR")
"""Variables that workers read after they are forked, so that a server's own do not matter."""
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_SUBREAPER = threading.Lock()
"""To be one is a property of the whole process, and jobs may run in several of its threads."""


class ForkServer:
    """Forks the workers of a command, which outlive it; restarted if it ends."""

    def __init__(
        self, command: Command, log_path: Path | None, warm: "WarmServer | None" = None
    ) -> None:
        """Start nothing yet: `is_ready` does.

        Args:
            command: The command of a worker.
            log_path: Takes what the server itself prints; None makes it this process' own.
            warm: Holds what an earlier job left, and takes this one's in `leave`.
        """
        self._command = command
        self._log_path = log_path
        self._warm = warm
        self._server: _Server | None = None
        self._is_given_up = False

    @property
    def children(self) -> list[Child]:
        """The server's own process, not those that it forked."""
        return [self._server] if self._server is not None else []

    def is_ready(self) -> bool:
        """Whether `start` has something to fork from by now; call it often."""
        if not self._is_given_up and self._server is None:
            self._server = self._warm.take(self._command) if self._warm is not None else None
            self._server = self._server or _Server(self._command, self._log_path)
        elif self._server is not None and self._server.exit_code is not None:
            self._after_the_end(self._server)
        return self._is_given_up or (self._server is not None and self._server.is_ready())

    def start(
        self, command: Command, variables: Mapping[str, str], output: IO[bytes] | None
    ) -> Process:
        """Start one worker: forked, or from nothing if that cannot be.

        Args:
            command: The command of this worker, whose variables may differ from the others'.
            variables: Further variables.
            output: Takes what it prints; None makes it this process' own.
        """
        if self._server is not None:
            try:
                descriptor = output.fileno() if output is not None else STANDARD_OUTPUT
                return self._server.fork(command, variables, descriptor)
            except OSError as error:
                log.warning("a worker cannot be forked (%s): it is started from nothing", error)
                self._server.close()
                self._server = None
        return start_process(command, variables, output)

    def leave(self) -> None:
        """Leave the server to the next job, if there is a place for it."""
        if self._warm is not None and self._server is not None and self._server.is_ready():
            self._warm.keep(self._command, self._server)
            self._server = None

    def _after_the_end(self, server: "_Server") -> None:
        if server.has_imported:
            log.warning("what forks workers ended with %s; it starts again", server.exit_code)
        else:
            self._is_given_up = True
            log.warning(
                "what forks workers ended with %s before it was ready: workers are started from "
                "nothing. %s",
                server.exit_code,
                server.last_words() if self._log_path else "",
            )
        server.close()
        self._server = None


class WarmServer:
    """Holds the server of a job that has ended, for the next job of this program (docs/adr/0031).

    Use it in a `with`, which ends the server.
    """

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._kind: object = None

    def __enter__(self) -> "WarmServer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self._server = None

    def take(self, command: Command) -> "_Server | None":
        """What workers of a command can be forked from; None where nothing fits, or it ended."""
        server, self._server = self._server, None
        if server is None:
            return None
        if self._kind == _kind_of(command) and server.exit_code is None:
            return server
        server.close()
        return None

    def keep(self, command: Command, server: "_Server") -> None:
        """Hold what workers of a command were forked from; it ends when nothing wants it."""
        self.__exit__()
        try:
            server.wait_for_work(IDLE_SECONDS)
        except OSError:  # It is dead.
            server.close()
            return
        self._kind, self._server = _kind_of(command), server


def _kind_of(command: Command) -> object:
    """What a process had when it imported: another job's workers need the same."""
    environment = {**os.environ, **command.environment}
    shared = {name: value for name, value in environment.items() if name not in _OF_ONE_JOB}
    return (command.imports, os.getcwd(), shared)


class _Server(Child):
    """The process that forks, and the way to it."""

    def __init__(self, command: Command, log_path: Path | None) -> None:
        self._channel, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(ANSWER_SECONDS)
        self.has_imported = False
        with server_end:
            argv = (*command.argv, "--fork-server", str(server_end.fileno()))
            start = functools.partial(start_process, pass_fds=[server_end.fileno()])
            super().__init__(replace(command, argv=argv), log_path, start=start)

    def is_ready(self) -> bool:
        if not self.has_imported and _has_something(self._channel):
            self.has_imported = self._channel.recv(len(READY)) == READY
        return self.has_imported

    def wait_for_work(self, seconds: float) -> None:
        """End the process if no request comes for this long.

        Raises:
            OSError: It is dead.
        """
        self._channel.send(json.dumps({"idle_seconds": seconds}).encode())

    def fork(self, command: Command, variables: Mapping[str, str], output: int) -> "_Forked":
        """Fork one worker, whose output goes to that descriptor.

        Raises:
            OSError: There is no answer, or no memory or room for another process.
        """
        environment = {**command.environment, **variables}
        request = json.dumps({"variables": environment, "argv": command.argv})
        standard_input, lifeline = os.pipe()
        try:
            # An interrupt would lose a worker's pid, and the next answer would be taken for it.
            with signals_held(), _subreaper():
                socket.send_fds(self._channel, [request.encode()], [standard_input, output])
                answer = int(self._channel.recv(MAX_MESSAGE_BYTES) or -errno.EPIPE)
            if answer < 0:
                raise OSError(-answer, os.strerror(-answer))
            return _Forked(answer, os.fdopen(lifeline, "wb"))
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(standard_input)

    def close(self) -> None:
        super().close()
        self._channel.close()


class _Forked:
    """A child of this process that another one forked; to its owner it is like a `Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self._code: int | None = None
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self._code is None and _has_something(self._end):
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._end)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None and not _has_something(self._end, timeout):
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, sig)


def _has_something(file: socket.socket | int, seconds: float | None = 0.0) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


@contextlib.contextmanager
def _subreaper() -> Iterator[None]:
    """Be the one whose child an orphan among its descendants becomes: what is forked twice is ours.

    Only for so long: the program around us may start processes that must not become our children.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int()
    with _SUBREAPER:
        prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl: no subreaper")
        try:
            yield
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
