"""Child processes that never outlive their launcher, each with a log file, and why they died."""

import contextlib
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

from edl_horovod.errors import SEE_DOCTOR, JobFailed, NotEnoughWorkers, OutputError
from edl_horovod.files.memory import CONTROL_GROUP, total_bytes
from edl_horovod.job.lifeline import LIFELINE_VARIABLE
from edl_horovod.supervisor.plan import GRACE_SECONDS, Command

log = logging.getLogger(__name__)

_TRACEBACK = "Traceback (most recent call last):"

HOPELESS_RESTARTS = 8
"""Ends of one child within QUICK_SECONDS after which it is given up."""
QUICK_SECONDS = 30.0
_RETRY_SECONDS = 5.0
_OF_ENVIRONMENT = re.compile(
    r"^(?:ImportError|OSError)\b.*"
    r"(?:shared object|undefined symbol|GLIBC|\[Errno (?:23|24|28)\])"
)
"""Errors of a compiled package that does not fit here, and of too few files or too small a disk."""
_GIB = 1 << 30
_LESS_MEMORY = (
    "lower train.batch_size, data_plan.shuffle_window, data_plan.prefetch_steps or launch.np, raise"
    " train.accumulate_steps, or give it more memory"
)
_CAUSES: dict[int, str] = {
    signal.SIGBUS: "a file in memory could not be read or written: check whether the disk, or"
    f" /dev/shm, is full {SEE_DOCTOR}",
    signal.SIGILL: "the processor lacks instructions that a package was built for: install one that"
    " was built for it",
    signal.SIGSEGV: "a compiled package failed: its stack is in the log",
    signal.SIGABRT: "a compiled package gave up: its message is in the log",
}


