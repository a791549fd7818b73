"""Forks workers from a process that has imported the framework already (docs/adr/0008)."""

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

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""Longest wait for the answer of a server; a fork takes some milliseconds."""
IDLE_SECONDS = 300.0
"""How long an idle server waits for the next job before it ends."""
STANDARD_OUTPUT = 1
_OF_ONE_JOB = ("EDL_COORDINATOR", "EDL_SECRET_FILE", "TMPDIR")
"""Variables that only forked workers read, so a server with other values serves as well."""
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_SUBREAPER = threading.Lock()
"""Held while this process is a subreaper: that affects all threads, and several may run jobs."""


class ForkServer:
    """Forks workers by a server process, which is restarted if it ends; its workers outlive it."""

    def __init__(
        self, command: Command, log_path: Path | None, warm: "WarmServer | None" = None
    ) -> None:
        """Prepare; `is_ready` starts the server.

        Args:
            command: The command of a worker.
            log_path: Log file of the server itself; None to use this process' own output.
            warm: Has the server of an earlier job, and gets this one's by `leave`.
        """
        self._command = command
        self._log_path = log_path
        self._warm = warm
        self._server: _Server | None = None
        self._is_given_up = False

    @property
    def children(self) -> list[Child]:
        """The process of the server, without the workers that it forked."""
        return [self._server] if self._server is not None else []

    def is_ready(self) -> bool:
        """Start the server if need be; returns whether `start` may be called by now."""
        if not self._is_given_up and self._server is None:
            self._server = self._warm.take(self._command) if self._warm is not None else None
            self._server = self._server or _Server(self._command, self._log_path)
        elif self._server is not None and self._server.exit_code is not None:
            self._handle_end(self._server)
        return self._is_given_up or (self._server is not None and self._server.is_ready())

    def start(
        self, command: Command, variables: Mapping[str, str], output: IO[bytes] | None
    ) -> Process:
        """Fork one worker, or start it as a new process if forking fails.

        Args:
            command: The command of this worker, whose variables may differ from the others'.
            variables: Further variables.
            output: File for its output; None to use this process' own output.
        """
        if self._server is not None:
            try:
                descriptor = output.fileno() if output is not None else STANDARD_OUTPUT
                return self._server.fork(command, variables, descriptor)
            except OSError as error:
                log.warning("a worker cannot be forked (%s): it is started as a new process", error)
                self._server.close()
                self._server = None
        return start_process(command, variables, output)

    def leave(self) -> None:
        """Keep the server for the next job, if `warm` was given."""
        if self._warm is not None and self._server is not None and self._server.is_ready():
            self._warm.keep(self._command, self._server)
            self._server = None

    def _handle_end(self, server: "_Server") -> None:
        if server.has_imported:
            log.warning("the fork server ended with %s; it is restarted", server.exit_code)
        else:
            self._is_given_up = True
            log.warning(
                "the fork server ended with %s before it was ready: workers are started as new "
                "processes. %s",
                server.exit_code,
                server.last_words() if self._log_path else "",
            )
        server.close()
        self._server = None


class WarmServer:
    """Keeps the fork server of a job that has ended, for this program's next job (docs/adr/0031).

    A context manager: leaving it ends the server.
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
        """Return a server that can fork the workers of a command; None if there is none."""
        server, self._server = self._server, None
        if server is None or (self._kind == _imported_state(command) and server.exit_code is None):
            return server
        server.close()
        return None

    def keep(self, command: Command, server: "_Server") -> None:
        """Keep the server of a command; it ends by itself if no job takes it."""
        self.__exit__()
        try:
            server.wait_for_work(IDLE_SECONDS)
            self._kind, self._server = _imported_state(command), server
        except OSError:  # It is dead.
            server.close()


def _imported_state(command: Command) -> object:
    """What affects the imports of a process; a server serves only commands with an equal value."""
    environment = {**os.environ, **command.environment, **dict.fromkeys(_OF_ONE_JOB)}
    return (command.imports, os.getcwd(), environment)


class _Server(Child):
    """The process of a fork server, and the connection to it."""

    def __init__(self, command: Command, log_path: Path | None) -> None:
        self._channel, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(ANSWER_SECONDS)
        self.has_imported = False
        with server_end:
            argv = (*command.argv, "--fork-server", str(server_end.fileno()))
            start = functools.partial(start_process, pass_fds=[server_end.fileno()])
            super().__init__(replace(command, argv=argv), log_path, start=start)

    def is_ready(self) -> bool:
        if not self.has_imported and _is_readable(self._channel):
            self.has_imported = self._channel.recv(len(READY)) == READY
        return self.has_imported

    def wait_for_work(self, seconds: float) -> None:
        """End the process if no request comes for this long.

        Raises:
            OSError: It is dead.
        """
        self._channel.send(json.dumps({"idle_seconds": seconds}).encode())

    def fork(self, command: Command, variables: Mapping[str, str], output: int) -> "_Forked":
        """Fork one worker, whose output goes to the descriptor `output`.

        Raises:
            OSError: There is no answer, or no memory or room for another process.
        """
        environment = {**command.environment, **variables}
        request = json.dumps({"variables": environment, "argv": command.argv})
        standard_input, lifeline = os.pipe()
        try:
            # An interrupt here would lose the answer, which the next request would then read.
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
    """A worker that the server forked, with the interface of a `Popen`.

    It is a child of this process all the same: see `_subreaper`.
    """

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self._code: int | None = None
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self._code is None and _is_readable(self._end):
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._end)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None and not _is_readable(self._end, timeout):
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, sig)


def _is_readable(file: socket.socket | int, seconds: float | None = 0.0) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


@contextlib.contextmanager
def _subreaper() -> Iterator[None]:
    """Make this process a subreaper: orphaned descendants become its children, not those of init.

    The server forks twice, so that a worker is orphaned, and becomes a child of this process. Only
    within the block, because the program may start other processes that must not.
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