class Process(Protocol):
    """The part of `subprocess.Popen` that a `Child` needs of its process."""

    pid: int
    stdin: IO[bytes] | None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; `subprocess.TimeoutExpired` if it still runs."""

    def send_signal(self, sig: int) -> None:
        """Send a signal if it still runs."""


Start = Callable[[Command, Mapping[str, str], IO[bytes] | None], Process]
"""Starts a command, with more variables and its output, as the leader of its own session."""


def start_process(
    command: Command,
    variables: Mapping[str, str],
    output: IO[bytes] | None,
    *,
    pass_fds: Collection[int] = (),
) -> Process:
    """Start a command as a new process.

    Raises:
        FileNotFoundError: The program does not exist.
    """
    return subprocess.Popen(
        command.argv,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        env={**os.environ, **command.environment, **variables},
        pass_fds=pass_fds,
        # A Ctrl-C in the terminal must reach only the launcher, which ends the job in good order.
        start_new_session=True,
    )


class Child:
    """A process that ends when this one does, as its standard input is then closed."""

    def __init__(
        self,
        command: Command,
        log_path: Path | None,
        *,
        start: Start = start_process,
        **more_environment: str,
    ) -> None:
        """Start the process.

        Args:
            command: The command.
            log_path: File to append its output to; None to use this process' own output.
            start: Starts the command.
            **more_environment: Variables in addition to the command's own.

        Raises:
            FileNotFoundError: The program does not exist.
        """
        self.log_path = log_path
        with contextlib.nullcontext() if log_path is None else log_path.open("ab") as stream:
            self._log_start = stream.tell() if stream is not None else 0
            variables = {LIFELINE_VARIABLE: "stdin", **more_environment}
            self._process = start(command, variables, stream)
        self.pid = self._process.pid
        self._is_cleaned_up = False

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._clean_up()
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.exit_code is None:
            self._process.send_signal(number)

    def tail(self, num_lines: int = 15) -> str:
        """The last lines of its log."""
        if self.log_path is None:
            return ""
        # mpirun ends what it prints by a NUL.
        lines = self.log_path.read_text(errors="replace").replace("\0", "").splitlines()
        return "\n".join(lines[-num_lines:])

    def fault(self) -> str:
        """The error below the last traceback that it logged, on one line; empty without one."""
        if self.log_path is None:
            return ""
        with self.log_path.open(errors="replace") as stream:
            stream.seek(self._log_start)
            lines = stream.read().splitlines()
        starts = [place for place, line in enumerate(lines) if line == _TRACEBACK]
        below = lines[starts[-1] + 1 :] if starts else []
        return next((line for line in below if line[:1].strip()), "")

    def last_words(self) -> str:
        """Sentences on how it ended, for a message: its error, or else the end of its log."""
        if fault := self.fault():
            pointer = f" {SEE_DOCTOR}" if _OF_ENVIRONMENT.search(fault) else ""
            return (
                f"It ended with {fault.rstrip('.')}. Its log has the traceback: {self.log_path}."
                f"{pointer}"
            )
        return f"Its log ({self.log_path}) ends:\n{self.tail()}"

    def wait(self, seconds: float) -> bool:
        """Wait for its end; false if it still runs."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._clean_up()
        return True

    def kill(self) -> None:
        """Kill it if it still runs, with its own children, without waiting for its end."""
        if self.exit_code is None:
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it still runs, with its own children, and wait for its end."""
        if self.exit_code is None:
            self.kill()
            self._process.wait()
            self._clean_up()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _clean_up(self) -> None:
        """Kill the children of an ended process, before its process group is reused by another."""
        if not self._is_cleaned_up:
            self._is_cleaned_up = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def end_all(children: list[Child], *, seconds: float = GRACE_SECONDS) -> None:
    """Send SIGTERM to all, wait `seconds` for all together, then kill the rest.

    A second Ctrl-C cuts the wait short, but all are killed: no process is left behind.
    """
    try:
        for child in children:
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        with signals_held():
            for child in children:
                child.close()


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block has ended.

    This replaces the handlers. The signal mask would not be enough, because it holds only for the
    calling thread: another thread would receive the signal, and Python would run the handler in
    the main thread at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
        # `getsignal` returns None for a handler of C code, which Python could not restore.
        if signal.getsignal(number) is not None
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, unless the program has its own handler for it.

    If that handler raises or ends the process, the children end as well.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def seconds_to_retry(process: str, error: OSError) -> float:
    """Tell that a process could not be started, and return when to try it again.

    For lack of memory or of process ids, for instance: the others, which train, go on.
    """
    log.warning("%s cannot be started (%s); trying again in %.0f s", process, error, _RETRY_SECONDS)
    return _RETRY_SECONDS


class RestartingChild:
    """A child that is restarted when it ends, until the job is over."""

    def __init__(
        self, name: str, command: Command, logs: Path, *, is_over: Callable[[], bool]
    ) -> None:
        """Start it; after `is_over` returns true it is not restarted."""
        self._name = name
        self._command, self._log, self._is_over = command, logs / f"{name}.log", is_over
        self._ends: list[float] = []
        self.child = Child(command, self._log)
        self._counted: Child | None = None
        """The last child whose end was counted."""
        self._restart_at = 0.0

    def keep(self) -> None:
        """Restart it if it has ended; call it at short intervals.

        Raises:
            EdlError: It cannot go on, or ended too often.
        """
        if self.child.exit_code is None or self._is_over():
            return
        if self._counted is not self.child:
            self._counted = self.child
            self._count_end(self.child)
            self.child.close()
        if time.monotonic() < self._restart_at:
            return
        try:
            self.child = Child(self._command, self._log)
        except OSError as error:
            self._restart_at = time.monotonic() + seconds_to_retry(f"the {self._name}", error)

    def _count_end(self, child: Child) -> None:
        """Count one end, and wait a little before the restart: its port may still be taken.

        Too many ends in a short time end the job.
        """
        if child.exit_code == OutputError.exit_code:
            raise OutputError(
                f"The job's directory cannot be written any more. The log of the {self._name} "
                f"({child.log_path}) says why, and what to do:\n{child.tail()}"
            )
        if child.exit_code == NotEnoughWorkers.exit_code:
            raise NotEnoughWorkers(
                f"The {self._name} gave up waiting for workers. Its log ({child.log_path}) ends:\n"
                f"{child.tail(1)}"
            )
        now = time.monotonic()
        self._ends = [*(at for at in self._ends if now - at < QUICK_SECONDS), now]
        if len(self._ends) >= HOPELESS_RESTARTS:
            raise JobFailed(
                f"The {self._name} ended {len(self._ends)} times within {QUICK_SECONDS:.0f} s. "
                f"Its log ({child.log_path}) ends:\n{child.tail()}"
            )
        wait = min(0.2 * (len(self._ends) - 1), 2.0)
        ended = exit_text(child.exit_code or 0)
        log.warning("the %s ended with %s; it is restarted", self._name, ended)
        time.sleep(wait)


class Memory:
    """The memory that a process was seen to use, and how much its host or container has."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_bytes = 0
        self._kills_before = _oom_kills()

    def look(self) -> None:
        """Read the process' peak memory; call it regularly, as it cannot be read after the end."""
        with contextlib.suppress(OSError):  # It may have ended.
            for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self._peak_bytes = max(self._peak_bytes, int(line.split()[1]) * 1024)

    def __str__(self) -> str:
        """A clause for messages: the peak memory when last seen, and the total memory."""
        seen = "its memory was not seen"
        if self._peak_bytes:
            seen = f"it had used up to {self._peak_bytes / _GIB:.1f} GiB when last seen"
        return f"{seen}, and there are {total_bytes() / _GIB:.1f} GiB"

    def has_run_out(self) -> bool:
        """Whether the kernel has killed a process here for lack of memory since this one began."""
        return _oom_kills() > self._kills_before


def what_killed(exit_code: int, memory: Memory) -> str:
    """Explain the signal that ended a process: its likely cause, and what to change.

    Args:
        exit_code: The process' exit code, the negative number of the signal. For any other the
            text is empty.
        memory: The use of memory of the process, as last seen.
    """
    if exit_code >= 0:
        return ""
    name = _name(-exit_code)
    if exit_code == -signal.SIGKILL:
        cause = "as the kernel counts, memory ran out" if memory.has_run_out() else _PERHAPS
        return f"It was killed by {name}: {cause} ({memory}). If so, {_LESS_MEMORY}."
    cause = _CAUSES.get(-exit_code, "somebody, or another program, sent it")
    return f"It was ended by {name}: {cause}."


_PERHAPS = "most likely memory ran out, unless somebody killed it"


def exit_text(exit_code: int) -> str:
    """An exit code for messages: the number, or the name of the signal."""
    return str(exit_code) if exit_code >= 0 else _name(-exit_code)


def _name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _oom_kills() -> int:
    """Count the kernel's kills for lack of memory in our control group; 0 if unknown."""
    for path in (CONTROL_GROUP / "memory.events", Path("/proc/vmstat")):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
